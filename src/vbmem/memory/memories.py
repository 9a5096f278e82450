"""The five memories of the paper: one engine, parts of its model switched on or off.

| memory                | clusters H | rows K | locations | partitions G | paper |
|-----------------------|------------|--------|-----------|--------------|-------|
| GaussianMemory        | 1          | K      | no        | 1            | C.1   |
| CategoricalMemory     | K          | 0      | the rows  | 1            | C.2   |
| ShiftedGaussianMemory | 1          | K      | yes       | 1            | C.3   |
| MixtureMemory         | H          | K      | yes       | 1            | C.4   |
| TreeMemory            | H          | K      | yes       | G            | C.5   |
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Self

from torch import Tensor

from vbmem.memory.checks import check_location_mean, check_positive, check_variances_of_rows
from vbmem.memory.choice import UNIFORM, Choice
from vbmem.memory.reading import LocatedMemory
from vbmem.memory.sized import Scale, location_prior
from vbmem.memory.state import MemoryState
from vbmem.memory.writing import VariationalMemory


@dataclass(repr=False, eq=False)
class GaussianMemory(VariationalMemory):
    """z ~ N(M'w, sigma_z^2 I), w ~ N(0, I_K), M ~ MN(R_0, U_0, I): probabilistic factor analysis of an episode.

    Args:
        code_size: C, the size of a code.
        rows: K, the factor rows of M.
        noise_var: sigma_z^2, a number, one for every feature [C], or for every cluster and feature [H, C].
        row_var: U_0, a number times I, one for every row [K], or a matrix [.., K, K].
        row_mean: R_0, a number or [.., K, C].
    """

    kind = "gaussian"
    default_start = "random"
    default_iterations = 50


OWN_NAMES = {
    "noise_var": "noise_var",
    "loc_var": "row_var",
    "loc_mean": "row_mean",
}  # of a memory of rows that are locations


@dataclass(repr=False, eq=False)
class CategoricalMemory(VariationalMemory):
    """z ~ N(M_s, sigma_z^2 I), s ~ p(s): each frame uses one row of M ~ MN(R_0, diag(u_0), I).

    The engine sees K clusters without factors, whose locations are the rows: `MemoryState.loc_mean` holds R.

    Args:
        code_size: C, the size of a code.
        rows: K, the rows of M, each a cluster.
        noise_var: sigma_z^2, a number, one for every feature [C], or for every cluster and feature [H, C].
        row_var: u_0, a number or one for every row [K]; for a batch of memories [.., 1, K], since [K, K] would be a
            full U_0, which C.2 allows and this memory does not.
        row_mean: R_0, a number, or [C], the same for every row, or [.., K, C].
        choice: p(s), which row a frame uses; uniform, as in the paper.
    """

    _: KW_ONLY
    choice: Choice = UNIFORM

    kind = "categorical"
    located = True
    default_start = "data"
    default_iterations = 2

    @property
    def layout(self) -> tuple[int, int]:
        return self.rows, 0

    @property
    def scales(self) -> dict[str, Scale]:
        return {name: getattr(self, own) for name, own in OWN_NAMES.items()}

    def with_scales(self, **scales: Scale) -> Self:
        return self.with_prior(**{own: scales[name] for name, own in OWN_NAMES.items() if name in scales})

    def _check_rows(self) -> None:
        check_variances_of_rows(self.row_var, self.rows)
        check_positive("row_var", self.row_var)
        check_location_mean("row_mean", self.row_mean, self.rows, self.code_size)

    def _row_prior(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return like.new_empty(0, self.code_size), like.new_empty(0, 0)

    def _location_prior(self, like: Tensor) -> tuple[Tensor, Tensor]:
        row_var = self.row_var
        if isinstance(row_var, Tensor) and row_var.ndim > 1:
            row_var = row_var.squeeze(-2)
        return location_prior(self.row_mean, row_var, self.code_size, like)

    def _first_widths(self, empty: MemoryState) -> tuple[Tensor, Tensor]:
        return empty.factor_cov, empty.loc_var / self.code_size


@dataclass(repr=False, eq=False)
class ShiftedGaussianMemory(LocatedMemory, VariationalMemory):
    """z ~ N(M'w + b, sigma_z^2 I), b ~ N(mu_b0, v_b0 I): a Gaussian memory that learns the episode's mean.

    Args:
        code_size: C, the size of a code.
        rows: K, the factor rows of M.
        noise_var: sigma_z^2, a number, one for every feature [C], or for every cluster and feature [H, C].
        row_var: U_0, a number times I, one for every row [K], or a matrix [.., K, K].
        row_mean: R_0, a number or [.., K, C].
        loc_var: v_b0 of the location, a number; for a batch of memories [.., 1].
        loc_mean: mu_b0 of the location, a number or [C]; for a batch of memories [.., 1, C].
        factorised: q(M, b) = q(M) q(b), as the paper has it; by default rows and location are one matrix.
    """

    kind = "shifted"
    default_start = "random"
    default_iterations = 50


@dataclass(repr=False, eq=False)
class MixtureMemory(LocatedMemory, VariationalMemory):
    """H clusters, each a shifted Gaussian memory of K rows; a frame belongs to one of them. Resizable.

    The default prior is the reference code's, since the paper gives no numbers. It expects code coordinates of variance
    K; codes on another scale need a prior of their own, or they are explained as noise.

    Args:
        code_size: C, the size of a code.
        rows: K, the factor rows of a cluster; 0 for round clusters.
        clusters: H.
        noise_var: sigma_z^2, by default 0.2 K; a number, or [C], or [H, C].
        row_var: U_0, a number times I, one for every row [K], or a matrix [.., K, K].
        row_mean: R_0, a number or [.., K, C], the same for every cluster.
        loc_var: v_b0 of the clusters' locations, by default 0.4 K; a number, or one for every cluster [.., H]. For a
            batch of memories [.., 1], where their clusters share it.
        loc_mean: mu_b0, a number, or [C], the same for every cluster, or one for each [.., H, C]. For a batch of
            memories [.., 1, C], where their clusters share it.
        factorised: q(M, b) = q(M) q(b), as the paper has it; by default rows and location are one matrix.
        choice: p(s), which cluster a frame comes from; uniform, as in the paper.
    """

    clusters: int = field()
    _: KW_ONLY
    noise_var: Scale = None  # type: ignore[assignment]
    row_var: Scale = 0.4
    loc_var: Scale = None  # type: ignore[assignment]
    choice: Choice = UNIFORM

    kind = "mixture"
    sizes: ClassVar[tuple[str, ...]] = ("code_size", "rows", "clusters")
    fewest_rows = 0
    default_start = "kmeans++"
    default_iterations = 10

    def __post_init__(self) -> None:
        if self.noise_var is None:
            self.noise_var = 0.2 * max(self.rows, 1)
        if self.loc_var is None:
            self.loc_var = 0.4 * max(self.rows, 1)
        super().__post_init__()

    def _row_spread(self, part_size: int) -> float:
        return 0.4**-0.5 / part_size

    def _first_widths(self, empty: MemoryState) -> tuple[Tensor, Tensor]:
        return empty.factor_cov / (0.4 * empty.row_mean.shape[-1]), empty.loc_var


@dataclass(repr=False, eq=False)
class TreeMemory(MixtureMemory):
    """The code is cut into G partitions, each with a mixture memory of its own.

    The partitions are the last batch dimension of states and addresses: row_mean [.., G, H, K, C / G].

    The default prior is the reference code's, as for the mixture. Eq. 225 of the paper has Sigma_b0 = I, which is
    `loc_var=1.0`.

    Args:
        code_size: C, the size of a code.
        rows: K, the factor rows of a cluster.
        clusters: H, of every partition.
        partitions: G, a divisor of C.
        noise_var: sigma_z^2, by default 0.2 K; a number, or [C], or [H, C].
        row_var: U_0, a number times I, one for every row [K], or a matrix [.., K, K].
        row_mean: R_0, a number or [.., K, C], the same for every cluster.
        loc_var: v_b0 of the clusters' locations, by default 0.4 K; a number, or one for every cluster [.., H]. For a
            batch of memories [.., 1], where their clusters share it.
        loc_mean: mu_b0, a number, or [C], the same for every cluster, or one for each [.., H, C]. For a batch of
            memories [.., 1, C], where their clusters share it.
        factorised: q(M, b) = q(M) q(b), as the paper has it; by default rows and location are one matrix.
        choice: p(s), which cluster a frame comes from, for every partition by itself; uniform, as in the paper.
    """

    partitions: int = field()

    kind = "tree"
    sizes = ("code_size", "rows", "clusters", "partitions")
    partitioned = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.code_size % self.partitions:
            raise ValueError(
                f"partitions={self.partitions} does not divide code_size={self.code_size}; choose a divisor"
            )
