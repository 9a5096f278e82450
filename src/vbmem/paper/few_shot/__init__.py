"""Few-shot learning, on Omniglot the field's own benchmark: what models make of characters they were never trained on.

Two measures, for any number of models on the same pictures:

- the bound a picture, in nats, of episodes of one character, for several sizes of the episode, with every divergence
  charged (that of a memory or a context divided by the size). All pictures of a part are shown once at every size, so
  that all characters count alike. Standard errors are over characters, since episodes of one character are not
  independent; differences between models are paired by character, on the same episodes. The same of episodes of four
  characters mixed, where the size is a multiple of four: each character is with the same three others always, and the
  groups of four take the place of characters. Three of 659 are left over.
- classification: a trial draws some characters, and of each one or five drawings, the shots, and one query. One memory
  a class is written from the means of its shots' content, and a query, of which the memories have seen nothing, goes to
  the memory under which the mean of its content has the highest predictive density; also with the noise that means have
  in place of that of codes. A trial classifies the queries of all its classes; intervals are 95 % over trials. Beside
  it are rules that need no memory.

How this differs from the published numbers that are kept here (Neural Statistician: Edwards & Storkey 2017; SCHA-VAE:
Giannone & Winther 2022; Matching Networks: Vinyals et al. 2016; Prototypical Networks: Snell et al. 2017):

- pictures are the official drawings of 105 x 105 pixels brought to 28 x 28 by a box filter, not the file of Burda et
  al. (2016); frames are binary as the model was trained, rounded or drawn at random, where published bounds are of
  pixels drawn at random;
- characters are split as the official alphabets are, 964 for training and validation and 659, of other alphabets, for
  test; Matching and Prototypical Networks train on 1,200 of all alphabets, and on these rotated, and test on 423;
- a trial draws its characters from all test alphabets, as those do; the task of Lake et al. (2015) stays within one
  alphabet, which is harder;
- those were trained to classify. Our models and the Neural Statistician were told no more than that the frames of an
  episode belong together.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from rich.console import Console
from torch import Generator, Tensor

from vbmem.data.episodes import EpisodeSource
from vbmem.data.image_set import ImageSet
from vbmem.data.loading import load_images
from vbmem.data.settings import Binarisation, DataConfig
from vbmem.errors import DataError, ModelError
from vbmem.memory.checks import check_size
from vbmem.paper.few_shot.bounds import character_bounds, mean_and_error
from vbmem.paper.few_shot.characters import Characters
from vbmem.paper.few_shot.classification import accuracies, rules_of
from vbmem.paper.few_shot.sheet import CHARACTERS, SHOTS, draw_characters
from vbmem.pretrained.baseline import Baseline
from vbmem.pretrained.directory import load_any
from vbmem.pretrained.model import Model
from vbmem.progress import track
from vbmem.sheets import save_picture
from vbmem.tables import table
from vbmem.train.runs import make_source

Json: TypeAlias = dict[str, Any]
Task: TypeAlias = tuple[int, int]  # way and shots
Unseen: TypeAlias = Literal["valid", "test"]  # parts that no model was trained on

SIZES = (2, 5, 10, 20)
MIXED = 4  # characters in an episode of several
TASKS: tuple[Task, ...] = ((20, 1), (20, 5), (5, 1), (5, 5))
PUBLISHED: Json = {
    "bound": {  # nats a picture, the context charged, by size
        "Neural Statistician": {"5": -96.3, "20": -94.4},
        "SCHA-VAE": {"5": -90.2, "20": -87.4},
        "SCHA-VAE, best variant": {"5": -88.4, "20": -86.0},
    },
    "classification": {  # percent, by task
        "Neural Statistician": {"20-way 1-shot": 93.2, "20-way 5-shot": 98.1},
        "Matching Networks": {"20-way 1-shot": 93.8, "20-way 5-shot": 98.5},
        "Prototypical Networks": {"20-way 1-shot": 96.0, "20-way 5-shot": 98.9},
    },
}
NORMAL_95 = 1.96  # standard errors to either side


def few_shot(
    models: Sequence[str],
    *,
    data_dir: Path | None,
    split: Unseen = "test",
    binarise: Binarisation | None = None,
    trials: int = 1000,
    seed: int = 0,
    device: torch.device | str = "cpu",
    picture: Path | None = None,
    sizes: Sequence[int] = SIZES,
    tasks: Sequence[Task] = TASKS,
    console: Console,
) -> Json:
    """Evaluate trained models on episodes of one label and of four, show the tables and return all numbers, for JSON.

    Args:
        models: names of models that come with the package, or directories; the others are compared with the first.
        data_dir: where the data set that they were trained on is kept.
        split: the part of it to use; nothing is to be chosen on test.
        binarise: how frames are made binary; by default as in training, where all were trained alike.
        trials: of every task of classification.
        seed: of episodes, trials and draws, the same for every model.
        device: where to compute.
        picture: a file for a picture of what the first model draws.
        sizes: pictures in an episode, for the bounds.
        tasks: way and shots of the classifications.
        console: for the tables.

    Returns:
        By model the bound of every kind of episodes, as in "20" or "20 of 4 characters", and the accuracy of every rule
        in every task; the paired differences of the bounds, the first model's less another's; and the published
        numbers.

    Raises:
        DataError: the pictures have no labels, or too few.
        ModelError: there is no such model, or models were not trained on one data set, or on pixels that were made
            binary in different ways, where none is given.
    """
    check_size("trials", trials)
    if not models:
        raise ModelError("no model was given; expected at least one")
    loaded = {name: load_any(name, device) for name in models}
    images = _common_images(loaded, data_dir)
    if binarise is None:
        _check_one_way(loaded)
    pictures, labels = images.split(split, "by-label")
    if labels is None:
        raise DataError(f"the pictures of {images.name} have no labels, which say what belongs together")
    characters = Characters.of(labels)
    drawn = {task: characters.trials(*task, trials, Generator().manual_seed(seed)) for task in tasks}
    console.print(f"{len(pictures):,} pictures of {len(characters.drawings):,} labels: {images.name}, {split}")
    episodes = _kinds_of_episodes(sizes)
    bounds: dict[str, dict[str, dict[str, Tensor]]] = {}
    classified: Json = {}
    for name, model in loaded.items():
        source = _source(model, images, split, binarise, seed)
        bounds[name] = {
            kind: character_bounds(model.network, source, characters, size, seed, mixed)
            for kind, (size, mixed) in track(episodes.items(), f"{name}: bounds", total=len(episodes))
        }
        classified[name] = _classified(model, source, drawn, seed, name)
    result = {
        "data": {"dataset": images.name, "split": split, "pictures": len(pictures), "labels": len(characters.drawings)},
        "settings": {"trials": trials, "seed": seed, "binarise": binarise or "as in training"},
        "models": {
            name: {
                "name": model.name,
                "fingerprint": model.fingerprint,
                "data": model.data and asdict(model.data),
                "bound": {kind: _summary(reports) for kind, reports in bounds[name].items()},
                "classification": classified[name],
            }
            for name, model in loaded.items()
        },
        "differences": _differences(bounds),
        "published": PUBLISHED,
    }
    _show(result, list(episodes), [_task(task) for task in tasks], console)
    if picture is not None:
        columns = min(CHARACTERS, len(characters.drawings))
        shown = characters.trials(columns, SHOTS - 1, 1, Generator().manual_seed(seed))[0]
        shots = torch.from_numpy(pictures).movedim(-1, 1)[shown]
        save_picture(draw_characters(loaded[models[0]], shots, seed=seed), picture)
        console.print(f"picture: {picture}", soft_wrap=True)
    return result


def _kinds_of_episodes(sizes: Sequence[int]) -> dict[str, tuple[int, int]]:
    """By name, the size of each and how many characters it mixes."""
    several = {f"{size} of {MIXED} characters": (size, MIXED) for size in sizes if size % MIXED == 0}
    return {str(size): (size, 1) for size in sizes} | several


def _common_images(models: dict[str, Model | Baseline], data_dir: Path | None) -> ImageSet:
    """The pictures that all models were trained on, in the size of their frames."""
    (first, *others) = ((name, _trained_on(name, model), model.frame.size) for name, model in models.items())
    name, data, size = first
    for other, other_data, other_size in others:
        if (other_data.dataset, other_data.subset, other_size) != (data.dataset, data.subset, size):
            raise ModelError(
                f"{name} and {other} were trained on different pictures, {data.dataset} and {other_data.dataset}; "
                "compare models of one data set and size"
            )
    return load_images(data.dataset, data_dir, size, subset=data.subset)


def _check_one_way(models: dict[str, Model | Baseline]) -> None:
    """Raise ModelError where models were trained on other bits of the same pictures: their bounds mean other things."""
    ways = {_way(_trained_on(name, model)): name for name, model in models.items()}
    if len(ways) > 1:
        found = " and ".join(f"{name} ({way})" for way, name in ways.items())
        raise ModelError(
            f"{found} were trained on pixels made binary in different ways; say by `binarise` in which way all are to "
            "be compared"
        )


def _way(data: DataConfig) -> str:
    """How pixels were made binary, if they were."""
    return data.binarise if data.binary else "grey"


def _trained_on(name: str, model: Model | Baseline) -> DataConfig:
    if model.data is None:
        raise ModelError(f"{name} does not say what it was trained on; expected a training run or an exported model")
    return model.data


def _source(
    model: Model | Baseline, images: ImageSet, split: Unseen, binarise: Binarisation | None, seed: int
) -> EpisodeSource:
    """Of single frames, made as they were for the model's training unless said; which make an episode is chosen
    here."""
    data = replace(
        _trained_on(model.name, model), episodes="by-label", labels_per_episode=1, batch_size=1, episode_length=1
    )
    if binarise is not None:
        data = replace(data, binarise=binarise)
    return make_source(data, images, split, seed, model.device)


def _classified(
    model: Model | Baseline, source: EpisodeSource, trials: dict[Task, Tensor], seed: int, name: str
) -> Json:
    """Accuracy of every rule in every task, in percent, and how far the interval of 95 % reaches to either side."""
    rules = rules_of(model.network, source, seed)
    result: Json = {rule: {} for rule in rules}
    for task, drawn in track(trials.items(), f"{name}: classification", total=len(trials)):
        for rule, fit in rules.items():
            found = mean_and_error(100 * accuracies(fit, drawn.to(model.device)))
            result[rule][_task(task)] = {"mean": found["mean"], "interval": NORMAL_95 * found["standard_error"]}
    return result


def _summary(reports: dict[str, Tensor]) -> Json:
    """Mean and standard error of every report over characters, or over groups of them."""
    return {name: mean_and_error(values) for name, values in reports.items()}


def _differences(bounds: dict[str, dict[str, dict[str, Tensor]]]) -> list[Json]:
    """The bound of the first model less that of each other, with the standard error of the paired difference."""
    first, *others = bounds
    return [
        {"first": first, "other": other}
        | {
            kind: mean_and_error(bounds[first][kind]["elbo_per_frame"] - reports["elbo_per_frame"])
            for kind, reports in bounds[other].items()
        }
        for other in others
    ]


def _task(task: Task) -> str:
    return f"{task[0]}-way {task[1]}-shot"


def _show(result: Json, episodes: list[str], tasks: list[str], console: Console) -> None:
    """Three tables, published numbers below ours."""
    rows = [
        {"model": name} | {kind: _cell(model["bound"][kind]["elbo_per_frame"]) for kind in episodes}
        for name, model in result["models"].items()
    ]
    rows += [
        {"model": f"{name}, published"} | {kind: cells.get(kind, "") for kind in episodes}
        for name, cells in PUBLISHED["bound"].items()
    ]
    console.print(table(rows, "bound a picture, nats ± standard error, by pictures in an episode", decimals=1))
    if pairs := result["differences"]:
        rows = [
            {"": f"{pair['first']} less {pair['other']}"} | {kind: _cell(pair[kind]) for kind in episodes}
            for pair in pairs
        ]
        console.print(table(rows, "difference, nats ± standard error, paired by character"))
    rows = [
        {"model": name, "rule": rule} | {task: _cell(cells[task]) for task in tasks}
        for name, model in result["models"].items()
        for rule, cells in model["classification"].items()
    ]
    rows += [
        {"model": name, "rule": "published"} | {task: cells.get(task, "") for task in tasks}
        for name, cells in PUBLISHED["classification"].items()
    ]
    title = f"accuracy, % ± 95 % interval over {result['settings']['trials']:,} trials"
    console.print(table(rows, title, decimals=1))


def _cell(found: dict[str, float]) -> str:
    mean, around = found.values()
    return f"{mean:.1f} ± {around:.1f}"
