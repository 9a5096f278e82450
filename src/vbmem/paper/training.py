"""Many runs, one after the other or side by side on one device; what is finished is not trained again. And what such
runs are summed up with."""

import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from rich.console import Console

from vbmem.data.image_set import ImageSet
from vbmem.data.loading import load_images
from vbmem.errors import TrainingError
from vbmem.files import write_json
from vbmem.models.base import EpisodicModel
from vbmem.models.directory import CHECKPOINT, load_model
from vbmem.progress import track
from vbmem.train.evaluation import evaluate
from vbmem.train.loop import Trainer
from vbmem.train.runs import read_run
from vbmem.train.settings import RunConfig, differences

Json: TypeAlias = dict[str, Any]
Measure: TypeAlias = Callable[[EpisodicModel, RunConfig, ImageSet], Json]  # what is told of a trained model


class Run(NamedTuple):
    """One of several that are told apart by a name and their seed."""

    name: str
    seed: int

    def __str__(self) -> str:
        return f"{self.name}-{self.seed}"


def on_test(network: EpisodicModel, config: RunConfig, images: ImageSet) -> Json:
    """The bound on the test pictures, in episodes such as it was trained on."""
    return {"test": evaluate(network, config.data, images, "test", config.seed)}


def train_all(
    runs: dict[Run, RunConfig],
    out: Path,
    data_dir: Path | None,
    device: torch.device,
    console: Console,
    jobs: int = 1,
    measures: tuple[Measure, ...] = (on_test,),
) -> list[Json]:
    """Train every run and measure its best weights.

    Args:
        runs: the settings of each.
        out: for the directories of the runs, and runs.json with what each came to.
        data_dir: where data sets are kept.
        device: where to train.
        console: for what is happening.
        jobs: how many at the same time, each in a process of its own; on CUDA they share the device, best under
            NVIDIA's MPS.
        measures: what is to be found out about each, functions of a module, for processes; by default `on_test` alone.
            None that looks at test pictures while settings are still to be chosen.

    Returns:
        What is in runs.json: also what was finished before.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if not runs:
        raise ValueError("there is nothing to train: expected at least one model and one seed")
    finished = out / "runs.json"
    results: list[Json] = json.loads(finished.read_text()) if finished.exists() else []
    done = {(result["name"], result["seed"]) for result in results}
    missing = {run: config for run, config in runs.items() if run not in done}
    for run, config in runs.items():
        if run not in missing and (out / "runs" / str(run)).is_dir():
            _check_same(out / "runs" / str(run), config)
    rest = {"data_dir": data_dir, "device": device, "measures": measures}
    for result in _trained(missing, out / "runs", console, jobs, **rest):
        results.append(result)
        write_json(finished, results)
    return results


def train_one(
    run: Run,
    config: RunConfig,
    run_dir: Path,
    console: Console,
    data_dir: Path | None,
    device: torch.device,
    measures: tuple[Measure, ...] = (on_test,),
) -> Json:
    """Train a run, or go on with it, and measure its best weights; of one that breaks down, tell how."""
    data = config.data
    images = load_images(data.dataset, data_dir, data.image_size, subset=data.subset)
    started = time.monotonic()
    trainer = Trainer(config, images, run_dir, device, resume=(run_dir / CHECKPOINT).exists(), console=console)
    result: Json = {}
    try:
        if not math.isfinite(trainer.run()):
            raise TrainingError("no epoch had a finite validation bound")
    except TrainingError as error:
        result["broke_down"] = str(error)
    else:
        network = load_model(run_dir, device).network
        for measure in measures:
            result |= measure(network, config, images)
    log = [json.loads(line) for line in (run_dir / "log.jsonl").read_text().splitlines()]
    return {
        **run._asdict(),
        **result,
        "valid": trainer.progress.best,
        "epochs": trainer.progress.epoch,
        "stopped_early": trainer.progress.epoch < sum(stage.epochs for stage in config.stages),
        "curve": [_rounded(line["valid"]["elbo_per_frame"]) for line in log if line["event"] == "epoch"],
        "seconds": time.monotonic() - started,
    }


def check_names(what: str, chosen: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError unless all that were chosen are known."""
    if unknown := set(chosen) - set(known):
        raise ValueError(f"there is no {what} {', '.join(sorted(unknown))}; choose among {', '.join(known)}")


def mean_and_spread(values: list[float]) -> Json | None:
    """Over seeds: the mean, and the standard deviation, which one has not; None of none."""
    if not values:
        return None
    return {"mean": statistics.mean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def as_text(found: Json | None, form: str) -> str:
    """What `mean_and_spread` gave, for a table, in the given format; no sign before the spread."""
    if found is None:
        return ""
    return f"{found['mean']:{form}}" + (f" ± {found['std']:{form.lstrip('+')}}" if found["std"] is not None else "")


def _rounded(bound: float | None) -> float | None:
    return None if bound is None or not math.isfinite(bound) else round(bound, 1)  # JSON has no infinity


def _outcome(result: Json) -> str:
    if "broke_down" in result:
        return str(result["broke_down"])
    part, bound = ("test", result["test"]["elbo_per_frame"]) if "test" in result else ("valid", result["valid"])
    return f"{part} {bound:.1f} nats a frame"


def _check_same(run_dir: Path, config: RunConfig) -> None:
    """Raise ValueError where what is finished was made with other settings."""
    if changed := [*differences(read_run(run_dir), config)]:
        raise ValueError(
            f"{run_dir} was trained with other settings: {'; '.join(changed)}; give these, or choose another directory"
        )


def _train_quietly(run: Run, config: RunConfig, run_dir: Path, **rest: Any) -> Json:
    """In a process of its own the run says what it has to say in console.txt."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "console.txt").open("a") as text:
        return train_one(run, config, run_dir, Console(file=text, width=120), **rest)


def _trained(runs: dict[Run, RunConfig], folder: Path, console: Console, jobs: int, **rest: Any) -> Iterator[Json]:
    """One by one, or each in a process."""
    if jobs == 1:
        for run, config in runs.items():
            console.rule(str(run))
            yield train_one(run, config, folder / str(run), console, **rest)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {
            pool.submit(_train_quietly, run, config, folder / str(run), **rest): run for run, config in runs.items()
        }
        failed: list[BaseException] = []
        for future in track(as_completed(futures), "training", total=len(futures)):
            if (error := future.exception()) is not None:  # the others go on, and are not to be lost
                failed.append(error)
                console.print(f"{futures[future]} failed: {error}", markup=False)
                continue
            result = future.result()
            console.print(f"{futures[future]}: {_outcome(result)}", markup=False)
            yield result
        if failed:
            raise failed[0]
