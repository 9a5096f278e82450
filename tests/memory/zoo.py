"""Every memory, by name, and random problems to put it through. A new memory is covered by one more line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from vbmem.memory import (
    Addresses,
    Bound,
    CategoricalMemory,
    GaussianMemory,
    MemoryState,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
)
from vbmem.memory import engine as steps
from vbmem.memory.starting import Start
from vbmem.memory.state import Prior, Statistics
from vbmem.memory.writing import VariationalMemory


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def covariance(*shape: int, seed: int = 0) -> Tensor:
    """Random positive definite matrices [*shape, shape[-1]], with eigenvalues of at least 0.2."""
    size = shape[-1]
    root = normal(*shape, size, seed=seed)
    return root @ root.mT / max(size, 1) + 0.2 * torch.eye(size, dtype=torch.float64)


def variances(*shape: int, seed: int = 0) -> Tensor:
    return 0.2 + normal(*shape, seed=seed).square()


def general(code_size: int, rows: int) -> dict[str, Any]:
    """A prior with nothing left at its default: R_0 non-zero, U_0 full, sigma_z^2 other than 1."""
    return {"noise_var": 0.7, "row_var": covariance(rows, seed=1), "row_mean": normal(rows, code_size, seed=2)}


def located(code_size: int) -> dict[str, Any]:
    return {"loc_var": 1.7, "loc_mean": normal(code_size, seed=3)}


def located_apart(code_size: int, clusters: int) -> dict[str, Any]:
    """A mean and a variance of the location for every cluster (eq. 193)."""
    return {"loc_var": variances(clusters, seed=5), "loc_mean": normal(clusters, code_size, seed=3)}


def categorical(code_size: int, rows: int) -> dict[str, Any]:
    return general(code_size, rows) | {"row_var": variances(rows, seed=1)}


def clustered(code_size: int, rows: int, clusters: int = 1) -> dict[str, Any]:
    return general(code_size, rows) | located_apart(code_size, clusters)


def by_feature(code_size: int) -> dict[str, Any]:
    return {"noise_var": variances(code_size, seed=4)}


def by_cluster(code_size: int, clusters: int) -> dict[str, Any]:
    return {"noise_var": variances(clusters, code_size, seed=4)}


# name -> constructor from (size of a code, or of a tree's partition; rows; clusters)
MEMORIES: dict[str, Callable[[int, int, int], VariationalMemory]] = {
    "gaussian": lambda c, k, h: GaussianMemory(c, k),
    "gaussian-general": lambda c, k, h: GaussianMemory(c, k, **general(c, k)),
    "gaussian-feature": lambda c, k, h: GaussianMemory(c, k, **general(c, k) | by_feature(c)),
    "categorical": lambda c, k, h: CategoricalMemory(c, k),
    "categorical-general": lambda c, k, h: CategoricalMemory(c, k, **categorical(c, k)),
    "categorical-cluster": lambda c, k, h: CategoricalMemory(c, k, **categorical(c, k) | by_cluster(c, k)),
    "shifted": lambda c, k, h: ShiftedGaussianMemory(c, k),
    "shifted-general": lambda c, k, h: ShiftedGaussianMemory(c, k, **general(c, k) | located(c)),
    "shifted-factorised": lambda c, k, h: ShiftedGaussianMemory(c, k, factorised=True, **clustered(c, k)),
    "mixture": lambda c, k, h: MixtureMemory(c, k, h),
    "mixture-general": lambda c, k, h: MixtureMemory(c, k, h, **clustered(c, k, h)),
    "mixture-factorised": lambda c, k, h: MixtureMemory(c, k, h, factorised=True, **clustered(c, k, h)),
    "mixture-feature": lambda c, k, h: MixtureMemory(c, k, h, **general(c, k) | located(c) | by_feature(c)),
    "mixture-cluster": lambda c, k, h: MixtureMemory(c, k, h, **located(c) | by_cluster(c, h)),
    "tree": lambda c, k, h: TreeMemory(2 * c, k, h, 2),
    "tree-general": lambda c, k, h: TreeMemory(3 * c, k, h, 3, **clustered(3 * c, k, h)),
    "tree-factorised": lambda c, k, h: TreeMemory(2 * c, k, h, 2, factorised=True, **clustered(2 * c, k, h)),
    "tree-feature": lambda c, k, h: TreeMemory(2 * c, k, h, 2, **located(2 * c) | by_feature(2 * c)),
}
every_memory = pytest.mark.parametrize("name", MEMORIES)
LOCATED = [name for name, make in MEMORIES.items() if make(1, 1, 1).located]
every_located_memory = pytest.mark.parametrize("name", LOCATED)
FACTORISED = [name for name, make in MEMORIES.items() if make(1, 1, 1).factorised]
every_factorised_memory = pytest.mark.parametrize("name", FACTORISED)
STARTS: list[Start] = list(get_args(Start))
every_start = pytest.mark.parametrize("start", STARTS)


class Sizes(NamedTuple):
    batch: tuple[int, ...] = ()
    frames: int = 6
    part_size: int = 3
    rows: int = 2
    clusters: int = 3
    duplicates: bool = False
    seed: int = 0


SIZES = st.builds(
    Sizes,
    batch=st.sampled_from([(), (2,), (1, 2)]),
    frames=st.integers(1, 6),
    part_size=st.integers(1, 4),
    rows=st.integers(1, 8),
    clusters=st.integers(1, 8),
    duplicates=st.booleans(),
    seed=st.integers(0, 1000),
)


TYPICAL = Sizes()
CORNERS = (
    Sizes(frames=1, rows=3, clusters=4),
    Sizes(batch=(2,), frames=3, rows=7, clusters=2),
    Sizes(frames=3, rows=1, clusters=7),
    Sizes(frames=5, duplicates=True),
)


def over_sizes(test):
    """Run a test over random sizes, and over one frame, K > T, H > T and duplicates in any case."""
    for corner in CORNERS:
        test = example(corner)(test)
    test = pytest.mark.filterwarnings("ignore:the codes have a mean square")(test)  # a single number may be anything
    return settings(derandomize=True, deadline=None, max_examples=5, database=None)(given(SIZES)(test))


@dataclass(frozen=True)
class Problem:
    """A memory, codes, and a random state and random addresses that are optimal for nothing."""

    memory: VariationalMemory
    codes: Tensor  # [.., T, C]
    state: MemoryState
    addresses: Addresses

    @property
    def prior(self) -> Prior:
        return self.memory.prior(self.codes)

    @property
    def parts(self) -> Tensor:
        """The codes as the engine takes them."""
        return self.memory.split(self.codes)

    def bound(self) -> Bound:
        return self.memory.bound(self.codes, self.state, self.addresses)

    # The updates, one at a time; `engine.address` and, factorised, `engine.global_step` make two of them each.

    def update_weights(self) -> Problem:
        fresh = steps.address(self.parts, self.state, self.prior)
        return replace(self, addresses=replace(fresh, assignment=self.addresses.assignment))

    def update_assignments(self) -> Problem:
        """q(s) given that q(w|s) is optimal."""
        return replace(self, addresses=steps.address(self.parts, self.state, self.prior))

    def update_locations(self) -> Problem:
        """q(b) alone, of a factorised memory."""
        fresh, rows = self.update_memory().state, self.state
        return replace(self, state=MemoryState.of(rows.factor_mean, rows.factor_cov, fresh.loc_mean, fresh.loc_var))

    def update_memory(self) -> Problem:
        """q(M, b), or q(M) given that q(b) is optimal."""
        return replace(self, state=steps.global_step(self.sums, self.state, self.prior))

    @property
    def sums(self) -> Statistics:
        return steps.statistics(self.parts, self.addresses, self.prior)


def make_problem(name: str, sizes: Sizes = TYPICAL) -> Problem:
    memory = MEMORIES[name](sizes.part_size, sizes.rows, sizes.clusters)
    codes = 2 * normal(*sizes.batch, sizes.frames, memory.code_size, seed=sizes.seed)
    if sizes.duplicates:
        codes = codes[..., :1, :].expand_as(codes).contiguous()
    return Problem(
        memory, codes, random_state(memory, sizes.batch, sizes.seed), random_addresses(memory, codes, sizes.seed)
    )


def random_state(memory: VariationalMemory, batch: tuple[int, ...] = (), seed: int = 0) -> MemoryState:
    """All rows correlated, the location with the others too, unless the memory holds them apart."""
    empty = memory.prior_state(batch, dtype=torch.float64)
    row_mean = normal(*empty.row_mean.shape, seed=seed + 1)
    row_cov = covariance(*empty.row_cov.shape[:-1], seed=seed + 2)
    state = MemoryState(row_mean, row_cov, memory.located)
    if memory.factorised:
        return MemoryState.of(state.factor_mean, state.factor_cov, state.loc_mean, state.loc_var)
    return state


def random_addresses(memory: VariationalMemory, codes: Tensor, seed: int = 0) -> Addresses:
    clusters, rows = memory.layout
    *batch, frames, _ = memory.split(codes).shape
    return Addresses(
        assignment=(2 * normal(*batch, frames, clusters, seed=seed + 5)).softmax(-1),
        weight_mean=normal(*batch, frames, clusters, rows, seed=seed + 6),
        weight_cov=covariance(*batch, clusters, rows, seed=seed + 7),
    )


def close(actual, expected, *, rtol: float = 1e-10, atol: float = 1e-12) -> None:
    """Two records, tensors or arrays agree; float64 unless said otherwise."""
    if isinstance(actual, MemoryState | Addresses | Bound | Statistics):
        for name in actual.__dataclass_fields__:
            if isinstance(getattr(actual, name), Tensor):
                close(getattr(actual, name), getattr(expected, name), rtol=rtol, atol=atol)
        return
    actual = torch.as_tensor(actual)
    expected = torch.full_like(actual, expected) if isinstance(expected, float) else torch.as_tensor(expected)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
