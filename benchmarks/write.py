"""How long writing takes, against two peers measured in the same run.

    python benchmarks/write.py [--out FILE.json] [--device cpu|cuda] [--repeats N]

On the CPU: 2 threads, medians, peak extra memory; a transcription of theorem C.4 and scikit-learn's
BayesianGaussianMixture as peers; cost against T and H. On CUDA: microseconds, eager and as a CUDA graph, plain and
compiled.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from vbmem import MixtureMemory

SIZES = [(16, 64, 10, 6, 200), (1, 640, 100, 6, 200), (1, 1280, 150, 6, 200)]  # B, T, H, K, C
ITERATIONS = 10
console = Console(width=110)


def clustered_codes(batch: int, frames: int, clusters: int, size: int, device: str = "cpu") -> torch.Tensor:
    """Codes that look like a written episode's: as many clusters as the memory, at its prior's scale."""
    generator = torch.Generator().manual_seed(0)
    centres = 1.5 * torch.randn(batch, clusters, size, generator=generator)
    pick = torch.randint(clusters, (batch, frames), generator=generator)
    codes = torch.gather(centres, 1, pick[..., None].expand(-1, -1, size))
    return (codes + 1.3 * torch.randn(batch, frames, size, generator=generator)).to(device)


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak_extra_megabytes(function: Callable[[], object]) -> float:
    """Growth of the resident set while the function runs, from Linux's own high-water mark."""
    function()
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def kilobytes(key: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(key))

    clear.write_text("5")
    before = kilobytes("VmRSS")
    function()
    return (kilobytes("VmHWM") - before) / 1024


def against_peers(repeats: int) -> list[dict[str, Any]]:
    from peers import sklearn_write, transcribed_write

    results = []
    for batch, frames, clusters, rows, size in SIZES:
        codes = clustered_codes(batch, frames, clusters, size)
        memory = MixtureMemory(size, rows, clusters)
        ours = lambda m=memory, z=codes: m.write(z, ITERATIONS)  # noqa: E731
        transcription = lambda z=codes, h=clusters, k=rows: transcribed_write(z, h, k, ITERATIONS)  # noqa: E731
        seconds = {"vbmem": median_seconds(ours, repeats)}
        seconds["transcription"] = median_seconds(transcription, max(3, repeats // 4))
        for covariance in ("full", "diag"):
            peer = lambda z=codes, h=clusters, c=covariance: sklearn_write(z, h, ITERATIONS, c)  # noqa: E731
            slow = covariance == "full" and frames > 64
            seconds[f"sklearn_{covariance}"] = median_seconds(peer, 1 if slow else 3)
        results.append(
            {
                "size": {"B": batch, "T": frames, "H": clusters, "K": rows, "C": size},
                "seconds": seconds,
                "ratios": {name: value / seconds["vbmem"] for name, value in seconds.items() if name != "vbmem"},
                "peak_extra_mb": {
                    "vbmem": peak_extra_megabytes(ours),
                    "transcription": peak_extra_megabytes(transcription),
                },
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
        seconds = median_seconds(lambda m=memory, z=codes: m.write(z, ITERATIONS), 3 if frames > 10_000 else repeats)
        unit = 1e6 * seconds / (frames * clusters)
        result[name].append({"T": frames, "H": clusters, "seconds": seconds, "us_per_frame_and_cluster": unit})
        table.add_row(f"{frames:,}", str(clusters), f"{1e3 * seconds:.1f}", f"{unit:.2f}")
    console.print(table)
    return result


def on_cuda() -> list[dict[str, Any]]:
    """Microseconds of the same writes from CUDA events: eager, and as one CUDA graph, plain and compiled."""

    def microseconds(function: Callable[[], object], repeats: int = 50) -> float:
        for _ in range(3):
            function()
        times = []
        for _ in range(repeats):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            function()
            end.record()
            end.synchronize()
            times.append(1e3 * start.elapsed_time(end))
        return statistics.median(times)

    def captured(function: Callable[[], object]) -> Callable[[], object]:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function()
        return graph.replay

    results = []
    for batch, frames, clusters, rows, size in SIZES:
        codes = clustered_codes(batch, frames, clusters, size, "cuda")
        memory = MixtureMemory(size, rows, clusters)
        compiled = torch.compile(memory.write, fullgraph=True, dynamic=False)
        times = {
            "eager": microseconds(lambda m=memory, z=codes: m.write(z, ITERATIONS)),
            "graph": microseconds(captured(lambda m=memory, z=codes: m.write(z, ITERATIONS))),
            "compiled_graph": microseconds(captured(lambda w=compiled, z=codes: w(z, ITERATIONS))),
        }
        results.append({"size": dict(zip("BTHKC", (batch, frames, clusters, rows, size), strict=True)), "us": times})
        console.print(results[-1])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    report: dict[str, Any] = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    with torch.no_grad():
        if options.device == "cuda":
            report |= {"device": torch.cuda.get_device_name(), "cuda": on_cuda()}
        else:
            torch.set_num_threads(2)
            report |= {"threads": 2, "cpu": against_peers(options.repeats), "scaling": scaling(options.repeats)}
    text = json.dumps(report, indent=1)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
