"""What each of two processes does for test_processes: they train together, and in the end one dies."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from rich.console import Console

from tiny import CPU, MODELS, squares, tiny_run
from train.runs import FEW
from vbmem import cli
from vbmem.errors import NumericalError
from vbmem.models import Regulariser
from vbmem.nets import CodePosterior
from vbmem.train import RunConfig, Stage, Trainer
from vbmem.train.step import TrainingStep

RANKS = 2
IMAGES = squares(40)  # four batches an epoch of two episodes, or two of four
# With the means of codes in the place of draws nothing here is random but the order of the pictures.
MODELS_OF = {"batch norm": MODELS["vae"], "memory": replace(MODELS["mixture"], start="prior")}
CERTAIN = {
    name: tiny_run(model, 3, data=replace(FEW, batch_size=4, binary=True), averaging=0.9, warm_up=3)
    for name, model in MODELS_OF.items()
}
# All that is random, batch norm's statistics, the best weights of a stage, and another.
RANDOM = tiny_run(
    replace(MODELS["gaussian"], learned_scales=True),
    stages=(Stage(1, 1e-2, Regulariser()), Stage(1, 1e-3)),
    data=FEW,
    averaging=0.9,
    damage=0.5,
)
COMMAND = (
    "train digits-mixture --device cpu --stages.0.epochs 1 --data.episode-length 4 --model.filters 4 "
    "--model.code-size 4 --model.clusters 2"
)


@contextmanager
def in_doubles_without_draws() -> Iterator[None]:
    """So that one process and several differ by rounding alone, and Adam makes little of it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(CodePosterior, "rsample", lambda posterior, generator=None: posterior.mean):
            yield
    finally:
        torch.set_default_dtype(before)


class Rank:
    """One of the processes."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder

    def trainer(self, config: RunConfig, name: str, **options: Any) -> Any:
        """The run of this name; only the first process needs its directory, unless the run is resumed."""
        directory = name if self.rank == 0 or options.get("resume") else f"{name}-unwritten"
        console = Console(file=io.StringIO())
        group = dist.group.WORLD
        return Trainer(config, IMAGES, self.folder / directory, CPU, console=console, group=group, **options)

    def trained(self, config: RunConfig, name: str, **options: Any) -> Any:
        made = self.trainer(config, name, **options)
        made.run()
        return made

    def interrupted(self) -> str:
        """Ctrl-C reaches the second process alone, twice, in the middle of a step of the second stage."""
        made = self.trainer(RANDOM, "resumed")
        steps, original = 0, TrainingStep.__call__

        def step(*args: Any) -> None:
            nonlocal steps
            original(*args)
            steps += 1
            if steps == 6 and self.rank == 1:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)

        with patch.object(TrainingStep, "__call__", step):
            try:
                made.run()
            except KeyboardInterrupt:
                return f"after {steps} steps"
        return "never"

    def with_bad_steps(self, name: str, at: int, spoil: Any) -> list[float]:
        """A run in which one forward pass of the second process is spoilt; all weights in the end."""
        made = self.trainer(tiny_run(MODELS[name], 1, data=FEW), f"bad {name}")
        original, calls = made.model.forward, 0

        def forward(frames: torch.Tensor, copies: int = 1) -> Any:
            nonlocal calls
            calls += torch.is_grad_enabled()
            bad = calls == at and self.rank == 1 and torch.is_grad_enabled()
            return spoil(original, frames) if bad else original(frames, copies)

        made.model.forward = forward
        made.run()
        return torch.cat([p.detach().flatten() for p in made.model.parameters()]).tolist()

    def told(self, run_dir: str, batch_size: int, port: int) -> tuple[int | str | None, str, str]:
        """Exit status, output and errors of `vbmem train` as torchrun would start it; the port is for it alone."""
        os.environ |= {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        os.environ |= {"RANK": str(self.rank), "LOCAL_RANK": str(self.rank), "WORLD_SIZE": str(RANKS)}
        where = ["--data.dataset", str(self.folder / "squares.npz"), "--run-dir", str(self.folder / run_dir)]
        arguments = ["vbmem", *COMMAND.split(), *where, "--data.batch-size", str(batch_size)]
        output, errors = io.StringIO(), io.StringIO()
        with patch.object(sys, "argv", arguments), redirect_stdout(output), redirect_stderr(errors):
            try:
                cli.main()
                status: int | str | None = 0
            except SystemExit as end:
                status = end.code
        return status, output.getvalue(), errors.getvalue()


def fail(forward: Any, frames: torch.Tensor) -> Any:
    raise NumericalError("a matrix of one process alone")


def leave_finiteness(forward: Any, frames: torch.Tensor) -> Any:
    return forward(frames * torch.nan)


def dies(rank: int) -> Any:
    """In its second step the second process dies."""
    steps, original = 0, TrainingStep.__call__

    def step(*args: Any) -> None:
        nonlocal steps
        original(*args)
        steps += 1
        if steps == 2 and rank == 1:
            os._exit(0)

    return patch.object(TrainingStep, "__call__", step)


def work(rank: int, folder: Path, free_ports: list[int]) -> None:
    ports = iter(free_ports)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=60), RANKS, rank)
    this, found = Rank(rank, folder), dict[str, Any]()
    with in_doubles_without_draws():
        for name, config in CERTAIN.items():
            this.trained(config, name)
    console = this.trained(RANDOM, "undisturbed").console
    found["quiet"] = console.quiet
    found["stopped"] = this.interrupted()
    torch.manual_seed(12345 + rank)
    this.trained(RANDOM, "resumed", resume=True)
    found["skipped"] = this.with_bad_steps("mixture", 3, fail)
    found["not finite"] = this.with_bad_steps("vae", 4, leave_finiteness)
    dist.destroy_process_group()

    found["command"] = this.told("command", 2, next(ports))
    found["uneven"] = this.told("uneven", 1, next(ports))
    torch.save(found, folder / f"{rank}.pt")
    with dies(rank):
        found["lost"] = this.told("lost", 2, next(ports))
    torch.save(found, folder / f"{rank}.pt")
