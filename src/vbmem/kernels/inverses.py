"""Small inverses, one program each."""

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor


def sweep_inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A^-1 and log det A of symmetric positive definite matrices [.., K, K], one program each; NaN where it is not.

    For matrices this small one launch beats the libraries' factorise-and-solve by far. From K = 17 on a matrix goes in
    halves, whose sweeps have a quarter of the numbers to move at every pivot.
    """
    rows = matrix.shape[-1]
    matrix = matrix.contiguous()
    inverse = torch.empty_like(matrix)
    logdet = matrix.new_empty(matrix.shape[:-2])
    block = max(8, triton.next_power_of_2(rows))
    if block <= 16 or matrix.dtype == torch.float64:
        _whole[(logdet.numel(),)](matrix, inverse, logdet, rows, block, num_warps=1 if block <= 16 else 4)
    else:
        _halves[(logdet.numel(),)](matrix, inverse, logdet, rows, block // 2, num_warps=1 if block <= 32 else 4)
    return inverse, logdet


def inverse_gradient(inverse: Tensor, grad_inverse: Tensor, grad_logdet: Tensor | None) -> Tensor:
    """grad A = A^-1 grad_logdet - A^-1 sym(grad_inverse) A^-1, one program for each matrix [.., K, K]."""
    rows = inverse.shape[-1]
    grad = torch.empty_like(inverse)
    block = max(16, triton.next_power_of_2(rows))
    last = None if grad_logdet is None else grad_logdet.contiguous()
    arguments = (inverse.contiguous(), grad_inverse.contiguous(), last, grad, rows, block)
    _gradient[(inverse.numel() // rows**2,)](*arguments, num_warps=1 if block <= 16 else 4)
    return grad


@triton.jit  # type: ignore[untyped-decorator]
def _sweep(a, rows, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sweep operator at every pivot p = a_kk with its column c:  a <- a - c c' / p,  a_.k = a_k. = c / p,
    a_kk = -1 / p.  It ends with -A^-1, and the product of the pivots is det A. The matrix stays symmetric, so that one
    column is all that is ever looked up."""
    line = tl.arange(0, size)
    i, j = line[:, None], line[None, :]
    nothing = tl.sum(a, 1) * 0  # zeros of the right type, NaN if the matrix holds one
    pivots = nothing + 1
    for k in range(rows):
        column = tl.sum(tl.where(j == k, a, 0.0), 1)
        pivot = tl.sum(tl.where(line == k, column, 0.0), 0)
        pivot = tl.where(pivot > 0, pivot, float("nan"))
        pivots = tl.where(line == k, pivot + nothing, pivots)
        inverse_pivot = 1 / pivot  # the only division: one is dearer than all the rest of an element's work
        scaled = column * inverse_pivot
        swept = a - column[:, None] * scaled[None, :]
        swept = tl.where(i == k, scaled[None, :], swept)
        swept = tl.where(j == k, scaled[:, None], swept)
        a = tl.where((i == k) & (j == k), -inverse_pivot, swept)
    return -a, tl.sum(tl.log(pivots), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _whole(matrix, inverse, logdet, rows, block: tl.constexpr):  # type: ignore[no-untyped-def]
    item = tl.program_id(0).to(tl.int64)
    line = tl.arange(0, block)
    i, j = line[:, None], line[None, :]
    inside = (i < rows) & (j < rows)
    place = item * rows * rows + i * rows + j
    a = tl.load(matrix + place, mask=inside, other=0.0)
    a_inverse, a_logdet = _sweep(a, rows, block)
    tl.store(inverse + place, a_inverse, mask=inside)
    tl.store(logdet + item, a_logdet)


@triton.jit  # type: ignore[untyped-decorator]
def _halves(matrix, inverse, logdet, rows, half: tl.constexpr):  # type: ignore[no-untyped-def]
    """A = [[P, Q], [Q', S]], by P^-1 and the inverse of the Schur complement S - Q' P^-1 Q."""
    item = tl.program_id(0).to(tl.int64)
    line = tl.arange(0, half)
    i, j = line[:, None], line[None, :]
    start = item * rows * rows + i * rows + j
    right, below = start + half, start + half * rows
    wide, high = j + half < rows, i + half < rows
    p = tl.load(matrix + start)
    q = tl.load(matrix + right, mask=wide, other=0.0)
    s = tl.load(matrix + below + half, mask=wide & high, other=0.0)
    p_inverse, p_logdet = _sweep(p, half, half)
    x = tl.dot(p_inverse, q, input_precision="ieee")
    schur_inverse, schur_logdet = _sweep(s - tl.dot(tl.trans(q), x, input_precision="ieee"), rows - half, half)
    y = tl.dot(x, schur_inverse, input_precision="ieee")
    tl.store(inverse + start, p_inverse + tl.dot(y, tl.trans(x), input_precision="ieee"))
    tl.store(inverse + right, -y, mask=wide)
    tl.store(inverse + below, -tl.trans(y), mask=high)
    tl.store(inverse + below + half, schur_inverse, mask=wide & high)
    tl.store(logdet + item, p_logdet + schur_logdet)


@triton.jit  # type: ignore[untyped-decorator]
def _gradient(inverse, grad_inverse, grad_logdet, grad, rows, block: tl.constexpr):  # type: ignore[no-untyped-def]
    item = tl.program_id(0).to(tl.int64)
    line = tl.arange(0, block)
    i, j = line[:, None], line[None, :]
    inside = (i < rows) & (j < rows)
    start = item * rows * rows
    a = tl.load(inverse + start + i * rows + j, mask=inside, other=0.0)
    g = tl.load(grad_inverse + start + i * rows + j, mask=inside, other=0.0)
    g += tl.load(grad_inverse + start + j * rows + i, mask=inside, other=0.0)
    through = tl.dot(tl.dot(a, g, input_precision="ieee"), a, input_precision="ieee")
    result = -0.5 * through
    if grad_logdet is not None:
        result += tl.load(grad_logdet + item) * a
    tl.store(grad + start + i * rows + j, result, mask=inside)
