"""Training: the presets there are, and a run of one of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from vbmem.commands import command
from vbmem.commands.devices import Device, pick_device
from vbmem.commands.output import console, say, show
from vbmem.paper.presets import PRESETS, get_preset
from vbmem.train.settings import RunConfig


@dataclass(frozen=True)
class TrainOptions:
    """Train a preset, with any of its settings overridden."""

    preset: Annotated[str, tyro.conf.Fixed, tyro.conf.Suppress]
    config: Annotated[RunConfig, tyro.conf.arg(name=""), tyro.conf.AvoidSubcommands]
    run_dir: Path | None = None
    """Where checkpoints and the log go; by default runs/PRESET-SEED."""
    data_dir: Path | None = None
    """Where data sets are kept or downloaded to; also the variable VBMEM_DATA."""
    device: Device = "auto"
    """Where to train; auto takes a GPU if there is one."""
    resume: bool = False
    """Go on from the last checkpoint in the run directory."""


AnyPreset: Any = tyro.extras.subcommand_type_from_defaults(
    {name: TrainOptions(name, run) for name, run in PRESETS.items()}, prefix_names=False
)


@command("Train")
def train(options: Annotated[TrainOptions, tyro.conf.arg(name="", constructor=AnyPreset)]) -> None:
    """Train a preset: vbmem train PRESET [overrides]."""
    from vbmem.data.loading import load_images
    from vbmem.train.loop import Trainer

    config, resume = options.config, options.resume
    run_dir = options.run_dir or Path("runs") / f"{options.preset}-{config.seed}"
    checkpoint = run_dir / "last.safetensors"
    if checkpoint.exists() and not resume:
        raise ValueError(f"{run_dir} holds a run already; add --resume to go on, or choose another --run-dir")
    data = config.data
    images = load_images(data.dataset, options.data_dir, data.image_size, subset=data.subset)
    trainer = Trainer(config, images, run_dir, pick_device(options.device), resume=resume, console=console)
    try:
        best = trainer.run()
    except KeyboardInterrupt:
        if checkpoint.exists():
            say("the same command with --resume goes on from there")
        raise
    say(f"best validation bound {best:.2f} nats a frame; evaluate it with  vbmem evaluate {run_dir}")


def train_preset(name: str, arguments: list[str]) -> None:
    """`vbmem train PRESET [overrides]`: the same, but help and errors speak of this preset alone."""
    default = TrainOptions(name, get_preset(name))
    train(tyro.cli(TrainOptions, prog=f"vbmem train {name}", args=arguments, default=default))


@command("Train")
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
