"""Table 1: test bound per frame of five models on CIFAR-10 and CelebA, beside the paper's numbers.

Trained as the paper has it (presets `paper-...`), and as we do.
"""

import itertools
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from rich.console import Console
from rich.table import Table
from scipy import stats

from vbmem.files import write_json
from vbmem.nets import FrameFormat
from vbmem.paper.presets import QUANTITATIVE, get_preset
from vbmem.paper.training import Json, Run, as_text, mean_and_spread, train_all
from vbmem.tables import table
from vbmem.train.evaluation import bits_per_dimension

Dataset: TypeAlias = Literal["cifar10", "celeba"]
PAPER: dict[str, dict[str, float]] = {
    "cifar10": {"vae": 3508.5, "statistician": 2178.5, "dkm": 2198.3, "gaussian": 3451.7, "categorical": 3593.7},
    "celeba": {"vae": 4174.8, "statistician": 3242.3, "dkm": 2868.0, "gaussian": 4155.3, "categorical": 4422.5},
}
FRAME = FrameFormat(32, 3)  # of both data sets
SETTINGS = {"as_in_paper": "paper-", "ours": ""}  # how a row can be trained, and how its presets' names begin


def summarise(runs: list[Json]) -> dict[str, list[Json]]:
    """Mean and spread over seeds of every row, in the paper's settings and in ours, beside the paper's number."""
    result: dict[str, list[Json]] = {}
    for dataset, model in itertools.product(PAPER, QUANTITATIVE):
        found = {way: _over_seeds(runs, f"{prefix}{dataset}-{model}") for way, prefix in SETTINGS.items()}
        if any(found.values()):
            result.setdefault(dataset, []).append({"model": model, "paper": PAPER[dataset][model], **found})
    return result


def _over_seeds(runs: list[Json], name: str) -> Json | None:
    row = [run for run in runs if run["name"] == name and "test" in run]
    bounds = [run["test"]["elbo_per_frame"] for run in row]
    if (found := mean_and_spread(bounds)) is None:
        return None
    return found | {
        "seeds": bounds,
        "seconds": statistics.mean(run["seconds"] for run in row),
        "epochs": [run["epochs"] for run in row],
    }


def render(summary: dict[str, list[Json]]) -> Table:
    rows = [
        {
            "data": dataset,
            "model": row["model"],
            "paper": _with_bits(f"{row['paper']:.1f}", row["paper"]),
            "as in paper": _measured(row["as_in_paper"]),
            "ours": _measured(row["ours"]),
        }
        for dataset, rows in summary.items()
        for row in rows
    ]
    return table(rows, "test bound per frame in nats: mean ± spread (seeds), and in bits per dimension")


def leads(summary: dict[str, list[Json]]) -> dict[str, Json]:
    """By how many nats the categorical memory is ahead of the VAE on each data set, and p of Welch's two-sided t-test
    over seeds, in either way of training; where both rows have two seeds or more."""
    result: dict[str, Json] = {}
    for dataset, way in itertools.product(summary, SETTINGS):
        seeds = {row["model"]: row[way]["seeds"] for row in summary[dataset] if row[way] is not None}
        memory, vae = seeds.get("categorical", []), seeds.get("vae", [])
        if min(len(memory), len(vae)) > 1:
            test = stats.ttest_ind(memory, vae, equal_var=False)
            lead = {"nats": statistics.mean(memory) - statistics.mean(vae), "p": float(test.pvalue)}
            result.setdefault(dataset, {})[way] = lead
    return result


def lead_in_words(lead: Json) -> str:
    return f"{lead['nats']:+.1f} nats (p = {lead['p']:.2g})"


def _measured(found: Json | None) -> str:
    if found is None:
        return ""
    return _with_bits(f"{as_text(found, '.1f')} ({len(found['seeds'])})", found["mean"])


def _with_bits(cell: str, nats: float) -> str:
    return f"{cell}, {bits_per_dimension(nats, FRAME):.2f} bits"


def table1(
    out: Path,
    datasets: list[Dataset],
    models: list[str],
    seeds: list[int],
    data_dir: Path | None,
    device: torch.device,
    console: Console,
    jobs: int = 1,
    as_in_paper: bool = False,
) -> None:
    """Train every row, `jobs` at a time, and leave the runs under `out`/runs and the summary in `out`/table1.json."""
    if unknown := set(models) - set(QUANTITATIVE):
        raise ValueError(f"table 1 has no row {', '.join(sorted(unknown))}; its rows are {', '.join(QUANTITATIVE)}")
    prefix = SETTINGS["as_in_paper" if as_in_paper else "ours"]
    rows = [(f"{prefix}{dataset}-{model}", seed) for dataset, seed, model in itertools.product(datasets, seeds, models)]
    runs = {Run(name, seed): replace(get_preset(name), seed=seed) for name, seed in rows}
    summary = summarise(train_all(runs, out, data_dir, device, console, jobs))
    write_json(out / "table1.json", summary)
    console.print(render(summary))
    for dataset, ways in leads(summary).items():
        for way, lead in ways.items():
            where = f"{dataset}, {way.replace('_', ' ')}"
            console.print(f"{where}: categorical less VAE {lead_in_words(lead)}, Welch's t-test over seeds")
