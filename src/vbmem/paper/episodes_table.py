"""The study of when a memory pays: kinds of episodes, and at equal steps the models with and without a memory."""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console

from vbmem.data.image_set import ImageSet
from vbmem.data.settings import DataConfig
from vbmem.files import write_atomically, write_json
from vbmem.models.base import EpisodicModel
from vbmem.models.settings import MemoryConfig, ModelConfig, StatisticianConfig, VAEConfig
from vbmem.paper.presets import OMNIGLOT_DATA, OMNIGLOT_MIXED_DATA
from vbmem.paper.training import Json, Run, as_text, check_names, mean_and_spread, train_all
from vbmem.sheets import figure_png
from vbmem.tables import table
from vbmem.train.evaluation import evaluate
from vbmem.train.settings import RunConfig, Stage


@dataclass(frozen=True)
class Kind:
    """A kind of episodes, and how long models are trained on it."""

    shares: str
    """What the frames of an episode have in common."""
    data: DataConfig
    """The episodes that models are tested on."""
    training_sources: int | None = None
    """Different pictures in an episode of training, where not as many as in one of the test; for models with a memory,
    by their bound on validation pictures."""
    epochs: int = 70
    warm_up: int = 0
    """Steps; binary pictures need them, or most models forget what they share before it is of use."""
    code_size: int = 200
    own_size: int = 0
    """Of every memory model's code, what belongs to the frame alone."""

    @property
    def models(self) -> tuple[str, ...]:
        """What is trained on it: where every memory writes a part of the code, `part` is no model of its own."""
        return tuple(model for model in MODELS if model != "part" or not self.own_size)


CIFAR = DataConfig("cifar10", augment=("mirror",))
CELEBA = DataConfig("celeba", episodes="by-label", batch_size=200, episode_length=5, subset="five-each")
CHARACTERS: dict[str, Any] = {"epochs": 80, "warm_up": 2000, "code_size": 152, "own_size": 128}
KINDS: dict[str, Kind] = {
    "shuffled": Kind("nothing", CIFAR),
    "label": Kind("a label", replace(CIFAR, episodes="by-label")),
    "labels": Kind("four labels", replace(CIFAR, episodes="by-label", labels_per_episode=4)),
    "views": Kind("four pictures, each seen in 16 ways", replace(CIFAR, episodes="views"), training_sources=64),
    "repeats": Kind("four pictures, each 16 times", replace(CIFAR, episodes="repeats"), training_sources=16),
    "person": Kind("a person", CELEBA, epochs=60),
    "character": Kind("a character", OMNIGLOT_DATA, **CHARACTERS),
    "characters": Kind("four characters", OMNIGLOT_MIXED_DATA, **CHARACTERS),
}
WITHOUT = ("vae", "statistician")  # models without a memory
MEMORIES: dict[str, MemoryConfig] = {
    "gaussian": MemoryConfig("gaussian", rows=4),
    "categorical": MemoryConfig("categorical", rows=4),
    "shifted": MemoryConfig("shifted", row_var=2.0, loc_var=5.0),
    "mixture": MemoryConfig("mixture", clusters=8, row_var=2.0, loc_var=5.0),
    "tree": MemoryConfig("tree", clusters=8, row_var=2.0, loc_var=5.0),
    "part": MemoryConfig("mixture", rows=2, clusters=4),
}
"""All but the last write the whole code, as the paper has it, into a memory whose scales are given. `part` writes half
of it and learns its scales: it contains the VAE."""
MODELS = (*WITHOUT, *MEMORIES)
NETWORKS: dict[str, Any] = {"filters": 64, "style": "batch-swish-up-first"}


