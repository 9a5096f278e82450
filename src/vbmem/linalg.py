"""The one place for numerical safety: a guarded, differentiable inverse Cholesky factor.

Everything the memories need of a positive definite matrix A follows from N = chol(A)^-1 by products:

    A^-1 = N' N,      log det A = -2 sum log diag N,      x' A^-1 x = |N x|^2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

JITTER_TRIES = 3


class NumericalError(ArithmeticError):
    """A computation left the range of its floating-point type."""


class NonFiniteError(NumericalError):
    """A matrix to be factorised holds NaN or infinity."""


class NotPositiveDefiniteError(NumericalError):
    """A matrix that must be positive definite is not, even after jitter."""


def inverse_cholesky(matrix: Tensor, name: str) -> Tensor:
    """N = chol(A)^-1, lower triangular, for symmetric positive definite A of shape [.., K, K].

    On the CPU, batch items whose factorisation fails are tried again with jitter; if that does not help,
    a `NumericalError` names the matrix. On other devices and inside compiled graphs, where looking at the outcome
    would wait for the device, failed items come back as NaN instead.
    """
    if matrix.shape[-1] == 0:
        return matrix
    factor: Tensor = _InverseCholesky.apply(matrix, name)  # type: ignore[no-untyped-call]
    return factor


def inverse(factor: Tensor) -> Tensor:
    """A^-1 = N'N from N = chol(A)^-1, [.., K, K]."""
    return factor.mT @ factor


def log_det(factor: Tensor) -> Tensor:
    """log det A from N = chol(A)^-1: [.., K, K] -> [..]."""
    return -2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def may_wait(tensor: Tensor) -> bool:
    """Whether Python may look at the values: not while a graph is compiled or captured."""
    if torch.compiler.is_compiling():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


class _InverseCholesky(torch.autograd.Function):
    """Own backward, because it needs products only, no triangular solves:

    dN = -Phi(N dA N') N  with Phi = lower triangle, diagonal halved, so
    grad A = -sym( N' Phi(grad N . N') N ).
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, name: str) -> Tensor:
        factor, info = torch.linalg.cholesky_ex(matrix)
        if matrix.device.type == "cpu" and may_wait(matrix):
            if info.any():
                factor = _jittered_cholesky(matrix, factor, info, name)
        else:
            factor = factor.masked_fill((info > 0)[..., None, None], torch.nan)
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        result: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        (factor,) = ctx.saved_tensors
        (grad,) = grads
        phi = (grad @ factor.mT).tril()
        phi = phi - 0.5 * torch.diag_embed(phi.diagonal(dim1=-2, dim2=-1))
        grad_matrix = -factor.mT @ phi @ factor
        return 0.5 * (grad_matrix + grad_matrix.mT), None


def _jittered_cholesky(matrix: Tensor, factor: Tensor, info: Tensor, name: str) -> Tensor:
    """Factorise again, with jitter on the diagonal of the failed batch items only: x10, three tries."""
    if not matrix.isfinite().all():
        raise NonFiniteError(
            f"{name} holds NaN or infinity; the codes or the prior are too large for {matrix.dtype}: "
            "rescale them or use float64"
        )
    scale = matrix.diagonal(dim1=-2, dim2=-1).abs().amax(-1) * torch.finfo(matrix.dtype).eps
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    for attempt in range(1, JITTER_TRIES + 1):
        failed = info > 0
        jitter = torch.where(failed, scale * 10.0**attempt, 0)
        retry, info = torch.linalg.cholesky_ex(matrix + jitter[..., None, None] * identity)
        factor = torch.where(failed[..., None, None], retry, factor)
        if not info.any():
            return factor
    raise NotPositiveDefiniteError(
        f"{name} is not positive definite in {matrix.dtype}, even with jitter; "
        "rescale the codes, pass a well-conditioned prior or use float64"
    )
