"""The command line. Each command is a function here that only composes; its arguments make the interface."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

from vbmem.data import Part, load_images
from vbmem.linalg import NumericalError
from vbmem.paper.presets import PRESETS, get_preset
from vbmem.train import Evaluation, RunConfig, Trainer, TrainingError, load_run, make_source, read_config

console = Console()
Device = Literal["auto", "cpu", "cuda"]


def figure2(
    out: Path,
    seed: int = 0,
    seeds: int = 1,
    rows: list[int] = [8, 16, 32, 64, 128, 256],  # noqa: B006, shown as the default
    code_sizes: list[int] = [50, 100, 200, 400, 800],  # noqa: B006
) -> None:
    """Figure 2: variational Bayes against the Dynamic Kanerva Machine on synthetic episodes.

    Args:
        out: directory for the two pictures and figure2.json.
        seed: the first seed.
        seeds: how many seeds, each with its own episode; the pictures show the mean.
        rows: memory sizes K.
        code_sizes: code sizes C.
    """
    from vbmem.paper import figure2

    if seeds < 1 or min(*rows, *code_sizes, 1) < 1:
        raise ValueError("--seeds, --rows and --code-sizes must be at least 1")
    figure2.figure2(out, seed, seeds, rows, code_sizes, console)


def demo(out: Path = Path("demo")) -> None:
    """Train a small model on digits, write an episode into memory, generate from the memory alone. Half a minute.

    Args:
        out: directory for the run and the pictures.
    """
    from vbmem.demo import demo

    demo(out, console)


def table1(
    out: Path = Path("results/table1"),
    dataset: Literal["cifar10", "celeba", "both"] = "cifar10",
    models: list[str] = ["vae", "ns", "dkm", "gaussian", "categorical"],  # noqa: B006, shown as the default
    seeds: int = 3,
    jobs: int = 1,
    data_dir: Path | None = None,
    device: Device = "auto",
) -> None:
    """Table 1: train five models and compare their test bounds with the paper's.

    Args:
        out: directory for the runs and table1.json; finished rows are not trained again.
        dataset: the pictures.
        models: the rows.
        seeds: seeds 0, 1, .. of every row.
        jobs: rows trained at the same time, each in a process of its own; on a large GPU several take little longer
            than one.
        data_dir: where data sets lie or are downloaded to.
        device: where to train; hours on a CPU.
    """
    from vbmem.paper.table1 import table1

    datasets: list[Literal["cifar10", "celeba"]] = ["cifar10", "celeba"] if dataset == "both" else [dataset]
    table1(out, datasets, models, list(range(seeds)), data_dir, pick_device(device), console, jobs)


def presets() -> None:
    """List the presets: what `vbmem train` can be given."""
    table = Table("preset", "data", "model", "episodes", "epochs")
    for name, run in PRESETS.items():
        model = getattr(run.model, "memory", type(run.model).__name__.removesuffix("Config").lower())
        episodes = f"{run.data.batch_size} x {run.data.episode_length}"
        table.add_row(name, run.data.dataset, model, episodes, " + ".join(str(stage.epochs) for stage in run.stages))
    console.print(table)


@dataclass(frozen=True)
class TrainOptions:
    """Train a preset, with any of its settings overridden."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    run_dir: Path | None = None
    """Where checkpoints and the log go; by default runs/PRESET-SEED."""
    data_dir: Path | None = None
    """Where data sets lie or are downloaded to; also VBMEM_DATA."""
    device: Device = "auto"
    resume: bool = False
    """Go on from the last checkpoint in the run directory."""


def train(arguments: list[str]) -> None:
    """`vbmem train PRESET [overrides]`: the preset decides what can be overridden."""
    usage = (
        "usage: vbmem train PRESET [options]; `vbmem presets` lists the presets, `vbmem train PRESET -h` the options"
    )
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage)
        sys.exit(0 if arguments else 2)
    if arguments[0].startswith("-"):
        raise ValueError(f"the preset comes first; {usage}")
    name = arguments[0]
    options = tyro.cli(
        tyro.conf.AvoidSubcommands[TrainOptions],
        prog=f"vbmem train {name}",
        args=arguments[1:],
        default=TrainOptions(get_preset(name)),
    )
    config = options.config
    run_dir = options.run_dir or Path("runs") / f"{name}-{config.seed}"
    images = load_images(config.data.dataset, options.data_dir, config.data.image_size)
    trainer = Trainer(config, images, run_dir, pick_device(options.device), resume=options.resume, console=console)
    best = trainer.run()
    console.print(
        f"best validation bound {best:.2f} nats a frame; evaluate it with  vbmem evaluate {run_dir}", soft_wrap=True
    )


def evaluate(
    run_dir: Annotated[Path, tyro.conf.Positional],
    split: Part = "test",
    data_dir: Path | None = None,
    device: Device = "auto",
) -> None:
    """The bound of a trained run over a whole pass, as JSON: elbo_per_frame, its standard error, every term.

    Args:
        run_dir: what `vbmem train` left.
        split: which pictures.
        data_dir: where data sets lie or are downloaded to.
        device: where to run.
    """
    config = read_config(run_dir)
    images = load_images(config.data.dataset, data_dir, config.data.image_size, progress=False)
    chosen = pick_device(device)
    _, model = load_run(run_dir, images, chosen)
    result = Evaluation(model, make_source(config.data, images, split, config.seed, chosen))()
    print(json.dumps({"run": str(run_dir), "split": split, **result}, indent=1))


def pick_device(name: Device) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu or auto")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def train_in_help() -> None:
    """Train a preset: `vbmem train PRESET [overrides]`."""


COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "train": train_in_help,  # answered before tyro, because the preset decides on the options
    "presets": presets,
    "evaluate": evaluate,
    "figure2": figure2,
    "table1": table1,
}


def main() -> None:
    """Entry point: one sentence on standard error and exit code 2 for what the user can mend."""
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["train"]:
            train(arguments[1:])
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
