"""Runs so small that an epoch takes a few hundredths of a second, and what they leave behind.

As a program, `python tiny_runs.py RUN_DIR EPOCHS`: one of them as a user would have it, in a process of its own.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from vbmem.data import ImageSet
from vbmem.files import read_tensors
from vbmem.models import DKMConfig, MemoryConfig, Regulariser, StatisticianConfig, VAEConfig
from vbmem.train import DataConfig, RunConfig, Stage, Trainer, loop
from vbmem.train.checkpoint import load_checkpoint

CPU = torch.device("cpu")
BATCHES = 9  # an epoch of 72 pictures, two episodes of four frames a batch
DATA = DataConfig("squares", batch_size=2, episode_length=4)
FEW = dataclasses.replace(DATA, episodes="repeats", sources_per_episode=2)  # of 20 pictures: two batches an epoch
TINY_VAE = VAEConfig(code_size=4, filters=4)
MODELS = {
    "vae": TINY_VAE,
    "statistician": StatisticianConfig(code_size=4, context_size=4, filters=4),
    "dkm": DKMConfig(code_size=4, rows=2, filters=4),
    "gaussian": MemoryConfig("gaussian", code_size=4, rows=2, iterations=3, filters=4, style="basic"),
    "mixture": MemoryConfig("mixture", code_size=4, rows=2, clusters=2, iterations=3, filters=4),
}


def squares(count: int = 80, seed: int = 0) -> ImageSet:
    """Grey pictures of 8 x 8 with one bright quarter, which is the label, and a little noise: easy to learn."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, count)
    pictures = generator.integers(20, 40, (count, 8, 8, 1)).astype(np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        picture[row : row + 4, column : column + 4] += 200
    return ImageSet("squares", pictures, labels)


def tiny(model=TINY_VAE, epochs: int = 4, **settings) -> RunConfig:
    return RunConfig(**{"data": DATA, "model": model, "stages": (Stage(epochs, 1e-2),), "patience": 1000, **settings})


def trainer(config: RunConfig, run_dir: Path, images: ImageSet | None = None, **options) -> Trainer:
    """What it says is found in `trainer(..).console.file.getvalue()`."""
    return Trainer(config, images or squares(), run_dir, CPU, console=Console(file=io.StringIO()), **options)


def trained(config: RunConfig, run_dir: Path, **options) -> Trainer:
    """A trainer after its run."""
    made = trainer(config, run_dir, **options)
    made.run()
    return made


def log_lines(run_dir: Path) -> list[dict]:
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
    assert described | {"name": ""} == other_described | {"name": ""}
    logs = [[{**line, "seconds": 0} for line in log_lines(run_dir)] for run_dir in (one, other)]
    assert logs[0] == logs[1]


class GivenBounds:
    """Stands in for a validation: tells the given bounds in turn and remembers the weights it was shown."""

    def __init__(self, made: Trainer, bounds: list[float]) -> None:
        self.made, self.bounds = made, bounds
        self.weights: list[dict[str, torch.Tensor]] = []
        made.validate = self

    def __call__(self, epoch: int) -> dict[str, float]:
        assert epoch == len(self.weights)
        self.weights.append({name: tensor.clone() for name, tensor in self.made.model.state_dict().items()})
        return {"elbo_per_frame": self.bounds[epoch], "standard_error": 0.0}


def two_stages(model=MODELS["mixture"], **settings) -> RunConfig:
    """An epoch, and another with other settings."""
    stages = (Stage(1, 1e-2, Regulariser()), Stage(1, 1e-3, Regulariser(epsilon=1e-6, delta=2e-6)))
    return tiny(model, stages=stages, **settings)


def train_in_a_process(run_dir: Path, epochs: int, under_way=None) -> None:
    """Begin a run or go on with it, with a checkpoint after every epoch."""
    torch.set_num_threads(1)
    loop.SAVE_EVERY = 0.0
    if under_way is not None:
        under_way.set()
    resume = (run_dir / "last.safetensors").exists()
    Trainer(tiny(epochs=epochs), squares(), run_dir, CPU, resume=resume, console=Console(file=sys.stdout)).run()


if __name__ == "__main__":
    train_in_a_process(Path(sys.argv[1]), int(sys.argv[2]))
