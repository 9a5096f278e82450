"""With which schedule is each row of table 1 trained best? All have the same chance, and test pictures have no say.

    python benchmarks/schedules.py RUNS_DIRECTORY --data-dir DIRECTORY [--dataset cifar10] [--jobs 3] [--out FILE.json]

Every row is trained with every schedule and one seed, for as many epochs as in the table; what counts is the bound on
validation pictures. What is finished is not trained again.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from report import emit
from vbmem.paper.presets import EPOCHS, QUANTITATIVE, get_preset
from vbmem.paper.training import Run, train_all
from vbmem.tables import table
from vbmem.train.settings import RunConfig, Stage

console = Console(width=110)


def constant(run: RunConfig, epochs: int) -> RunConfig:
    return replace(run, stages=(Stage(epochs),), schedule="constant", averaging=0.995)


def gentle(run: RunConfig, epochs: int) -> RunConfig:
    """A slow start, then twice the usual rate."""
    return replace(run, stages=(Stage(8, 3e-4), Stage(epochs - 8, 2e-3)), schedule="constant", averaging=0.998)


def cosine(run: RunConfig, epochs: int) -> RunConfig:
    return replace(run, stages=(Stage(epochs),), schedule="cosine", averaging=0.995)


def fast_cosine(run: RunConfig, epochs: int) -> RunConfig:
    return replace(run, stages=(Stage(epochs, 2e-3),), schedule="cosine", averaging=0.995)


SCHEDULES: tuple[Callable[[RunConfig, int], RunConfig], ...] = (constant, gentle, cosine, fast_cosine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a directory for what is trained")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--dataset", choices=list(EPOCHS), default="cifar10")
    parser.add_argument("--models", nargs="+", choices=list(QUANTITATIVE), default=list(QUANTITATIVE))
    parser.add_argument("--epochs", type=int, help="by default as in the table")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    epochs = options.epochs or EPOCHS[options.dataset]
    runs = {
        Run(f"{model}-{schedule.__name__}", 0): schedule(get_preset(f"{options.dataset}-{model}"), epochs)
        for model, schedule in itertools.product(options.models, SCHEDULES)
    }
    device = torch.device(options.device)
    results = train_all(runs, options.runs, options.data_dir, device, console, options.jobs, measures=())
    valid = {result["name"]: None if "broke_down" in result else result["valid"] for result in results}
    bounds = {
        model: {schedule.__name__: valid[f"{model}-{schedule.__name__}"] for schedule in SCHEDULES}
        for model in options.models
    }
    rows = [
        {"model": model}
        | found
        | {"best": max(found, key=lambda name: found[name] or -math.inf)}  # None: it broke down
        for model, found in bounds.items()
    ]
    console.print(table(rows, "validation bound, nats a frame", decimals=1))
    emit({"dataset": options.dataset, "epochs": epochs, "seed": 0, "validation": bounds}, options.out)


if __name__ == "__main__":
    main()
