"""Triton kernels. Imported only where there is a CUDA device."""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

LARGEST = 64  # rows of a matrix that fits the registers of one program


def sweep_inverse(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A^-1 and log det A of symmetric positive definite matrices [.., K, K], one program each; NaN where it is not.

    The sweep operator, K times: for pivot p = a_kk and column c,  a <- a - c c' / p,  a_.k = a_k. = c / p,
    a_kk = -1 / p.  It ends with -A^-1, and the product of the pivots is det A. For matrices this small one launch
    beats the libraries' factorise-and-solve by far.
    """
    rows = matrix.shape[-1]
    matrix = matrix.contiguous()
    inverse = torch.empty_like(matrix)
    logdet = matrix.new_empty(matrix.shape[:-2])
    block = max(8, triton.next_power_of_2(rows))
    # One warp while it can hold the matrix: its reductions then need no barrier.
    _sweep[(logdet.numel(),)](matrix, inverse, logdet, rows, block, num_warps=1 if block <= 32 else 4)
    return inverse, logdet


def inverse_gradient(inverse: Tensor, grad_inverse: Tensor, grad_logdet: Tensor) -> Tensor:
    """grad A = A^-1 grad_logdet - A^-1 sym(grad_inverse) A^-1, one program for each matrix [.., K, K]."""
    rows = inverse.shape[-1]
    grad = torch.empty_like(inverse)
    block = max(16, triton.next_power_of_2(rows))
    arguments = (inverse.contiguous(), grad_inverse.contiguous(), grad_logdet.contiguous(), grad)
    _gradient[(grad_logdet.numel(),)](*arguments, rows, block, num_warps=1 if block <= 16 else 4)
    return grad


@triton.jit  # type: ignore[untyped-decorator]
def _sweep(matrix, inverse, logdet, rows, block: tl.constexpr):  # type: ignore[no-untyped-def]
    item = tl.program_id(0).to(tl.int64)
    line = tl.arange(0, block)
    i, j = line[:, None], line[None, :]
    inside = (i < rows) & (j < rows)
    place = item * rows * rows + i * rows + j
    a = tl.load(matrix + place, mask=inside, other=0.0)
    nothing = tl.sum(a, 1) * 0  # zeros of the right type, NaN if the matrix holds one
    pivots = nothing + 1
    for k in range(rows):
        column = tl.sum(tl.where(j == k, a, 0.0), 1)
        row = tl.sum(tl.where(i == k, a, 0.0), 0)
        pivot = tl.sum(tl.where(line == k, column, 0.0), 0)
        pivot = tl.where(pivot > 0, pivot, float("nan"))
        pivots = tl.where(line == k, pivot + nothing, pivots)
        inverse_pivot = 1 / pivot  # the only division: one is dearer than all the rest of an element's work
        scaled = row * inverse_pivot
        swept = a - column[:, None] * scaled[None, :]
        swept = tl.where(i == k, scaled[None, :], swept)
        swept = tl.where(j == k, (column * inverse_pivot)[:, None], swept)
        a = tl.where((i == k) & (j == k), -inverse_pivot, swept)
    tl.store(inverse + place, -a, mask=inside)
    tl.store(logdet + item, tl.sum(tl.log(pivots), 0))


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
    result = tl.load(grad_logdet + item) * a - 0.5 * through
    tl.store(grad + start + i * rows + j, result, mask=inside)
