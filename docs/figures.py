"""The figures of "Choose a memory": every memory on the same three sets of codes.

python docs/figures.py
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from vbmem import (
    CategoricalMemory,
    GaussianMemory,
    KanervaMemory,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
)
from vbmem.memory import Memory

OUT = Path(__file__).parent / "figures"
REACH = 6.0  # of the axes
INK, DOTS, DENSITY, MARK = "#333333", "#8a8f98", "#5c7cfa", "#d9480f"
MASS = (0.95, 0.8, 0.5)  # of the density, within the three shades

SCALES = {"noise_var": 0.15, "row_var": 2.0}
PLACES = {"loc_var": 6.0}
MEMORIES: dict[str, Memory] = {
    "gaussian": GaussianMemory(2, 2, **SCALES),
    "categorical": CategoricalMemory(2, 6, noise_var=0.5, row_var=6.0),
    "shifted": ShiftedGaussianMemory(2, 1, **SCALES, **PLACES),
    "mixture": MixtureMemory(2, 1, 3, **SCALES, **PLACES),
    "tree": TreeMemory(2, 1, 3, 2, **SCALES, **PLACES),
    "kanerva": KanervaMemory(2, 2, **SCALES),
}


def cloud(random: np.random.Generator) -> np.ndarray:
    """One long cloud away from the origin."""
    return (
        np.array([2.0, 1.5])
        + random.normal(size=(150, 1)) * [1.4, -1.1]
        + 0.35 * random.normal(size=(150, 2))
    )


def clusters(random: np.random.Generator) -> np.ndarray:
    """Three long clusters, each along a direction of its own."""
    places, ways = (
        np.array([[-3.2, -2], [3, -2.2], [0, 3]]),
        np.array([[0.9, 0.9], [0.9, -0.9], [1.4, 0.1]]),
    )
    chosen = np.arange(150) % 3
    return (
        places[chosen]
        + random.normal(size=(150, 1)) * ways[chosen]
        + 0.3 * random.normal(size=(150, 2))
    )


def parts(random: np.random.Generator) -> np.ndarray:
    """Two coordinates that each take one of three values, in any combination."""
    return random.choice([-3.6, 0.2, 3.2], size=(150, 2)) + 0.35 * random.normal(
        size=(150, 2)
    )


DATA: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "one cloud": cloud,
    "three clusters": clusters,
    "independent parts": parts,
}


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name, memory in MEMORIES.items():
        figure = Figure(figsize=(5.6, 2.3), dpi=200, layout="constrained")
        for axes, (title, draw) in zip(
            figure.subplots(1, 3), DATA.items(), strict=True
        ):
            codes = torch.tensor(draw(np.random.default_rng(0)))
            panel(axes, memory, codes, title)
        save(figure, OUT / f"{name}.png")


def panel(axes: Axes, memory: Memory, codes: Tensor, title: str) -> None:
    """Codes, the density of the memory they were written into, locations and rows."""
    if isinstance(memory, KanervaMemory):
        state, addresses = memory.write(codes)
    else:
        state, addresses = memory.write(
            codes, 50, generator=torch.Generator().manual_seed(1)
        )
    bound = float(memory.bound(codes, state, addresses).total) / len(codes)
    side = torch.linspace(-REACH, REACH, 161, dtype=codes.dtype)
    plane = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1)
    density = (
        memory.log_predictive(state, plane.flatten(0, 1)).exp().reshape(plane.shape[:2])
    )
    levels = [*(within(density, mass) for mass in MASS), float(density.max()) * 1.01]
    axes.contourf(side, side, density, levels=levels, colors=[DENSITY] * 3, alpha=0.22)
    axes.contourf(
        side, side, density, levels=levels[1:], colors=[DENSITY] * 2, alpha=0.25
    )
    axes.scatter(*codes.T, s=2.5, color=DOTS, linewidths=0)
    for place, row in marks(memory, state.loc_mean, state.factor_mean):
        if row is None:
            axes.plot(*place, "o", color=MARK, markersize=3)
        else:
            axes.annotate(
                "",
                place + row,
                place,
                arrowprops={"arrowstyle": "-|>", "color": MARK, "lw": 1.1},
            )
    axes.set(
        xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal", xticks=[], yticks=[]
    )
    axes.set_title(f"{title}:\n{bound:.1f} nats a code", fontsize=9, color=INK)
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def within(density: Tensor, mass: float) -> float:
    """The density above which lies this share of the mass."""
    falling = density.flatten().sort(descending=True).values
    shares = falling.cumsum(0) / falling.sum()
    return float(falling[int((shares < mass).sum())])


def marks(
    memory: Memory, locations: Tensor, rows: Tensor
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Dots at the locations, arrows for the rows; of a tree, locations on the axes."""
    if isinstance(memory, TreeMemory):
        first, second = (part.squeeze(-1).numpy() for part in locations)
        return [(np.array([x, -REACH]), None) for x in first] + [
            (np.array([-REACH, y]), None) for y in second
        ]
    found: list[tuple[np.ndarray, np.ndarray | None]] = []
    for place, factors in zip(locations.numpy(), rows.numpy(), strict=True):
        found.append((place, None))
        found += [(place, row) for row in factors]
    return found


def save(figure: Figure, path: Path) -> None:
    """A PNG of few colours."""
    drawn = io.BytesIO()
    FigureCanvasAgg(figure).print_png(drawn)
    Image.open(drawn).convert("RGB").quantize(48).save(path, optimize=True)


if __name__ == "__main__":
    main()
