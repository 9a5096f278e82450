"""The local step of many frames on a GPU, without leaving anything of the size [H, T] in memory; see `kernels.frames`.

What a backward pass needs it makes again, part by part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from vbmem.memory.choice import kl_of_assignments
from vbmem.memory.projection import BITS, Moments, Projection
from vbmem.memory.state import MemoryState, Prior

CHUNK = 2**17  # frames, of all episodes together, taken at a time
DENSE = 2**26  # numbers of a part of a backward pass
FEWEST = 2**22  # numbers of v and log theta from which on it pays; at 2^18 a compiled step takes a third of the time
MOST_ROWS = 63  # of a cluster; more do not fit into a tile


def possible(codes: Tensor, state: MemoryState, prior: Prior) -> bool:
    """Whether all is in float32 on a device that has the kernels, and nothing is being compiled."""
    if torch.compiler.is_compiling() or not codes.is_cuda or not find_spec("triton"):
        return False
    return all(tensor.dtype == torch.float32 for tensor in (codes, state.row_mean, prior.noise_var))


def pays(codes: Tensor, state: MemoryState, prior: Prior) -> bool:
    """Whether frames [.., T, C] are many enough for the kernels, and on a device that has them."""
    rows, clusters = state.rows, state.row_mean.shape[-3]
    many = codes.shape[-2] * clusters * (rows + 1) >= FEWEST
    return many and rows <= MOST_ROWS and possible(codes, state, prior)


def moments(codes: Tensor, mask: Tensor | None, projection: Projection) -> Moments:
    """What frames [.., T, C] leave that meet a memory, weighted by the mask [.., T]; differentiable."""
    batch = torch.broadcast_shapes(codes.shape[:-2], projection.rows.shape[:-3])

    def flat(tensor: Tensor, dims: int) -> Tensor:
        core = tensor.shape[tensor.ndim - dims :]
        return tensor.expand(*batch, *core).reshape(math.prod(batch), *core)

    weights = codes.new_ones(codes.shape[-2]) if mask is None else mask.to(codes)
    halved = None if projection.halved is None else flat(projection.halved, 2)
    inputs = flat(codes, 2), flat(weights, 1), flat(projection.rows, 3), halved, flat(projection.log_prior, 1)
    sums, squares, kl = _Fused.apply(*inputs)  # type: ignore[no-untyped-call]
    return Moments(sums.view(*batch, *sums.shape[1:]), squares.view(*batch, *squares.shape[1:]), kl.view(batch))


class _Fused(torch.autograd.Function):
    """`_dense` of many frames."""

    @staticmethod
    def forward(
        ctx: Any, codes: Tensor, weights: Tensor, rows: Tensor, halved: Tensor | None, log_prior: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(codes, weights, rows, halved, log_prior)
        shapes = rows.shape[1:], (1 if halved is None else rows.shape[2], codes.shape[-1]), ()
        whole = tuple(codes.new_zeros(len(codes), *shape, dtype=torch.float64) for shape in shapes)
        for episodes, frames in _parts(codes, CHUNK):
            theirs = None if halved is None else halved[episodes]
            met = codes[episodes, frames], weights[episodes, frames]
            part = _kernel(*met, rows[episodes], theirs, log_prior[episodes])
            for total, added in zip(whole, part, strict=True):
                total[episodes] += added
        return whole

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        inputs, asked = ctx.saved_tensors, [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
        grads = {i: torch.zeros_like(inputs[i]) for i in asked}
        for episodes, frames in _parts(inputs[0], max(DENSE // inputs[2][0, ..., 0].numel(), 1)):
            places = [(episodes, frames)] * 2 + [(episodes,)] * 3
            with torch.enable_grad():
                parts: list[Any] = [x if x is None else x[at].detach() for x, at in zip(inputs, places, strict=True)]
                variables = [parts[i].requires_grad_() for i in asked]
                found = _dense(*parts)
            theirs = torch.autograd.grad(found, variables, [grad[episodes] for grad in outer], materialize_grads=True)
            for i, grad in zip(asked, theirs, strict=True):
                grads[i][places[i]] += grad
        return tuple(grads.get(i) for i in range(len(inputs)))


def _parts(codes: Tensor, size: int) -> Iterator[tuple[slice, slice]]:
    """Episodes and frames, so many frames at a time: of several episodes where these are short."""
    batch, count, _ = codes.shape
    several = max(size // count, 1)
    for episode in range(0, batch, several):
        for frame in range(0, count, size):
            yield slice(episode, episode + several), slice(frame, frame + size)


def _kernel(codes: Tensor, weights: Tensor, rows: Tensor, halved: Tensor | None, log_prior: Tensor) -> list[Tensor]:
    """`_dense` in fused kernels. Where clusters have a noise of their own, the codes' squares are features too."""
    from vbmem.kernels.frames import local_sums

    size, squares = codes.shape[-1], codes.square()
    if halved is None:
        sums, bits = local_sums(codes, rows, weights)
        shares = (weights.unsqueeze(-2) @ squares).double()
    else:
        lifted = torch.zeros_like(rows[..., :-1])
        lifted[:, -1] = halved
        wide = torch.cat([rows[..., :-1], lifted, rows[..., -1:]], -1)
        sums, bits = local_sums(torch.cat([codes, squares], -1), wide, weights)
        shares = sums[:, -1, :, size:-1]
        sums = torch.cat([sums[..., :size], sums[..., -1:]], -1)
    return [sums, shares, bits / BITS - (sums[:, -1, :, -1] * log_prior).sum(-1)]


def _dense(
    codes: Tensor, weights: Tensor, rows: Tensor, halved: Tensor | None, log_prior: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums [B, K + 1, H, C + 1], squares [B, 1 or H, C] and divergences [B] of `Moments`: codes [B, T, C], weights
    [B, T], rows [B, K + 1, H, C + 1], halved [B, H, C], log p(s) [B, H]."""
    lifted = torch.cat([codes, torch.ones_like(codes[..., :1])], -1)
    met = (rows.flatten(1, 2) @ lifted.mT).unflatten(1, rows.shape[1:3])  # [B, K + 1, H, T]
    v, log_theta = met[:, :-1], met[:, -1] + 0.5 * BITS * met[:, :-1].square().sum(1)
    if halved is not None:
        log_theta = log_theta + halved @ codes.square().mT
    theta = (log_theta / BITS).softmax(-2) * weights.unsqueeze(-2)
    weighted = torch.cat([v * theta.unsqueeze(1), theta.unsqueeze(1)], 1)
    sums = (weighted.flatten(1, 2) @ lifted).unflatten(1, rows.shape[1:3])
    shares = weights.unsqueeze(-2) if halved is None else theta
    return sums.double(), (shares @ codes.square()).double(), kl_of_assignments(theta.mT, log_prior).double()
