"""Many short episodes on a GPU: all iterations of a write in fused kernels, a bounded number of episodes at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from vbmem.memory import expansion
from vbmem.memory.projection import BITS
from vbmem.memory.state import Addresses, MemoryState, Prior, Statistics, joined

FEWEST = 64  # episodes from which on it pays
LONGEST = 1024  # frames of an episode that one program takes
AT_A_TIME = 2**28  # numbers of codes and of rows, these four times


def pays(codes: Tensor, state: MemoryState, prior: Prior) -> bool:
    """Whether episodes [.., T, C] are many and short, and on a device that has the kernels; without gradients."""
    if torch.compiler.is_compiling() or not codes.is_cuda or not find_spec("triton"):
        return False
    from vbmem.kernels.episodes import fits

    tensors = [codes, *state.tensors().values(), *prior.tensors().values(), *prior.choice.tensors().values()]
    asked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    single = all(tensor.dtype == torch.float32 for tensor in (codes, state.row_mean, prior.noise_var))
    many = math.prod(codes.shape[:-2]) >= FEWEST and codes.shape[-2] <= LONGEST
    return single and many and not asked and fits(state.rows + 1, state.row_mean.shape[-3], codes.shape[-1])


@torch.no_grad()
def write(
    codes: Tensor, state: MemoryState, prior: Prior, weights: Tensor | None, steps: int, expand: bool
) -> tuple[MemoryState, Addresses]:
    """The iterations of a write of episodes [.., T, C]; see `VariationalMemory.iterate`."""
    batch = torch.broadcast_shapes(codes.shape[:-2], state.row_mean.shape[:-3])
    frames, size = codes.shape[-2:]
    clusters, rows = state.row_mean.shape[-3], state.rows + 1
    episodes = math.prod(batch)

    def flat(tensor: Tensor, dims: int) -> Tensor:
        """[.., *rest] -> [B, *rest]; what all episodes share stays as it is."""
        core = tensor.shape[tensor.ndim - dims :]
        return tensor if tensor.ndim == dims else tensor.expand(*batch, *core).reshape(episodes, *core)

    core = {"noise_var": 2, "row_mean": 3, "row_precision": 3, "row_natural": 3, "row_logdet": 1}
    changes: dict[str, Any] = {name: flat(getattr(prior, name), dims) for name, dims in core.items()}
    prior = replace(prior, **changes)
    codes = flat(codes.expand(*batch, frames, size), 2)
    state = replace(state, row_mean=flat(state.row_mean, 3), row_cov=flat(state.row_cov, 3))
    counts = None if weights is None else flat(weights.to(codes).expand(*batch, frames), 1).contiguous()
    log_prior = flat(prior.choice.log_prior(clusters, codes), 1).expand(episodes, clusters)
    several = max(AT_A_TIME // (frames * size + 4 * clusters * rows * size), 1)
    written = []
    for first in range(0, episodes, several):
        group = slice(first, first + several)
        start = replace(state, row_mean=state.row_mean[group], row_cov=state.row_cov[group])
        theirs = codes[group], start, prior.of_episodes(group, 1)
        written.append(_write(*theirs, None if counts is None else counts[group], log_prior[group], steps, expand))
    states, addresses = zip(*written, strict=True)
    return (
        joined(states).map(lambda x: x.unflatten(0, batch)),
        joined(addresses).map(lambda x: x.unflatten(0, batch)),
    )


def _write(
    codes: Tensor,
    state: MemoryState,
    prior: Prior,
    counts: Tensor | None,
    log_prior: Tensor,
    steps: int,
    expand: bool,
) -> tuple[MemoryState, Addresses]:
    """Of some episodes, [B, T, C]."""
    from vbmem.kernels.episodes import meet, prepare, update

    batch, clusters, count, size = state.row_mean.shape
    noise_var, halved = prior.noise_var.expand(batch, clusters, size), None
    if prior.noise_var.shape[-2] > 1:
        log_prior = log_prior - 0.5 * (2 * math.pi * prior.noise_var).log().sum(-1)
        halved = (-0.5 * BITS / prior.noise_var).expand(batch, clusters, size)
    precision = prior.row_precision.expand(batch, clusters, count, count)
    natural = prior.row_natural.expand(batch, clusters, count, size)
    factorised, scale, kept = prior.located and prior.factorised, prior.noise_scale, None
    for step in range(steps):
        rows, constant, back = prepare(state.row_mean, state.row_cov, noise_var, scale, log_prior, state.located)
        if step == steps - 1:
            assignment = codes.new_empty(batch, codes.shape[-2], clusters)
            kept = assignment, codes.new_empty(*assignment.shape, state.rows)
        sums, totals = meet(codes, counts, rows, constant, halved, kept)
        before = state.row_mean if factorised else None
        memory = rows, constant, back, precision, natural, scale, state.located, before
        row_mean, row_cov, outer = update(sums, totals, *memory)
        state = MemoryState(row_mean, row_cov, state.located)
        if expand and step < steps - 1:  # for which the first two of the statistics are enough
            state = expansion.expand(Statistics(totals[..., -1], outer, sums, sums), state, prior)
    assert kept is not None
    back = back[..., :-1, :-1]
    weight_mean = (back @ kept[1].movedim(-3, -1)).movedim(-1, -3)
    return state, Addresses(kept[0], weight_mean, back @ back.mT)
