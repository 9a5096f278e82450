"""What writing costs, as formulas; how they compare with what was measured; and what they say of machines we lack.

    python benchmarks/plan.py [--codes 1000000000] [--clusters 10000] [--ranks 64]

An iteration goes once through T codes of size C on R ranks, with H clusters of K factor rows and a location, J = K + 1:

- operations: each code meets the J rows of every cluster, and is added to their sums, two products of 2 H J C each;
- bytes read: the codes, 4 C each; everything else of a code stays in a cache or in registers;
- bytes sent: the sums over frames, in float64, one all-reduce; around a ring each rank sends 2 (R - 1) / R of them;
- the global step depends on no T, and every rank takes it by itself.

The rate at which the operations are done is the one number that is measured: on two cores in `results/blocks.json`, on
one GPU, with factor rows and without, in `results/write_cuda.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h200 import HALF_FLOPS, NETWORK_BYTES

RESULTS = Path(__file__).parents[1] / "results"
HALVES = 4.5  # operations of half precision for one of float32: see `kernels.frames`


@dataclass(frozen=True)
class Size:
    """Of a write: T codes, H clusters, K factor rows, code size C, iterations."""

    codes: int
    clusters: int
    rows: int
    code_size: int
    iterations: int = 10

    @property
    def operations(self) -> int:
        """Of an iteration: 4 T H J C."""
        return 4 * self.codes * self.clusters * (self.rows + 1) * self.code_size

    @property
    def bytes_read(self) -> int:
        """Of codes, in an iteration."""
        return 4 * self.codes * self.code_size

    @property
    def sums(self) -> int:
        """Numbers that an iteration leaves of all codes: n, S_ww, S_wz, and S_zz for a noise shared by the clusters."""
        rows = self.rows + 1
        return self.clusters * (1 + rows * rows + rows * self.code_size) + self.code_size

    @property
    def message(self) -> int:
        """Bytes of the all-reduce of an iteration: the sums in float64, and whether a rank has failed."""
        return 8 * (self.sums + 1)

    @property
    def state(self) -> int:
        """Bytes of the memory."""
        rows = self.rows + 1
        return 4 * self.clusters * (rows * rows + rows * self.code_size)

    def sent(self, ranks: int) -> float:
        """Bytes that each rank sends in an iteration."""
        return 2 * (ranks - 1) / ranks * self.message


@dataclass(frozen=True)
class Device:
    """As its maker describes it: operations a second in half precision, and bytes a second to other devices."""

    name: str
    operations: float
    network: float


H200 = Device("NVIDIA H200", HALF_FLOPS, NETWORK_BYTES)


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def rate() -> float:
    """Useful operations a second of `write_stream` on two cores, as measured."""
    return 1e9 * float(read("blocks.json")["results"]["write_stream"]["gflops"])


def gpu_rate(rows: int) -> float:
    """Useful operations a second of `write_stream` on an H200, of clusters with factor rows or without."""
    (one,) = (entry for entry in read("write_cuda.json")["long"] if bool(entry["size"]["K"]) == bool(rows))
    size = one["size"]
    return Size(size["T"], size["H"], size["K"], size["C"]).operations / (1e-3 * float(one["ms_an_iteration"]))


def measured() -> Iterator[tuple[str, Size, float]]:
    """What was measured on two cores: where, its size, and seconds an iteration."""
    blocks, scale, small = read("blocks.json"), read("scale.json"), read("write.json")
    size = {name: blocks["size"][name] for name in "HKC"}
    for name in ("write_stream", "write"):
        one = blocks["results"][name]
        write = Size(one["frames"], *size.values())
        yield f"`{name}`, in memory", write, write.operations / (1e9 * one["gflops"])
    for one in scale["sizes"]:
        yield "from disk", Size(one["codes"], *size.values()), one["seconds_write"] / scale["size"]["iterations"]
    for name, one in list(scale["processes"].items())[1:3]:  # as many cores
        yield f"from disk, {name}", Size(one["codes"], *size.values()), one["seconds_write"] / 10
    for one in small["scaling"]["T"] + small["scaling"]["H"][1:]:
        yield "`write`, small", Size(one["T"], one["H"], 6, 200), one["seconds"] / 10


def checked() -> list[list[str]]:
    """Measured seconds an iteration beside those that the operations take at the measured rate."""
    rows = []
    for where, size, seconds in measured():
        expected = size.operations / rate()
        sizes = f"{size.codes:,}, {size.clusters}, {size.rows}, {size.code_size}"
        numbers = [f"{size.operations / 1e9:,.1f}", f"{expected:.4f}", f"{seconds:.4f}", f"{seconds / expected:.2f}"]
        rows.append([where, sizes, *numbers])
    return rows


def predicted(codes: int, clusters: int, ranks: int, device: Device = H200) -> list[list[str]]:
    """What an iteration takes: operations, bytes, and seconds, at the limit of the device and at the measured rate."""
    rows = []
    for factor_rows, code_size in ((0, 64), (4, 64), (6, 128)):
        whole = Size(codes, clusters, factor_rows, code_size)
        mine = Size(-(-codes // ranks), clusters, factor_rows, code_size)
        times = [HALVES * mine.operations / device.operations, mine.operations / gpu_rate(factor_rows)]
        rows.append(
            [
                f"{factor_rows}, {code_size}",
                f"{whole.operations:.1e}",
                f"{mine.bytes_read / 1e9:.1f}",
                f"{whole.message / 1e6:.0f}",
                f"{1e3 * whole.sent(ranks) / device.network:.1f}",
                *(f"{seconds:.1f}" for seconds in times),
            ]
        )
    return rows


MEASURED = "where | T, H, K, C | 10⁹ operations | expected, s | measured, s | measured / expected"
PREDICTED = "K, C | operations | codes a GPU, GB | sums, MB | all-reduce, ms | at the limit, s | as measured, s"


def show(headings: str, rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for place, heading in enumerate(headings.split(" | ")):
        table.add_column(heading, justify="right" if place else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=int, default=1_000_000_000)
    parser.add_argument("--clusters", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=64)
    options = parser.parse_args()
    print(f"{rate() / 1e9:.0f} billion useful operations a second on two cores")
    show(MEASURED, checked())
    print(f"{options.codes:,} codes, {options.clusters:,} clusters, {options.ranks} x {H200.name}: an iteration")
    show(PREDICTED, predicted(options.codes, options.clusters, options.ranks))


if __name__ == "__main__":
    main()
