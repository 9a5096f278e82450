"""Ten million codes from disk on two cores: time a code, memory, processes, and what is learned, beside others.

    pip install faiss-cpu
    python benchmarks/scale.py [--largest 10000000] [--threads 2] [--folder DIR] [--out results/scale.json]

C=64, H=256, K=4, float32, from an .npy file of 256 clusters of low rank (`scale_codes.py`). Every measurement is in a
process of its own, whose peak memory counts the libraries too, some 300 MB with torch.

- Sizes: a hundredth, a tenth and all of the codes. A prior is fitted to a sample of 16,384 codes (a fixed cost), the
  codes are written with 10 iterations, which is where the time a code must not grow, and one more pass counts them.
- Processes: a tenth of the codes with one thread, with all threads, and with as many processes of one thread each.
- Others, each with what it can hold within 1.5 GB: k-means of faiss with a tenth, MiniBatchKMeans with all, in one pass
  from disk, a diagonal GaussianMixture with a hundredth.

Learned is what is known of held-out codes: nats a code where there is a density, beside those of the source that made
the codes, and the mean squared distance from the nearest centre, which k-means makes small and the others do not.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sklearn
import torch
import torch.distributed as dist

import scale_peers
from report import emit, peak_megabytes
from scale_codes import CLUSTERS, ROWS, SIZE, Source, quantisation_error
from vbmem import MixtureMemory, WrittenMemory
from vbmem.data.code_files import open_codes
from vbmem.memory.shards import open_stream, share

PRIOR_CODES = 16_384
ITERATIONS = 10
LIMIT_MB = 1536


def write(path: Path, frames: int, threads: int, out: Path, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
    """Write the first codes of a file, in one process or as one of several; seconds and peak memory."""
    torch.set_num_threads(threads)
    codes, group = open_codes(path).part(0, frames), None
    if ranks > 1:
        dist.init_process_group("gloo", f"file://{out}.store", world_size=ranks, rank=rank)
        group = dist.group.WORLD
        codes = codes.part(*share(frames, group))
    generator, times = torch.Generator().manual_seed(0), [time.perf_counter()]
    typical = open_stream(codes, SIZE, group).sample(PRIOR_CODES, generator)
    empty = MixtureMemory.for_codes(typical, ROWS, CLUSTERS, noise="feature", generator=generator)
    times.append(time.perf_counter())
    state = empty.write_stream(codes, ITERATIONS, generator=generator, group=group)
    times.append(time.perf_counter())
    written = WrittenMemory.of_stream(empty, state, codes, group=group)
    times.append(time.perf_counter())
    if rank == 0:
        written.save(out)
    if group is not None:
        dist.destroy_process_group()
    prior, iterations, count = (end - begin for begin, end in itertools.pairwise(times))
    return {
        "codes": frames,
        "seconds_prior": round(prior, 2),
        "seconds_write": round(iterations, 2),
        "seconds_count": round(count, 2),
        "us_a_code_and_iteration": round(1e6 * iterations / frames / ITERATIONS, 3),
        "peak_mb": peak_megabytes(),
    }


def learned(memory: Path, threads: int, held_out: int) -> dict[str, float]:
    """What a written memory knows of held-out codes."""
    torch.set_num_threads(threads)
    written, codes = WrittenMemory.load(memory), Source.planted().held_out(held_out)
    return {
        "log_likelihood": round(float(written.log_predictive(codes).mean()), 3),
        "quantisation_error": round(quantisation_error(codes, written.state.loc_mean), 3),
    }


def apart(function: Callable[..., dict[str, Any]], *calls: tuple[Any, ...]) -> list[dict[str, Any]]:
    """The calls, each in a fresh process, all at the same time."""
    with ProcessPoolExecutor(len(calls), mp_context=get_context("spawn")) as pool:
        return [future.result() for future in [pool.submit(function, *call) for call in calls]]


def sizes(path: Path, counts: list[int], threads: int, held_out: int) -> list[dict[str, Any]]:
    found = []
    for count in counts:
        memory = path.with_suffix(f".{count}.memory")
        found += apart(write, (path, count, threads, memory))
        found[-1] |= apart(learned, (memory, threads, held_out))[0]
    return found


def processes(path: Path, count: int, threads: int) -> dict[str, Any]:
    """One process with one thread and with all, and as many processes with one thread each."""
    alone = path.with_suffix(".alone.memory")
    found = {
        "one process, one thread": apart(write, (path, count, 1, alone))[0],
        "one process, all threads": apart(write, (path, count, threads, alone))[0],
    }
    together = path.with_suffix(".together.memory")
    several = apart(write, *((path, count, 1, together, rank, threads) for rank in range(threads)))
    slowest = max(several, key=lambda one: one["seconds_write"])
    total = round(sum(one["peak_mb"] for one in several), 1)
    found["as many processes, one thread each"] = slowest | {"peak_mb": total}
    one, other = (WrittenMemory.load(memory).state.loc_mean for memory in (alone, together))
    return found | {"largest_difference": float((one - other).abs().max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=10_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--held-out", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where 2.6 GB of codes go for the time of the run")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    faiss_version = version("faiss-cpu")  # rather missed now than at the end
    torch.set_num_threads(options.threads)
    small, medium, large = (options.largest // part for part in (100, 10, 1))
    source, threads, held_out = Source.planted(), options.threads, options.held_out
    with TemporaryDirectory(dir=options.folder) as folder:
        source.save(path := Path(folder) / "codes.npy", large)
        parts = {"faiss k-means": medium, "MiniBatchKMeans": large, "GaussianMixture, diagonal": small}
        others = {
            name: apart(scale_peers.learned, (name, path, count, threads, held_out))[0] for name, count in parts.items()
        }
        by_size = sizes(path, [small, medium, large], threads, held_out)
        by_processes = processes(path, medium, threads)
    costs = [one["us_a_code_and_iteration"] for one in by_size]
    report = {
        "torch": torch.__version__,
        "faiss": faiss_version,
        "sklearn": sklearn.__version__,
        "machine": platform.processor() or platform.machine(),
        "threads": threads,
        "size": {"H": CLUSTERS, "K": ROWS, "C": SIZE, "iterations": ITERATIONS},
        "held_out": {"codes": held_out, "log_likelihood_of_source": _best(source, held_out)},
        "sizes": by_size,
        "time_a_code_largest_over_smallest": round(costs[-1] / costs[0], 3),
        "within_1.5_gb": by_size[-1]["peak_mb"] <= LIMIT_MB,
        "processes": by_processes,
        "others": others,
    }
    emit(report, options.out)


def _best(source: Source, held_out: int) -> float:
    return round(float(source.log_density(source.held_out(held_out)).mean()), 3)


if __name__ == "__main__":
    main()
