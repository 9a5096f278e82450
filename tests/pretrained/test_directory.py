"""Models on disk: what is saved comes back, runs load too, and anything else is refused in one sentence."""

import json
import math
import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import vbmem
from tiny import DATA, KINDS, seeded, tiny_model, tiny_network, tiny_run, tiny_trainer, waves
from vbmem.data import ImageSet, load_images
from vbmem.errors import ModelError
from vbmem.files import write_checked_json
from vbmem.models import SavedModel, save_model
from vbmem.models import directory as directory_module
from vbmem.models.directory import write_weights
from vbmem.pretrained import load_network, shipped


def plain_config(memory) -> dict[str, object]:
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in memory.config().items()}


def assert_same_networks(one, other) -> None:
    assert one.config == other.config
    assert one.frame == other.frame
    theirs = other.state_dict()
    assert one.state_dict().keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


# --- Model directories ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_comes_back_as_it_was(kind, tmp_path):
    model = tiny_model(kind)
    model.save(tmp_path / "model")
    loaded = vbmem.load(tmp_path / "model")
    assert_same_networks(loaded.network, model.network)
    assert (loaded.name, loaded.fingerprint, loaded.card) == (model.name, model.fingerprint, model.card)
    assert loaded.memory.config() == model.memory.config()
    assert torch.equal(loaded.encode(waves(3, 8)).mean, model.encode(waves(3, 8)).mean)
    memory = model.write(waves(9, 8), generator=seeded())
    assert torch.equal(loaded.generate(memory, 3, generator=seeded()), model.generate(memory, 3, generator=seeded()))
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"config.json", "model.safetensors", "README.md"}


@pytest.mark.parametrize("sizes", [{"clusters": 7}, {"rows": 5}, {"clusters": 2, "rows": 1}])
@pytest.mark.parametrize("learned_scales", [False, True])
def test_a_resized_model_comes_back_as_it_was(sizes, learned_scales, tmp_path):
    """With the prior and the variance of the codes that it was trained with, which follow from the first rows."""
    model = tiny_model("mixture", learned_scales=learned_scales).resize(**sizes)
    model.save(tmp_path)
    loaded = vbmem.load(tmp_path)
    assert_same_networks(loaded.network, model.network)
    assert plain_config(loaded.memory) == plain_config(model.memory)
    assert {size: getattr(loaded.network.memory, size) for size in sizes} == sizes  # for its bound, too
    assert loaded.memory.warns
    assert not loaded.network.memory.warns
    assert torch.equal(loaded.encode(waves(2, 8)).var, model.encode(waves(2, 8)).var)
    loaded.save(tmp_path / "again")
    assert plain_config(vbmem.load(tmp_path / "again").memory) == plain_config(model.memory)


def test_a_model_that_learned_one_noise_for_all_numbers_keeps_it(tmp_path):
    """As those of vbmem 0.4 and before did."""
    model = tiny_model("mixture", learned_scales=True)
    model.save(tmp_path)
    weights = model.network.state_dict() | {"log_scales.noise_var": torch.tensor(-1.5)}
    write_weights(tmp_path, weights)
    loaded = vbmem.load(tmp_path)
    assert torch.as_tensor(loaded.memory.noise_var).item() == pytest.approx(math.exp(-1.5))
    loaded.save(tmp_path / "again")
    assert_same_networks(vbmem.load(tmp_path / "again").network, loaded.network)
    write_weights(tmp_path, weights | {"log_scales.loc_var": torch.zeros(4)})
    with pytest.raises(ModelError, match="does not hold the weights"):
        vbmem.load(tmp_path)


def test_sizes_of_a_memory_need_one(tmp_path):
    save_model(SavedModel(tiny_network("vae"), "plain", sizes={"clusters": 7}), tmp_path)
    with pytest.raises(ModelError, match="it has no memory, and clusters of one"):
        load_network(tmp_path)


def test_half_precision_is_half_the_size_and_nearly_the_same(mixture, tmp_path):
    for name, dtype in (("float", torch.float32), ("half", torch.float16)):
        save_model(SavedModel(mixture.network, "m"), tmp_path / name, dtype=dtype)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("float", "half")]
    assert sizes[1] < 0.52 * sizes[0]
    network = tiny_network()
    save_model(SavedModel(network, "tiny"), tmp_path / "tiny", dtype=torch.float16)
    half = vbmem.load(tmp_path / "tiny")
    assert next(half.network.parameters()).dtype == torch.float32
    assert half.fingerprint != tiny_model().fingerprint
    torch.testing.assert_close(half.encode(waves(3, 8)).mean, tiny_model().encode(waves(3, 8)).mean, rtol=0, atol=0.05)


