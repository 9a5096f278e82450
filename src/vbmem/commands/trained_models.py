"""Trained models: list those that are shipped, evaluate one, export one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from json import loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from vbmem import pretrained
from vbmem.commands import command
from vbmem.commands.devices import Device, pick_device
from vbmem.commands.given_pictures import SkipBroken, broken_pictures
from vbmem.commands.output import print_json, say, show
from vbmem.commands.trained_on import data_of
from vbmem.data.settings import DataConfig, EpisodeKind, Part
from vbmem.errors import DataError
from vbmem.models.settings import Start

if TYPE_CHECKING:
    from vbmem.models.base import EpisodicModel
    from vbmem.models.directory import SavedModel

PEOPLE = ("celeba",)  # data sets of which no memory is given away
BOUND = "{split} bound, nats a frame"  # its name on a model's card


@command("See")
def models(json: bool = False) -> None:
    """List the models that come with vbmem.

    Args:
        json: print JSON instead of a table.
    """
    from vbmem.models.directory import build_model
    from vbmem.pretrained.directory import find

    bound = BOUND.format(split="test")
    described = {name: build_model(find(name)) for name in pretrained.shipped()}
    rows = [
        {
            "model": name,
            "kind": getattr(saved.network.config, "memory", type(saved.network).__name__.lower()),
            "picture": f"{saved.network.frame.size} x {saved.network.frame.size} x {saved.network.frame.channels}",
            "parameters": sum(parameter.numel() for parameter in saved.network.parameters()),
            bound: saved.card.get(bound, ""),
        }
        for name, saved in described.items()
    ]
    show(rows, json)


@command("Train")
def evaluate(
    model: Annotated[str, tyro.conf.Positional],
    split: Part = "test",
    dataset: str | None = None,
    subset: str | None = None,
    data_dir: Path | None = None,
    episodes: EpisodeKind | None = None,
    labels_per_episode: int | None = None,
    episode_length: int | None = None,
    batch_size: int | None = None,
    clusters: int | None = None,
    rows: int | None = None,
    iterations: int | None = None,
    start: Start | None = None,
    refine: float | Literal["auto"] | None = None,
    seed: int | None = None,
    device: Device = "auto",
    skip_broken: SkipBroken = False,
) -> None:
    """The bound of a trained model, as JSON.

    Over a whole pass: elbo_per_frame, its standard error, every term, and the settings used. All are those of the
    training unless others are given; a memory of another size needs no training. With --refine all of that once more
    under `refined`, which is a bound as well.

    Args:
        model: what `vbmem train` left, or a model: a name that `vbmem models` lists, or a directory.
        split: the part of the data set to evaluate on.
        dataset: the data set, if not the one the model was trained on.
        subset: a named part of the data set: five-each of celeba.
        data_dir: where data sets are kept or downloaded to; also the variable VBMEM_DATA.
        episodes: how the pictures of an episode are chosen.
        labels_per_episode: different labels in an episode by label.
        episode_length: pictures in an episode.
        batch_size: episodes in a batch; with another length, by default no more pictures than in training.
        clusters: clusters of a mixture or a tree.
        rows: factor rows of the memory, in every cluster.
        iterations: updates in a write.
        start: where a write starts.
        refine: also move q(z) by this share towards what the memory recalls, or the mean of p(z) where there is none;
            auto chooses the share on the validation part.
        seed: seed of the episodes and of every draw.
        device: where to compute; auto takes a GPU if there is one.
    """
    from vbmem.data.loading import load_images
    from vbmem.train.evaluation import best_refinement, change_memory, evaluate, with_episode_length

    saved = pretrained.load_network(model, pick_device(device))
    trained_on = data_of(saved, model, dataset, subset)
    change_memory(saved.network, clusters, rows, iterations, start)
    labels = trained_on.labels_per_episode if labels_per_episode is None else labels_per_episode
    data = replace(trained_on, episodes=episodes or trained_on.episodes, labels_per_episode=labels)
    with broken_pictures(data.dataset, skip_broken) as broken:
        size = saved.network.frame.size
        images = load_images(data.dataset, data_dir, size, progress=False, subset=data.subset, broken=broken)
    seed = saved.seed if seed is None else seed

    def episodes_of(part: Part) -> DataConfig:
        asked = data
        if episode_length is not None and episode_length != data.episode_length:
            pictures, _ = images.split(part, trained_on.episodes)
            asked = with_episode_length(data, episode_length, len(pictures))
        return asked if batch_size is None else replace(asked, batch_size=batch_size)

    def bound(share: float = 0.0) -> dict[str, float]:
        return evaluate(saved.network, evaluated, images, split, seed, share, trained_on)

    evaluated, share = episodes_of(split), refine
    if share == "auto":
        share = best_refinement(saved.network, episodes_of("valid"), images, seed, trained_on)
    result: dict[str, Any] = {**bound()}
    if share is not None:
        result["refined"] = {"share": share, **bound(share)}
    settings = asdict(evaluated) | _memory_settings(saved.network) | {"seed": seed}
    print_json({"model": model, "split": split, "settings": settings, **result})


def _memory_settings(network: EpisodicModel) -> dict[str, Any]:
    """How a model writes: sizes of its memory, iterations and start, as far as it has them."""
    from vbmem.models.memory_model import MemoryModel

    if not isinstance(network, MemoryModel):
        return {}
    sizes = {name: getattr(network.memory, name) for name in network.memory.sizes}
    iterations = {} if network.config.objective == "online" else {"iterations": network.iterations}
    return sizes | iterations | {"start": network.start or "the memory's own"}


@command("Train")
def export(
    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    push: Annotated[str | None, tyro.conf.arg(metavar="USER/NAME")] = None,
    private: bool = False,
    half: bool = False,
    name: str | None = None,
    evaluation: Path | None = None,
    metrics: Path | None = None,
    reference: bool = False,
    data_dir: Path | None = None,
    skip_broken: SkipBroken = False,
    facts: list[str] = [],  # noqa: B006, shown as the default
) -> None:
    """Save the best model of a run, to keep or to give away.

    With a reference memory for `vbmem score`, if the data set it was trained on is at hand.

    Args:
        run: what `vbmem train` left, or any model.
        out: the model directory to leave.
        push: save it on the Hugging Face Hub, where hf://USER/NAME is then its name.
        private: let nobody else see it there.
        half: save the weights in half precision, half the size.
        name: the name of the model; by default that of the run's directory.
        evaluation: a file with what `vbmem evaluate` printed, for the model's card.
        metrics: the file that `vbmem metrics` wrote, for the card.
        reference: make the reference memory anew, and also of pictures of your own, which it then holds in outline.
        data_dir: where data sets are kept; also the variable VBMEM_DATA. None is downloaded.
        facts: more for the card, each NAME=VALUE, for example commit=1a2b3c hardware="one GPU".
    """
    import torch

    from vbmem.models.card import HUB
    from vbmem.models.directory import check_replaceable, rounded, save_model
    from vbmem.pretrained.hub import upload

    if out is None and push is None:
        raise ValueError("give --out DIRECTORY, --push USER/NAME, or both: where the model is to be saved")
    if out is not None:
        check_replaceable(out)
    dtype = torch.float16 if half else torch.float32
    # A reference memory belongs to the very weights that are saved.
    saved = _referenced(rounded(pretrained.load_network(run), dtype), reference, data_dir, skip_broken)
    bound, measured = _card_facts(evaluation, "evaluate", _evaluated), _card_facts(metrics, "metrics", _measured)
    card = saved.card | bound | measured | _stated(facts)
    name = HUB + push if push is not None else name or saved.name
    with TemporaryDirectory() as unnamed:
        directory = out or Path(unnamed)
        save_model(replace(saved, name=name, card=card), directory, dtype=dtype)
        if getattr(saved.network, "memory", None) is not None and saved.reference is None:
            say("without a reference memory, since the pictures it was trained on are not at hand, or are its owner's")
        if out is not None:
            say(f"exported {name} to {out}")
        if push is not None:
            say(f"pushed {name} to {upload(directory, push, private)}")


def _referenced(saved: SavedModel, anew: bool, data_dir: Path | None, skip_broken: bool) -> SavedModel:
    """With a reference memory of the pictures it was trained on, if it can and may have one."""
    import torch

    from vbmem.data.known import KNOWN_SETS
    from vbmem.data.loading import data_directory, load_images
    from vbmem.models.memory_model import MemoryModel
    from vbmem.pretrained.directory import as_model

    if not isinstance(saved.network, MemoryModel) or (saved.reference is not None and not anew):
        return saved
    dataset = "" if saved.data is None else saved.data.dataset
    if saved.data is None or dataset in PEOPLE or not dataset:
        if anew:
            reason = "it was trained on pictures of people" if dataset else "it does not say what it was trained on"
            raise ValueError(f"{saved.name} can have no reference memory: {reason}")
        return saved
    if dataset in KNOWN_SETS:
        known = KNOWN_SETS[dataset]
        at_hand = not known.stored_as or known.is_in(data_directory(data_dir))
    else:
        at_hand = anew and Path(dataset).exists()
    if not at_hand:
        if anew:
            raise DataError(f"{dataset}, on which {saved.name} was trained, is not at hand; give its place, --data-dir")
        return saved
    with broken_pictures(dataset, skip_broken) as broken:
        size, subset = saved.network.frame.size, saved.data.subset
        images = load_images(dataset, data_dir, size, progress=False, subset=subset, broken=broken)
    return as_model(saved).with_reference(torch.from_numpy(images.split("train")[0]).movedim(-1, 1))


def _card_facts(path: Path | None, command: str, facts: Callable[[Any], dict[str, str]]) -> dict[str, str]:
    """Facts for a card from the JSON file that a command left, if there is one."""
    from vbmem.files import reading

    if path is None:
        return {}
    with reading(path, DataError, f"what `vbmem {command}` writes", "run it again"):
        return facts(loads(path.read_text()))


def _evaluated(result: Any) -> dict[str, str]:
    """The bound, for a card, from what `vbmem evaluate` printed."""
    bound, error = f"{result['elbo_per_frame']:.1f}", result["standard_error"]  # None: of a single episode
    return {BOUND.format(split=result["split"]): bound if error is None else f"{bound} +- {error:.1f}"}


def _measured(result: Any) -> dict[str, str]:
    """Precision and coverage, for a card, from what `vbmem metrics` wrote, of mean pictures and of crisp ones."""
    return {
        f"precision and coverage, {kind}{way}": ", ".join(f"{value['mean']:.2f} ({k})" for k, value in row.items())
        for kind, rows in (("", result["samples"]), ("crisp pictures, ", result.get("crisp samples", {})))
        for way, row in rows.items()
    }


def _stated(facts: list[str]) -> dict[str, str]:
    """Facts for a card, each given as NAME=VALUE."""
    for fact in facts:
        if "=" not in fact:
            raise ValueError(f"a fact must be NAME=VALUE, got {fact!r}")
    return {name: value for name, _, value in (fact.partition("=") for fact in facts)}
