"""How long writing takes, against two peers measured in the same run.

    python benchmarks/write.py [--out FILE.json] [--device cpu|cuda] [--repeats N]

On the CPU: 2 threads, medians, peak extra memory; a transcription of theorem C.4 and scikit-learn's
BayesianGaussianMixture as peers; cost against T and H; and how much longer a write takes as it is by default, with a
better start and parameter expansion. On CUDA, see `write_cuda`: few episodes, many short ones, and a long one.
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
from rich.console import Console
from rich.table import Table

from report import emit
from vbmem import MixtureMemory

SIZES = [(16, 64, 10, 6, 200), (1, 640, 100, 6, 200), (1, 1280, 150, 6, 200)]  # B, T, H, K, C
ITERATIONS = 10
console = Console(width=110)


def clustered_codes(batch: int, frames: int, clusters: int, size: int) -> torch.Tensor:
    """Codes that look like a written episode's: as many clusters as the memory, at its prior's scale."""
    generator = torch.Generator().manual_seed(0)
    centres = 1.5 * torch.randn(batch, clusters, size, generator=generator)
    pick = torch.randint(clusters, (batch, frames), generator=generator)
    codes = torch.gather(centres, 1, pick[..., None].expand(-1, -1, size))
    return codes + 1.3 * torch.randn(batch, frames, size, generator=generator)


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def plain_write(memory: MixtureMemory, codes: torch.Tensor) -> object:
    """As in training, and as the peers do it: k-means++ seeds, no expansion."""
    return memory.write(codes, ITERATIONS, "kmeans++", expand=False)


def one_write(name: str, batch: int, frames: int, clusters: int, rows: int, size: int) -> Callable[[], object]:
    """A write by us or by a peer, ready to be called."""
    from peers import sklearn_write, transcribed_write

    codes = clustered_codes(batch, frames, clusters, size)
    memory = MixtureMemory(size, rows, clusters)
    if name == "vbmem":
        return lambda: plain_write(memory, codes)
    if name == "vbmem_default":
        return lambda: memory.write(codes, ITERATIONS)
    if name == "transcription":
        return lambda: transcribed_write(codes, clusters, rows, ITERATIONS)
    return lambda: sklearn_write(codes, clusters, ITERATIONS, name.removeprefix("sklearn_"))


def peak_extra_megabytes(name: str, *size: int) -> float:
    """Growth of a fresh process while it writes for the first time, from Linux's own high-water mark.

    A tiny write goes before, so that libraries are loaded; what they allocate at this size is counted.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak_here, name, *size).result()


def _peak_here(name: str, *size: int) -> float:
    def kilobytes(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key))

    torch.set_num_threads(2)
    with torch.no_grad():
        one_write(name, 1, 8, 2, 2, 8)()
        write = one_write(name, *size)
        Path("/proc/self/clear_refs").write_text("5")
        before = kilobytes("VmRSS")
        write()
    return (kilobytes("VmHWM") - before) / 1024


def against_peers(repeats: int) -> list[dict[str, Any]]:
    runs = {
        "vbmem": repeats,
        "vbmem_default": repeats,
        "transcription": max(3, repeats // 4),
        "sklearn_full": 1,
        "sklearn_diag": 3,
    }
    results = []
    for size in SIZES:
        seconds = {name: median_seconds(one_write(name, *size), count) for name, count in runs.items()}
        results.append(
            {
                "size": dict(zip("BTHKC", size, strict=True)),
                "seconds": seconds,
                "ratios": {name: value / seconds["vbmem"] for name, value in seconds.items() if name != "vbmem"},
                "peak_extra_mb": {name: peak_extra_megabytes(name, *size) for name in ("vbmem", "transcription")},
            }
        )
    table = Table(title=f"one write, {ITERATIONS} iterations, {torch.get_num_threads()} threads: medians, same run")
    for heading in ("B, T, H, K, C", "vbmem", "transcription", "sklearn full", "sklearn diag", "extra MB", "(peer)"):
        table.add_column(heading, justify="right")
    for result in results:
        seconds, ratios, peak = result["seconds"], result["ratios"], result["peak_extra_mb"]
        peers = [
            f"{1e3 * seconds[name]:.0f} ms = {ratios[name]:.1f}x"
            for name in ("transcription", "sklearn_full", "sklearn_diag")
        ]
        sizes = ", ".join(map(str, result["size"].values()))
        table.add_row(
            sizes, f"{1e3 * seconds['vbmem']:.1f} ms", *peers, f"{peak['vbmem']:.0f}", f"{peak['transcription']:.0f}"
        )
    console.print(table)
    return results


def scaling(repeats: int) -> dict[str, list[dict[str, float]]]:
    """Seconds against T at H=10 and against H at T=1280; linear means a constant last column."""
    result: dict[str, list[dict[str, float]]] = {"T": [], "H": []}
    cases = [("T", t, 10) for t in (1_000, 10_000, 100_000)] + [("H", 1_280, h) for h in (10, 40, 160)]
    table = Table(title="cost against T (H=10) and H (T=1280)")
    for heading in ("T", "H", "ms", "us per frame and cluster"):
        table.add_column(heading, justify="right")
    for name, frames, clusters in cases:
        codes, memory = clustered_codes(1, frames, clusters, 200), MixtureMemory(200, 6, clusters)
        seconds = median_seconds(lambda m=memory, z=codes: plain_write(m, z), 3 if frames > 10_000 else repeats)
        unit = 1e6 * seconds / (frames * clusters)
        result[name].append({"T": frames, "H": clusters, "seconds": seconds, "us_per_frame_and_cluster": unit})
        table.add_row(f"{frames:,}", str(clusters), f"{1e3 * seconds:.1f}", f"{unit:.2f}")
    console.print(table)
    return result


def many_episodes(repeats: int) -> dict[str, Any]:
    """Memories a second of many short episodes written at once, from k-means++ seeds, plain and as by default."""
    size = (256, *SIZES[0][1:])
    seconds = {name: median_seconds(one_write(name, *size), repeats) for name in ("vbmem", "vbmem_default")}
    result = {
        "size": dict(zip("BTHKC", size, strict=True)),
        "memories_a_second": {name: round(size[0] / value) for name, value in seconds.items()},
    }
    console.print(result)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    report: dict[str, Any] = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    with torch.no_grad():
        if options.device == "cuda":
            from write_cuda import few_episodes, long_episode, short_episodes

            report |= {"device": torch.cuda.get_device_name(), "cuda": few_episodes(SIZES)}
            report |= {"episodes": short_episodes(SIZES[0][1:]), "long": [long_episode(rows) for rows in (0, 6)]}
        else:
            torch.set_num_threads(2)
            report |= {"threads": 2, "cpu": against_peers(options.repeats), "scaling": scaling(options.repeats)}
            report |= {"episodes": many_episodes(options.repeats)}
    emit(report, options.out)


if __name__ == "__main__":
    main()
