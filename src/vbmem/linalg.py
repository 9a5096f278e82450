"""The one place for numerical safety: inverse, log-determinant and eigenvectors of positive definite matrices.

One operator for every device, opaque to the compiler: on the CPU it factorises and guards, so that a failure is
mended or named even inside compiled code; on CUDA it never makes the host wait.
"""

from typing import Any

import torch
from torch import Tensor

from vbmem.errors import NonFiniteError, NotPositiveDefiniteError

JITTER_TRIES = 3
SPELLED_OUT = 8  # rows up to which a compiled product is a sum of products
AT_ONCE = 2**14  # matrices whose eigenvectors are found at a time; cuSOLVER fails at 100,000
LARGEST = 64  # rows of a matrix that fits the registers of one program of vbmem.kernels.inverses


def inverse_and_logdet(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """A^-1 and log det A of symmetric positive definite matrices: [.., K, K] -> [.., K, K], [..].

    On the CPU, batch items whose factorisation fails are tried again with jitter; if that does not help, a
    `NumericalError` names the matrix. On CUDA, where looking at the outcome would make the host wait, failed items
    come back as NaN.
    """
    if matrix.shape[-1] == 0:
        return matrix, matrix.new_zeros(matrix.shape[:-2])
    if not torch.compiler.is_compiling() and not (matrix.requires_grad and torch.is_grad_enabled()):
        return _invert(matrix, name)  # an operator's first call loads the compiler, which takes a second
    return _inverse_and_logdet(matrix, name)


def small_matmul(left: Tensor, right: Tensor) -> Tensor:
    """A product in which one factor is K x K or has K rows. Where it is compiled and K is tiny, it is spelled out as
    a sum of products, which melts into the kernels around it instead of costing a launch of its own."""
    if torch.compiler.is_compiling() and max(left.shape[-2], min(left.shape[-1], right.shape[-1])) <= SPELLED_OUT:
        return (left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2)
    return left @ right


def cholesky(matrix: Tensor, name: str) -> Tensor:
    """Lower Cholesky factor [.., K, K], guarded in the same way; waits for the device where it may."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if not may_wait(matrix):
        return factor.masked_fill((info > 0)[..., None, None], torch.nan)
    healthy = bool((info == 0).all() & factor.isfinite().all())
    return factor if healthy else _jittered_cholesky(matrix, factor, info, name)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues [.., K], the least first, and eigenvectors [.., K, K] of symmetric matrices, however many."""
    if matrix.shape[:-2].numel() <= AT_ONCE:
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    parts = [torch.linalg.eigh(part) for part in matrix.flatten(0, -3).split(AT_ONCE)]
    values, vectors = (torch.cat(found) for found in zip(*parts, strict=True))
    return values.reshape(matrix.shape[:-1]), vectors.reshape(matrix.shape)


def common_basis(metric: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """V and e with V'AV = I and V'BV = diag(e), and log det A: A positive definite, B symmetric, both [.., K, K].

    The gradient is finite even where values of e are equal; there it is that of functions of those values alone.
    """
    if not metric.shape[-1]:  # nothing for the libraries, whose checks would wait for the device
        return metric, metric.new_zeros(metric.shape[:-1]), metric.new_zeros(metric.shape[:-2])
    factor = torch.linalg.cholesky_ex(metric)[0]
    half = torch.linalg.solve_triangular(factor, matrix, upper=False)
    whitened = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    values, vectors = _Eigh.apply(whitened)  # type: ignore[no-untyped-call]
    basis = torch.linalg.solve_triangular(factor.mT, vectors, upper=True)
    return basis, values, 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class _Eigh(torch.autograd.Function):
    """Eigenvalues and vectors whose gradient tells apart no values that rounding could not.

    dA = V (diag(de) + F o V'dV) V',   F_ij = 1 / (e_j - e_i), but 0 where the two are equal to half precision
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = eigh(0.5 * (matrix + matrix.mT))
        ctx.save_for_backward(values, vectors)
        return values, vectors

    @staticmethod
    def backward(ctx: Any, grad_values: Tensor, grad_vectors: Tensor) -> Tensor:
        values, vectors = ctx.saved_tensors
        limits = torch.finfo(values.dtype)
        gap = values.unsqueeze(-2) - values.unsqueeze(-1)
        size = values.unsqueeze(-2).square() + values.unsqueeze(-1).square()
        inner = gap / (gap.square() + limits.eps * size + limits.tiny) * (vectors.mT @ grad_vectors)
        through = vectors @ (torch.diag_embed(grad_values) + inner) @ vectors.mT
        return 0.5 * (through + through.mT)


def may_wait(tensor: Tensor) -> bool:
    """Whether Python may look at the values: not while a graph is compiled or captured."""
    if torch.compiler.is_compiling():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _invert(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    if matrix.is_cuda and matrix.shape[-1] <= LARGEST:
        from vbmem.kernels.inverses import sweep_inverse

        return sweep_inverse(matrix)
    if matrix.is_cuda:
        factor, info = torch.linalg.cholesky_ex(matrix)
        factor = factor.masked_fill((info > 0)[..., None, None], torch.nan)
    else:
        factor = cholesky(matrix, name)
    logdet = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    # Two products' worth of work, and on the CPU still quicker than torch.cholesky_inverse.
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    inverse_factor = torch.linalg.solve_triangular(factor, identity, upper=False)
    return inverse_factor.mT @ inverse_factor, logdet


_inverse_and_logdet = torch.library.custom_op("vbmem::inverse_and_logdet", _invert, mutates_args=())


@_inverse_and_logdet.register_fake
def _(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(matrix, memory_format=torch.contiguous_format), matrix.new_empty(matrix.shape[:-2])


@torch.library.custom_op("vbmem::inverse_gradient", mutates_args=())
def _inverse_gradient(inverse: Tensor, grad_inverse: Tensor, grad_logdet: Tensor | None) -> Tensor:
    from vbmem.kernels.inverses import inverse_gradient

    return inverse_gradient(inverse, grad_inverse, grad_logdet)


@_inverse_gradient.register_fake
def _(inverse: Tensor, grad_inverse: Tensor, grad_logdet: Tensor | None) -> Tensor:
    return torch.empty_like(inverse)


def _keep_inverse(ctx: Any, inputs: tuple[Tensor, str], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[0])
    ctx.set_materialize_grads(False)  # in most of a write nobody asks for the log-determinant


def _backward(ctx: Any, grad_inverse: Tensor | None, grad_logdet: Tensor | None) -> tuple[Tensor | None, None]:
    """d A^-1 = -A^-1 dA A^-1 and d log det A = tr(A^-1 dA)."""
    (inverse,) = ctx.saved_tensors
    if grad_inverse is None:
        return None if grad_logdet is None else grad_logdet[..., None, None] * inverse, None
    if inverse.is_cuda and inverse.dtype == torch.float32 and inverse.shape[-1] <= LARGEST:
        return _inverse_gradient(inverse, grad_inverse, grad_logdet), None
    return _gradient(inverse, grad_inverse, grad_logdet), None


def _gradient(inverse: Tensor, grad_inverse: Tensor, grad_logdet: Tensor | None) -> Tensor:
    symmetric = 0.5 * (grad_inverse + grad_inverse.mT)
    through = inverse @ symmetric @ inverse
    return -through if grad_logdet is None else grad_logdet[..., None, None] * inverse - through


_inverse_and_logdet.register_autograd(_backward, setup_context=_keep_inverse)


def _jittered_cholesky(matrix: Tensor, factor: Tensor, info: Tensor, name: str) -> Tensor:
    """Factorise again, with jitter on the diagonal of the failed batch items only: x10, three tries."""
    if not matrix.isfinite().all():
        raise NonFiniteError(
            f"{name} holds NaN or infinity; the codes or the prior are too large for {matrix.dtype}: "
            "rescale them or use float64"
        )
    scale = matrix.diagonal(dim1=-2, dim2=-1).abs().amax(-1) * torch.finfo(matrix.dtype).eps
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    failed = info > 0
    for attempt in range(1, JITTER_TRIES + 1):
        jitter = torch.where(failed, scale * 10.0**attempt, 0)
        retry, info = torch.linalg.cholesky_ex(matrix + jitter[..., None, None] * identity)
        factor = torch.where(failed[..., None, None], retry, factor)
        failed = failed & (info > 0)
        if not failed.any():
            return factor
    raise NotPositiveDefiniteError(
        f"{name} is not positive definite in {matrix.dtype}, even with jitter; "
        "rescale the codes, pass a well-conditioned prior or use float64"
    )
