"""What `benchmarks/scale.py` writes: codes on disk from clusters of low rank, and what is to be known of them.

    s ~ Cat(pi),   w ~ N(0, I_K),   z | s=h, w ~ N(b_h + R_h' w, I_C)

with H=256 clusters of unequal shares. That is the kind of data a mixture memory is made for; k-means and a diagonal
mixture find its clusters, but not their shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

CLUSTERS, ROWS, SIZE = 256, 4, 64
CHUNK = 2**16  # codes made at a time


@dataclass(frozen=True)
class Source:
    """Where the codes come from."""

    log_share: Tensor  # [H]
    location: Tensor  # [H, C]
    rows: Tensor  # [H, K, C]

    @classmethod
    def planted(cls) -> Self:
        generator = torch.Generator().manual_seed(0)
        share = 0.25 + torch.rand(CLUSTERS, generator=generator)
        location = torch.randn(CLUSTERS, SIZE, generator=generator)
        rows = torch.randn(CLUSTERS, ROWS, SIZE, generator=generator) / 2
        return cls((share / share.sum()).log(), location, rows)

    def draw(self, count: int, seed: int) -> Tensor:
        """Codes [count, C]."""
        generator = torch.Generator().manual_seed(seed)
        cluster = torch.multinomial(self.log_share.exp(), count, replacement=True, generator=generator)
        codes = self.location[cluster] + torch.randn(count, SIZE, generator=generator)
        weights = torch.randn(count, ROWS, generator=generator)
        for row in range(ROWS):  # [count, K, C] would be large
            codes += weights[:, row, None] * self.rows[cluster, row]
        return codes

    def save(self, path: Path, count: int) -> None:
        """An .npy file of `count` codes, of which the first are the same however many there are."""
        file = np.lib.format.open_memmap(path, "w+", np.float32, (count, SIZE))
        for number, begin in enumerate(range(0, count, CHUNK)):
            file[begin : begin + CHUNK] = self.draw(CHUNK, 1 + number)[: count - begin].numpy()
        file.flush()

    def held_out(self, count: int) -> Tensor:
        """Codes [count, C] that are in no file."""
        return self.draw(count, 0)

    def log_density(self, codes: Tensor) -> Tensor:
        """log p(z) of codes [n, C], in nats, [n]: no model can have more in the mean."""
        codes, rows = codes.double(), self.rows.double()
        terms = []
        for log_share, location, row in zip(self.log_share, self.location, rows, strict=True):
            covariance = torch.eye(SIZE, dtype=torch.float64) + row.T @ row
            factor = torch.linalg.cholesky(covariance)
            white = torch.linalg.solve_triangular(factor, (codes - location).T, upper=False)
            volume = factor.diagonal().log().sum() + SIZE / 2 * math.log(2 * math.pi)
            terms.append(log_share - white.square().sum(0) / 2 - volume)
        return torch.stack(terms).logsumexp(0)


def quantisation_error(codes: Tensor, centres: Tensor) -> float:
    """The mean squared distance of codes [n, C] from the nearest of the centres [H, C]."""
    return float(torch.cdist(codes, centres).amin(-1).square().mean())


def passes(path: Path, frames: int, size: int) -> Iterator[np.ndarray]:
    """The first codes of a file, [n, C] with n up to `size`."""
    codes = np.load(path, mmap_mode="r")
    return (np.array(codes[begin : min(begin + size, frames)]) for begin in range(0, frames, size))
