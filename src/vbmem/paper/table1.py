"""Table 1: test bound per frame of five models on CIFAR-10 and CelebA, beside the paper's numbers."""

import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from rich.console import Console
from rich.table import Table

from vbmem.data.loading import load_images
from vbmem.files import write_json
from vbmem.models.directory import load_model
from vbmem.paper.presets import QUANTITATIVE, get_preset
from vbmem.progress import track
from vbmem.tables import table
from vbmem.train.evaluation import evaluate
from vbmem.train.loop import Trainer

Dataset: TypeAlias = Literal["cifar10", "celeba"]
Json: TypeAlias = dict[str, Any]
PAPER: dict[str, dict[str, float]] = {
    "cifar10": {"vae": 3508.5, "statistician": 2178.5, "dkm": 2198.3, "gaussian": 3451.7, "categorical": 3593.7},
    "celeba": {"vae": 4174.8, "statistician": 3242.3, "dkm": 2868.0, "gaussian": 4155.3, "categorical": 4422.5},
}


class Row(NamedTuple):
    """What is trained: one model with one seed."""

    dataset: Dataset
    model: str
    seed: int


def run_row(row: Row, run_dir: Path, data_dir: Path | None, device: torch.device, console: Console) -> Json:
    """Train a row at the paper's budget and evaluate its best weights on the test pictures."""
    config = replace(get_preset(f"{row.dataset}-{row.model}"), seed=row.seed)
    images = load_images(row.dataset, data_dir)
    started = time.monotonic()
    trainer = Trainer(config, images, run_dir, device, resume=(run_dir / "last.safetensors").exists(), console=console)
    trainer.run()
    return {
        **row._asdict(),
        "test": evaluate(load_model(run_dir, device).network, config.data, images, "test", row.seed),
        "valid": trainer.progress.best,
        "epochs": trainer.progress.epoch,
        "seconds": time.monotonic() - started,
    }


def summarise(runs: list[Json]) -> dict[str, list[Json]]:
    """Mean and spread over seeds of every row, beside the paper's number."""
    result: dict[str, list[Json]] = {}
    for dataset, model in itertools.product(PAPER, QUANTITATIVE):
        row = [run for run in runs if (run["dataset"], run["model"]) == (dataset, model)]
        if row:
            bounds = [run["test"]["elbo_per_frame"] for run in row]
            summary = {
                "model": model,
                "paper": PAPER[dataset][model],
                "mean": statistics.mean(bounds),
                "std": statistics.stdev(bounds) if len(bounds) > 1 else 0.0,
                "seeds": bounds,
                "seconds": statistics.mean(run["seconds"] for run in row),
                "epochs": [run["epochs"] for run in row],
            }
            result.setdefault(dataset, []).append(summary)
    return result


def render(summary: dict[str, list[Json]]) -> Table:
    rows = [
        {
            "data": dataset,
            "model": row["model"],
            "paper": row["paper"],
            "ours": row["mean"],
            "spread": row["std"],
            "seeds": len(row["seeds"]),
            "s a run": round(row["seconds"]),
        }
        for dataset, rows in summary.items()
        for row in rows
    ]
    return table(rows, "test bound per frame, nats", decimals=1)


def table1(
    out: Path,
    datasets: list[Dataset],
    models: list[str],
    seeds: list[int],
    data_dir: Path | None,
    device: torch.device,
    console: Console,
    jobs: int = 1,
) -> None:
    """Train every row, `jobs` at a time, and leave the runs under `out`/runs and the summary in `out`/table1.json."""
    if unknown := set(models) - set(QUANTITATIVE):
        raise ValueError(f"table 1 has no row {', '.join(sorted(unknown))}; its rows are {', '.join(QUANTITATIVE)}")
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    finished = out / "runs.json"
    runs: list[Json] = json.loads(finished.read_text()) if finished.exists() else []
    done = {(run["dataset"], run["model"], run["seed"]) for run in runs}
    rows = [Row(dataset, model, seed) for dataset, seed, model in itertools.product(datasets, seeds, models)]
    run_dirs = {row: out / "runs" / "-".join(map(str, row)) for row in rows if row not in done}
    for run in _trained(run_dirs, console, jobs, data_dir=data_dir, device=device):
        runs.append(run)
        write_json(finished, runs)
    summary = summarise(runs)
    write_json(out / "table1.json", summary)
    console.print(render(summary))


def _run_quietly(row: Row, run_dir: Path, **where: Any) -> Json:
    """In a process of its own the run says what it has to say in console.txt."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "console.txt").open("a") as text:
        return run_row(row, run_dir, console=Console(file=text, width=120), **where)


def _trained(run_dirs: dict[Row, Path], console: Console, jobs: int, **where: Any) -> Iterator[Json]:
    """One by one, or each row in a process; on CUDA they share the device, best under NVIDIA's MPS."""
    if jobs == 1:
        for row, run_dir in run_dirs.items():
            console.rule(" ".join(map(str, row)))
            yield run_row(row, run_dir, console=console, **where)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(_run_quietly, row, run_dir, **where): row for row, run_dir in run_dirs.items()}
        for future in track(as_completed(futures), "training", total=len(futures)):
            console.print(*futures[future], f"{future.result()['test']['elbo_per_frame']:.1f} nats a frame")
            yield future.result()
