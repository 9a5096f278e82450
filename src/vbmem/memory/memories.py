"""The five memories of the paper: one engine, parts of its model switched on or off.

| memory                | clusters H | rows K | locations | partitions G | paper |
|-----------------------|------------|--------|-----------|--------------|-------|
| GaussianMemory        | 1          | K      | no        | 1            | C.1   |
| CategoricalMemory     | K          | 0      | the rows  | 1            | C.2   |
| ShiftedGaussianMemory | 1          | K      | yes       | 1            | C.3   |
| MixtureMemory         | H          | K      | yes       | 1            | C.4   |
| TreeMemory            | H          | K      | yes       | G            | C.5   |
"""

from __future__ import annotations

from typing import TypedDict, Unpack

import torch
from torch import Tensor

from vbmem.memory.reading import Scale, as_tensor
from vbmem.memory.state import MemoryState, Prior
from vbmem.memory.writing import VariationalMemory


class GaussianMemory(VariationalMemory):
    """z ~ N(M'w, sigma_z^2 I), w ~ N(0, I_K), M ~ MN(R_0, U_0, I): probabilistic factor analysis of an episode."""

    kind = "gaussian"
    default_start = "random"
    default_iterations = 50

    def __init__(
        self,
        code_size: int,
        rows: int,
        *,
        noise_var: Scale = 1.0,
        row_var: Scale = 1.0,
        row_mean: Scale = 0.0,
    ) -> None:
        super().__init__(code_size, rows, noise_var=noise_var, row_var=row_var, row_mean=row_mean)


class CategoricalMemory(VariationalMemory):
    """z ~ N(M_s, sigma_z^2 I), s ~ Cat(1/K): each frame uses one row of M ~ MN(R_0, diag(u_0), I).

    The engine sees K clusters without factors, whose locations are the rows: `MemoryState.loc_mean` holds R.
    """

    kind = "categorical"
    default_start = "data"
    default_iterations = 2

    def __init__(
        self,
        code_size: int,
        rows: int,
        *,
        noise_var: Scale = 1.0,
        row_var: Scale = 1.0,
        row_mean: Scale = 0.0,
    ) -> None:
        super().__init__(code_size, rows, rows, noise_var=noise_var, row_var=row_var, row_mean=row_mean)

    @property
    def _row_var_shape(self) -> tuple[int, ...]:
        return (self.rows,)  # the diagonal of U_0

    @property
    def layout(self) -> tuple[int, int]:
        return self.rows, 0

    def prior(self, like: Tensor) -> Prior:
        row_var, row_mean = as_tensor(self.row_var, like), as_tensor(self.row_mean, like)
        empty = torch.empty(1, 0, 0, dtype=like.dtype, device=like.device)
        return Prior(
            noise_var=as_tensor(self.noise_var, like),
            row_mean=like.new_empty(1, 0, self.code_size),
            row_precision=empty,
            row_natural=like.new_empty(1, 0, self.code_size),
            row_logdet=like.new_zeros(1),
            loc_mean=row_mean if row_mean.ndim else row_mean.expand(1, self.code_size),
            loc_var=row_var if row_var.ndim else row_var.unsqueeze(-1),
            has_location=True,
        )

    def _first_widths(self, empty: MemoryState) -> tuple[Tensor, Tensor]:
        return empty.row_cov, torch.full_like(empty.loc_var, 1 / self.code_size)


class ShiftedGaussianMemory(VariationalMemory):
    """z ~ N(M'w + b, sigma_z^2 I), b ~ N(mu_b0, loc_var I): a Gaussian memory that learns the episode's mean."""

    kind = "shifted"
    prior_names = ("noise_var", "row_var", "row_mean", "loc_var", "loc_mean")
    default_start = "random"
    default_iterations = 50

    def __init__(
        self,
        code_size: int,
        rows: int,
        *,
        noise_var: Scale = 1.0,
        row_var: Scale = 1.0,
        row_mean: Scale = 0.0,
        loc_var: Scale = 1.0,
        loc_mean: Scale = 0.0,
    ) -> None:
        super().__init__(
            code_size,
            rows,
            noise_var=noise_var,
            row_var=row_var,
            row_mean=row_mean,
            loc_var=loc_var,
            loc_mean=loc_mean,
        )


class ClusterPrior(TypedDict, total=False):
    """The prior of mixture and tree. Defaults: noise 0.2 K, rows 0.4, locations 0.4 K, so that a code coordinate has
    the variance K."""

    noise_var: Scale | None
    row_var: Scale
    row_mean: Scale
    loc_var: Scale | None
    loc_mean: Scale


class _ClusteredMemory(VariationalMemory):
    """What mixture and tree share: the prior's proportions and the start."""

    prior_names = ("noise_var", "row_var", "row_mean", "loc_var", "loc_mean")
    default_start = "kmeans++"
    default_iterations = 10

    def __init__(
        self,
        code_size: int,
        rows: int,
        clusters: int,
        partitions: int,
        *,
        noise_var: Scale | None = None,
        row_var: Scale = 0.4,
        row_mean: Scale = 0.0,
        loc_var: Scale | None = None,
        loc_mean: Scale = 0.0,
    ) -> None:
        super().__init__(
            code_size,
            rows,
            clusters,
            partitions,
            noise_var=0.2 * rows if noise_var is None else noise_var,
            row_var=row_var,
            row_mean=row_mean,
            loc_var=0.4 * rows if loc_var is None else loc_var,
            loc_mean=loc_mean,
        )

    def _row_spread(self, part_size: int) -> float:
        return 1 / part_size

    def _first_widths(self, empty: MemoryState) -> tuple[Tensor, Tensor]:
        rows, part_size = empty.row_mean.shape[-2:]
        identity = torch.eye(rows, dtype=empty.row_cov.dtype, device=empty.row_cov.device)
        return (identity / part_size).expand_as(empty.row_cov), empty.loc_var


class MixtureMemory(_ClusteredMemory):
    """H clusters, each a shifted Gaussian memory of K rows; a frame belongs to one of them. Resizable.

    Keyword arguments: the prior, see `ClusterPrior`. Its defaults expect code coordinates of variance K; codes on
    another scale need a prior of their own, or they are explained as noise.
    """

    kind = "mixture"
    sizes = ("code_size", "rows", "clusters")

    def __init__(self, code_size: int, rows: int, clusters: int, **prior: Unpack[ClusterPrior]) -> None:
        super().__init__(code_size, rows, clusters, 1, **prior)


class TreeMemory(_ClusteredMemory):
    """The code is cut into G partitions, each with a mixture memory of its own.

    The partitions are the last batch dimension of states and addresses: row_mean [.., G, H, K, C / G]. Keyword
    arguments: the prior, see `ClusterPrior`.
    """

    kind = "tree"
    sizes = ("code_size", "rows", "clusters", "partitions")

    def __init__(
        self, code_size: int, rows: int, clusters: int, partitions: int, **prior: Unpack[ClusterPrior]
    ) -> None:
        super().__init__(code_size, rows, clusters, partitions, **prior)

    def split(self, codes: Tensor) -> Tensor:
        parts: Tensor = codes.unflatten(-1, (self.partitions, -1))
        return parts.movedim(-2, -3)

    def join(self, parts: Tensor) -> Tensor:
        return parts.movedim(-3, -2).flatten(-2)

    def lift(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor.unsqueeze(dim)

    def reduce(self, tensor: Tensor, dim: int) -> Tensor:
        return tensor.sum(dim)
