"""What vbmem 0.1 wrote still loads: model directories of version 1, runs with their best.safetensors, and memories.

Every test but the first expects the warning that they carry no checksum.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vbmem
from tiny import waves
from vbmem.data.settings import DataConfig
from vbmem.errors import ModelError, UncheckedFileWarning
from vbmem.models import MemoryModel
from vbmem.models.directory import load_model, read_settings, save_model
from vbmem.models.landed import landed_fingerprint
from vbmem.train import read_run

LANDED = Path(__file__).parents[1] / "landed"
EXPECTED = json.loads((LANDED / "expected.json").read_text())
pytestmark = pytest.mark.filterwarnings("ignore::vbmem.errors.UncheckedFileWarning")
SHAPES = {"mixture-model": (3, 8), "tree-model": (3, 8), "run": (3, 8, 1)}


@pytest.mark.parametrize("name", [*SHAPES, "mixture.memory", "tree.memory"])
def test_what_has_no_checksum_is_loaded_with_a_warning(name):
    load = vbmem.WrittenMemory.load if name.endswith(".memory") else load_model
    with pytest.warns(UncheckedFileWarning, match=f"{name}.* was saved by an earlier vbmem and carries no checksum"):
        load(LANDED / name)


@pytest.mark.parametrize("name", SHAPES)
def test_a_landed_model_gives_the_codes_it_gave(name):
    saved, expected = load_model(LANDED / name), EXPECTED[name.removesuffix("-model")]
    assert isinstance(saved.network, MemoryModel)
    with torch.no_grad():
        codes = saved.network.infer(waves(*SHAPES[name]).unsqueeze(0)).mean[0]
    torch.testing.assert_close(codes, torch.tensor(expected["codes"]), rtol=1e-5, atol=1e-5)
    assert landed_fingerprint(saved.network) == expected["fingerprint"]


def test_a_landed_run_keeps_its_name_card_and_settings():
    saved = load_model(LANDED / "run")
    assert (saved.name, saved.card) == (EXPECTED["run"]["name"], EXPECTED["run"]["card"])
    assert saved.data == DataConfig("squares", batch_size=2, episode_length=4)
    config = read_run(LANDED / "run")
    assert (config.data, config.model) == (saved.data, saved.network.config)
    assert (config.stages[0].epochs, config.stages[0].learning_rate, config.patience) == (2, 0.01, 1000)


def card_of(directory, card, likelihood="gaussian"):
    values = json.loads((LANDED / "mixture-model" / "config.json").read_text())
    values["card"], values["frame"]["likelihood"] = card, likelihood
    (directory / "config.json").write_text(json.dumps(values))
    return read_settings(directory)


def test_what_the_card_of_a_landed_model_told_becomes_settings(tmp_path):
    values = card_of(tmp_path, {"data": "digits", "episodes": "4 x 32", "seed": 3}, "bernoulli")
    assert DataConfig(**values["data"]) == DataConfig("digits", binary=True, batch_size=4, episode_length=32)
    assert values["seed"] == 3
    assert DataConfig(**card_of(tmp_path, {"data": "digits"})["data"]) == DataConfig("digits")
    assert card_of(tmp_path, {})["data"] is None
    with pytest.raises(ModelError, match=r"config\.json is damaged or not a model's settings"):
        card_of(tmp_path, {"data": "digits", "episodes": "many"})


@pytest.mark.parametrize("name", SHAPES)
def test_a_landed_model_is_saved_as_models_are_now(name, tmp_path):
    saved = load_model(LANDED / name)
    save_model(saved, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["version"] == 3
    again = load_model(tmp_path)
    assert replace(again, network=saved.network) == saved


def test_damaged_landed_weights_are_named(tmp_path):
    shutil.copytree(LANDED / "run", tmp_path / "run")
    weights = tmp_path / "run" / "best.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ModelError, match="run"):
        load_model(tmp_path / "run")


# --- Memories -------------------------------------------------------------------------------------------------------

kinds = pytest.mark.parametrize("kind", ["mixture", "tree"])


@kinds
def test_a_landed_memory_holds_and_recalls_what_it_did(kind):
    model, memory = vbmem.load(LANDED / f"{kind}-model"), vbmem.WrittenMemory.load(LANDED / f"{kind}.memory")
    expected = EXPECTED[kind]
    assert (memory.frames, memory.fingerprint) == (expected["frames"], expected["fingerprint"])
    torch.testing.assert_close(memory.usage, torch.tensor(expected["usage"]))
    read = model.read(memory, waves(3, 8), 1, sample=False)[0].mean((1, 2, 3))
    torch.testing.assert_close(read, torch.tensor(expected["read"]))
    assert model.generate(memory, 2).isfinite().all()
    assert model.score(memory, waves(2, 8)).isfinite().all()


@kinds
def test_saved_anew_it_is_a_memory_of_today(kind, tmp_path):
    model, memory = vbmem.load(LANDED / f"{kind}-model"), vbmem.WrittenMemory.load(LANDED / f"{kind}.memory")
    memory.save(tmp_path / "new.memory")
    again = vbmem.WrittenMemory.load(tmp_path / "new.memory")
    assert torch.equal(
        memory.log_predictive(model.encode(waves(2, 8)).mean), again.log_predictive(model.encode(waves(2, 8)).mean)
    )


def test_a_landed_memory_of_another_model_is_refused():
    model, memory = vbmem.load(LANDED / "tree-model"), vbmem.WrittenMemory.load(LANDED / "mixture.memory")
    with pytest.raises(ValueError, match="this memory was written by the model 'tiny'"):
        model.generate(memory, 1)
