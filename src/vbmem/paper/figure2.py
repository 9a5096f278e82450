"""Figure 2: how much better variational Bayes writes a linear Gaussian memory than the Dynamic Kanerva Machine."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console

from vbmem.data.synthetic import linear_gaussian_episode
from vbmem.files import write_atomically, write_json
from vbmem.memory import GaussianMemory, KanervaMemory
from vbmem.progress import track
from vbmem.sheets import figure_png
from vbmem.tables import table

EPISODE_LENGTH, ITERATIONS, ADDRESS_VAR = 32, 50, 0.3
MAPS = {
    "dkm_online": ("figure2a.png", "(a) DKM online, non-iterative", "2x to 14x"),
    "dkm_iterative": ("figure2b.png", "(b) DKM batched, iterative", "at least 1.64x"),
}


@dataclass(frozen=True)
class Cell:
    """One square of the heat maps: bounds per frame in nats."""

    rows: int
    code_size: int
    seed: int
    vb: float
    dkm_online: float
    dkm_iterative: float

    def ratio(self, name: str) -> float:
        """Bounds are negative here, so the ratio says how many times further from 0 the baseline ends."""
        return float(getattr(self, name)) / self.vb


def run(rows: int, code_size: int, seeds: list[int]) -> list[Cell]:
    """All seeds of one square as one batch: R_0 and data of each from its own generator, in float64."""
    row_means, episodes = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        row_means.append(torch.randn(rows, code_size, dtype=torch.float64, generator=generator))
        episodes.append(linear_gaussian_episode(row_means[-1], EPISODE_LENGTH, generator=generator))
    row_mean, codes = torch.stack(row_means), torch.stack(episodes)
    variational = GaussianMemory(code_size, rows, row_mean=row_mean)
    kanerva = KanervaMemory(code_size, rows, ADDRESS_VAR, row_mean=row_mean)
    written = {
        "vb": variational.write(codes, ITERATIONS, "prior"),
        "dkm_online": kanerva.write(codes),
        "dkm_iterative": kanerva.write_iterative(codes, ITERATIONS),
    }
    bounds = {
        name: variational.bound(codes, state, addresses).total / EPISODE_LENGTH
        for name, (state, addresses) in written.items()
    }
    return [
        Cell(rows, code_size, seed, **{name: float(total[i]) for name, total in bounds.items()})
        for i, seed in enumerate(seeds)
    ]


def figure2(out: Path, seed: int, seeds: int, rows: list[int], code_sizes: list[int], console: Console) -> None:
    """Write every square, draw both heat maps, print the table, and leave the numbers as JSON."""
    squares = track([(k, c) for c in code_sizes for k in rows], "writing memories")
    cells = [cell for k, c in squares for cell in run(k, c, list(range(seed, seed + seeds)))]
    write_json(out / "figure2.json", {"cells": [asdict(cell) for cell in cells]})
    draw(cells, rows, code_sizes, out)
    console.print(table(summarise(cells), "bound of the baseline / bound of variational Bayes"))
    pictures = ", ".join(str(out / name) for name, _, _ in MAPS.values())
    console.print(f"pictures: {pictures}\nnumbers:  {out / 'figure2.json'}", soft_wrap=True)


def summarise(cells: list[Cell]) -> list[dict[str, str]]:
    """Range of the ratios over squares and seeds, beside the paper's claims."""
    result = []
    for name, (_, title, claim) in MAPS.items():
        ratios = [cell.ratio(name) for cell in cells]
        ahead = sum(getattr(cell, name) < cell.vb for cell in cells)
        found = {"lowest": f"{min(ratios):.2f}x", "highest": f"{max(ratios):.2f}x"}
        result.append({"baseline": title, **found, "VB ahead in": f"{ahead} of {len(cells)}", "paper": claim})
    return result


def draw(cells: list[Cell], rows: list[int], code_sizes: list[int], out: Path) -> None:
    """One heat map a baseline: rows K to the right, code size C upwards, mean ratio over seeds in the squares.

    Args:
        cells: all seeds of a square together, one code size after the other.
    """
    upwards = np.argsort(code_sizes)
    for name, (file, title, _) in MAPS.items():
        every = np.array([cell.ratio(name) for cell in cells]).reshape(len(code_sizes), len(rows), -1)
        ratios = every.mean(-1)[upwards]
        figure = Figure(figsize=(1.6 + 0.75 * len(rows), 1.5 + 0.65 * len(code_sizes)), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(ratios, cmap="viridis", origin="lower")
        axes.set_title(f"VB against {title}", fontsize=11)
        axes.set_xticks(range(len(rows)), map(str, rows))
        axes.set_yticks(range(len(code_sizes)), map(str, sorted(code_sizes)))
        axes.set(xlabel="rows K", ylabel="code size C")
        middle = (ratios.min() + ratios.max()) / 2
        for (i, j), ratio in np.ndenumerate(ratios):
            colour = "black" if ratio > middle else "white"
            axes.text(j, i, f"{ratio:.1f}", ha="center", va="center", color=colour, fontsize=9)
        figure.colorbar(image, ax=axes, label="bound ratio")
        write_atomically(out / file, figure_png(figure, dpi=120))
