"""Training on the command line: presets, runs, their evaluation."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console

from vbmem.commands.listing import show
from vbmem.data import Part, load_images
from vbmem.paper.presets import PRESETS, get_preset
from vbmem.pretrained import load_network
from vbmem.train.evaluation import evaluate as evaluate_model
from vbmem.train.loop import Trainer
from vbmem.train.settings import DataConfig, RunConfig

console = Console()
Device = Literal["auto", "cpu", "cuda"]


def presets(json: bool = False) -> None:
    """List the presets: what `vbmem train` can be given.

    Args:
        json: print JSON instead of a table.
    """
    rows = [
        {
            "preset": name,
            "data": run.data.dataset,
            "model": getattr(run.model, "memory", type(run.model).__name__.removesuffix("Config").lower()),
            "episodes": f"{run.data.batch_size} x {run.data.episode_length}",
            "epochs": " + ".join(str(stage.epochs) for stage in run.stages),
        }
        for name, run in PRESETS.items()
    ]
    show(rows, json)


@dataclass(frozen=True)
class TrainOptions:
    """Train a preset, with any of its settings overridden."""

    config: Annotated[RunConfig, tyro.conf.arg(name=""), tyro.conf.AvoidSubcommands]
    run_dir: Path | None = None
    """Where checkpoints and the log go; by default runs/PRESET-SEED."""
    data_dir: Path | None = None
    """Where data sets lie or are downloaded to; also VBMEM_DATA."""
    device: Device = "auto"
    resume: bool = False
    """Go on from the last checkpoint in the run directory."""


AnyPreset = tyro.extras.subcommand_type_from_defaults(
    {name: TrainOptions(run) for name, run in PRESETS.items()}, prefix_names=False
)


def any_preset(options: Annotated[AnyPreset, tyro.conf.arg(name="")]) -> None:  # type: ignore[valid-type]
    """Train a preset: vbmem train PRESET [overrides]."""


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
        TrainOptions,
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
    model: Annotated[str, tyro.conf.Positional],
    split: Part = "test",
    dataset: str | None = None,
    data_dir: Path | None = None,
    device: Device = "auto",
) -> None:
    """The bound of a trained model, as JSON.

    Over a whole pass: elbo_per_frame, its standard error, every term.

    Args:
        model: what `vbmem train` left, or a model: a name that `vbmem models` lists, or a directory.
        split: which pictures.
        dataset: the pictures, if not those the model was trained on.
        data_dir: where data sets lie or are downloaded to.
        device: where to run.
    """
    saved = load_network(model, pick_device(device))
    frame = saved.network.frame
    if saved.data is None and dataset is None:
        raise ValueError(f"{model} does not say what it was trained on; give --dataset")
    data = saved.data or DataConfig(binary=frame.likelihood == "bernoulli")
    images = load_images(dataset or data.dataset, data_dir, frame.size, progress=False)
    result = evaluate_model(saved.network, data, images, split, saved.seed)
    print(dumps({"model": model, "split": split, **result}, indent=1))


def pick_device(name: Device) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu or auto")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
