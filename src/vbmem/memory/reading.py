"""Reading from a written state: what all memories share beside their sizes and prior."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vbmem.memory import engine
from vbmem.memory.blocks import bound_of_codes, in_blocks, over_blocks
from vbmem.memory.checks import (
    check_clusters,
    check_location_mean,
    check_location_var,
    check_positive,
    check_shape,
    check_size,
)
from vbmem.memory.choice import Predictive
from vbmem.memory.density import log_densities
from vbmem.memory.precision import full_precision
from vbmem.memory.sized import Scale, SizedMemory, location_prior
from vbmem.memory.state import Addresses, Bound, MemoryState, Prior
from vbmem.memory.threads import block_size, block_threads, plain

TEMPORARIES = 2  # what a density needs at a time of the numbers of a block


class Memory(SizedMemory):
    """A latent-space memory, to be read once it is written."""

    kinds: ClassVar[dict[str, type[Memory]]] = {}
    """Every memory there is by its kind, so that a file or a setting can name it."""
    _bound = staticmethod(bound_of_codes)

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            Memory.kinds[cls.kind] = cls

    @abstractmethod
    def address(self, state: MemoryState, codes: Tensor, mask: Tensor | None = None) -> Addresses:
        """q(y_t) of every frame given a written memory.

        Args:
            state: the memory.
            codes: [.., T, C].
            mask: [.., T], True where a frame counts, or how much it counts.
        """

    @block_threads
    @full_precision
    def bound(self, codes: Tensor, state: MemoryState, addresses: Addresses, code_var: Tensor | None = None) -> Bound:
        """The evidence lower bound of an episode, every term in closed form, in nats (not per frame).

        Args:
            codes: [.., T, C]; the means, if the codes have a posterior variance.
            state: the memory they were written into.
            addresses: where they lie in it.
            code_var: that variance, broadcastable to the codes; then the first term is the expected KL of the codes
                instead of their log-likelihood.

        Frames that were masked in the write have assignments of 0 and do not count.
        """
        written = self.reduce(addresses.assignment.sum(-1), -2) > 0  # the frames that counted in the write, [.., T]
        codes = codes.expand(*written.shape, self.code_size)
        parts, _, prior, centre = self._enter(codes, state, written)
        if code_var is not None:
            code_var = code_var.expand_as(codes).where(written.unsqueeze(-1), 1)
            check_positive("code_var", code_var)
            code_var = self.split(code_var)
        return self._bound(parts, state.translate(-centre), addresses, prior, code_var).map(
            lambda term: self.reduce(term, -1)
        )

    @full_precision
    def reconstruct(self, state: MemoryState, codes: Tensor) -> Tensor:
        """The expected code read back from memory, E[M'w + b | z]: [.., T, C].

        Args:
            state: the memory.
            codes: what is to be read back, [.., T, C]; damaged, or new.
        """
        return self.recall(state, self.address(state, codes))

    @full_precision
    def recall(self, state: MemoryState, addresses: Addresses) -> Tensor:
        """The expected code at given addresses, sum_h theta_h (R_h' w_h + b_h): [.., T, C].

        Args:
            state: the memory.
            addresses: those of T frames.
        """
        return self.join(engine.recall(state, addresses))

    @block_threads
    @full_precision
    def log_densities(self, state: MemoryState, codes: Tensor) -> Tensor:
        """Log density of every code under every cluster, in nats: [.., T, H], for the tree [.., G, T, H].

        The uncertainty of q(M) is integrated out, as the weights w are; see `density`.

        Args:
            state: the memory.
            codes: [.., T, C].
        """
        return self._of_frames(_log_densities, state, codes).mT

    @block_threads
    @full_precision
    def log_predictive(self, state: MemoryState, codes: Tensor, choice: Predictive | None = None) -> Tensor:
        """Log density of new codes under the written memory, in nats: [.., T]; see `log_densities`.

        Args:
            state: the memory.
            codes: [.., T, C].
            choice: which clusters new codes come from: what a `WrittenMemory` predicts, or by default the prior p(s).
        """

        def mixed(*frames_and_memory: Any) -> Tensor:
            return self._mix(_log_densities(*frames_and_memory), choice)

        return self._of_frames(mixed, state, codes)

    @block_threads
    @full_precision
    def local_bound(
        self, state: MemoryState, codes: Tensor, code_var: Tensor | None = None, choice: Predictive | None = None
    ) -> Tensor:
        """A lower bound on log p(z | memory) of every frame by itself, in nats: [.., T].

        Unlike `bound` it pays nothing for the memory, which is given.

        Args:
            state: the memory.
            codes: [.., T, C].
            code_var: the variance of the codes; then it is minus the expected KL of the codes, as in `bound`.
            choice: as in `log_predictive`.
        """
        if code_var is not None:
            check_positive("code_var", code_var)
            code_var = self.split(code_var.expand_as(codes))

        def mixed(*frames_and_memory: Any) -> Tensor:
            return self._mix(engine.local_bounds(*frames_and_memory), choice)

        return self._of_frames(mixed, state, codes, code_var)

    def _of_frames(
        self, function: Callable[..., Tensor], state: MemoryState, codes: Tensor, code_var: Tensor | None = None
    ) -> Tensor:
        """The function [.., n] of parts [.., n, C], state, prior and variances of the parts: of all frames, in blocks
        where there are several, so that no more is kept of them than the function gives."""
        parts, _, prior, centre = self._enter(codes, state)
        state = state.translate(-centre)
        if not (in_blocks(parts, state, prior) and plain(code_var)):
            return function(parts, state, prior, code_var)
        size = block_size(*self.layout, parts.shape[-1]) // TEMPORARIES
        return over_blocks(lambda part, var: function(part, state, prior, var), size, parts, code_var)

    def _mix(self, log_likelihood: Tensor, choice: Predictive | None) -> Tensor:
        """Clusters summed over: [.., H, T], for the tree [.., G, H, T] -> [.., T]."""
        return (self.choice if choice is None else choice).log_evidence(self.with_partitions(log_likelihood, -3))

    @full_precision
    def sample(
        self,
        state: MemoryState,
        n: int,
        generator: torch.Generator | None = None,
        *,
        clusters: Tensor | None = None,
        weights: Tensor | None = None,
        sample: bool = True,
    ) -> Tensor:
        """`n` new codes from the written memory (paper, G.1): [.., n, C].

        Args:
            state: the memory.
            n: how many, from each memory of a batch.
            generator: randomness of the draws.
            clusters: the cluster of every code, [.., n], for the tree [.., G, n]; by default drawn from the prior p(s).
            weights: those of every code, [.., n, K], for the tree [.., G, n, K]; by default drawn from N(0, I).
            sample: draw memory and code as well; otherwise they are their means, given cluster and weights.
        """
        check_size("n", n)
        self.check(state)
        shape, (count, rows) = (*state.row_mean.shape[:-3], n), self.layout
        if clusters is None:
            clusters = self.choice.sample(shape, count, state.row_mean, generator)
        else:
            check_clusters(clusters, shape, count)
        if weights is None:
            weights = state.row_mean.new_empty(*shape, rows).normal_(generator=generator)
        else:
            check_shape("weights", weights, *shape, rows)
        return self._emit(state, clusters, weights, generator, sample)

    @full_precision
    def read(
        self, state: MemoryState, codes: Tensor, generator: torch.Generator | None = None, *, sample: bool = True
    ) -> Tensor:
        """Codes read back from memory once (paper, G.2, steps 3 to 5): address, then draw s, w, M, b, z: [.., T, C].

        Args:
            state: the memory.
            codes: [.., T, C].
            generator: randomness of the draws.
            sample: draw; otherwise the most probable cluster and the means of all the rest.
        """
        clusters, weights = engine.draw(self.address(state, codes), generator, sample=sample)
        state = state.translate(state.row_mean.new_zeros(*clusters.shape[:-1], 1, 1))  # one for every episode
        return self._emit(state, clusters, weights, generator, sample)

    def _emit(
        self, state: MemoryState, clusters: Tensor, weights: Tensor, generator: torch.Generator | None, sample: bool
    ) -> Tensor:
        prior = self.prior(state.row_mean)
        return self.join(engine.emit(state, prior, clusters, weights, generator, sample=sample))


def _log_densities(parts: Tensor, state: MemoryState, prior: Prior, code_var: None) -> Tensor:
    """[.., H, n]."""
    return log_densities(parts, state.row_mean, state.row_cov, prior.noise_var, prior.noise_scale, state.located)


@dataclass(repr=False, eq=False)
class LocatedMemory(Memory):
    """A memory whose clusters have locations b_h ~ N(mu_b0, v_b0 I), or N(mu_b0h, v_b0h I) each (eq. 193)."""

    _: KW_ONLY
    loc_var: Scale = 1.0
    loc_mean: Scale = 0.0
    factorised: bool = False

    located = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_location_mean("loc_mean", self.loc_mean, self.clusters, self.code_size)
        check_location_var(self.loc_var, self.clusters, self.code_size)
        check_positive("loc_var", self.loc_var)

    def _check_resizable(self, sizes: dict[str, int]) -> None:
        super()._check_resizable(sizes)
        for name, dim in (("loc_mean", -2), ("loc_var", -1)):
            value, clusters = getattr(self, name), sizes.get("clusters", self.clusters)
            if isinstance(value, Tensor) and value.ndim >= -dim and value.shape[dim] not in (1, clusters):
                raise ValueError(
                    f"{self!r} has a {name} for every cluster, so their number cannot change; make it with one for all"
                )

    def _location_prior(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return location_prior(self.loc_mean, self.loc_var, self.code_size, like)
