"""Figure 2: how much better variational Bayes writes a linear Gaussian memory than the Dynamic Kanerva Machine.

The paper's episodes have 32 frames; it reports similar results for longer ones (appendix E.1), which can be run too.
"""

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
    "dkm_online": ("figure2a", "(a) DKM online, non-iterative", "2x to 14x"),
    "dkm_iterative": ("figure2b", "(b) DKM batched, iterative", "at least 1.64x"),
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


def run(rows: int, code_size: int, seeds: list[int], episode_length: int = EPISODE_LENGTH) -> list[Cell]:
    """All seeds of one square as one batch: R_0 and data of each from its own generator, in float64."""
    row_means, episodes = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        row_means.append(torch.randn(rows, code_size, dtype=torch.float64, generator=generator))
        episodes.append(linear_gaussian_episode(row_means[-1], episode_length, generator=generator))
    row_mean, codes = torch.stack(row_means), torch.stack(episodes)
    variational = GaussianMemory(code_size, rows, row_mean=row_mean)
    kanerva = KanervaMemory(code_size, rows, ADDRESS_VAR, row_mean=row_mean)
    written = {
        "vb": variational.write(codes, ITERATIONS, "prior"),
        "dkm_online": kanerva.write(codes),
        "dkm_iterative": kanerva.write_iterative(codes, ITERATIONS),
    }
    bounds = {
        name: variational.bound(codes, state, addresses).total / episode_length
        for name, (state, addresses) in written.items()
    }
    return [
        Cell(rows, code_size, seed, **{name: float(total[i]) for name, total in bounds.items()})
        for i, seed in enumerate(seeds)
    ]


def figure2(
    out: Path,
    seed: int,
    seeds: int,
    rows: list[int],
    code_sizes: list[int],
    console: Console,
    episode_length: int = EPISODE_LENGTH,
) -> None:
    """Write every square, draw both heat maps, print the table, and leave the numbers as JSON."""
    squares = track([(k, c) for c in code_sizes for k in rows], "writing memories")
    cells = [cell for k, c in squares for cell in run(k, c, list(range(seed, seed + seeds)), episode_length)]
    numbers = out / f"{_named('figure2', episode_length)}.json"
    write_json(numbers, {"episode_length": episode_length, "cells": [asdict(cell) for cell in cells]})
    pictures = draw(cells, rows, code_sizes, out, episode_length)
    title = f"bound of the baseline / bound of variational Bayes, episodes of {episode_length}"
    console.print(table(summarise(cells), title))
    console.print(f"pictures: {', '.join(map(str, pictures))}\nnumbers:  {numbers}", soft_wrap=True)


def _named(file: str, episode_length: int) -> str:
    """Other lengths than the paper's are in the name of a file, so that one directory can hold several."""
    return file if episode_length == EPISODE_LENGTH else f"{file}-T{episode_length}"


def summarise(cells: list[Cell]) -> list[dict[str, str]]:
    """Range of the ratios over squares and seeds, beside the paper's claims, which are of episodes of 32."""
    result = []
    for name, (_, title, claim) in MAPS.items():
        ratios = [cell.ratio(name) for cell in cells]
        ahead = sum(getattr(cell, name) < cell.vb for cell in cells)
        found = {"lowest": f"{min(ratios):.2f}x", "highest": f"{max(ratios):.2f}x"}
        result.append({"baseline": title, **found, "VB ahead in": f"{ahead} of {len(cells)}", "paper": claim})
    return result


def draw(cells: list[Cell], rows: list[int], code_sizes: list[int], out: Path, episode_length: int) -> list[Path]:
    """One heat map a baseline: rows K to the right, code size C upwards, mean ratio over seeds in the squares.

    Args:
        cells: all seeds of a square together, one code size after the other.
        rows: every K, as in the cells.
        code_sizes: every C, as in the cells.
        out: the directory for the pictures.
        episode_length: T, named in the files unless it is the paper's.

    Returns:
        Where the pictures are.
    """
    pictures = []
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
        pictures.append(out / f"{_named(file, episode_length)}.png")
        write_atomically(pictures[-1], figure_png(figure, dpi=120))
    return pictures
