"""Memories written apart made one. Their weights w have nothing to do with each other, so the sums of one cluster never
add to those of another: the clusters are kept side by side, those without frames left out.

Fewer than that would cost more than it saves: codes that stand for two clusters, with their mean and covariance,
written into one, ended lower by the bound on all real codes tried.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vbmem.memory.engine import of_each
from vbmem.memory.state import MemoryState, Prior, Statistics
from vbmem.memory.writing import HELD


def unite(states: list[MemoryState], sums: list[Statistics]) -> tuple[MemoryState, Statistics, Tensor]:
    """All clusters that hold a frame, of states of one prior, side by side.

    Returns:
        The state, its sums, and which clusters were kept, int64 [.., n], counted through all states.
    """
    state = MemoryState(
        torch.cat([s.row_mean for s in states], -3), torch.cat([s.row_cov for s in states], -3), states[0].located
    )
    shared = sums[0].code_square.shape[-2] == 1  # the same noise in all clusters: one square for all
    squares = [s.code_square for s in sums]
    total = Statistics(
        count=torch.cat([s.count for s in sums], -1),
        weight_outer=torch.cat([s.weight_outer for s in sums], -3),
        weight_code=torch.cat([s.weight_code for s in sums], -3),
        code_square=torch.stack(squares).sum(0) if shared else torch.cat(squares, -2),
    )
    used = max(1, int((total.count >= HELD).sum(-1).max()))
    kept = total.count.topk(used, -1).indices.sort(-1).values
    state = replace(state, row_mean=of_each(state.row_mean, kept), row_cov=of_each(state.row_cov, kept))
    counts, outer, code = (of_each(x, kept) for x in (total.count, total.weight_outer, total.weight_code))
    square = total.code_square if shared else of_each(total.code_square, kept)
    return state, Statistics(counts, outer, code, square), kept


def same_for_all_clusters(mine: Prior, theirs: Prior) -> bool:
    """Whether two priors are one, which knows no cluster from another."""
    for name in ("noise_var", "row_mean", "row_precision"):
        ours, others = getattr(mine, name), getattr(theirs, name)
        if ours.shape != others.shape or not torch.equal(ours, others):
            return False
    one = mine.noise_var.shape[-2] == mine.row_mean.shape[-3] == mine.row_precision.shape[-3] == 1
    return one and type(mine.choice) is type(theirs.choice) and not mine.choice.tensors()