def run_of(kind: str, model: str, seed: int) -> RunConfig:
    """Where a part of the code is the frame's own, q(z) sees what the memory recalls, and scales are learned.

    Four pictures an episode, as views and repeats have in the test, teach too little in a step: in training there are
    more. Models without a memory are shown different pictures alone, of which they learn most.
    """
    cell = KINDS[kind]
    data = cell.data
    if cell.training_sources is not None:
        sources = data.episode_length if model in WITHOUT else cell.training_sources
        data = replace(data, sources_per_episode=sources)
    settings: ModelConfig
    if model == "vae":
        settings = VAEConfig(code_size=cell.code_size, **NETWORKS)
    elif model == "statistician":
        settings = StatisticianConfig(code_size=cell.code_size, context_size=256, **NETWORKS)
    else:
        settings = replace(MEMORIES[model], code_size=cell.code_size, iterations=10, gradient_iterations=2, **NETWORKS)
        own_size = cell.own_size or (cell.code_size // 2 if model == "part" else 0)
        if own_size:
            settings = replace(settings, own_size=own_size, own_prior="network", sees_recall=True, learned_scales=True)
        elif settings.loc_var is not None:
            settings = replace(settings, learned_code_var=False)
    return RunConfig(
        data,
        settings,
        (Stage(cell.epochs),),
        schedule="cosine",
        warm_up=cell.warm_up,
        averaging=0.995,
        patience=cell.epochs,  # at equal steps
        seed=seed,
    )


def episodes_table(
    out: Path,
    kinds: list[str],
    models: list[str],
    seeds: list[int],
    data_dir: Path | None,
    device: torch.device,
    console: Console,
    jobs: int = 1,
) -> None:
    """Train every model on every kind of episodes, `jobs` at a time; leave the runs under `out`/runs, the numbers in
    `out`/episodes.json and the figure in `out`/episodes.png."""
    check_names("kind of episodes", kinds, KINDS)
    check_names("model", models, MODELS)
    runs = {
        Run(f"{kind}-{model}", seed): run_of(kind, model, seed)
        for seed, kind, model in itertools.product(seeds, kinds, models)
        if model in KINDS[kind].models
    }
    summary = summarise(train_all(runs, out, data_dir, device, console, jobs, (on_test_episodes,)))
    write_json(out / "episodes.json", summary)
    write_atomically(out / "episodes.png", figure_png(draw(summary), dpi=120))
    console.print(table(rows(summary), "test bound, nats a frame"))


def on_test_episodes(network: EpisodicModel, config: RunConfig, images: ImageSet) -> Json:
    """The bound of a trained model on the episodes that all models of its kind are tested on."""
    data = replace(config.data, sources_per_episode=CIFAR.sources_per_episode)
    return {"test": evaluate(network, data, images, "test", config.seed)}


def summarise(results: list[Json]) -> dict[str, dict[str, Json]]:
    """By kind of episodes and model: the test bound over seeds, the lead over the VAE seed by seed, and every term."""
    tested = {(result["name"], result["seed"]): result["test"] for result in results if "test" in result}
    summary: dict[str, dict[str, Json]] = {}
    for kind, model in itertools.product(KINDS, MODELS):
        own, plain = (
            {seed: test for (name, seed), test in tested.items() if name == f"{kind}-{which}"}
            for which in (model, "vae")
        )
        if own:
            leads = [own[s]["elbo_per_frame"] - plain[s]["elbo_per_frame"] for s in own if s in plain]
            terms = set.intersection(*(set(test) for test in own.values()))
            summary.setdefault(kind, {})[model] = {
                "seeds": len(own),
                **{name: mean_and_spread([test[name] for test in own.values()]) for name in sorted(terms)},
                "lead": mean_and_spread(leads),
            }
    return summary


def rows(summary: dict[str, dict[str, Json]]) -> list[dict[str, str]]:
    """Of the table: what a kind of episodes shares, a model, its test bound in nats a frame, and how it comes about."""
    return [
        {
            "episodes share": KINDS[kind].shares,
            "model": model,
            "bound": as_text(row["elbo_per_frame"], ".1f"),
            "bits per dimension": as_text(row.get("bits_per_dimension"), ".2f"),
            "lead over the VAE": as_text(row["lead"], "+.1f"),
            "memory share": as_text(row.get("memory_share"), ".2f"),
            "seeds": str(row["seeds"]),
        }
        for kind, models in summary.items()
        for model, row in models.items()
    ]


def draw(summary: dict[str, dict[str, Json]]) -> Figure:
    """One panel for every kind of episodes: how far each model is ahead of the VAE, in nats a frame. Pictures are on
    one scale; characters, black and white, on another, since a nat is more there."""
    figure = Figure(figsize=(2.4 * max(len(summary), 1), 3.2), layout="constrained")
    panels: Any = figure.subplots(1, max(len(summary), 1), squeeze=False)[0]
    firsts: dict[bool, Any] = {}
    for axes, (kind, models) in zip(panels, summary.items(), strict=False):
        first = firsts.setdefault(KINDS[kind].data.binary, axes)
        if axes is not first:
            axes.sharey(first)
            axes.tick_params(labelleft=False)
        led = {model: row["lead"] for model, row in models.items() if model != "vae" and row["lead"]}
        colours = ["tab:gray" if model in WITHOUT else "tab:blue" for model in led]
        axes.bar(list(led), [lead["mean"] for lead in led.values()], color=colours)
        several = {model: lead for model, lead in led.items() if lead["std"] is not None}
        spread = [lead["std"] for lead in several.values()]
        axes.errorbar(
            list(several), [lead["mean"] for lead in several.values()], spread, fmt="none", ecolor="black", capsize=2
        )
        axes.axhline(0, color="black", linewidth=1)
        axes.set_title("frames share\n" + fill(KINDS[kind].shares, 22), fontsize=9)
        axes.tick_params(axis="x", rotation=90, labelsize=8)
    panels[0].set_ylabel("nats a frame ahead of the VAE")
    return figure
