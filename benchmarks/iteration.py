"""What an iteration of a write costs, against the same in another checkout: ratios of medians, both in turn in one run.

    python benchmarks/iteration.py --other DIR/src [--device cpu|cuda] [--out FILE.json]

At the first size of `benchmarks/write.py`, eager, from the same given state: the difference between writes of 30 and of
10 iterations. `--other` is the `src` of an older version, for example of 0.2, whose posterior was always factorised.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from report import emit

TURNS = 5
MEASURE = """
import statistics, sys, time, torch
from vbmem import MixtureMemory
device, kind = sys.argv[1:]
torch.set_num_threads(2)
torch.manual_seed(0)
codes = (1.5 * torch.randn(16, 10, 200).repeat_interleave(7, 1)[:, :64] + 1.3 * torch.randn(16, 64, 200)).to(device)
memory = MixtureMemory(200, 6, 10, **({} if kind == "other" else {"factorised": kind == "factorised"}))
more = {} if kind == "other" else {"expand": kind == "joint, expanded"}
state, _ = memory.write(codes, 2, "kmeans++")
def seconds(iterations):
    start = time.perf_counter()
    written, _ = memory.write(codes, iterations, state, **more)
    float(written.row_mean.sum())
    return time.perf_counter() - start
with torch.no_grad():
    seconds(30)
    print(statistics.median((seconds(30) - seconds(10)) / 20 for _ in range(11)))
"""


def seconds(source: Path, device: str, kind: str) -> float:
    environment = os.environ | {"PYTHONPATH": str(source)}
    command = [sys.executable, "-c", MEASURE, device, kind]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ours = Path(__file__).parents[1] / "src"
    kinds = {"other": arguments.other, "factorised": ours, "joint": ours, "joint, expanded": ours}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(TURNS):
        for kind, source in kinds.items():
            times[kind].append(seconds(source, arguments.device, kind))
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    ratios = {kind: round(value / medians["other"], 2) for kind, value in medians.items()}
    report = {
        "device": arguments.device,
        "milliseconds": {k: round(1e3 * v, 3) for k, v in medians.items()},
        "ratio": ratios,
    }
    emit(report, arguments.out)


if __name__ == "__main__":
    main()
