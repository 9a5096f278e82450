"""The command line: what there is, and how errors reach people. The commands themselves are in `commands`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import tyro
from rich.console import Console

from vbmem.commands import memories, paper, training
from vbmem.linalg import NumericalError
from vbmem.train import TrainingError

console = Console()


def demo(out: Path = Path("demo"), images: Path | None = None, train: bool = False) -> None:
    """Write an episode into memory, generate, recall, judge novelty: a page to look at, in seconds.

    Args:
        out: directory for index.html and its pictures.
        images: a folder of your own pictures; otherwise crops of a photograph that scikit-learn carries.
        train: afterwards train a small model on digits from scratch, half a minute on a CPU.
    """
    from vbmem.demo import demo, train_digits

    demo(out, console, images)
    if train:
        train_digits(out, console)


def train_in_help() -> None:
    """Train a preset: `vbmem train PRESET [overrides]`."""


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "write": memories.write,
    "generate": memories.generate,
    "read": memories.read,
    "score": memories.score,
    "models": memories.models,
    "train": train_in_help,  # answered before tyro, because the preset decides on the options
    "presets": training.presets,
    "evaluate": training.evaluate,
    "export": memories.export,
    "table1": paper.table1,
    "figure2": paper.figure2,
    "figure3": paper.figure3,
    "figure4": paper.figure4,
    "figure5": paper.figure5,
    "figure6": paper.figure6,
    "metrics": paper.metrics,
}


def main() -> None:
    """Entry point: one sentence on standard error and exit code 2 for what the user can mend."""
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["train"]:
            training.train(arguments[1:])
        else:
            tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="vbmem", description="Fast-adapting generative memory.")
    except BrokenPipeError:  # whoever read the output, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError, NumericalError, TrainingError) as error:
        Console(stderr=True).print(f"vbmem: {error}", style="red", soft_wrap=True, markup=False, highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
