"""The matrix normal with identity column covariance (paper, appendix D.1 and D.2), an oracle for the tests."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.kl import register_kl

from vbmem.linalg import cholesky


class MatrixNormal(Distribution):
    """M ~ MN(R, U, I_C): rows are correlated by U, columns are independent; vec(M) ~ N(vec(R), I_C x U).

    Args:
        loc: R [.., K, C].
        row_covariance: U [.., K, K], symmetric positive definite.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": constraints.independent(constraints.real, 2),
        "row_covariance": constraints.positive_definite,
    }
    support = constraints.independent(constraints.real, 2)
    has_rsample = True

    def __init__(self, loc: Tensor, row_covariance: Tensor, validate_args: bool | None = None) -> None:
        rows = loc.shape[-2] if loc.ndim >= 2 else 0
        if loc.ndim < 2 or row_covariance.shape[-2:] != (rows, rows):
            raise ValueError(
                f"expected loc [.., K, C] and row_covariance [.., K, K], got {list(loc.shape)} and "
                f"{list(row_covariance.shape)}"
            )
        batch = torch.broadcast_shapes(loc.shape[:-2], row_covariance.shape[:-2])
        self.loc = loc.expand(*batch, *loc.shape[-2:])
        self.row_covariance = row_covariance.expand(*batch, rows, rows)
        super().__init__(batch, loc.shape[-2:], validate_args=validate_args)
        self._factor = cholesky(self.row_covariance, "the row covariance of a matrix normal")

    def expand(self, batch_shape: Any, _instance: Any = None) -> MatrixNormal:
        shape = torch.Size(batch_shape)
        return MatrixNormal(
            self.loc.expand(*shape, *self.event_shape),
            self.row_covariance.expand(*shape, *self.row_covariance.shape[-2:]),
            validate_args=False,
        )

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.row_covariance.diagonal(dim1=-2, dim2=-1).unsqueeze(-1).expand_as(self.loc)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """R + chol(U) E with E standard normal (D.2)."""
        noise = torch.randn(
            self._extended_shape(torch.Size(sample_shape)), dtype=self.loc.dtype, device=self.loc.device
        )
        return self.loc + self._factor @ noise

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        rows, columns = self.event_shape
        whitened = self._whiten(value - self.loc)
        constant = columns * (rows * math.log(2 * math.pi) + self._logdet())
        return -0.5 * (whitened.square().sum((-1, -2)) + constant)

    def entropy(self) -> Tensor:
        rows, columns = self.event_shape
        return 0.5 * columns * (rows * (1 + math.log(2 * math.pi)) + self._logdet())

    def _whiten(self, value: Tensor) -> Tensor:
        whitened: Tensor = torch.linalg.solve_triangular(self._factor, value, upper=False)
        return whitened

    def _logdet(self) -> Tensor:
        """log det U."""
        return 2 * self._factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@register_kl(MatrixNormal, MatrixNormal)  # type: ignore[untyped-decorator]
def kl_matrix_normal(q: MatrixNormal, p: MatrixNormal) -> Tensor:
    """(C tr(U_0^-1 U) + tr((R - R_0)' U_0^-1 (R - R_0)) - K C - C log det U + C log det U_0) / 2   (D.1)"""
    rows, columns = q.event_shape
    trace = p._whiten(q._factor).square().sum((-1, -2))
    quadratic = p._whiten(q.loc - p.loc).square().sum((-1, -2))
    logdets = p._logdet() - q._logdet()
    return 0.5 * (columns * (trace - rows + logdets) + quadratic)
