"""What few candidates a frame cost by the number of clusters, and what they lose against all clusters.

    python benchmarks/truncated.py [--frames 200000] [--clusters 1000 10000 100000] [--size 16] [--rows 0]
        [--candidates 8] [--timed-iterations 6] [--held-out-rows 0 2] [--held-out-clusters 1000]
        [--held-out-frames 40000] [--iterations 12] [--device cpu|cuda] [--threads 2] [--out FILE.json]

Codes are float32, of a curved sheet of five dimensions with noise around it. Times are microseconds a code: of the
start, of an iteration that looks in cells (the median of those after the first), and of a later one. What is lost is
the difference of the mean log density of new codes, in nats a code, between a write with all clusters and one with
candidates, from the same start, with as many iterations.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from report import emit
from vbmem import MixtureMemory
from vbmem.memory.state import MemoryState
from vbmem.memory.truncated import LOOKS

NEW = 4000  # codes that were not written


def curved_codes(frames: int, size: int, device: str) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    bent, out = torch.randn(5, 64, generator=random) * 1.5 / 5**0.5, torch.randn(64, size, generator=random) / 4
    codes = (torch.randn(frames, 5, generator=random) @ bent).sin_() @ out
    return codes.add_(torch.randn(frames, size, generator=random), alpha=0.3).to(device)


def memory_of(size: int, rows: int, clusters: int) -> MixtureMemory:
    return MixtureMemory(size, rows, clusters, noise_var=0.15 if rows else 0.3, row_var=0.3, loc_var=2.0)


def times_of(memory: MixtureMemory, codes: torch.Tensor, candidates: int | None, iterations: int) -> dict[str, float]:
    """Microseconds a code."""
    begin = time.perf_counter()
    start = memory.first_state(codes, "data", generator=torch.Generator(codes.device).manual_seed(1))
    ends = [time.perf_counter()]

    def follow(done: int, state: MemoryState) -> None:
        float(state.row_mean.sum())  # waits for the device
        ends.append(time.perf_counter())

    memory.write_stream([codes], iterations, start, candidates=candidates, follow=follow)
    each = [1e6 * (last - first) / len(codes) for first, last in itertools.pairwise(ends)]
    found = {"start": 1e6 * (ends[0] - begin) / len(codes), "first": each[0]}
    found |= {"look": statistics.median(each[1:LOOKS]), "iteration": statistics.median(each[LOOKS:])}
    return {name: round(value, 3) for name, value in found.items()}


def held_out(memory: MixtureMemory, codes: torch.Tensor, candidates: int, iterations: int) -> dict[str, float]:
    """Mean log density of new codes, in nats a code."""
    written, new = codes[:-NEW], codes[-NEW:]
    random = torch.Generator(codes.device).manual_seed(1)
    start = memory.first_state(written[: 4 * memory.clusters], "kmeans", generator=random)
    found = {}
    for name, count in {"all": None, "candidates": candidates}.items():
        state = memory.write_stream([written], iterations, start, candidates=count)
        found[name] = round(float(memory.log_predictive(state, new).mean()), 4)
    return found | {"lost": round(found["all"] - found["candidates"], 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--clusters", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[0])
    parser.add_argument("--held-out-rows", type=int, nargs="*", default=[0, 2])
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--timed-iterations", type=int, default=LOOKS + 2)
    parser.add_argument("--held-out-clusters", type=int, default=1000)
    parser.add_argument("--held-out-frames", type=int, default=40_000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cuda = arguments.device == "cuda"
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {arguments.threads} threads",
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("out", "device")},
        "microseconds a code": {},
        "nats a code": {},
    }
    codes = curved_codes(max(arguments.frames, arguments.held_out_frames) + NEW, arguments.size, arguments.device)
    for rows in arguments.rows:
        times = {}
        for clusters in arguments.clusters:
            memory = memory_of(arguments.size, rows, clusters)
            part = codes[: arguments.frames]
            times[clusters] = times_of(memory, part, arguments.candidates, arguments.timed_iterations)
        first, last = arguments.clusters[0], arguments.clusters[-1]
        ratio = round(times[last]["iteration"] / times[first]["iteration"], 2)
        report["microseconds a code"][f"K={rows}"] = times | {f"H={last} over H={first}": ratio}
    for rows in arguments.held_out_rows:
        memory = memory_of(arguments.size, rows, arguments.held_out_clusters)
        part = codes[-arguments.held_out_frames - NEW :]
        report["nats a code"][f"K={rows}"] = held_out(memory, part, arguments.candidates, arguments.iterations)
    emit(report, arguments.out)


if __name__ == "__main__":
    main()
