"""What is known of written frames beside the state: their sums, the use of the clusters, and weights of some."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vbmem.memory.blocks import LocalPass
from vbmem.memory.prefixes import PrefixCounts
from vbmem.memory.state import MemoryState, Statistics
from vbmem.memory.streams import Stream
from vbmem.memory.threads import one_thread
from vbmem.memory.usage import KeptWeights
from vbmem.memory.writing import VariationalMemory

FRAMES = 2048  # of a stream whose addresses are held at a time


@one_thread()
def known_of(
    memory: VariationalMemory, state: MemoryState, codes: Tensor
) -> tuple[Statistics, PrefixCounts, KeptWeights | None]:
    """Of codes [T, C] addressed by a state: their sums, in float64, the use of the clusters, and where in these they
    lie, if clusters have rows."""
    parts = memory.split(codes.detach().double())
    local = LocalPass(state.to(torch.float64), memory.prior(parts))
    addresses = local.address(parts)
    weights = KeptWeights.of(addresses) if state.rows else None
    if weights is not None:
        weights = replace(weights, weights=weights.weights.to(codes.dtype))
    return local.statistics(), usage_of(memory, addresses.assignment.to(codes.dtype)), weights


def known_of_stream(
    memory: VariationalMemory, state: MemoryState, stream: Stream
) -> tuple[Statistics, PrefixCounts, int]:
    """The sums of the frames of a stream, of all processes that share it, the use of the clusters, and how many frames
    there are: one pass, in float64."""
    dtype, state = state.row_mean.dtype, state.to(torch.float64)
    prior = memory.prior(state.row_mean)
    base = _prior_of_clusters(memory, state.row_mean)
    choice = PrefixCounts.none(base.expand(memory.partitions, -1))

    def here() -> tuple[Tensor, ...]:
        nonlocal choice
        local, frames = LocalPass(state, prior), base.new_zeros(())
        for chunk in stream:
            frames += len(chunk)
            if not memory.partitioned:  # the use of its clusters is a part of the sums
                local.add(chunk.double())
                continue
            for codes in chunk.double().split(FRAMES):
                choice = choice.combined(usage_of(memory, local.address(memory.split(codes)).assignment))
        return *local.statistics().tensors().values(), frames

    none = (*Statistics.none(state, prior).tensors().values(), base.new_zeros(()))
    *tensors, frames = stream.total(here, none)
    sums = Statistics(*tensors)
    if memory.partitioned:
        choice = choice.gathered(stream.gathered)
    else:
        choice = replace(choice, prefixes=(choice.prefixes[0].new_empty(1, 0),), counts=(sums.count.unsqueeze(0),))
    return sums, choice.to(dtype), int(frames)


def usage_of(memory: VariationalMemory, assignment: Tensor) -> PrefixCounts:
    """The use of the clusters by the frames of one episode, q(s) [T, H], of the tree [G, T, H]."""
    return PrefixCounts.of(memory.with_partitions(assignment, -3), _prior_of_clusters(memory, assignment))


def _prior_of_clusters(memory: VariationalMemory, like: Tensor) -> Tensor:
    """p(s), [H] or [G, H]."""
    return memory.choice.log_prior(memory.layout[0], like).softmax(-1)