@pytest.mark.parametrize(("name", "changes"), [("vae", {}), ("own part", {"own_size": 6})])
def test_a_model_without_a_memory_has_networks_only(name, changes, tmp_path):
    network = tiny_network(name, **changes)
    save_model(SavedModel(network, "plain", card={"data": "noise"}), tmp_path)
    loaded = load_network(tmp_path)
    assert_same_networks(loaded.network, network)
    assert (loaded.name, loaded.card) == ("plain", {"data": "noise"})
    with pytest.raises(ModelError, match="is a VAE, which has no memory to write; choose a memory model"):
        vbmem.load(tmp_path)
    assert "A vae model over" in (tmp_path / "README.md").read_text()


def test_the_card_says_where_a_model_comes_from(tmp_path):
    card = {"data": "cifar10", "test bound": "3,000 nats a frame"}
    model = replace(tiny_model(), name="my-model", card=card)
    model.save(tmp_path)
    card = (tmp_path / "README.md").read_text()
    header, text = card.removeprefix("---\n").split("---\n", 1)
    assert "datasets: [cifar10]" in header
    for part in ("# my-model", "A mixture model over 8 x 8 pictures", "- test bound: 3,000 nats a frame"):
        assert part in text
    assert 'vbmem.load("path/to/this/directory")' in text  # its name would load nothing


