"""A directory that cannot hold a run, or holds another or a damaged one, is reported before anything is lost."""

import errno
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tiny import MODELS, squares, tiny_network, tiny_run, tiny_trainer
from train.runs import assert_same_remains, log_lines, trained
from vbmem.errors import CheckpointError, ModelError
from vbmem.models import SavedModel, save_model
from vbmem.models.directory import load_model
from vbmem.train import Stage, loop, read_run
from vbmem.train.checkpoint import Progress, load_checkpoint, save_checkpoint

CONFIG = tiny_run(epochs=2)


@pytest.fixture
def finished(tmp_path):
    trained(CONFIG, tmp_path)
    return tmp_path


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def unusable(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"")
    return {"a file": file, "below a file": file / "run", "not of a disk": Path("/proc/vbmem/run")}


@pytest.mark.parametrize("case", ["a file", "below a file", "not of a disk"])
def test_a_directory_that_cannot_be_made_is_reported_before_training(case, tmp_path):
    run_dir = unusable(tmp_path)[case]
    with pytest.raises(OSError, match="cannot write checkpoints to") as caught:
        tiny_trainer(CONFIG, run_dir)
    sentence = str(caught.value)
    assert sentence.startswith(f"cannot write checkpoints to {run_dir}: ")
    assert "\n" not in sentence
    assert "Errno" not in sentence


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_reported_before_training(call, tmp_path, monkeypatch):
    monkeypatch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[call], full_disk)
    with pytest.raises(OSError, match=r"cannot write .*run/config\.json: No space left on device$"):
        tiny_trainer(CONFIG, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fills_up_costs_no_checkpoint(call, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    trained(tiny_run(epochs=3), tmp_path / "whole")
    run_dir = tmp_path / "filled"
    made = tiny_trainer(tiny_run(epochs=3), run_dir)
    evaluate = made.validate
    with monkeypatch.context() as patch:

        def validate():
            if made.progress.epoch == 2:
                patch.setattr(*{"fsync": (os, "fsync"), "replace": (Path, "replace")}[call], full_disk)
            return evaluate()

        made.validate = validate
        with pytest.raises(OSError, match="No space left on device"):
            made.run()
    assert not list(run_dir.glob(".*"))
    assert load_checkpoint(run_dir / "last.safetensors")[1].epoch == 1
    trained(tiny_run(epochs=3), run_dir, resume=True)
    assert_same_remains(tmp_path / "whole", run_dir)


def test_a_new_run_does_not_overwrite_another(finished):
    before = contents(finished)
    with pytest.raises(CheckpointError, match="holds a run already; resume it, or choose another directory") as caught:
        tiny_trainer(CONFIG, finished)
    assert str(finished) in str(caught.value)
    assert contents(finished) == before


def test_a_run_does_not_overwrite_a_model(tmp_path):
    save_model(SavedModel(tiny_network("vae", channels=1), "mine"), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="holds a model, which would be lost; choose another directory"):
        tiny_trainer(CONFIG, tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (replace(CONFIG, seed=1, clip=5.0), "clip 100.0, not 5.0; seed 0, not 1"),
        (replace(CONFIG, stages=(Stage(3, 1e-2),)), "stages.0.epochs 2, not 3"),
        (replace(CONFIG, stages=(Stage(2, 1e-2), Stage(1))), "stages.1 None, not Stage"),
        (replace(CONFIG, stages=(Stage(2, 1e-2, takes_leftover=True),)), "stages.0.takes_leftover False, not True"),
        (replace(CONFIG, data=replace(CONFIG.data, episode_length=2)), "data.episode_length 4, not 2"),
        (replace(CONFIG, data=replace(CONFIG.data, augment=("mirror",))), "data.augment (), not ('mirror',)"),
        (replace(CONFIG, model=replace(MODELS["vae"], filters=4)), "model.filters 8, not 4"),
        (replace(CONFIG, model=MODELS["dkm"]), "model VAEConfig, not DKMConfig"),
    ],
    ids=["seed and clip", "epochs", "stages", "regulariser", "data", "augment", "model", "kind of model"],
)
def test_a_run_is_not_resumed_with_other_settings_which_are_named(other, named, finished):
    before = contents(finished)
    with pytest.raises(CheckpointError) as caught:
        tiny_trainer(other, finished, resume=True)
    sentence = f"{finished} was trained with other settings; resume with the same ones: {named}"
    assert str(caught.value) == sentence
    assert contents(finished) == before


def test_a_run_is_not_resumed_with_other_pictures(finished):
    before = contents(finished)
    with pytest.raises(CheckpointError, match="was trained on other pictures; bring those back, or begin a new run"):
        tiny_trainer(CONFIG, finished, squares(seed=1), resume=True)
    assert contents(finished) == before


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint") as caught:
        tiny_trainer(CONFIG, tmp_path / "nowhere", resume=True)
    assert str(tmp_path / "nowhere" / "last.safetensors") in str(caught.value)
    assert not (tmp_path / "nowhere").exists()


DAMAGES = {
    "empty": lambda content: b"",
    "cut in the header": lambda content: content[:20],
    "cut in the tensors": lambda content: content[:-100],
    "half": lambda content: content[: len(content) // 2],
    "garbage": lambda content: bytes(range(256)) * 40,
    "zeros": lambda content: bytes(len(content)),
    "too long": lambda content: content + b"more",
    "text": lambda content: b"not a checkpoint\n" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_named(damage, finished):
    path = finished / "last.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    before = contents(finished)
    with pytest.raises(CheckpointError) as caught:
        tiny_trainer(CONFIG, finished, resume=True)
    assert str(path) in str(caught.value)
    assert contents(finished) == before


def test_damaged_best_weights_are_named_and_do_not_stop_the_run(finished):
    path = finished / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelError) as caught:
        load_model(finished)
    assert str(path) in str(caught.value)
    tiny_trainer(CONFIG, finished, resume=True)
    load_model(finished)


def save_foreign(path):
    save_file({"weights": torch.zeros(3)}, path)


def save_of_another_version(path):
    save_file({"weights": torch.zeros(3)}, path, {"format": "vbmem.checkpoint", "progress": '{"phase": 1}'})


def save_without_progress(path):
    save_file({"weights": torch.zeros(3)}, path, {"format": "vbmem.checkpoint"})


def save_without_weights(path):
    save_checkpoint(path, {"model": {"weights": torch.zeros(3)}}, Progress())


FOREIGNERS = [save_foreign, save_of_another_version, save_without_progress, save_without_weights]


@pytest.mark.parametrize("save", FOREIGNERS, ids=lambda save: save.__name__)
def test_a_foreign_checkpoint_is_named(save, finished):
    path = finished / "last.safetensors"
    save(path)
    with pytest.raises(CheckpointError) as caught:
        tiny_trainer(CONFIG, finished, resume=True)
    assert str(path) in str(caught.value)


def test_weights_of_another_model_are_named(finished):
    """A model.safetensors that was copied from elsewhere."""
    elsewhere = finished / "elsewhere"
    trained(replace(CONFIG, model=replace(MODELS["vae"], filters=4)), elsewhere)
    path = finished / "model.safetensors"
    path.write_bytes((elsewhere / "model.safetensors").read_bytes())
    with pytest.raises(ModelError, match=r"does not hold the weights that its config\.json describes") as caught:
        load_model(finished)
    assert str(finished) in str(caught.value)


@pytest.mark.parametrize("text", ["", '{"seed": ', '{"colour": 1}'], ids=["empty", "cut", "unknown"])
def test_a_damaged_configuration_is_named(text, finished):
    path = finished / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_run(finished)


def test_the_configuration_is_readable(finished):
    values = json.loads((finished / "config.json").read_text())
    assert values["model"] == {"kind": "vae", **asdict(MODELS["vae"])}
    assert values["training"]["stages"][0]["learning_rate"] == 1e-2
    assert read_run(finished) == CONFIG


def test_parents_are_made(tmp_path):
    run_dir = tmp_path / "runs" / "of today" / "first"
    trained(tiny_run(epochs=1), run_dir)
    assert len(log_lines(run_dir)) == 1


def test_a_run_can_be_moved(tmp_path):
    trained(CONFIG, tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert tiny_trainer(CONFIG, tmp_path / "there", resume=True).progress.epoch == 2


def test_a_run_directory_may_be_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(tiny_run(epochs=1), Path("run"))
    assert load_checkpoint(tmp_path / "run" / "last.safetensors")[1].epoch == 1


def test_a_crash_while_claiming_the_directory_does_not_claim_it(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save_checkpoint", full_disk)
        with pytest.raises(OSError, match="No space left"):
            tiny_trainer(CONFIG, tmp_path)
    assert trained(CONFIG, tmp_path).progress.epoch == 2
