"""What the paper says of its choices, put to the test: models trained with one of them changed.

The page *What held* of the documentation has the claims, and what came of them.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from vbmem.data.image_set import ImageSet
from vbmem.data.loading import data_directory
from vbmem.files import write_json
from vbmem.models.base import EpisodicModel
from vbmem.models.dkm import DKM
from vbmem.models.memory_model import MemoryModel
from vbmem.models.settings import Start
from vbmem.paper.metrics import metrics
from vbmem.paper.presets import get_preset
from vbmem.paper.training import Json, Run, as_text, check_names, mean_and_spread, on_test, train_all
from vbmem.tables import table
from vbmem.train.evaluation import evaluate
from vbmem.train.settings import RunConfig

STARTS: tuple[Start, ...] = ("random", "data", "kmeans++", "kmeans")
Change = Callable[[RunConfig], RunConfig]


class Variant(NamedTuple):
    """One of `BASES` with something changed, and where the paper speaks of it."""

    place: str
    base: str
    change: Change = lambda run: run


def _model(**changes: Any) -> Change:
    return lambda run: replace(run, model=replace(run.model, **changes))


def _run(**changes: Any) -> Change:
    return lambda run: replace(run, **changes)


PAPER = get_preset("paper-cifar10-mixture")
BASES: dict[str, RunConfig] = {
    # What the paper's mixture needs in order to learn at all, and no more.
    "mixture": replace(
        _model(gradient_iterations=2, learned_code_var=False, precision="bfloat16")(PAPER), averaging=0.995
    ),
    "dkm": get_preset("cifar10-dkm"),
    "paper": PAPER,
}
VARIANTS: dict[str, Variant] = {
    "mixture": Variant("", "mixture"),
    "random-start": Variant("3.2.1", "mixture", _model(start="random")),
    "frames-start": Variant("3.2.1", "mixture", _model(start="data")),
    "kmeans-start": Variant("3.2.1", "mixture", _model(start="kmeans")),
    "batch-norm": Variant("3.2.2", "mixture", _model(style="batch-swish-up-last")),
    "relu": Variant("3.2.2", "mixture", _model(style="group-relu-up-last")),
    "doubling-first": Variant("F.2", "mixture", _model(style="group-swish-up-first")),
    "beta1-0.9": Variant("3.2.2", "mixture", _run(beta1=0.9)),
    "not-regularised": Variant("3.2.3", "mixture", _run(regularise=False)),
    "whole-gradient": Variant("2.4", "mixture", _model(gradient_iterations=None)),
    "learned-variance": Variant("F.1", "mixture", _model(learned_code_var=True)),
    "generalisation": Variant("3.1", "mixture", _model(objective="generalisation")),
    "online": Variant("3.1", "mixture", _model(objective="online")),
    "paper": Variant("F.2", "paper"),
    "dkm": Variant("", "dkm"),
    "dkm-mean-memory": Variant("4.3.2", "dkm", _model(mean_memory=True)),
    "dkm-no-autoencoder": Variant("4.3.2", "dkm", _model(autoencoder=False)),
}
SAMPLED = ("mixture", "not-regularised")  # of which samples are measured


def measure(network: EpisodicModel, config: RunConfig, images: ImageSet) -> Json:
    """The test bound of a trained model when used in other ways than it was trained."""

    def bound() -> Json:
        found = evaluate(network, config.data, images, "test", config.seed)
        return {name: found[name] for name in ("elbo_per_frame", "standard_error")}

    if isinstance(network, MemoryModel):
        network.config = replace(network.config, objective="episode")
        whole, starts = bound(), {}
        for start in STARTS:
            network.start = start
            starts[start] = bound()
        return {"whole_episode": whole, "starts": starts}
    assert isinstance(network, DKM)
    network.config = replace(network.config, mean_memory=False)
    return {"unbiased": bound()}


def claims(
    out: Path,
    names: list[str],
    seeds: list[int],
    epochs: int | None,
    data_dir: Path | None,
    device: torch.device,
    console: Console,
    jobs: int = 1,
) -> None:
    """Train every variant, `jobs` at a time, and leave the runs under `out`/runs and all numbers in `out`/claims.json.

    Args:
        names: of `VARIANTS`.
        epochs: of a single stage; by default the stages of the bases.
    """
    check_names("variant", names, VARIANTS)
    runs = {Run(name, seed): _config(VARIANTS[name], seed, epochs) for seed, name in itertools.product(seeds, names)}
    results = train_all(runs, out, data_dir, device, console, jobs, (on_test, measure))
    for result in results:
        if result["name"] in SAMPLED and "test" in result and "samples" not in result:
            directory = str(out / "runs" / str(Run(result["name"], result["seed"])))
            chance = {"seed": result["seed"], "console": console}
            found = metrics(directory, data_dir=data_directory(data_dir), sizes=False, names=["samples"], **chance)
            result |= {"samples": found["samples"], "samples are of": found["source"]}
            write_json(out / "runs.json", results)
    summary = summarise(results)
    write_json(out / "claims.json", {"epochs": epochs, "variants": summary, "runs": results})
    console.print(render(summary))


def _config(variant: Variant, seed: int, epochs: int | None) -> RunConfig:
    run = variant.change(replace(BASES[variant.base], seed=seed))
    return run if epochs is None else replace(run, stages=(replace(run.stages[0], epochs=epochs),))


def summarise(results: list[Json]) -> Json:
    """Of every variant the test bound over seeds, and how far it lies from that of its base, seed by seed."""
    bounds: dict[str, dict[int, float]] = {name: {} for name in VARIANTS}
    for result in results:
        if "test" in result:
            bounds[result["name"]][result["seed"]] = result["test"]["elbo_per_frame"]
    summary: Json = {}
    for name, variant in VARIANTS.items():
        runs = [result for result in results if result["name"] == name]
        base = bounds[variant.base]
        if runs:
            summary[name] = {
                "place": variant.place,
                "base": variant.base,
                "bound": _over_seeds(list(bounds[name].values())),
                "difference": _over_seeds([bounds[name][seed] - base[seed] for seed in bounds[name] if seed in base]),
                "broke_down": sum("broke_down" in run for run in runs),
            }
    return summary


def _over_seeds(values: list[float]) -> Json | None:
    found = mean_and_spread(values)
    return found and {**found, "seeds": len(values)}


def render(summary: Json) -> Table:
    rows = [
        {
            "variant": name,
            "place": row["place"],
            "bound": as_text(row["bound"], ".1f"),
            "difference": as_text(row["difference"], "+.1f"),
            "broke down": row["broke_down"],
        }
        for name, row in summary.items()
    ]
    return table(rows, "test bound per frame, nats")
