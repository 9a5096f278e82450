"""The local step of many frames: on the CPU in blocks that stay in its cache, without gradients; on a GPU in fused
kernels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vbmem.memory import engine, fused
from vbmem.memory.choice import kl_of_assignments
from vbmem.memory.projection import BITS, Moments, Projection
from vbmem.memory.state import Addresses, Bound, MemoryState, Prior, Statistics
from vbmem.memory.threads import CACHE, block_size, plain, side_by_side

BLOCKS = 8  # at most, that a thread takes at a time


def in_blocks(codes: Tensor, state: MemoryState, prior: Prior) -> bool:
    """Whether frames [.., T, C] are walked in blocks: more than one block of them, on the CPU, without gradients."""
    if torch.compiler.is_compiling() or not plain(codes, state, prior):
        return False
    return codes.shape[-2] > block_size(state.row_mean.shape[-3], state.rows, codes.shape[-1])


def in_parts(codes: Tensor, state: MemoryState, prior: Prior) -> bool:
    """Whether frames [.., T, C] meet a memory part by part, in blocks or in fused kernels."""
    return in_blocks(codes, state, prior) or fused.pays(codes, state, prior)


def groups_of_episodes(codes: Tensor, state: MemoryState, prior: Prior) -> list[slice]:
    """Short episodes [B, .., T, C] in groups that stay in the cache, each written in a thread; none where that does not
    pay. They depend on the sizes alone, so that the number of threads changes nothing."""
    several = codes.ndim > 2 and len(codes) > 1 and all(tensor.ndim < 2 for tensor in prior.choice.tensors().values())
    several = several and state.row_mean.shape[:-3] == codes.shape[:-2]  # else episodes share states, or the reverse
    if torch.compiler.is_compiling() or not several or not plain(codes, state, prior) or in_blocks(codes, state, prior):
        return []
    clusters, rows, code_size = state.row_mean.shape[-3:]
    numbers = codes[0].numel() // code_size * (clusters * rows + code_size)
    size = max(CACHE // numbers, 1)
    return [slice(first, first + size) for first in range(0, len(codes), size)]


def address(codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None) -> Addresses:
    """`engine.address`, in blocks where there are several."""
    if not in_blocks(codes, state, prior):
        return engine.address(codes, state, prior, mask)
    projection = Projection.of(state, prior)
    kept = projection.room(codes)
    _walk(codes, mask, projection, prior, kept, summed=False)
    return kept


def over_blocks(function: Callable[..., Tensor], size: int, *frames: Tensor | None) -> Tensor:
    """The function [.., n, ?], .. -> [.., n] of all frames [.., T, ?], so many at a time: [.., T]."""
    count = next(tensor for tensor in frames if tensor is not None).shape[-2]

    def block(begin: int) -> Tensor:
        return function(*(None if tensor is None else tensor[..., begin : begin + size, :] for tensor in frames))

    begins, whole = range(0, count, size), None
    for begin, part in zip(begins, side_by_side(block, begins), strict=True):
        whole = part.new_empty(*part.shape[:-1], count) if whole is None else whole
        whole[..., begin : begin + size] = part
    assert whole is not None
    return whole


def bound_of_codes(
    codes: Tensor, state: MemoryState, addresses: Addresses, prior: Prior, code_var: Tensor | None = None
) -> Bound:
    """`engine.bound_of_codes`, in blocks where there are several."""
    if not (in_blocks(codes, state, prior) and plain(addresses, code_var)):
        return engine.bound_of_codes(codes, state, addresses, prior, code_var)
    size = block_size(state.row_mean.shape[-3], state.rows, codes.shape[-1])

    def block(begin: int) -> tuple[Statistics, Tensor, Tensor | None]:
        part = slice(begin, begin + size)
        theirs = replace(
            addresses,
            assignment=addresses.assignment[..., part, :],
            weight_mean=addresses.weight_mean[..., part, :, :],
        )
        var = None if code_var is None else code_var[..., part, :]
        sums, kl_assignments, entropies = engine.sums_of_codes(codes[..., part, :], theirs, prior, var)
        return sums.to(torch.float64), kl_assignments.double(), None if entropies is None else entropies.double()

    def added(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if a is None else a + b for a, b in zip(mine, theirs, strict=True))

    sums, kl_assignments, entropies = functools.reduce(added, side_by_side(block, range(0, codes.shape[-2], size)))
    sums, kl_assignments = sums.to(codes.dtype), kl_assignments.to(codes)
    entropies = None if entropies is None else entropies.to(codes)
    return engine.bound_of_sums(sums, state, kl_assignments, addresses.weight_cov, prior, entropies)


class LocalPass:
    """A local step over the frames of an episode, part by part, all with the same memory: `engine.local_step`, in
    blocks where there are several, or fused on a GPU.

    Args:
        state: the memory.
        prior: its prior.
        bounded: keep also what the bound needs of the addresses.
    """

    def __init__(self, state: MemoryState, prior: Prior, *, bounded: bool = False) -> None:
        self.state, self.prior, self.bounded = state, prior, bounded
        self._sums: Statistics | None = None  # of parts that are a block
        self._moments: Moments | None = None  # of those that are several
        self._projection: Projection | None = None
        self._kl_assignments: Tensor | float = 0.0

    def add(self, codes: Tensor, mask: Tensor | None = None) -> None:
        """More frames, [.., T, C], with a mask [.., T] of those that count, or how much."""
        self._add(codes, mask, keep=False)

    def address(self, codes: Tensor, mask: Tensor | None = None) -> Addresses:
        """Adds frames, and gives their addresses."""
        addresses = self._add(codes, mask, keep=True)
        assert addresses is not None
        return addresses

    def statistics(self) -> Statistics:
        """Of all frames so far."""
        sums = self._sums
        if self._moments is not None:
            assert self._projection is not None
            ours = self._projection.statistics(self._moments, self.prior)
            sums = ours if sums is None else sums + ours
        return Statistics.none(self.state, self.prior) if sums is None else sums

    def bound(self, sums: Statistics, state: MemoryState) -> Bound:
        """Of all frames so far, whose statistics these are, with the addresses they have and any state; `bounded`."""
        kl_assignments = self._kl_assignments
        if self._moments is not None:
            kl_assignments = kl_assignments + self._moments.kl_assignments.to(sums.count.dtype)
        assert isinstance(kl_assignments, Tensor)
        return engine.bound_of_sums(sums, state, kl_assignments, engine.weight_cov(self.state, self.prior), self.prior)

    def _add(self, codes: Tensor, mask: Tensor | None, *, keep: bool) -> Addresses | None:
        fuse = not keep and fused.pays(codes, self.state, self.prior)
        if not (fuse or in_blocks(codes, self.state, self.prior)):
            addresses, sums = engine.local_step(codes, self.state, self.prior, mask)
            self._sums = sums if self._sums is None else self._sums + sums
            if self.bounded:
                self._kl_assignments = self._kl_assignments + self.prior.choice.kl(addresses.assignment)
            return addresses
        if self._projection is None:
            self._projection = Projection.of(self.state, self.prior)
        if fuse:
            self._keep(fused.moments(codes, mask, self._projection))
            return None
        kept = self._projection.room(codes) if keep else None
        moments = _walk(codes, mask, self._projection, self.prior, kept, bounded=self.bounded)
        self._keep(moments)
        return kept

    def _keep(self, moments: Moments) -> None:
        self._moments = moments if self._moments is None else self._moments + moments


def _walk(
    codes: Tensor,
    mask: Tensor | None,
    projection: Projection,
    prior: Prior,
    kept: Addresses | None = None,
    *,
    summed: bool = True,
    bounded: bool = False,
) -> Moments:
    """Frames [.., T, C] meet a memory, episode by episode and block by block: what they leave, if it is `summed`, in an
    order of adding up that depends on neither threads nor chance. Their addresses are filled in where they are kept."""
    frames, code_size = codes.shape[-2:]
    count, clusters, wide = projection.rows.shape[-3:]
    batch = torch.broadcast_shapes(codes.shape[:-2], projection.rows.shape[:-3])
    size = block_size(clusters, count - 1, code_size)
    shares = 1 if projection.halved is None else clusters

    def of(episode: tuple[int, ...], tensor: Tensor, dims: int) -> Tensor:
        return tensor.expand(*batch, *tensor.shape[tensor.ndim - dims :])[episode]

    weight_rows = (projection.back @ projection.factors).flatten(-3, -2) if kept is not None else None

    def piece(item: tuple[tuple[int, ...], tuple[int, int]]) -> Moments:
        episode, (begin, end) = item
        rows, z = of(episode, projection.rows, 3).flatten(0, 1), of(episode, codes, 2)
        halved = None if projection.halved is None else of(episode, projection.halved, 2)
        counts = None if mask is None else of(episode, mask, 1)
        sums = rows.new_zeros(count * clusters, wide)
        squares, kl = rows.new_zeros(shares, code_size), rows.new_zeros(())
        room = rows.new_empty(count * clusters * size)
        for first in range(begin, end, size):
            block = slice(first, min(first + size, end))
            part = torch.cat([z[block], z.new_ones(block.stop - first, 1)], -1)  # z~
            met = room[: count * clusters * len(part)].view(-1, len(part))
            torch.mm(rows, part.mT, out=met)
            *v, theta = met.view(count, clusters, -1)  # below v is e.z~, of which theta is made in place
            for weight in v:
                theta.addcmul_(weight, weight, value=0.5 * BITS)
            square = z[block].square()
            if halved is not None:
                theta.addmm_(halved, square.mT)
            theta.sub_(theta.amax(0)).exp2_()
            total = theta.sum(0)
            theta.mul_(1 / total if counts is None else counts[block] / total)
            if kept is not None and weight_rows is not None:
                of(episode, kept.assignment, 2)[block] = theta.mT
                weights = of(episode, kept.weight_mean, 3)[block].flatten(1)
                torch.mm(part, of(episode, weight_rows, 2).mT, out=weights)
            if not summed:
                continue
            met.view(count, clusters, -1)[:-1].mul_(theta)
            sums[:, :-1].addmm_(met, z[block])
            sums[:, -1] += met.sum(-1)
            squares.addmm_(theta if halved is not None else theta.sum(0, keepdim=True), square)
            if bounded:
                kl += kl_of_assignments(theta.mT, of(episode, projection.log_prior, 1))
        return Moments(sums.view(count, clusters, wide), squares, kl)

    blocks = math.ceil(frames / size)
    pieces = math.ceil(blocks / BLOCKS)  # as even as they can be, so that threads end together
    edges = [min(number * blocks // pieces * size, frames) for number in range(pieces + 1)]
    items = [*itertools.product(itertools.product(*map(range, batch)), itertools.pairwise(edges))]
    shapes = (count, clusters, wide), (shares, code_size), ()
    whole = Moments(*(codes.new_zeros((*batch, *shape), dtype=torch.float64) for shape in shapes))
    for (episode, _), part in zip(items, side_by_side(piece, items), strict=True):
        for name, tensor in whole.tensors().items():
            tensor[episode] += getattr(part, name)
    return whole
