"""Training: the presets there are, and a run of one of them."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vbmem.commands import command
from vbmem.commands.devices import Device, pick_device
from vbmem.commands.given_pictures import SkipBroken, broken_pictures
from vbmem.commands.output import console, say, show
from vbmem.commands.processes import is_first, own_device, torchrun_group
from vbmem.commands.trained_on import data_of
from vbmem.errors import TrainingError
from vbmem.paper.presets import PRESETS, get_preset
from vbmem.train.settings import PaintingConfig, RunConfig

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from vbmem.data.image_set import ImageSet
    from vbmem.data.settings import DataConfig
    from vbmem.train.loop import Trainer


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
    skip_broken: SkipBroken = False


AnyPreset: Any = tyro.extras.subcommand_type_from_defaults(
    {name: TrainOptions(name, run) for name, run in PRESETS.items()}, prefix_names=False
)


@command("Train")
def train(options: Annotated[TrainOptions, tyro.conf.arg(name="", constructor=AnyPreset)]) -> None:
    """Train a preset: vbmem train PRESET [overrides]."""
    from vbmem.train.loop import Trainer

    config, resume, device = options.config, options.resume, pick_device(options.device)
    run_dir = options.run_dir or Path("runs") / f"{options.preset}-{config.seed}"
    _check_new(run_dir, resume, "--run-dir")
    with torchrun_group(cuda=device.type == "cuda") as group:
        images = _load(config.data, options.data_dir, config.data.image_size, options.skip_broken, group)
        its_device = own_device(device, group)
        best = _run(Trainer(config, images, run_dir, its_device, resume=resume, console=console, group=group))
        if not is_first(group):
            return
    if not math.isfinite(best):
        raise TrainingError(
            f"no epoch had a finite bound on the validation part, so {run_dir} holds no model; start again in another "
            "directory with a lower learning rate"
        )
    where = " --split valid" if images.x_test is None else ""
    say(f"best validation bound {best:.2f} nats a frame; evaluate it with  vbmem evaluate {run_dir}{where}")


def train_preset(name: str, arguments: list[str]) -> None:
    """`vbmem train PRESET [overrides]`: the same, but help and errors speak of this preset alone."""
    default = TrainOptions(name, get_preset(name))
    train(tyro.cli(TrainOptions, prog=f"vbmem train {name}", args=arguments, default=default))


AS_DEFAULT = PaintingConfig()


@command("Train")
def train_decoder(
    model: Annotated[str, tyro.conf.Positional],
    config: Annotated[PaintingConfig, tyro.conf.arg(name="")] = AS_DEFAULT,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    dataset: str | None = None,
    data_dir: Path | None = None,
    device: Device = "auto",
    resume: bool = False,
    skip_broken: SkipBroken = False,
) -> None:
    """Over a trained model, train a decoder of crisp pictures.

    The model stays as it is: its memories, scores and bounds do not depend on that decoder.

    Args:
        model: what `vbmem train` left, or a model: a name that `vbmem models` lists, or a directory.
        config: how the decoder is trained.
        out: the directory of the model with its decoder, and of checkpoints and log; by default runs/MODEL-crisp-SEED.
        dataset: the pictures, if not those the model was trained on.
        data_dir: where data sets are kept or downloaded to; also the variable VBMEM_DATA.
        device: where to train; auto takes a GPU if there is one.
        resume: go on from the last checkpoint in that directory.
    """
    from vbmem.pretrained import load_network
    from vbmem.train.painting import DecoderTrainer

    run_dir = out or Path("runs") / f"{Path(model).name}-crisp-{config.seed}"
    _check_new(run_dir, resume, "--out")
    picked = pick_device(device)
    with torchrun_group(cuda=picked.type == "cuda") as group:
        saved = load_network(model, own_device(picked, group))
        data = data_of(saved, model, dataset)
        images = _load(data, data_dir, saved.network.frame.size, skip_broken, group)
        _run(DecoderTrainer(config, saved, images, run_dir, data=data, resume=resume, console=console, group=group))
        if not is_first(group):
            return
    say(f"the model with its crisp decoder is {run_dir}; give it away with  vbmem export {run_dir} -o DIRECTORY --half")


def _check_new(run_dir: Path, resume: bool, option: str) -> None:
    """Raise ValueError if a run is there that is not to be resumed, or a model; `option` names the directory."""
    from vbmem.models.directory import CHECKPOINT, WEIGHTS

    if resume:
        return
    if (run_dir / CHECKPOINT).exists():
        raise ValueError(f"{run_dir} holds a run already; add --resume to go on, or choose another {option}")
    if (run_dir / WEIGHTS).exists():
        raise ValueError(f"{run_dir} holds a model, which would be lost; choose another {option}")


def _load(
    data: "DataConfig", data_dir: Path | None, size: int | None, skip_broken: bool, group: "ProcessGroup | None"
) -> "ImageSet":
    """The pictures; the first process is done with a download, and has named those left out, before others begin."""
    from vbmem.data.loading import load_images
    from vbmem.train.processes import Processes

    processes = Processes(group)
    if not processes.is_first:
        processes.meet()
    left_out: list[Path] | None = [] if skip_broken else None
    with broken_pictures(data.dataset, skip_broken) if processes.is_first else nullcontext(left_out) as broken:
        images = load_images(data.dataset, data_dir, size, subset=data.subset, broken=broken)
    if processes.is_first:
        processes.meet()
    return images


def _run(trainer: "Trainer") -> float:
    """Train to the end; of a run that is interrupted, say how to go on."""
    from vbmem.models.directory import CHECKPOINT

    try:
        return trainer.run()
    except KeyboardInterrupt:
        if trainer.processes.is_first and (trainer.run_dir / CHECKPOINT).exists():
            say("the same command with --resume goes on from there")
        raise


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
