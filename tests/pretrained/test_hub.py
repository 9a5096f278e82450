"""Models on the Hub, against a fake one on this machine: what is pushed comes back, anything else is one sentence."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants

import vbmem
from pretrained.fake_hub import TOKEN, FakeHub, Repository
from tiny import seeded, tiny_model, waves
from vbmem.commands import memory_files, trained_models
from vbmem.errors import ModelError
from vbmem.pretrained import load_network, shipped


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = FakeHub()
    for name, value in {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield hub
    hub.close()


def fetched(hub: FakeHub) -> set[str]:
    return {
        request.rsplit("/", 1)[-1] for request in hub.requests if request.startswith("GET") and "/resolve/" in request
    }


# --- What is pushed comes back --------------------------------------------------------------------------------------


def test_a_pushed_model_comes_back_as_it_was(hub):
    model = tiny_model().resize(clusters=7)
    assert model.push_to_hub("me/tiny", token=TOKEN) == f"{hub.endpoint}/me/tiny"
    loaded = vbmem.load("hf://me/tiny")
    assert (loaded.name, loaded.fingerprint, loaded.card) == ("hf://me/tiny", model.fingerprint, model.card)
    assert loaded.memory.config() == model.memory.config()
    memory = model.write(waves(9, 8), generator=seeded())
    assert loaded.generate(memory, 3).shape == (3, 3, 8, 8)


def test_three_files_go_up_in_one_commit_and_two_come_down(hub):
    tiny_model().push_to_hub("me/tiny", token=TOKEN)
    assert [set(files) for files in hub.repositories["me/tiny"].commits.values()] == [
        {"config.json", "model.safetensors", "README.md"}
    ]
    hub.repositories["me/tiny"].commit({"code.py": b"raise SystemExit", "more/config.json": b"{}"})
    vbmem.load("hf://me/tiny")
    assert fetched(hub) == {"config.json", "model.safetensors"}


def test_a_revision_stays_what_it_was(hub):
    tiny_model().push_to_hub("me/tiny", token=TOKEN)
    tiny_model("gaussian").push_to_hub("me/tiny", token=TOKEN)
    first, _ = hub.repositories["me/tiny"].commits
    assert vbmem.load("hf://me/tiny").fingerprint == tiny_model("gaussian").fingerprint
    assert vbmem.load(f"hf://me/tiny@{first}").fingerprint == tiny_model().fingerprint


def test_what_was_downloaded_loads_without_a_connection(hub):
    tiny_model().push_to_hub("me/tiny", token=TOKEN)
    vbmem.load("hf://me/tiny")
    hub.close()
    assert vbmem.load("hf://me/tiny").fingerprint == tiny_model().fingerprint


def test_a_private_model_is_for_those_with_a_token(hub, monkeypatch):
    tiny_model().push_to_hub("me/secret", private=True, token=TOKEN)
    assert hub.repositories["me/secret"].private
    with pytest.raises(ModelError, match="the Hub has no such model that you may see; check the name, or log in"):
        vbmem.load("hf://me/secret")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert vbmem.load("hf://me/secret").fingerprint == tiny_model().fingerprint


def test_nothing_private_is_pushed_where_all_can_see_it(hub):
    hub.repositories["me/open"] = Repository()
    with pytest.raises(ModelError, match="me/open is on the Hub already, and public"):
        tiny_model().push_to_hub("me/open", private=True, token=TOKEN)
    assert not hub.repositories["me/open"].commits


# --- The card -------------------------------------------------------------------------------------------------------


def test_the_pushed_card_says_how_to_load_the_model(hub):
    card = {"data": "cifar10", "license": "no: such"}
    model = tiny_model()
    replace(model, card=card).push_to_hub("me/tiny", token=TOKEN)
    text = hub.files("me/tiny")["README.md"].decode()
    assert "# me/tiny\n" in text
    assert 'vbmem.load("hf://me/tiny")' in text
    metadata = ModelCard(text).data.to_dict()
    assert (metadata["license"], metadata["datasets"]) == ("no: such", ["cifar10"])


@pytest.mark.parametrize("name", shipped())
def test_the_hub_can_read_the_header_of_every_shipped_card(name):
    card = ModelCard.load(Path(vbmem.__file__).parent / "weights" / name / "README.md", ignore_metadata_errors=False)
    assert card.data.library_name == "vbmem"
    assert card.data.pipeline_tag == "unconditional-image-generation"
    assert card.data.license == load_network(name).card["license"]


def test_what_the_hub_finds_wrong_with_a_card_is_passed_on(hub):
    hub.yaml_errors = ['"license" must be one of [apache-2.0, mit]']
    with pytest.raises(ModelError, match=r'me/tiny: the Hub .*"license" must be one of \[apache-2.0, mit\]'):
        tiny_model().push_to_hub("me/tiny", token=TOKEN)


# --- What is refused ------------------------------------------------------------------------------------------------


def test_a_model_that_is_not_there_is_one_sentence(hub):
    with pytest.raises(ModelError, match=r"^hf://me/none: the Hub has no such model that you may see") as error:
        vbmem.load("hf://me/none")
    assert "\n" not in str(error.value)
    tiny_model().push_to_hub("me/tiny", token=TOKEN)
    with pytest.raises(ModelError, match=r"^hf://me/tiny@v9: the Hub has no such revision"):
        vbmem.load("hf://me/tiny@v9")


@pytest.mark.parametrize("files", [{"README.md": b"hello"}, {"config.json": b'{"model_type": "gpt2"}'}])
def test_another_librarys_weights_are_not_even_fetched(hub, files):
    hub.repositories["me/other"] = Repository()
    hub.repositories["me/other"].commit({"model.safetensors": b"many gigabytes", **files})
    with pytest.raises(ModelError, match=r"hf://me/other cannot be loaded: .*(no config\.json|not saved by vbmem)"):
        vbmem.load("hf://me/other")
    assert "model.safetensors" not in fetched(hub)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", lambda content: content[:-9], r"config\.json is damaged"),
        ("config.json", lambda content: b"[" * 100_000, r"config\.json is damaged"),
        (
            "model.safetensors",
            lambda content: content[:-9],
            r"model\.safetensors is damaged or not a model's weights",
        ),
        (
            "model.safetensors",
            lambda content: b"\x80\x04.",
            r"model\.safetensors is damaged or not a model's weights",
        ),
    ],
)
def test_a_damaged_file_is_named(hub, name, content, message):
    tiny_model().push_to_hub("me/tiny", token=TOKEN)
    hub.repositories["me/tiny"].commit({name: content(hub.files("me/tiny")[name])})
    with pytest.raises(ModelError, match=message):
        vbmem.load("hf://me/tiny")


def test_without_a_connection_it_is_one_sentence(hub):
    hub.close()
    with pytest.raises(ModelError, match=r"^hf://me/tiny: the Hub cannot be reached, and it was not downloaded"):
        vbmem.load("hf://me/tiny")
    with pytest.raises(ModelError, match=r"^me/tiny: the Hub gave an error .*refused"):
        tiny_model().push_to_hub("me/tiny", token=TOKEN)


def test_without_a_token_nothing_is_pushed(hub):
    with pytest.raises(ModelError, match="the Hub does not let you; log in with `hf auth login`, or give a token"):
        tiny_model().push_to_hub("me/tiny")
    assert not hub.repositories


@pytest.mark.parametrize("name", ["", "tiny", "me/", "/tiny", "me/tiny/config.json", "me /tiny", "@main"])
def test_names_are_those_of_a_user_and_a_model(hub, name):
    with pytest.raises(ModelError, match="is not a model on the Hub; expected user/name"):
        vbmem.load(f"hf://{name}")
    with pytest.raises(ModelError, match="is not a model on the Hub; expected user/name"):
        tiny_model().push_to_hub(name, token=TOKEN)
    assert not hub.requests


def test_without_huggingface_hub_the_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for use in (lambda: vbmem.load("hf://me/tiny"), lambda: tiny_model().push_to_hub("me/tiny")):
        with pytest.raises(ModelError, match=r"need huggingface_hub, .*; run: pip install 'vbmem\[hub\]'"):
            use()


# --- The command line -----------------------------------------------------------------------------------------------


def test_export_pushes_and_the_other_commands_take_the_name(hub, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    tiny_model().save(tmp_path / "tiny")
    trained_models.export(str(tmp_path / "tiny"), push="me/tiny", half=True, facts=["license=mit"])
    assert f"pushed hf://me/tiny to {hub.endpoint}/me/tiny" in capsys.readouterr().out
    assert json.loads(hub.files("me/tiny")["config.json"])["card"]["license"] == "mit"
    memory = tmp_path / "my.memory"
    memory_files.write((folder,), memory, model="hf://me/tiny")
    with pytest.raises(ValueError, match=r"written by 'hf://me/tiny', .*; give --model hf://me/tiny"):
        memory_files.generate(memory)
    memory_files.generate(memory, tmp_path / "new.png", 4, model="hf://me/tiny")
    trained_models.export("hf://me/tiny", tmp_path / "back", half=True)
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == hub.files("me/tiny")["model.safetensors"]


def test_export_wants_a_place_to_save_to(tmp_path):
    with pytest.raises(ValueError, match="give --out DIRECTORY, --push USER/NAME, or both"):
        trained_models.export(str(tmp_path))


def test_export_pushes_nothing_else_that_lies_in_its_directory(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (tmp_path / "diary.txt").write_text("private")
    trained_models.export("digits-mixture", tmp_path, push="me/digits")
    expected = {"config.json", "model.safetensors", "reference.safetensors", "README.md"}
    assert set(hub.files("me/digits")) == expected
