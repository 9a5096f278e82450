"""A disk that is really full, a small one in memory: what was saved stays, and the message names the file."""

import subprocess
from pathlib import Path

import pytest
import torch

import vbmem
from saved_files import save_memory_file
from tiny import MODELS, tiny_model, tiny_run, tiny_trainer
from train.runs import assert_same_remains, trained
from vbmem.train import loop

pytestmark = pytest.mark.long


@pytest.fixture
def disk(tmp_path):
    """Of 400 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a disk")
    yield place
    subprocess.run(["umount", place], check=True)


def fill(disk: Path) -> Path:
    """A file that leaves no room."""
    path = disk / "full"
    try:
        with path.open("wb", buffering=0) as file:
            while file.write(bytes(1024)):
                pass
    except OSError:
        return path
    raise AssertionError("the disk has no end")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_memory_on_a_full_disk_stays_as_it_was(disk):
    path = disk / "a.memory"
    save_memory_file(path)
    filler = fill(disk)
    before = contents(disk)
    with pytest.raises(OSError, match=f"^cannot write {path}: No space left on device$"):
        save_memory_file(path)
    large = vbmem.MixtureMemory(200, 6, 100)
    with pytest.raises(OSError, match=f"^cannot write {path}: No space left on device$"):
        vbmem.save_memory(path, large, large.prior_state())
    assert contents(disk) == before
    filler.unlink()
    with pytest.raises(OSError, match=f"^cannot write {path}: No space left on device$"):
        vbmem.save_memory(path, large, large.prior_state())
    assert contents(disk) == {"a.memory": before["a.memory"]}
    save_memory_file(path)


def test_a_model_on_a_full_disk_stays_as_it_was(disk):
    tiny_model().save(disk / "model")
    fill(disk)
    before = contents(disk / "model")
    with pytest.raises(OSError, match=r"cannot write .*model\.safetensors: No space left on device$"):
        tiny_model("gaussian").save(disk / "model")
    assert contents(disk / "model") == before
    vbmem.load(disk / "model")


def test_a_run_whose_disk_fills_up_goes_on_once_there_is_room(disk, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    config = tiny_run(MODELS["vae"], epochs=4)
    trained(config, tmp_path / "whole")
    made = tiny_trainer(config, disk / "run")
    evaluate, fillers = made.validate, []

    def validate():
        if made.progress.epoch == 3:
            fillers.append(fill(disk))
        return evaluate()

    made.validate = validate
    with pytest.raises(OSError, match=r"^cannot write .*run/[\w.]+: No space left on device$"):
        made.run()
    fillers[0].unlink()
    torch.manual_seed(1)
    trained(config, disk / "run", resume=True)
    assert_same_remains(tmp_path / "whole", disk / "run")
