"""Table 1: test bound per frame of five models on CIFAR-10 and CelebA, beside the paper's numbers."""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vbmem.data.loading import load_images
from vbmem.files import write_atomically
from vbmem.models.directory import load_model
from vbmem.paper.presets import QUANTITATIVE, get_preset
from vbmem.train.evaluation import evaluate
from vbmem.train.loop import Trainer

Dataset = Literal["cifar10", "celeba"]
PAPER: dict[str, dict[str, float]] = {
    "cifar10": {"vae": 3508.5, "statistician": 2178.5, "dkm": 2198.3, "gaussian": 3451.7, "categorical": 3593.7},
    "celeba": {"vae": 4174.8, "statistician": 3242.3, "dkm": 2868.0, "gaussian": 4155.3, "categorical": 4422.5},
}


def run_row(
    dataset: Dataset,
    model: str,
    seed: int,
    run_dir: Path,
    data_dir: Path | None,
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Train one model with one seed at the paper's budget and evaluate its best weights on the test pictures."""
    config = replace(get_preset(f"{dataset}-{model}"), seed=seed)
    images = load_images(dataset, data_dir)
    started = time.monotonic()
    trainer = Trainer(config, images, run_dir, device, resume=(run_dir / "last.safetensors").exists(), console=console)
    trainer.run()
    return {
        "dataset": dataset,
        "model": model,
        "seed": seed,
        "test": evaluate(load_model(run_dir, device).network, config.data, images, "test", seed),
        "valid": trainer.progress.best,
        "epochs": trainer.progress.epoch,
        "seconds": time.monotonic() - started,
    }


def summarise(runs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Mean and spread over seeds of every row, beside the paper's number."""
    result: dict[str, list[dict[str, Any]]] = {}
    for dataset, claims in PAPER.items():
        for model, paper in claims.items():
            row = [run for run in runs if (run["dataset"], run["model"]) == (dataset, model)]
            if not row:
                continue
            bounds = [run["test"]["elbo_per_frame"] for run in row]
            result.setdefault(dataset, []).append(
                {
                    "model": model,
                    "paper": paper,
                    "mean": statistics.mean(bounds),
                    "std": statistics.stdev(bounds) if len(bounds) > 1 else 0.0,
                    "seeds": bounds,
                    "seconds": statistics.mean(run["seconds"] for run in row),
                    "epochs": [run["epochs"] for run in row],
                }
            )
    return result


def render(summary: dict[str, list[dict[str, Any]]]) -> Table:
    table = Table(title="test bound per frame, nats")
    for heading in ("data", "model", "paper", "ours", "spread", "seeds", "s a run"):
        table.add_column(heading, justify="right")
    for dataset, rows in summary.items():
        for row in rows:
            table.add_row(
                dataset,
                row["model"],
                f"{row['paper']:.1f}",
                f"{row['mean']:.1f}",
                f"{row['std']:.1f}",
                str(len(row["seeds"])),
                f"{row['seconds']:.0f}",
            )
    return table


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
    runs: list[dict[str, Any]] = json.loads(finished.read_text()) if finished.exists() else []
    done = {(run["dataset"], run["model"], run["seed"]) for run in runs}
    pending = [row for row in itertools.product(datasets, seeds, models) if (row[0], row[2], row[1]) not in done]
    train = functools.partial(_train_row, out=out, data_dir=data_dir, device=device)
    for run in _one_by_one(train, pending, console) if jobs == 1 else _side_by_side(train, pending, console, jobs):
        runs.append(run)
        write_atomically(finished, (json.dumps(runs, indent=1) + "\n").encode())
    summary = summarise(runs)
    write_atomically(out / "table1.json", (json.dumps(summary, indent=1) + "\n").encode())
    console.print(render(summary))


Row = tuple[Dataset, int, str]  # data set, seed, model
TrainRow = Callable[..., dict[str, Any]]


def _train_row(row: Row, console: Console | None, *, out: Path, **where: Any) -> dict[str, Any]:
    """Without a console, as in a process of its own, the run says what it has to say in console.txt."""
    dataset, seed, model = row
    run_dir = out / "runs" / f"{dataset}-{model}-{seed}"
    if console is not None:
        return run_row(dataset, model, seed, run_dir, console=console, **where)
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "console.txt").open("a") as text:
        return run_row(dataset, model, seed, run_dir, console=Console(file=text, width=120), **where)


def _one_by_one(train: TrainRow, rows: list[Row], console: Console) -> Iterator[dict[str, Any]]:
    for row in rows:
        console.rule(" ".join(map(str, row)))
        yield train(row, console)


def _side_by_side(train: TrainRow, rows: list[Row], console: Console, jobs: int) -> Iterator[dict[str, Any]]:
    """Each row in a process; on CUDA they share the device, best under NVIDIA's multi-process service (MPS)."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(train, row, None): row for row in rows}
        for future in track(as_completed(futures), "training", total=len(rows), console=console):
            console.print(*futures[future], f"{future.result()['test']['elbo_per_frame']:.1f} nats a frame")
            yield future.result()
