"""What share of a plain matrix product's throughput a memory of many codes reaches, both in turn in one run.

    python benchmarks/blocks.py [--frames 400000] [--at-once 100000] [--iterations 10] [--threads 2] [--out FILE.json]

At H=256 K=4 C=64, float32. Useful operations are those of the two products no local step can do without: all rows and
locations with the codes, 2 H (K + 1) C a code, and the sums of codes weighted by them, as many again; `address` and
`log_predictive` need the first only. All else, the rest of a local step, the global step, checks and the memory that
the result takes, counts as time alone. Shares are given by the clock, and by processor time, which says the same on a
machine that is busy with other things. Extra memory is the growth of a fresh process, beside codes and result.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from report import emit
from vbmem import MixtureMemory
from vbmem.memory.threads import block_size

CLUSTERS, ROWS, SIZE = 256, 4, 64
SIDE = 2048  # of the square matrices of the plain product
PRODUCT = 2 * CLUSTERS * (ROWS + 1) * SIZE  # operations a code
DENSITY_FRAMES = 20_000


def clustered_codes(frames: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = 1.5 * torch.randn(CLUSTERS, SIZE, generator=generator)
    pick = torch.randint(CLUSTERS, (frames,), generator=generator)
    return centres[pick] + torch.randn(frames, SIZE, generator=generator)


def actions(name: str, frames: int, iterations: int) -> tuple[Callable[[], object], float]:
    """What is measured, ready to be called, and its useful operations."""
    codes, memory = clustered_codes(frames), MixtureMemory(SIZE, ROWS, CLUSTERS)
    state = memory.first_state(codes[:4096], "kmeans++", None, torch.Generator().manual_seed(0))
    acts: dict[str, tuple[Callable[[], object], float]] = {
        "write_stream": (lambda: memory.write_stream(codes, iterations, state), 2 * iterations),
        "write": (lambda: memory.write(codes, iterations, state), 2 * iterations),
        "address": (lambda: memory.address(state, codes), 1),
        "log_predictive": (lambda: memory.log_predictive(state, codes), 1),
    }
    act, products = acts[name]
    return act, products * PRODUCT * frames


def timed(function: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of processors."""
    clock, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - clock, time.process_time() - processor


def gigaflops(name: str, frames: int, iterations: int, repeats: int) -> dict[str, Any]:
    """Useful billions of operations a second, and as a share of plain products before and after each repeat."""
    act, operations = actions(name, frames, iterations)
    left, right, out = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE), torch.empty(SIDE, SIDE)

    def product() -> object:
        return torch.mm(left, right, out=out)

    product()
    seconds, yardsticks = [], []
    for _ in range(repeats):
        yardsticks += [timed(product) for _ in range(3)]
        seconds.append(timed(act))
        yardsticks += [timed(product) for _ in range(3)]
    ours, plain = ([statistics.median(column) for column in zip(*rows, strict=True)] for rows in (seconds, yardsticks))
    rates, plain_rates = [operations / s / 1e9 for s in ours], [2 * SIDE**3 / s / 1e9 for s in plain]
    return {
        "frames": frames,
        "gflops": round(rates[0], 1),
        "plain_gflops": round(plain_rates[0], 1),
        "share": round(rates[0] / plain_rates[0], 3),
        "share_of_processor_time": round(rates[1] / plain_rates[1], 3),
    }


def extra_megabytes(name: str, frames: int, threads: int) -> float:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_extra_here, name, frames, threads).result()


def _extra_here(name: str, frames: int, threads: int) -> float:
    """Growth over the highest mark while a memory works, less what its result takes."""

    def kilobytes(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key))

    torch.set_num_threads(threads)
    actions(name, 2000, 1)[0]()  # libraries are loaded
    act, _ = actions(name, frames, 1)
    Path("/proc/self/clear_refs").write_text("5")
    before = kilobytes("VmRSS")
    act()
    kept = {"write": CLUSTERS * (ROWS + 1), "address": CLUSTERS * (ROWS + 1), "log_predictive": 1}.get(name, 0)
    return round((kilobytes("VmHWM") - before) / 1024 - 4 * kept * frames / 2**20, 1)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=400_000)
    parser.add_argument("--at-once", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    frames = {"write_stream": options.frames, "write": options.at_once, "address": options.at_once}
    frames["log_predictive"] = min(DENSITY_FRAMES, options.at_once)
    results = {}
    for name, count in frames.items():
        results[name] = gigaflops(name, count, options.iterations, options.repeats)
        results[name]["extra_mb"] = extra_megabytes(name, count, options.threads)
    report = {
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "threads": options.threads,
        "size": {"H": CLUSTERS, "K": ROWS, "C": SIZE, "block": block_size(CLUSTERS, ROWS, SIZE)},
        "iterations": options.iterations,
        "results": results,
    }
    emit(report, options.out)


if __name__ == "__main__":
    main()
