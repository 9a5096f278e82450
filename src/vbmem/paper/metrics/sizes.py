"""Memories of other sizes and longer episodes, and what writing costs."""

from __future__ import annotations

import itertools
import statistics
import timeit
from collections.abc import Callable

from torch import Generator, Tensor

from vbmem.paper.metrics.trial import STEPS, Json, Judge
from vbmem.pretrained.model import Model
from vbmem.progress import track

CLUSTERS, LENGTHS = (5, 10, 20, 50, 100, 150), (64, 640, 1280)
CELL_SAMPLES = 128  # at most so many pictures a cell: reading them is what takes long
REPEATS = 10  # of a timed action


def size_table(model: Model, judge: Judge, frames: Tensor, others: int, generator: Generator) -> list[Json]:
    """For every length T and number of clusters: the memory's own bound, nats a frame, with the best addresses for what
    was written, and precision (base rate T / (T + others)) and coverage of samples before and after reading."""
    cells, codes = [], model.encode(frames).mean
    for n, clusters in track([*itertools.product(LENGTHS, CLUSTERS)], "sizes"):
        sized, z = model.resize(clusters=clusters), codes[:n]
        memory = sized.write_codes(z, generator=generator)
        bound = sized.memory.bound(z, memory.state, sized.memory.address(memory.state, z)).total / n
        drawn = sized.generate(memory, min(n, CELL_SAMPLES), generator=generator)
        made = {"samples": drawn, "reads": sized.read(memory, drawn, STEPS[-1], sample=False)[-1]}
        cell = {"frames": n, "clusters": clusters, "pictures": len(drawn), "base rate": n / (n + others)}
        cells.append({**cell, "bound per frame": float(bound), **judge(made, frames[:n])})
    return cells


def write_time(model: Model, frames: Tensor, generator: Generator) -> dict[str, float]:
    """Median times in milliseconds, and the size of the memory."""
    codes = model.encode(frames).mean

    def median(action: Callable[[], object]) -> float:
        return 1e3 * statistics.median(timeit.repeat(action, number=1, repeat=REPEATS + 1)[1:])  # the first warms up

    return {
        "pictures": len(frames),
        "encoding ms": median(lambda: model.encode(frames)),
        "writing ms": median(lambda: model.write_codes(codes, generator=generator)),
        "memory bytes": model.write_codes(codes, generator=generator).nbytes,
    }
