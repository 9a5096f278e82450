"""How long writing takes on a GPU, and how far that is from what its arithmetic and its memory allow; see `write`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console

from h200 import BYTES, FLOPS, HALF_FLOPS
from vbmem import MixtureMemory
from vbmem.memory import MemoryState

ITERATIONS = 10
console = Console(width=110)


def few_episodes(sizes: Sequence[tuple[int, ...]]) -> list[dict[str, Any]]:
    """Microseconds of a plain write of [B, T, C], eager, and as one CUDA graph, plain and compiled."""
    results = []
    for batch, frames, clusters, rows, size in sizes:
        codes, memory = clustered_codes(batch, frames, clusters, size), MixtureMemory(size, rows, clusters)
        write = lambda m=memory, z=codes: m.write(z, ITERATIONS, "kmeans++", expand=False)  # noqa: E731
        times = {"eager": microseconds(write), "graph": microseconds(captured(write))}
        memory.compile()
        times["compiled_graph"] = microseconds(captured(write))
        results.append({"size": dict(zip("BTHKC", (batch, frames, clusters, rows, size), strict=True)), "us": times})
        console.print(results[-1])
    return results


def short_episodes(size: tuple[int, ...]) -> list[dict[str, Any]]:
    """Memories a second: of many short episodes from a given state, plain and with parameter expansion, and as by
    default, with seeds. At best codes are read once, rows before and after are moved once, and so are addresses."""
    frames, clusters, rows, code_size = size
    results = []
    for batch in (1_000, 10_000, 100_000):
        codes = clustered_codes(batch, frames, clusters, code_size)
        memory = MixtureMemory(code_size, rows, clusters)
        state = memory.prior_state((batch,), dtype=torch.float32, device="cuda")
        state = replace(state, row_mean=state.row_mean + 0.3 * torch.randn_like(state.row_mean))
        ways = {
            "plain": lambda m=memory, z=codes, x=state: m.write(z, ITERATIONS, x, expand=False),
            "expanded": lambda m=memory, z=codes, x=state: m.write(z, ITERATIONS, x, expand=True),
            "default": lambda m=memory, z=codes: m.write(z, ITERATIONS),
        }
        moved = 4 * batch * (frames * code_size + clusters * (rows + 1) * (2 * code_size + frames))
        products = frames * code_size * (frames + 2 * clusters * (rows + 1))  # codes with each other, and with rows
        products += (ITERATIONS - 1) * clusters * (rows + 1) * frames**2
        result = {
            "size": dict(zip("BTHKC", (batch, *size), strict=True)),
            "memories_a_second": {
                name: round(1e6 * batch / microseconds(way, 3, warm=1)) for name, way in ways.items()
            },
            "peak_mib_beyond_data": {name: extra_mebibytes(way) for name, way in ways.items()},
            "mib": {"codes": codes.nbytes >> 20, "rows": state.row_mean.nbytes >> 20},
            "memories_a_second_at_most": {
                "bandwidth": round(batch * BYTES / moved),
                "float32": round(FLOPS / (2 * products)),
            },
        }
        results.append(result)
        console.print(result)
        del codes, state, ways
    return results


def long_episode(rows: int, frames: int = 1_000_000, clusters: int = 1024, size: int = 128) -> dict[str, Any]:
    """Milliseconds an iteration of `write_stream` over one long episode. Its kernels make three products of half
    precision for one of float32, those of frames and rows twice, and those of the statistics once."""
    generator = torch.Generator("cuda").manual_seed(0)
    centres = torch.randn(clusters, size, generator=generator, device="cuda")
    codes = torch.randn(frames, size, generator=generator, device="cuda")
    codes += centres[torch.randint(clusters, (frames,), generator=generator, device="cuda")]
    factors = 0.3 * torch.randn(clusters, rows, size, generator=generator, device="cuda")
    cov = (0.001 * torch.eye(rows + 1, device="cuda")).expand(clusters, -1, -1).contiguous()
    state = MemoryState(torch.cat([factors, centres.unsqueeze(1)], 1), cov)
    memory = MixtureMemory(size, rows, clusters, noise_var=1.0, row_var=1.0, loc_var=1.0)
    one, three = (microseconds(lambda n=n: memory.write_stream(codes, n, state), 3, warm=1) for n in (1, 3))
    products = frames * size * clusters * (rows + 1)
    result = {
        "size": {"T": frames, "H": clusters, "K": rows, "C": size},
        "ms_an_iteration": (three - one) / 2e3,
        "peak_mib_beyond_data": extra_mebibytes(lambda: memory.write_stream(codes, 1, state)),
        "ms_at_least": {
            "half_precision": 1e3 * 3 * 3 * 2 * products / HALF_FLOPS,
            "reading_codes": 1e3 * codes.nbytes / BYTES,
        },
    }
    console.print(result)
    return result


def clustered_codes(batch: int, frames: int, clusters: int, size: int) -> torch.Tensor:
    """Codes that look like a written episode's, as those of `write`, drawn on the GPU."""
    generator = torch.Generator("cuda").manual_seed(0)
    centres = 1.5 * torch.randn(batch, clusters, size, generator=generator, device="cuda")
    pick = torch.randint(clusters, (batch, frames, 1), generator=generator, device="cuda")
    codes = centres.gather(1, pick.expand(-1, -1, size))
    return codes.add_(torch.randn(batch, frames, size, generator=generator, device="cuda"), alpha=1.3)


def microseconds(function: Callable[[], object], repeats: int = 50, warm: int = 3) -> float:
    """The median on the device."""
    for _ in range(warm):
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
    """As a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def extra_mebibytes(function: Callable[[], object]) -> int:
    """The most that a call allocates, with what it returns."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) >> 20
