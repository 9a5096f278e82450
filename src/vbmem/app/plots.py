"""Curves and clouds of points as places in an SVG, which the templates draw in the colours of the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 14, 40  # margins, with room for numbers
TICKS = (1, 2, 4, 8, 16, 32, 64)
POINT_RADIUS = 3


@dataclass(frozen=True)
class Place:
    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Curve:
    """Values against sizes, on a logarithmic axis."""

    points: list[Place]
    now: Place
    best: Place
    across: list[Place]  # numbers of the horizontal axis
    up: list[Place]  # and of the vertical one


def curve(sizes: Sequence[int], values: Sequence[float], now: int, best: int) -> Curve:
    """The places of values, with those of the present size and of the best."""
    low, high = min(values), max(values)
    spread = (high - low) or 1.0
    last = math.log2(max(*sizes, 2))

    def x(size: float) -> float:
        return LEFT + 12 + (WIDTH - LEFT - RIGHT - 24) * math.log2(size) / last

    def y(value: float) -> float:
        return TOP + 12 + (HEIGHT - TOP - BOTTOM - 24) * (high - value) / spread

    places = {size: Place(x(size), y(value), str(size)) for size, value in zip(sizes, values, strict=True)}
    across = [Place(x(tick), HEIGHT - BOTTOM, str(tick)) for tick in TICKS if tick <= max(sizes)]
    digits = max(0, 2 - math.floor(math.log10(spread))) if spread < 100 else 0
    up = [Place(LEFT, y(value), f"{value:,.{digits}f}") for value in sorted({low, (low + high) / 2, high})]
    return Curve(list(places.values()), places[now], places[best], across, up)


def cloud(points: Tensor) -> list[tuple[float, float]]:
    """Points [n, 2], in the same unit along both axes, moved into the middle of the picture."""
    low, high = points.amin(0), points.amax(0)
    room = (WIDTH - 4 * POINT_RADIUS, HEIGHT - 4 * POINT_RADIUS)
    scale = min(side / max(float(extent), 1e-12) for side, extent in zip(room, high - low, strict=True))
    centred = (points - (low + high) / 2) * min(scale, 1e6)
    return [(WIDTH / 2 + x, HEIGHT / 2 - y) for x, y in centred.tolist()]
