"""Weights of new codes, as written frames have them."""

import torch
from torch import Tensor

from vbmem.linalg import cholesky
from vbmem.memory.engine import of_each
from vbmem.memory.state import MemoryState, Statistics


def draw_weights(
    clusters: Tensor, sums: Statistics, state: MemoryState, generator: torch.Generator | None = None
) -> Tensor:
    """w ~ N(m_h, V_h) for codes of these clusters, [.., n] -> [.., n, K]: mean and covariance of the weights of the N
    frames that cluster h holds,

        m = S_w / (N + a),   V = (S_ww + a I) / (N + a) - m m',   a = 1 / H

    with q(w)'s own uncertainty, and of one more frame in all that has the prior's, N(0, I). That is what a cluster
    without frames draws from. Of few frames the weights are far from it: a single one lies where its weights are, and
    N(0, I) hardly ever comes there. Without locations S_w is not known, and m = 0.

    Args:
        clusters: int64 [.., n].
        sums: of the frames, [.., H, ...].
        state: the memory they were addressed with.
        generator: of the draws.
    """
    rows, extra = state.rows, 1 / sums.count.shape[-1]
    count = (sums.count + extra)[..., None, None]
    outer = sums.weight_outer / count
    second = outer[..., :rows, :rows] + extra / count * torch.eye(rows, dtype=outer.dtype, device=outer.device)
    mean = outer[..., :rows, rows:].sum(-1)  # S_w is beside S_ww, or nothing
    factor = cholesky(second - mean.unsqueeze(-1) * mean.unsqueeze(-2), "the covariance of written weights")
    noise = torch.randn(*clusters.shape, rows, 1, generator=generator, dtype=outer.dtype, device=outer.device)
    drawn = (of_each(factor, clusters) @ noise).squeeze(-1) + of_each(mean, clusters)
    return drawn.to(state.row_mean)
