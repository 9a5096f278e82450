"""The paper's tables, figures and metrics."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vbmem.commands import command
from vbmem.commands.devices import Device, pick_device
from vbmem.commands.output import check_outputs, check_png, console
from vbmem.data.settings import Binarisation

Jobs = Annotated[
    int,
    tyro.conf.arg(
        help="runs at the same time, each in a process of its own; on a large GPU several take little longer than one"
    ),
]
DataDir = Annotated[
    Path | None, tyro.conf.arg(help="where data sets are kept or downloaded to; also the variable VBMEM_DATA")
]
TrainingDevice = Annotated[Device, tyro.conf.arg(help="where to train; hours on a CPU")]


@command("The paper")
def table1(
    out: Path = Path("results/table1"),
    dataset: Literal["cifar10", "celeba", "both"] = "cifar10",
    models: list[str] = ["vae", "statistician", "dkm", "gaussian", "categorical"],  # noqa: B006, shown as the default
    as_in_paper: bool = False,
    seeds: int = 3,
    jobs: Jobs = 1,
    data_dir: DataDir = None,
    device: TrainingDevice = "auto",
) -> None:
    """Table 1: five models trained, beside the paper's bounds.

    Args:
        out: the directory for the runs and table1.json; finished rows are not trained again.
        dataset: the data set to train on.
        models: the rows of the table.
        as_in_paper: train in the paper's exact settings, the presets paper-..; otherwise in ours. The table shows
            both as far as they are finished.
        seeds: how many seeds (0, 1, ..) every row is trained with.
    """
    from vbmem.paper.table1 import table1

    datasets: list[Literal["cifar10", "celeba"]] = ["cifar10", "celeba"] if dataset == "both" else [dataset]
    table1(out, datasets, models, list(range(seeds)), data_dir, pick_device(device), console, jobs, as_in_paper)


@command("The paper")
def claims(
    out: Path = Path("results/claims"),
    names: list[str] = [],  # noqa: B006, empty for all
    epochs: int | None = None,
    seeds: int = 2,
    jobs: Jobs = 1,
    data_dir: DataDir = None,
    device: TrainingDevice = "auto",
) -> None:
    """Claims: models with one of the paper's choices changed.

    Args:
        out: the directory for the runs and claims.json; finished runs are not trained again.
        names: the variants to train; by default all.
        epochs: train each in a single stage of so many epochs; by default as its preset has it.
        seeds: how many seeds (0, 1, ..) every variant is trained with.
    """
    from vbmem.paper.claims import VARIANTS, claims

    chosen = names or list(VARIANTS)
    claims(out, chosen, list(range(seeds)), epochs, data_dir, pick_device(device), console, jobs)


@command("The paper")
def figure2(
    out: Path,
    seed: int = 0,
    seeds: int = 1,
    rows: list[int] = [8, 16, 32, 64, 128, 256],  # noqa: B006, shown as the default
    code_sizes: list[int] = [50, 100, 200, 400, 800],  # noqa: B006
    episode_length: int = 32,
) -> None:
    """Figure 2: variational Bayes against the DKM.

    Args:
        out: the directory for the two pictures and figure2.json.
        seed: the first seed.
        seeds: how many seeds, each with its own episode; the pictures show the mean.
        rows: the memory sizes K to compare.
        code_sizes: the code sizes C to compare.
        episode_length: frames in an episode; other than the paper's 32, it is in the names of the files.
    """
    from vbmem.paper import figure2

    if not rows or not code_sizes or min(seeds, episode_length, *rows, *code_sizes) < 1:
        raise ValueError("--seeds, --rows, --code-sizes and --episode-length must be at least 1, and none may be empty")
    figure2.figure2(out, seed, seeds, rows, code_sizes, console, episode_length)


Folder = Annotated[Path, tyro.conf.arg(help="the directory for the pictures")]
Models = Annotated[list[str], tyro.conf.arg(help="names that `vbmem models` lists, or directories of models and runs")]
ModelName = Annotated[str, tyro.conf.arg(help="a name that `vbmem models` lists, or a directory")]
Cifar = Annotated[
    Path | None,
    tyro.conf.arg(help="where CIFAR-10 is kept; without it, crops of two photographs make the episode"),
]
Seed = Annotated[int, tyro.conf.arg(help="seed of the episode and the random draws")]
AsInPaper = Annotated[
    bool,
    tyro.conf.arg(
        help="draw pixels, also within chains, and the clusters of a mixture all alike, as appendix G has it"
    ),
]
FIGURES, MIXTURE, BOTH = Path("figures"), "cifar10-mixture", ["cifar10-mixture", "cifar10-tree"]


def _draw(figure: str, *options: Any, as_in_paper: bool) -> None:
    from vbmem.paper import figures

    if [] in options:
        raise ValueError("--models needs at least one name that `vbmem models` lists, or a directory")
    getattr(figures, figure)(*options, console, as_in_paper=as_in_paper)


@command("The paper")
def figure3(
    out: Folder = FIGURES,
    models: Models = BOTH,
    data_dir: Cifar = None,
    as_in_paper: AsInPaper = False,
    seed: Seed = 0,
) -> None:
    """Figure 3: pictures generated from memory, or without one."""
    _draw("figure3", out, models, data_dir, seed, as_in_paper=as_in_paper)


@command("The paper")
def figure4(
    out: Folder = FIGURES,
    models: Models = BOTH,
    data_dir: Cifar = None,
    as_in_paper: AsInPaper = False,
    seed: Seed = 0,
) -> None:
    """Figure 4: iterative reading, as a picture and an animation."""
    _draw("figure4", out, models, data_dir, seed, as_in_paper=as_in_paper)


@command("The paper")
def figure5(
    out: Folder = FIGURES,
    model: ModelName = MIXTURE,
    data_dir: Cifar = None,
    as_in_paper: AsInPaper = False,
    seed: Seed = 0,
) -> None:
    """Figure 5: 640 pictures in a memory of 100 clusters."""
    _draw("figure5", out, model, data_dir, seed, as_in_paper=as_in_paper)


@command("The paper")
def figure6(
    out: Folder = FIGURES,
    model: ModelName = MIXTURE,
    data_dir: Cifar = None,
    as_in_paper: AsInPaper = False,
    seed: Seed = 0,
) -> None:
    """Figure 6: 1280 pictures in a memory of 150 clusters."""
    _draw("figure6", out, model, data_dir, seed, as_in_paper=as_in_paper)


@command("The paper")
def metrics(
    model: Annotated[str, tyro.conf.Positional],
    out: Path | None = None,
    data_dir: Path | None = None,
    episodes: int = 5,
    frames: int = 64,
    sizes: bool = True,
    seed: int = 0,
) -> None:
    """Precision, coverage and recall of a model, in numbers.

    Args:
        model: a name that `vbmem models` lists, or a directory.
        out: a JSON file for everything measured.
        data_dir: where CIFAR-10 is kept; without it, crops of two photographs are used.
        episodes: how many episodes to average over.
        frames: how many pictures an episode has.
        sizes: also measure over numbers of clusters and longer episodes, which takes longest.
        seed: seed of the episodes and the random draws.
    """
    from vbmem.files import write_json
    from vbmem.paper import metrics as measure

    check_outputs(out)
    result = measure.metrics(
        model, data_dir=data_dir, episodes=episodes, frames=frames, sizes=sizes, seed=seed, console=console
    )
    if out is not None:
        write_json(out, result)


@command("The paper")
def episodes_table(
    out: Path = Path("results/episodes"),
    kinds: list[str] = [],  # noqa: B006, empty for all
    models: list[str] = [],  # noqa: B006, empty for all
    seeds: int = 1,
    jobs: Jobs = 1,
    data_dir: DataDir = None,
    device: TrainingDevice = "auto",
) -> None:
    """When a memory pays: models on several kinds of episodes.

    Args:
        out: the directory for the runs, episodes.json and episodes.png; finished runs are not trained again.
        kinds: kinds of episodes, by what their pictures share; by default all.
        models: the models to train, of which the vae is what the others are compared with; by default all.
        seeds: how many seeds (0, 1, ..) each is trained with.
    """
    from vbmem.paper.episodes_table import KINDS, MODELS, episodes_table

    where = (data_dir, pick_device(device), console)
    episodes_table(out, kinds or list(KINDS), models or list(MODELS), list(range(seeds)), *where, jobs)


@command("The paper")
def few_shot(
    models: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL [MODEL ..]")],
    split: Literal["valid", "test"] = "test",
    binarise: Binarisation | None = None,
    trials: int = 1000,
    out: Path | None = None,
    picture: Path | None = None,
    data_dir: DataDir = None,
    seed: int = 0,
    device: Device = "auto",
) -> None:
    """Few-shot: bounds and classification of unseen characters.

    Args:
        models: what `vbmem train` left, or models: names that `vbmem models` lists, or directories. Bounds of the
            others are compared with that of the first.
        split: the part of the data set to evaluate on; choose settings on valid.
        binarise: how pictures are made binary; by default as in training, where all models were trained alike.
        trials: trials of every classification.
        out: a JSON file for everything measured.
        picture: a PNG file for characters, and what the first model draws after a few drawings of each.
        seed: seed of the episodes, the trials and the random draws.
        device: where to compute; auto takes a GPU if there is one.
    """
    from vbmem.files import write_json
    from vbmem.paper import few_shot as measure

    check_outputs(out, picture)
    check_png(picture)
    result = measure.few_shot(
        models,
        data_dir=data_dir,
        split=split,
        binarise=binarise,
        trials=trials,
        seed=seed,
        device=pick_device(device),
        picture=picture,
        console=console,
    )
    if out is not None:
        write_json(out, result)
