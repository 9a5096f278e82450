"""Table 1: test bound per frame of five models on CIFAR-10 and CelebA, beside the paper's numbers."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.table import Table

from vbmem.data import load_images
from vbmem.files import write_atomically
from vbmem.paper.presets import QUANTITATIVE, get_preset
from vbmem.train import Evaluation, Trainer, load_run, make_source

Dataset = Literal["cifar10", "celeba"]
PAPER: dict[str, dict[str, float]] = {
    "cifar10": {"vae": 3508.5, "ns": 2178.5, "dkm": 2198.3, "gaussian": 3451.7, "categorical": 3593.7},
    "celeba": {"vae": 4174.8, "ns": 3242.3, "dkm": 2868.0, "gaussian": 4155.3, "categorical": 4422.5},
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
    _, best = load_run(run_dir, images, device)
    test = Evaluation(best, make_source(config.data, images, "test", seed, device))()
    return {
        "dataset": dataset,
        "model": model,
        "seed": seed,
        "test": test,
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
) -> None:
    """Train every row, and leave the runs under `out`/runs and the summary in `out`/table1.json as they come."""
    if unknown := set(models) - set(QUANTITATIVE):
        raise ValueError(f"table 1 has no row {', '.join(sorted(unknown))}; its rows are {', '.join(QUANTITATIVE)}")
    finished = out / "runs.json"
    runs: list[dict[str, Any]] = json.loads(finished.read_text()) if finished.exists() else []
    for dataset in datasets:
        for seed in seeds:
            for model in models:
                if any((r["dataset"], r["model"], r["seed"]) == (dataset, model, seed) for r in runs):
                    continue
                console.rule(f"{dataset} {model} seed {seed}")
                run_dir = out / "runs" / f"{dataset}-{model}-{seed}"
                runs.append(run_row(dataset, model, seed, run_dir, data_dir, device, console))
                write_atomically(finished, (json.dumps(runs, indent=1) + "\n").encode())
    summary = summarise(runs)
    write_atomically(out / "table1.json", (json.dumps(summary, indent=1) + "\n").encode())
    console.print(render(summary))
