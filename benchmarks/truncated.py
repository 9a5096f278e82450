"""What few candidates a frame cost by the number of clusters, and what they lose against all clusters.

    python benchmarks/truncated.py [--device cpu|cuda] [--frames 1000000] [--clusters 1000 10000 100000] [--size 16]
        [--rows 0] [--candidates 8] [--iterations 12] [--held-out-clusters 1000] [--held-out-frames 40000]
        [--projected] [--threads 2] [--out FILE.json]

Codes are float32. Times are microseconds a code: of the first iteration, of the other one that also looks at
clusters on levels, of one that does not, and of as many iterations as asked for together, the start, at random frames,
included. What is lost is the difference of the mean log density of new codes, in nats a code, between a write with all
clusters and one with candidates, from the same start, with as many iterations, on three problems. With `--projected` a
write of 100 million codes of 3,072 numbers into memories of ten billion (H C) is projected from iterations with 100,000
clusters: so much for every code and so much for every cluster.
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
from torch import Tensor

from report import emit
from vbmem import MixtureMemory
from vbmem.memory.state import MemoryState
from vbmem.memory.truncated import LOOKS

NEW = 4000  # codes that were not written
LATER = 2  # iterations after those that look
PROJECTED = {"numbers": 10**10, "codes": 10**8, "size": 3072}  # of what was published: images of 32 x 32 x 3


def curved_codes(frames: int, size: int, device: str) -> Tensor:
    """A curved sheet of five dimensions with noise around it."""
    random = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=device)

    bent, out = normal(5, 64) * 1.5 / 5**0.5, normal(64, size) / 4
    return (normal(frames, 5) @ bent).sin_() @ out + 0.3 * normal(frames, size)


def planted_codes(frames: int, size: int, device: str) -> Tensor:
    """A thousand balls, some of them with few codes."""
    random = torch.Generator(device).manual_seed(0)
    usage = torch.rand(1000, generator=random, device=device) ** 3
    ball = torch.multinomial(usage, frames, replacement=True, generator=random)
    centres = torch.randn(1000, size, generator=random, device=device)
    return centres[ball] + 0.4 * torch.randn(frames, size, generator=random, device=device)


def plain_codes(frames: int, size: int, device: str) -> Tensor:
    """One ball, in which every cluster has many neighbours."""
    return torch.randn(frames, size, generator=torch.Generator(device).manual_seed(0), device=device)


HELD_OUT = {  # codes, their size, and the noise of a memory
    "curved": (curved_codes, 16, 0.15),
    "planted": (planted_codes, 32, 0.16),
    "plain": (plain_codes, 24, 0.5),
}


def memory_of(size: int, rows: int, clusters: int, noise_var: float) -> MixtureMemory:
    return MixtureMemory(size, rows, clusters, noise_var=noise_var, row_var=0.3, loc_var=2.0)


def seconds_of(memory: MixtureMemory, codes: Tensor, candidates: int) -> list[float]:
    """Of the start, and of each iteration up to LATER after the last look."""
    ends = [time.perf_counter()]

    def done(state: MemoryState) -> None:
        float(state.row_mean.sum())  # waits for the device
        ends.append(time.perf_counter())

    start = memory.first_state(codes, "data", generator=torch.Generator(codes.device).manual_seed(1))
    done(start)
    memory.write_stream([codes], LOOKS[-1] + LATER, start, candidates=candidates, follow=lambda _, state: done(state))
    return [last - first for first, last in itertools.pairwise(ends)]


def times_of(memory: MixtureMemory, codes: Tensor, candidates: int, iterations: int) -> dict[str, float]:
    """Microseconds a code."""
    start, *each = (1e6 * seconds / len(codes) for seconds in seconds_of(memory, codes, candidates))
    looks, later = _split(each)
    whole = start + sum(looks) + later * (iterations - len(looks))
    found = {"first": looks[0], "look": looks[-1], "later": later, f"{iterations} iterations": whole}
    return {name: round(value, 3) for name, value in found.items()}


def _split(each: list[float]) -> tuple[list[float], float]:
    """Of iterations, those that look, and the median of the others."""
    looks = [each[number - 1] for number in LOOKS]
    return looks, statistics.median(value for number, value in enumerate(each, 1) if number not in LOOKS)


def held_out(memory: MixtureMemory, codes: Tensor, candidates: int, iterations: int) -> dict[str, float]:
    """Mean log density of new codes, in nats a code."""
    written, new = codes[:-NEW], codes[-NEW:]
    start = memory.first_state(written, "data", generator=torch.Generator(codes.device).manual_seed(1))
    found = {}
    for name, count in {"all": None, "candidates": candidates}.items():
        state = memory.write_stream([written], iterations, start, candidates=count)
        found[name] = round(float(memory.log_predictive(state, new).double().mean()), 4)
    return found | {"lost": round(found["all"] - found["candidates"], 4)}


def projection(candidates: int, iterations: int, device: str) -> dict[str, float]:
    """Hours of a write into ten billion numbers: seconds of an iteration are a line in the number of its codes."""
    size, clusters, frames = PROJECTED["size"], 100_000, 100_000
    memory = memory_of(size, 0, clusters, 0.15)
    codes = curved_codes(frames, size, device)
    few, many = (seconds_of(memory, part, candidates)[1:] for part in (codes[: frames // 2], codes))
    many_clusters = PROJECTED["numbers"] // size
    seconds = []
    for half, whole in zip(few, many, strict=True):
        each_code = 2 * (whole - half) / frames
        each_cluster = max(whole - frames * each_code, 0.0) / clusters
        seconds.append(each_code * PROJECTED["codes"] + each_cluster * many_clusters)
    looks, later = _split(seconds)
    return {
        "clusters": many_clusters,
        "seconds of a later iteration": round(later, 1),
        f"hours of {iterations} iterations": round((sum(looks) + later * (iterations - len(looks))) / 3600, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--clusters", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[0])
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--held-out-rows", type=int, nargs="*", default=[0, 2])
    parser.add_argument("--held-out-clusters", type=int, default=1000)
    parser.add_argument("--held-out-frames", type=int, default=40_000)
    parser.add_argument("--projected", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device, candidates, iterations = arguments.device, arguments.candidates, arguments.iterations
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.machine()}, {arguments.threads} threads",
        "settings": {name: value for name, value in vars(arguments).items() if name not in ("out", "device")},
        "microseconds a code": {},
        "nats a code": {},
    }
    codes = curved_codes(arguments.frames, arguments.size, device)
    for rows in arguments.rows:
        noise_var = 0.15 if rows else 0.3
        seconds_of(memory_of(arguments.size, rows, arguments.clusters[0], noise_var), codes, candidates)  # warms up
        times = {}
        for clusters in arguments.clusters:
            memory = memory_of(arguments.size, rows, clusters, noise_var)
            times[clusters] = times_of(memory, codes, candidates, iterations)
        first, last = times[arguments.clusters[0]], times[arguments.clusters[-1]]
        ratio = {name: round(last[name] / first[name], 2) for name in first}
        report["microseconds a code"][f"K={rows}"] = times | {"most clusters over fewest": ratio}
    for name, (codes_of, size, noise_var) in HELD_OUT.items():
        codes = codes_of(arguments.held_out_frames + NEW, size, device)
        for rows in arguments.held_out_rows:
            memory = memory_of(size, rows, arguments.held_out_clusters, noise_var)
            report["nats a code"][f"{name}, K={rows}"] = held_out(memory, codes, candidates, iterations)
    if arguments.projected:
        report["projected"] = projection(candidates, iterations, device)
    emit(report, arguments.out)


if __name__ == "__main__":
    main()
