"""Memories that go on living, against rewriting them: the bound of real codes, in nats a frame, and milliseconds.

    python benchmarks/living.py --data-dir DIR [--out FILE.json]

Codes are those of CIFAR-10 test pictures by the shipped `cifar10-mixture`. `update`: 50 more frames into a written
memory. `forget`: 50 frames out of one. `merge`: two memories of as many frames each; it keeps the clusters of both, so
there is a rewrite with as many clusters beside that with the clusters of one. Each with the model's own prior and with
one fitted to other episodes. A difference below 0 is what is lost against writing all frames anew.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import vbmem
from report import emit
from vbmem import WrittenMemory
from vbmem.data.loading import load_images
from vbmem.memory.writing import VariationalMemory

SIZES = [(64, 10, 8), (640, 20, 3)]  # frames, clusters, repetitions
MORE, ITERATIONS = 50, 40
console = Console(width=120)


def bound(written: WrittenMemory, codes: Tensor) -> float:
    return float(written.empty.bound(codes, written.state, written.address(codes)).total) / len(codes)


def timed(function: Callable[[], WrittenMemory]) -> tuple[WrittenMemory, float]:
    begun = time.perf_counter()
    return function(), 1e3 * (time.perf_counter() - begun)


def once(memory: VariationalMemory, codes: Tensor, others: Tensor) -> dict[str, float]:
    more = others[:MORE]
    grown, both = torch.cat([codes, more]), torch.cat([codes, others])

    def write(frames: Tensor, into: VariationalMemory = memory) -> WrittenMemory:
        return WrittenMemory.write(into, frames, ITERATIONS)

    written = write(codes)
    updated, update_ms = timed(lambda: written.update(more))
    forgetful, merged = write(grown).forget(more), written.merge(write(others))
    twice = memory.resize(clusters=merged.empty.clusters)
    return {
        "update": bound(updated, grown) - bound(write(grown), grown),
        "forget": bound(forgetful, codes) - bound(written, codes),
        "merge": bound(merged, both) - bound(write(both), both),
        "merge, as many clusters": bound(merged, both) - bound(write(both, twice), both),
        "update ms": update_ms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    model = vbmem.load("cifar10-mixture")
    images = load_images("cifar10", arguments.data_dir, progress=False).x_test
    assert images is not None
    order = np.random.default_rng(0).permutation(len(images))[:6400]
    codes = model.encode(torch.from_numpy(images[order]).movedim(-1, 1)).mean
    results: list[dict[str, Any]] = []
    for frames, clusters, repetitions in SIZES:
        plain = model.memory.resize(clusters=clusters)
        fitted = plain.fit_prior(codes[-3 * frames :].unflatten(0, (3, frames)), iterations=ITERATIONS)
        for prior, memory in (("the model's", plain), ("fitted", fitted)):
            runs = []
            for number in range(repetitions):
                first, second = codes[2 * frames * number :][: 2 * frames].split(frames)
                runs.append(once(memory, first, second))
            summary = {name: statistics.mean(run[name] for run in runs) for name in runs[0]}
            summary["update ms"] = min(run["update ms"] for run in runs)
            results.append({"frames": frames, "clusters": clusters, "prior": prior, **summary})
    table = Table(title="nats a frame against a rewrite")
    for name in results[0]:
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in result.values()))
    console.print(table)
    emit({"living": results}, arguments.out)


if __name__ == "__main__":
    main()
