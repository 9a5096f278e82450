"""Runs to interrupt, and what they leave behind.

As a program, `python -m train.runs RUN_DIR EPOCHS`: one of them as a user would have it, in a process of its own.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tiny import CPU, DATA, MODELS, squares, tiny_run, tiny_trainer
from vbmem.files import read_tensors
from vbmem.models import Regulariser
from vbmem.models.settings import MemoryConfig
from vbmem.train import RunConfig, Stage, Trainer, loop
from vbmem.train.checkpoint import load_checkpoint

BATCHES = 9  # an epoch of 72 pictures, two episodes of four frames a batch
FEW = dataclasses.replace(DATA, episodes="repeats", sources_per_episode=2)  # of 20 pictures: two batches an epoch
TRAINED = {name: MODELS[name] for name in ("vae", "statistician", "dkm", "gaussian", "mixture")}


def trained(config: RunConfig, run_dir: Path, **options) -> Any:
    """A trainer after its run."""
    made = tiny_trainer(config, run_dir, **options)
    made.run()
    return made


def log_lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]


def assert_same_remains(one: Path, other: Path) -> None:
    """Both runs left the same behind, bit for bit: all tensors, where they stand, and the log, less the time."""
    progress, other_progress = (load_checkpoint(run_dir / "last.safetensors")[1] for run_dir in (one, other))
    assert dataclasses.replace(progress, seconds=0) == dataclasses.replace(other_progress, seconds=0)
    for name in ("last.safetensors", "model.safetensors"):
        tensors, other_tensors = (read_tensors(run_dir / name, CPU)[0] for run_dir in (one, other))
        assert tensors.keys() == other_tensors.keys()
        different = [key for key in tensors if not torch.equal(tensors[key], other_tensors[key])]
        assert not different, f"{name}: {different}"
    described, other_described = (json.loads((run_dir / "config.json").read_text()) for run_dir in (one, other))
    unlike = {"name": "", "checksum": ""}  # the one follows from the other
    assert described | unlike == other_described | unlike
    logs = [[{**line, "seconds": 0} for line in log_lines(run_dir)] for run_dir in (one, other)]
    assert logs[0] == logs[1]


class GivenBounds:
    """Stands in for a validation: tells the given bounds in turn and remembers the weights it was shown."""

    def __init__(self, made: Any, bounds: list[float]) -> None:
        self.made, self.bounds = made, bounds
        self.weights: list[dict[str, torch.Tensor]] = []
        made.validate = self

    def __call__(self) -> dict[str, float]:
        epoch = len(self.weights)
        assert self.made.progress.epoch == epoch + 1
        self.weights.append({name: tensor.clone() for name, tensor in self.made.model.state_dict().items()})
        return {"elbo_per_frame": self.bounds[epoch], "standard_error": 0.0}


def two_stages(model=MODELS["mixture"], **settings) -> RunConfig:
    """An epoch, and another with other settings."""
    first, second = Regulariser(), Regulariser(epsilon=1e-6, delta=2e-6)
    remembers = isinstance(model, MemoryConfig)
    stages = (Stage(1, 1e-2, first if remembers else None), Stage(1, 1e-3, second if remembers else None))
    return tiny_run(model, stages=stages, **settings)


def train_in_a_process(run_dir: Path, epochs: int, under_way=None) -> None:
    """Begin a run or go on with it, with a checkpoint after every epoch."""
    torch.set_num_threads(1)
    loop.SAVE_EVERY = 0.0
    if under_way is not None:
        under_way.set()
    resume = (run_dir / "last.safetensors").exists()
    Trainer(tiny_run(epochs=epochs), squares(), run_dir, CPU, resume=resume, console=Console(file=sys.stdout)).run()


if __name__ == "__main__":
    train_in_a_process(Path(sys.argv[1]), int(sys.argv[2]))
