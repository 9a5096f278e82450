"""The tables of the page *What held*: every figure from results/, the verdicts ours."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
BASELINES = {"dkm_online": "online", "dkm_iterative": "iterative"}


def read(file: str) -> Any:
    return json.loads((RESULTS / file).read_text())


def spread(found: dict[str, Any], form: str = ".1f") -> str:
    from vbmem.paper.training import as_text

    return as_text(found, form)


def ratios(file: str) -> Iterator[tuple[str, float, float, str]]:
    """Of figure 2: the baseline, the lowest and highest ratio, where ours is ahead."""
    cells = read(file)["cells"]
    for key, name in BASELINES.items():
        # Of two negative bounds: above 1, ours is the better.
        found = [cell[key] / cell["vb"] for cell in cells]
        ahead = f"{sum(ratio > 1 for ratio in found)} of {len(found)}"
        yield name, min(found), max(found), ahead


def figure2(file: str) -> str:
    parts = [
        f"{name} {low:.2f}x to {high:.2f}x, ahead in {ahead}"
        for name, low, high, ahead in ratios(file)
    ]
    return "; ".join(parts)


def rows_of_table1() -> dict[str, Any]:
    rows = read("table1.json")["cifar10"]
    return {row["model"]: row["as_in_paper"] for row in rows}


def runs_of(name: str) -> list[dict[str, Any]]:
    runs = read("table1_runs.json")
    return [run for run in runs if run["name"] == f"paper-cifar10-{name}"]


def largest_fall(run: dict[str, Any]) -> float:
    curve = run["curve"]
    return max(a - b for a, b in itertools.pairwise(curve))


def stopped(name: str) -> str:
    epochs = [str(run["epochs"]) for run in runs_of(name) if run["stopped_early"]]
    return f"{len(epochs)} of 3" + (f" (epochs {', '.join(epochs)})" if epochs else "")


def bound(entry: dict[str, Any]) -> str:
    return f"{entry['elbo_per_frame']:.1f} ± {entry['standard_error']:.1f}"


def claims() -> list[list[str]]:
    variants, runs = read("claims.json")["variants"], read("claims.json")["runs"]
    table1 = rows_of_table1()

    def change(name: str) -> str:
        return f"{spread(variants[name]['difference'], '+.1f')} nats"

    def over_seeds(name: str, value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.mean(value(run) for run in runs if run["name"] == name)

    def precision(name: str, way: str) -> str:
        found = over_seeds(
            name, lambda run: run["samples"][way]["codes precision"]["mean"]
        )
        return f"{found:.2f}"

    def whole(name: str) -> float:
        return over_seeds(name, lambda run: run["whole_episode"]["elbo_per_frame"])

    unbiased = over_seeds(
        "dkm-mean-memory", lambda run: run["unbiased"]["elbo_per_frame"]
    )
    plain = over_seeds("dkm", lambda run: run["unbiased"]["elbo_per_frame"])
    broke = [run["epochs"] + 1 for run in runs if run["name"] == "paper"]
    falls = [largest_fall(run) for run in runs_of("dkm")]
    gap = table1["gaussian"]["mean"] - table1["dkm"]["mean"]
    mixture, tree = (
        read(f"metrics/first-{kind}.json")["samples"] for kind in ("mixture", "tree")
    )

    def sampled(found: dict[str, Any], way: str, what: str) -> str:
        return f"{found[way][f'codes {what}']['mean']:.2f}"

    size = "evaluate/first-mixture-T{}-H{}.json"
    sizes = {t: read(size.format(t, h)) for t, h in ((64, 10), (640, 100), (1280, 150))}
    return [
        [
            "Writes better than the DKM: 2x to 14x, and at least 1.64x",
            "4.2",
            figure2("figure2/figure2.json"),
            "held, but for the lowest ratios",
        ],
        [
            "Similar for longer episodes",
            "E.1",
            f"T = 64: {figure2('figure2/figure2-T64.json')}. "
            f"T = 128: {figure2('figure2/figure2-T128.json')}",
            "held",
        ],
        [
            "k-means++ starts: significantly better results",
            "3.2.1",
            f"a random start instead: {change('random-start')}; "
            f"random frames: {change('frames-start')}",
            "**did not hold**",
        ],
        [
            "Group norm instead of batch norm",
            "3.2.2",
            f"batch norm, measured afresh: {change('batch-norm')}",
            "**did not hold** on the bound",
        ],
        [
            "Swish instead of ReLU",
            "3.2.2",
            f"ReLU: {change('relu')}",
            "held",
        ],
        [
            "Adam's beta1 = 0 instead of 0.9",
            "3.2.2",
            f"0.9: {change('beta1-0.9')}",
            "**did not hold**",
        ],
        [
            "In a decoder's block the doubling last",
            "F.2",
            "first, and without the orthogonal start of the seed: "
            + change("doubling-first"),
            "**did not hold**",
        ],
        [
            "The regulariser improves samples",
            "3.2.3",
            f"precision in codes {precision('mixture', 'samples')} with, "
            f"{precision('not-regularised', 'samples')} without; after 12 reads "
            f"{precision('mixture', '12 reads, sampled')} and "
            f"{precision('not-regularised', '12 reads, sampled')}; "
            f"without it the bound is {change('not-regularised')}",
            "held; it costs bound",
        ],
        [
            "The gradient through the whole write",
            "2.4",
            f"instead of two iterations: {change('whole-gradient')}; in the paper's "
            f"settings all {len(broke)} runs broke down, in epochs "
            f"{', '.join(map(str, broke))}",
            "**did not hold**",
        ],
        [
            "The head gives mean and variance",
            "F.1",
            f"learned instead of fixed, as in the reference code: "
            f"{change('learned-variance')}",
            "no claim; the code's choice was the better",
        ],
        [
            "Bounds comparable with the VAE's",
            "4.3.2",
            f"VAE {spread(table1['vae'])}, Gaussian {spread(table1['gaussian'])}, "
            f"categorical {spread(table1['categorical'])}",
            "held, within the spread",
        ],
        [
            "The DKM is intermittently unstable",
            "4.3.2",
            "its validation bound fell by up to "
            + ", ".join(f"{fall:,.0f}" for fall in falls)
            + " nats from one epoch to the next",
            "held",
        ],
        [
            "The DKM is the only one to stop early",
            "4.3.2",
            "; ".join(f"{name} {stopped(name)}" for name in table1),
            "it always does; **not the only one**",
        ],
        [
            "The Gaussian memory is far ahead of the DKM",
            "4.3.2",
            f"{gap:+.0f} nats",
            "held",
        ],
        [
            "because the DKM's decoder gets noise, by the unbiased estimate",
            "4.3.2",
            f"trained with the mean memory: {change('dkm-mean-memory')} in its own "
            f"estimate, {unbiased - plain:+.1f} in the unbiased one (our settings)",
            "**did not hold**",
        ],
        [
            "The Neural Statistician is very stable",
            "4.3.2",
            "seeds: "
            + ", ".join(f"{value:.1f}" for value in table1["statistician"]["seeds"]),
            "**did not hold**: one stayed where it began",
        ],
        [
            "Samples are crisp, diverse, coherent",
            "4.4.1",
            f"precision {sampled(mixture, 'samples', 'precision')}, coverage "
            f"{sampled(mixture, 'samples', 'coverage')} in codes; blurred",
            "diverse; **not crisp**",
        ],
        [
            "Samples of the tree are weaker",
            "4.4.1",
            f"precision {sampled(tree, 'samples', 'precision')}, coverage "
            f"{sampled(tree, 'samples', 'coverage')}",
            "held",
        ],
        [
            "Better recall of episodes than prior work",
            "4.4.1",
            "by eye, and against a later mixture: the pictures below",
            "not measured",
        ],
        [
            "Iterative reading improves samples, of both models",
            "4.4.2",
            f"precision {sampled(mixture, 'samples', 'precision')} to "
            f"{sampled(mixture, '12 reads, sampled', 'precision')} (mixture), "
            f"{sampled(tree, 'samples', 'precision')} to "
            f"{sampled(tree, '12 reads, sampled', 'precision')} (tree); the mixture's "
            f"coverage falls to {sampled(mixture, '12 reads, sampled', 'coverage')}",
            "held",
        ],
        [
            "Memory and episode can grow without training",
            "4.4.3",
            f"T = 64, H = 10: {bound(sizes[64])}; T = 640, H = 100: "
            f"{bound(sizes[640])} nats",
            "held",
        ],
        [
            "T = 1280, H = 150: comparable or even better",
            "H",
            f"{bound(sizes[1280])} nats",
            "comparable; not better",
        ],
        [
            "An online write underperforms an offline one",
            "3.1",
            f"trained on online writes: {variants['online']['bound']['mean']:.1f} "
            f"nats, {whole('online'):.1f} when then written as a whole",
            "held",
        ],
        [
            "The bound of all frames after writing some of them",
            "3.1",
            f"trained so: {variants['generalisation']['bound']['mean']:.1f} nats, and "
            f"{whole('generalisation'):.1f} when all are written; trained on whole "
            f"episodes: {whole('mixture'):.1f}",
            "works; no gain on whole episodes",
        ],
    ]


def variants() -> list[list[str]]:
    """Every variant: its bound, its distance from the base, runs that broke down."""
    rows = []
    for name, row in read("claims.json")["variants"].items():
        cells = [
            spread(row[key], form) if row[key] else ""
            for key, form in (("bound", ".1f"), ("difference", "+.1f"))
        ]
        broke = str(row["broke_down"] or "")
        rows.append([f"`{name}`", row["place"], row["base"], *cells, broke])
    return rows


def starts() -> list[list[str]]:
    """Trained from one start and tested from another: means over seeds."""
    named = {
        "kmeans++": "mixture",
        "random": "random-start",
        "data": "frames-start",
        "kmeans": "kmeans-start",
    }
    runs = read("claims.json")["runs"]
    rows = []
    for trained, name in named.items():
        own = [run["starts"] for run in runs if run["name"] == name]
        tested = [
            statistics.mean(seed[start]["elbo_per_frame"] for seed in own)
            for start in named
        ]
        rows.append([trained, *(f"{value:.1f}" for value in tested)])
    return rows