def test_a_failed_save_leaves_the_old_model(tmp_path, fill_disk):
    tiny_model().save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    fill_disk()
    with pytest.raises(OSError, match="disk full"):
        tiny_model("gaussian").save(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("part", ["write_weights", "write_settings", "render_card"])
def test_a_save_that_fails_half_way_leaves_the_old_model_and_nothing_else(part, tmp_path, monkeypatch):
    """One with the same shapes, whose weights nothing would tell from the new ones."""

    def fail(*args, **kwargs):
        raise OSError("disk full")

    old = tiny_model()
    old.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(directory_module, part, fail)
    with pytest.raises(OSError, match="disk full"):
        save_model(SavedModel(tiny_network("mixture", spread=0.1), "new"), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert load_network(tmp_path).fingerprint == old.fingerprint


# --- Runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training run on a few digits, and its pictures."""
    digits = load_images("digits")
    images = ImageSet("digits", digits.x_train[:80], None)
    config = tiny_run(KINDS["mixture"], epochs=1, data=replace(DATA, dataset="digits"))
    run_dir = tmp_path_factory.mktemp("runs") / "my-run"
    tiny_trainer(config, run_dir, images).run()
    return run_dir, images


def test_the_best_model_of_a_run_is_loaded(run):
    run_dir, images = run
    model = vbmem.load(run_dir)
    assert model.name == "my-run"
    assert model.card["data"] == "digits"
    assert float(model.card["validation bound, nats a frame"])
    assert_same_networks(model.network, load_network(run_dir).network)
    memory = model.write(images.x_train.transpose(0, 3, 1, 2), generator=seeded())
    assert model.generate(memory, 2).shape == (2, 1, 8, 8)


def test_the_card_of_a_run_on_a_folder_does_not_tell_where_it_lay(run, tmp_path):
    _, images = run
    data = replace(DATA, dataset="/home/me/holiday")
    tiny_trainer(tiny_run(KINDS["mixture"], epochs=1, data=data), tmp_path / "run", images).run()
    model = vbmem.load(tmp_path / "run")
    assert model.card["data"] == "holiday"
    assert model.data == data  # the run itself must find its pictures again
    model.save(tmp_path / "saved")
    save_model(load_network(tmp_path / "run"), tmp_path / "exported")
    for name in ("saved", "exported"):
        assert "/home/me" not in (tmp_path / name / "config.json").read_text()
        assert load_network(tmp_path / name).data == replace(data, dataset="holiday")


def test_a_run_without_its_weights_is_refused(run, tmp_path):
    (tmp_path / "config.json").write_bytes((run[0] / "config.json").read_bytes())
    with pytest.raises(ModelError, match=r"model\.safetensors is missing; .*train at least an epoch of the run"):
        vbmem.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((run[0] / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged or not a model's weights"):
        vbmem.load(tmp_path)


# --- What is refused ------------------------------------------------------------------------------------------------


def change(directory, edit) -> None:
    config = json.loads((directory / "config.json").read_text())
    edit(config)
    write_checked_json(directory / "config.json", config)


@pytest.fixture
def saved(tmp_path):
    tiny_model().save(tmp_path)
    return tmp_path


def test_unknown_names_list_the_known_ones(tmp_path):
    with pytest.raises(ModelError, match="no model 'cifar10-mixtur'; did you mean 'cifar10-mixture'"):
        vbmem.load("cifar10-mixtur")
    for source in ("elephant", tmp_path):
        with pytest.raises(ModelError, match="there is no model") as error:
            vbmem.load(source)
        assert all(name in str(error.value) for name in shipped())


@pytest.mark.parametrize("content", ["", "{", "[1]", "\udcff"])
def test_a_damaged_configuration_is_refused(saved, content):
    (saved / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ModelError, match=r"config\.json is damaged or not a model's settings"):
        vbmem.load(saved)


@pytest.mark.parametrize(
    "edit",
    [
        lambda config: config.pop("model"),
        lambda config: config.pop("frame"),
        lambda config: config.pop("name"),
        lambda config: config.update(model=5),
        lambda config: config.update(frame=[8, 8]),
        lambda config: config.update(card=[1]),
        lambda config: config.update(sizes=[1]),
        lambda config: config["model"].pop("kind"),
        lambda config: config["model"].update(kind="elephant"),
        lambda config: config["model"].update(memory="elephant"),
        lambda config: config["model"].update(colour="red"),
        lambda config: config["model"].update(filters="eight"),
        lambda config: config["model"].update(code_size=-4),
        lambda config: config["frame"].update(likelihood="elephant"),
        lambda config: config["frame"].update(size=2),
    ],
)
def test_a_configuration_of_nothing_known_is_refused(saved, edit):
    change(saved, edit)
    with pytest.raises(ModelError, match=r"config\.json describes no model this vbmem can build"):
        vbmem.load(saved)


@pytest.mark.parametrize("version", [2, 4, None, "x"])
def test_another_version_is_refused(saved, version):
    change(saved, lambda config: config.update(version=version))
    with pytest.raises(ModelError, match=f"has version {version}, this vbmem reads 3; upgrade vbmem"):
        vbmem.load(saved)


def test_a_configuration_of_another_program_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2"]}))
    with pytest.raises(
        ModelError, match=r"config\.json is damaged or not a model's settings \(it was not saved by vbmem"
    ):
        vbmem.load(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_weights_cut_short_are_refused(saved, kept):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged or not a model's weights .*save or download"):
        vbmem.load(saved)


def test_missing_weights_are_named(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is missing; save or download"):
        vbmem.load(saved)


@pytest.mark.parametrize("change_tensors", [lambda t: t.popitem(), lambda t: t.update(more=torch.ones(1))])
def test_weights_of_another_model_are_refused(saved, change_tensors):
    tensors = tiny_network().state_dict()
    change_tensors(tensors)
    write_weights(saved, tensors)
    with pytest.raises(ModelError, match="does not hold the weights that its config"):
        vbmem.load(saved)
    save_model(SavedModel(tiny_network("gaussian"), "other"), saved / "other")
    (saved / "other" / "model.safetensors").replace(saved / "model.safetensors")
    with pytest.raises(ModelError, match="does not hold the weights that its config"):
        vbmem.load(saved)


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, path) -> None:
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_loading_never_unpickles(saved, run, tmp_path, monkeypatch):
    sprung = tmp_path / "sprung"
    (saved / "model.safetensors").write_bytes(pickle.dumps(Trap(sprung)))
    with pytest.raises(ModelError, match="damaged or not a model's weights"):
        vbmem.load(saved)
    torch.save({"weights": Trap(sprung)}, saved / "model.safetensors")
    with pytest.raises(ModelError, match="damaged or not a model's weights"):
        vbmem.load(saved)
    assert not sprung.exists()

    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for place in ("pickle.load", "pickle.loads", "torch.load"):
        monkeypatch.setattr(place, refuse)
    for source in (*shipped(), run[0]):
        load_network(source)
