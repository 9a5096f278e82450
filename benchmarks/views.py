"""Does a memory pay on views of a few pictures, where networks are told what a view is?

    python benchmarks/views.py RUNS_DIRECTORY --data-dir DIRECTORY [--seeds 5] [--jobs 8] [--out FILE.json]
    OMP_NUM_THREADS=1 python benchmarks/views.py .. --filters 16 --batch-size 4 --jobs 2  # on two CPU cores

The directory holds CIFAR-10. An episode shows four pictures in sixteen ways each: shifted, mirrored, lit anew. A memory
could say once what the sixteen have in common; with plain networks it does not pay (docs/when.md), since these have no
time to learn that it is the same picture. Here are both kinds of networks, for models with and without a memory, at
equal steps; see `posed`. Episodes of training have more pictures: 64 for models without a memory, which learn most of
different ones, 16 for the others, whose memory has a cluster for each and is then resized to four.

Of the VAEs, with and without a warm-up of the divergences, the best on validation pictures, over the seeds that all
have, is the one that leads are over; they are on test pictures, seed by seed. What is finished is not trained again.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from posed import MIDDLE, PLAIN, POSED, ViewsMemory, ViewsStatistician, ViewsVAE
from report import emit
from vbmem.data.image_set import ImageSet
from vbmem.data.settings import DataConfig
from vbmem.models.base import EpisodicModel
from vbmem.models.memory_model import MemoryModel
from vbmem.models.settings import MemoryConfig, ModelConfig
from vbmem.paper.training import Json, Run, as_text, mean_and_spread, train_all
from vbmem.tables import table
from vbmem.train.evaluation import change_memory, evaluate
from vbmem.train.settings import RunConfig, Stage

EPISODES = DataConfig("cifar10", episodes="views", augment=("mirror",))
PICTURES = 16  # in an episode of training, and clusters of a memory
TRAINING_PICTURES = 45_000
WARM_UP = 5 / 6  # of all steps
MEMORY: dict[str, Any] = {
    "clusters": PICTURES,
    "own_prior": "network",
    "sees_recall": True,
    "weighs_recall": True,
    "learned_scales": True,
    "iterations": 10,
    "gradient_iterations": 2,
}
MODELS: dict[str, ModelConfig] = {
    "vae": ViewsVAE(style="batch-swish-up-first"),
    "vae-linear": ViewsVAE(style=PLAIN),
    "vae-posed": ViewsVAE(style=POSED),
    "vae-middle": ViewsVAE(style=MIDDLE),
    "statistician-posed": ViewsStatistician(context_size=256, style=POSED),
    "memory-linear": ViewsMemory(rows=2, own_size=100, style=PLAIN, **MEMORY),
    "memory-posed": ViewsMemory(rows=0, own_size=16, style=POSED, **MEMORY),
    "memory-middle": ViewsMemory(rows=0, own_size=16, style=MIDDLE, **MEMORY),
}
WARMED = "-warmed-up"
VAES = [name + end for name, end in itertools.product(("vae", "vae-linear", "vae-posed", "vae-middle"), ("", WARMED))]
ALL = (*VAES, "statistician-posed", "memory-linear", "memory-posed", "memory-middle")
console = Console(width=110)


def run_of(name: str, seed: int, filters: int, batch_size: int, steps: int, image_size: int | None) -> RunConfig:
    """A gentle start, then a cosine, in whole epochs of about so many steps."""
    model = replace(MODELS[name.removesuffix(WARMED)], filters=filters)
    remembers = isinstance(model, MemoryConfig)
    pictures = PICTURES if remembers else EPISODES.episode_length
    steps_an_epoch = TRAINING_PICTURES // (batch_size * EPISODES.episode_length)
    epochs = max(2, round(steps / steps_an_epoch))
    slow = max(1, round(epochs / 9))
    return RunConfig(
        replace(EPISODES, image_size=image_size, batch_size=batch_size, sources_per_episode=pictures),
        model,
        (Stage(slow, 3e-4), Stage(epochs - slow, 1e-3)),
        schedule="cosine",
        warm_up=round(WARM_UP * epochs * steps_an_epoch) if remembers or name.endswith(WARMED) else 0,
        averaging=0.998,
        patience=epochs,  # at equal steps
        seed=seed,
    )


def on_four_pictures(network: EpisodicModel, config: RunConfig, images: ImageSet) -> Json:
    """The bound on episodes of four pictures, with a cluster for each."""
    data = replace(config.data, sources_per_episode=EPISODES.sources_per_episode)
    if isinstance(network, MemoryModel):
        change_memory(network, clusters=EPISODES.sources_per_episode)
    return {
        "test": evaluate(network, data, images, "test", config.seed),
        "validation": evaluate(network, data, images, "valid", config.seed),
    }


def summarise(results: list[Json]) -> Json:
    """By model the bounds, the test terms, and the lead over the VAE that is best on validation pictures."""
    found: dict[str, dict[int, Json]] = {}
    for result in results:
        if "broke_down" in result:
            console.print(f"{result['name']}-{result['seed']}: {result['broke_down']}")
            continue
        found.setdefault(result["name"], {})[result["seed"]] = result

    def bounds(name: str, part: str) -> dict[int, float]:
        return {seed: result[part]["elbo_per_frame"] for seed, result in found[name].items()}

    means = {name: mean_and_spread(list(bounds(name, "validation").values())) for name in found}
    vaes = [name for name in VAES if name in found]
    common = set.intersection(*(set(found[name]) for name in vaes)) if vaes else set()

    def on_validation(name: str) -> float:
        return math.fsum(bounds(name, "validation")[seed] for seed in common)

    best = max(vaes, key=on_validation) if common else None
    plain = {} if best is None else bounds(best, "test")
    summary: Json = {"best VAE": best, "models": {}}
    for name in found:
        tested = bounds(name, "test")
        leads = [tested[seed] - plain[seed] for seed in tested if seed in plain]
        lead = mean_and_spread(leads)
        if lead is not None and lead["std"] is not None:
            lead["standard_error"] = lead["std"] / math.sqrt(len(leads))
        terms = [result["test"] for result in found[name].values()]
        paid = [test["log_likelihood"] - test["elbo_per_frame"] for test in terms]
        summary["models"][name] = {
            "seeds": len(tested),
            "validation": means[name],
            "lead": lead,
            "kl": mean_and_spread(paid),
            **{term: mean_and_spread([test[term] for test in terms]) for term in terms[0]},
        }
    return summary


def row(name: str, model: Json) -> dict[str, str]:
    error = (model["lead"] or {}).get("standard_error")
    return {
        "model": name,
        "validation": as_text(model["validation"], ".1f"),
        "test": as_text(model["elbo_per_frame"], ".1f"),
        "lead": as_text(model["lead"], "+.1f"),
        "its standard error": f"{error:.1f}" if error else "",
        "memory share": as_text(model.get("memory_share"), ".2f"),
        "seeds": str(model["seeds"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a directory for what is trained")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--models", nargs="+", choices=ALL, default=ALL)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3010)
    parser.add_argument("--filters", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, help="of smaller pictures, by default 32")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()

    sizes = {name: getattr(options, name) for name in ("filters", "batch_size", "steps", "image_size")}
    runs = {
        Run(name, seed): run_of(name, seed, **sizes)
        for seed, name in itertools.product(range(options.seeds), options.models)
    }
    device = torch.device(options.device)
    results = train_all(runs, options.runs, options.data_dir, device, console, options.jobs, (on_four_pictures,))
    summary = summarise(results)
    console.print(table([row(*item) for item in summary["models"].items()], "test bound, nats a frame"))
    emit(sizes | summary, options.out)


if __name__ == "__main__":
    main()
