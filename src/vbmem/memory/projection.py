"""A memory made ready to meet many codes at once, and what they leave.

With a Cholesky factor L_h L_h' = I + G_ww, the weights in units of their posterior, v_th = L_h^-1 y_th, are linear in
z~ = (z, 1), and but for a square so is what a cluster makes of a code (see `engine.address`):

    v_th = V_h z~_t,     mu_th = L_h'^-1 v_th,     log theta_th = e_h . z~_t + |v_th|^2 / 2 [- z_t' Psi_h^-1 z_t / 2]

So a block needs two large matrix products: with the rows V_h and e_h of all clusters, and, once theta is known, for

    S_vz~ = sum_t theta_th v_th z~_t',     S_z~ = sum_t theta_th z~_t'

whose last columns are the sums of theta v and of theta. As v is linear in z~, its second moments need no product with
frames at all: S_vv = S_vz~ V_h'. Logarithms of theta are in bits here, since exp2 takes a third of the time of exp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vbmem.linalg import cholesky
from vbmem.memory import engine
from vbmem.memory.state import Addresses, MemoryState, Prior, Statistics, TensorRecord, below

BITS = 1 / math.log(2)  # in a nat


@dataclass(frozen=True)
class Moments(TensorRecord):
    """What blocks leave of their frames; sums, so those of two parts add up."""

    codes: Tensor  # [.., K + 1, H, C + 1]  S_vz~, and below it S_z~
    code_square: Tensor  # [.., 1 or H, C]        as in `Statistics`
    kl_assignments: Tensor  # [..]                   sum_t KL(q(s_t) || p(s)); 0 unless it is asked for

    def __add__(self, other: Moments) -> Moments:
        mine, theirs = self.tensors(), other.tensors()
        return Moments(**{name: mine[name] + theirs[name] for name in mine})


@dataclass(frozen=True)
class Projection(TensorRecord):
    """A memory made ready to meet codes; see the equations above."""

    rows: Tensor  # [.., K + 1, H, C + 1]  V_h, and below it e_h in bits
    back: Tensor  # [.., H, K, K]          L_h'^-1
    halved: Tensor | None  # [.., H, C]    -Psi_h^-1 / 2 in bits, where clusters have a noise of their own
    log_prior: Tensor  # [.., H]           log p(s), which is a part of e_h

    @classmethod
    def of(cls, state: MemoryState, prior: Prior) -> Projection:
        precise, gram = engine.second_moments(state, prior)
        rows, clusters = state.rows, precise.shape[-3]
        identity = torch.eye(rows, dtype=gram.dtype, device=gram.device)
        factor = cholesky(identity + gram[..., :rows, :rows], engine.WEIGHT_PRECISION)
        met, evidence = precise[..., :rows, :], torch.zeros_like(precise[..., 0, :])
        shift, constant = torch.zeros_like(met[..., :1]), -factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        if prior.located:
            evidence, shift = precise[..., -1, :], -gram[..., :rows, -1:]
            constant = constant - 0.5 * gram[..., -1, -1]
        log_prior = prior.choice.log_prior(clusters, constant)
        constant, halved = constant + log_prior, None
        if prior.noise_var.shape[-2] > 1:
            halved = -0.5 * BITS / prior.noise_var
            constant = constant - 0.5 * (2 * math.pi * prior.noise_var).log().sum(-1)
        factors = torch.linalg.solve_triangular(factor, torch.cat([met, shift], -1), upper=False)  # V
        batch = torch.broadcast_shapes(evidence.shape[:-1], constant.shape)
        evidence = BITS * torch.cat([evidence.expand(*batch, -1), constant.expand(batch).unsqueeze(-1)], -1)
        together = below(factors, evidence).movedim(-2, -3).contiguous()
        back = torch.linalg.solve_triangular(factor.mT, identity.expand_as(factor), upper=True)
        return cls(together, back, halved, log_prior)

    @property
    def factors(self) -> Tensor:
        """V, [.., H, K, C + 1]."""
        return self.rows[..., :-1, :, :].movedim(-3, -2)

    def room(self, codes: Tensor) -> Addresses:
        """Addresses of frames [.., T, C] that are still to be filled in."""
        batch = torch.broadcast_shapes(codes.shape[:-2], self.rows.shape[:-3])
        clusters, rows = self.back.shape[-3:-1]
        assignment = self.rows.new_empty(*batch, codes.shape[-2], clusters)
        weight_cov = (self.back @ self.back.mT).expand(*batch, -1, -1, -1)
        return Addresses(assignment, self.rows.new_empty(*assignment.shape, rows), weight_cov)

    def statistics(self, moments: Moments, prior: Prior) -> Statistics:
        """Of the frames that the moments are of: from v back to w, once for all of them, in float64."""
        by_weight, by_cluster = moments.codes[..., :-1, :, :].movedim(-3, -2), moments.codes[..., -1, :, :]
        back, count = self.back.double(), by_cluster[..., -1]
        weight_code = back @ by_weight  # S_wz~  [.., H, K, C + 1]
        outer = weight_code @ (back @ self.factors.double()).mT
        outer = 0.5 * (outer + outer.mT) + count[..., None, None] * (back @ back.mT)
        if prior.located:
            total = weight_code[..., -1:]  # S_w
            corner = below(total, count.unsqueeze(-1))
            outer = torch.cat([torch.cat([outer, total.mT], -2), corner], -1)
            weight_code = below(weight_code, by_cluster)
        sums = Statistics(count, outer, weight_code[..., :-1], moments.code_square)
        return sums.to(self.rows.dtype)
