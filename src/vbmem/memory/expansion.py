"""Parameter expansion: a memory is the same when w is moved and turned in every cluster and the rows follow, but its
bound is not. Taking the best of all such memories after each global step lets a write converge in far fewer iterations.

Under w <- A^-1 (w - c), in short w~ <- D w~, and M <- D'^-1 M, nothing changes of M'w~, but the divergences of w and M
from their priors do. The best c and A have a closed form. They are not differentiated through.
"""

from dataclasses import replace

import torch
from torch import Tensor

from vbmem.linalg import cholesky, eigh, inverse_and_logdet
from vbmem.memory.state import MemoryState, Prior, Statistics, below


def expand(sums: Statistics, state: MemoryState, prior: Prior) -> MemoryState:
    """The state of a global step, moved and turned for the best bound; `sums` are those of the local step before it."""
    return turned(state, best_change(sums, state, prior)[1])


def turned(state: MemoryState, back: Tensor) -> MemoryState:
    """The state after a change D of the weights, w~ <- D w~, given D^-1: M <- D'^-1 M."""
    return replace(state, row_mean=back.mT @ state.row_mean, row_cov=back.mT @ state.row_cov @ back)


@torch.no_grad()
def best_change(sums: Statistics, state: MemoryState, prior: Prior) -> tuple[Tensor, Tensor]:
    """D and D^-1, [.., H, J, J]: for a joint q(M, b) the best shift, then, where the prior allows it, the best rotation
    and scale of w. With the rows go the addresses, w <- A^-1 (w - c), and the statistics, S_ww <- D S_ww D'.
    """
    rows, outer = state.rows, sums.weight_outer
    change = torch.eye(outer.shape[-1], dtype=outer.dtype, device=outer.device).expand_as(outer).clone()
    back = change.clone()
    # What the divergence of M from its prior weighs with U_0^-1; of the location, around the prior's mean.
    mean = state.row_mean
    if prior.located:
        mean = below(state.factor_mean, state.loc_mean - prior.row_mean[..., -1, :])
    gram = _second_moments(mean, state.row_cov, prior)
    if prior.joint:
        shift = best_shift(outer, gram, prior.row_precision[..., -1, -1])
        change[..., :rows, -1], back[..., :rows, -1] = -shift, shift
        outer, gram = change @ outer @ change.mT, back.mT @ gram @ back
    if prior.round:
        outer, gram = outer[..., :rows, :rows], gram[..., :rows, :rows]
        surplus = mean.shape[-1] - sums.count
        turn, turn_back = best_rotation(outer, gram, surplus, 1 / prior.row_precision[..., 0, 0])
        change[..., :rows, :] = turn @ change[..., :rows, :]
        back[..., :rows] = back[..., :rows] @ turn_back
    return change, back


def best_shift(outer: Tensor, gram: Tensor, loc_precision: Tensor) -> Tensor:
    """c = (n I + G_ww / v_0)^-1 (S_w - G_wb / v_0), [.., H, K], which minimises, as a function of c,

    n |c|^2 - 2 c'S_w + (c'G_ww c + 2 c'G_wb) / v_0:  the divergences of the moved w and of the location b + R'c.
    """
    precision, cross = loc_precision[..., None, None], gram[..., :-1, -1:]
    identity = torch.eye(gram.shape[-1] - 1, dtype=gram.dtype, device=gram.device)
    curvature = outer[..., -1:, -1:] * identity + precision * gram[..., :-1, :-1]
    inverse, _ = inverse_and_logdet(curvature, "the curvature of a shift of the weights")
    return (inverse @ (outer[..., :-1, -1:] - precision * cross)).squeeze(-1)


def best_rotation(outer: Tensor, gram: Tensor, surplus: Tensor, row_var: Tensor) -> tuple[Tensor, Tensor]:
    """A^-1 and A, [.., H, K, K], where X = A A' maximises

        -tr(X^-1 S_ww) / 2 - tr(X G) / (2 u_0) + d log det A,   d = C - n

    that is X G X / u_0 - d X - S_ww = 0. With G = L L' and L' S_ww L = V diag(e) V', X = L'^-1 V diag(y) V' L^-1, y the
    positive root of y^2 / u_0 - d y - e = 0. Of all A the triangular one, which does not jump as eigenvectors do.
    """
    factor = cholesky(gram, "the second moments of the memory rows")
    values, vectors = eigh(factor.mT @ outer @ factor)
    values, d, u = values.clamp_min(0), surplus.unsqueeze(-1), row_var.unsqueeze(-1)
    root = (d.square() + 4 * values / u).sqrt()
    tiny = torch.finfo(root.dtype).tiny
    y = torch.where(d > 0, u * (d + root) / 2, 2 * values / (root - d).clamp_min(tiny))  # free of cancellation
    y = y.clamp_min(tiny).sqrt()
    root = torch.linalg.solve_triangular(factor.mT, vectors * y.unsqueeze(-2), upper=True)  # X = root root'
    back = cholesky(root @ root.mT, "the best rotation of the weights")
    identity = torch.eye(back.shape[-1], dtype=back.dtype, device=back.device).expand_as(back)
    return torch.linalg.solve_triangular(back, identity, upper=False), back


@torch.no_grad()
def principal_axes(state: MemoryState, prior: Prior) -> Tensor:
    """D, a rotation of the factors' weights, [.., H, J, J]; D^-1 = D'. In every cluster it makes E[M (Psi / s)^-1 M']
    of the factor rows diagonal, largest first.

    Of all rotations, the best for rows with a variance each, common to all clusters and fitted next: the sum over
    clusters of sorted eigenvalues majorises that of any diagonals (Ky Fan), and the sum of its logarithms is least.
    """
    rows, mean = state.rows, state.factor_mean
    gram = _second_moments(mean, state.factor_cov, prior)
    change = torch.eye(state.row_cov.shape[-1], dtype=gram.dtype, device=gram.device).expand_as(state.row_cov).clone()
    change[..., :rows, :rows] = eigh(gram)[1].flip(-1).mT
    return change


def _second_moments(mean: Tensor, cov: Tensor, prior: Prior) -> Tensor:
    """E[M (Psi / s)^-1 M'] of rows with this mean and covariance, [.., H, J, J]."""
    return mean * (prior.noise_scale / prior.noise_var).unsqueeze(-2) @ mean.mT + mean.shape[-1] * cov
