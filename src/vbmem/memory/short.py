"""Many short episodes on a GPU: all iterations of a write in coordinates of their frames, a bounded number of episodes
at a time.

What a global step makes of an episode lies in the span of its codes Z, [T, C], and of N_0 = U_0^-1 R_0 of the prior:

    R_h = U_h (N_0 + W_h Z / s) = U_h N_0 + A_h Z,      W_h = (theta_th w~_th)_t,      A_h = U_h W_h / s

So the local step after it needs no codes either, only their products with each other, which are made once:

    R Psi^-1 Z' = U P + A Z Psi^-1 Z',     R Psi^-1 R' = (U Q + A P') U + (R Psi^-1 Z') A',
    P = N_0 Psi^-1 Z',   Q = N_0 Psi^-1 N_0'

Of an episode an iteration moves H (K + 1) T numbers instead of H (K + 1) C + T C, and the rows appear at the end.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vbmem.memory import engine
from vbmem.memory.fused import possible
from vbmem.memory.projection import BITS
from vbmem.memory.state import Addresses, MemoryState, Prior, below, joined

FEWEST = 64  # episodes from which on it pays
LONGEST = 128  # frames of an episode
AT_A_TIME = 2**28  # numbers of the episodes that are written together


def pays(codes: Tensor, state: MemoryState, prior: Prior) -> bool:
    """Whether episodes [.., T, C] are many and short, and on a device that has the kernels; without gradients."""
    if not possible(codes, state, prior):
        return False
    tensors = [codes, *state.tensors().values(), *prior.tensors().values(), *prior.choice.tensors().values()]
    asked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    frames, size = codes.shape[-2:]
    many = math.prod(codes.shape[:-2]) >= FEWEST and frames <= LONGEST
    return many and not asked and measured(frames, size, state, prior)


def measured(frames: int, size: int, state: MemoryState, prior: Prior) -> bool:
    """Whether a write is of the kind that was quicker than the engine on an H200.

    Ten iterations without and with expansion: 3.0 and 3.9 times as quick for 10,000 episodes at T=64 H=10 K=6 C=200, 8
    times for 64 of them; 2.1 and 4.4 times at T=100 H=5 K=2 C=64. Slower at T=256 K=6 C=32, where T^2 is far more than
    2 T C, and at T=40 K=12, which is more than one warp can hold. Not yet timed, and so left to the engine: memories
    without locations, and clusters with a noise each.
    """
    from vbmem.kernels.episodes import fits

    timed = prior.located and prior.noise_var.shape[-2] == 1 and suits(state, prior)
    return timed and frames <= 2 * size and fits(state.rows + 1, state.row_mean.shape[-3], frames)


def suits(state: MemoryState, prior: Prior) -> bool:
    """Whether q(M, b) is one matrix: rows and locations that are updated in turn remember where they began."""
    return state.rows == 0 or not (prior.located and prior.factorised)


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
    several = max(AT_A_TIME // numbers(frames, size, clusters, rows, prior.noise_var.shape[-2]), 1)
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


def numbers(frames: int, size: int, clusters: int, rows: int, noises: int) -> int:
    """That the write of an episode holds at a time."""
    return 2 * frames * size + noises * frames**2 + 4 * clusters * rows * frames + 2 * clusters * rows * size


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
    from vbmem.kernels.episodes import assign, begin, meet, update

    located, scale, noise_var = state.located, prior.noise_scale, prior.noise_var
    batch, clusters, count, size = state.row_mean.shape
    products = torch.stack([codes / own.unsqueeze(-2) @ codes.mT for own in noise_var.unbind(-2)], 1)  # Z Psi^-1 Z'
    offset = None
    if noise_var.shape[-2] > 1:
        log_prior = log_prior - 0.5 * (2 * math.pi * noise_var).log().sum(-1)
        offset = -0.5 * BITS * products.diagonal(dim1=-2, dim2=-1)
    precise = prior.row_natural / noise_var.unsqueeze(-2)
    known = (precise @ codes.mT.unsqueeze(1)).expand(batch, clusters, count, -1)
    known_gram = (precise @ prior.row_natural.mT).expand(batch, clusters, count, count)
    precision = prior.row_precision.expand(batch, clusters, count, count)
    precise, gram = engine.second_moments(state, prior)
    met = (precise.flatten(1, 2) @ codes.mT).unflatten(1, (clusters, count))
    if not located:
        met = below(met, torch.zeros_like(met[..., 0, :]))
    x, back = begin(met, gram, log_prior, offset, located)
    weighted = assign(x, counts)
    for _ in range(steps - 1):
        coefficients, row_cov, outer = update(weighted, back, precision, scale, located)
        if offset is None:  # all rows of an episode in one product
            met = torch.bmm(coefficients.flatten(1, 2), products.squeeze(1)).view_as(coefficients)
        else:
            met = coefficients @ products
        memory = coefficients, row_cov, outer, known, known_gram, precision, scale, log_prior, offset, size, located
        x, back = meet(met, *memory, shift=expand and prior.joint, turn=expand and prior.round and state.rows > 0)
        weighted = assign(x, counts)
    coefficients, row_cov, _ = update(weighted, back, precision, scale, located)
    row_mean = (row_cov @ prior.row_natural).flatten(1, 2)
    row_mean = torch.baddbmm(row_mean, coefficients[..., :count, :].flatten(1, 2), codes)
    back = back[..., :-1, :-1]
    weight_mean = (back @ x[..., :-1, :]).movedim(-1, -3)
    written = MemoryState(row_mean.view_as(state.row_mean), row_cov, located)
    return written, Addresses(weighted[..., -1, :].mT, weight_mean, back @ back.mT)
