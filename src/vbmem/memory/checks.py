"""Argument checks, made once, at the boundary: one sentence saying what was wrong and what was expected."""

import warnings
from numbers import Integral

import torch
from torch import Tensor

from vbmem.errors import NonFiniteError
from vbmem.linalg import cholesky, may_wait
from vbmem.memory.state import MemoryState, Prior

ASYMMETRY = 1e-3  # of a covariance, relative to its largest variance; rounding leaves far less

FEWEST = 12  # numbers by which the scale of codes can be told
FAR = 100  # ratio between the codes' variance and what the prior expects from which on a write warns


def check_size(name: str, value: int, least: int = 1) -> int:
    """The value as an int, if it is a whole number, NumPy's included, that is large enough."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def check_positive(name: str, value: float | Tensor, *, diagonal: bool = False) -> None:
    """A positive number, or a tensor whose entries (of a matrix: whose `diagonal`) are positive."""
    if isinstance(value, Tensor):
        if not may_wait(value):
            return
        entries = value.diagonal(dim1=-2, dim2=-1) if diagonal and value.ndim else value
        if not bool((entries > 0).all() & value.isfinite().all()):
            raise ValueError(f"{name} must be positive and finite, got {float(entries.min()):g} in it")
    elif not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value}")


def check_shape(name: str, value: float | Tensor, *expected: int) -> None:
    """The last dimensions of a tensor; a single number has any shape."""
    if isinstance(value, Tensor) and value.ndim and tuple(value.shape[-len(expected) :]) != expected:
        sizes = ", ".join(map(str, expected))
        raise ValueError(f"{name} must have the shape [.., {sizes}], got {list(value.shape)}")


def check_location_mean(name: str, value: float | Tensor, clusters: int, code_size: int) -> None:
    """mu_b0: a number, [C], or [.., 1 or H, C]."""
    shape = _shape(value)
    if shape not in ((), (code_size,)) and (shape[-1] != code_size or shape[-2:-1] not in ((1,), (clusters,))):
        raise ValueError(
            f"{name} must be a number, or a tensor of shape [{code_size}], or [.., {clusters}, {code_size}] with one "
            f"for every cluster, or [.., 1, {code_size}] for a batch of memories whose clusters share it, got "
            f"{list(shape)}"
        )


def check_location_var(value: float | Tensor, clusters: int, code_size: int) -> None:
    """v_b0 of Sigma_b0 = v_b0 I: a number, or [.., 1 or H]; never [.., C, C], also where H = C."""
    shape = _shape(value)
    full = code_size > 1 and shape[-2:] == (code_size, code_size)
    if full or (shape and shape[-1] not in (1, clusters)):
        raise ValueError(
            f"loc_var must be a number, or a tensor of shape [.., {clusters}] with a variance for every cluster, or "
            f"[.., 1] with one for all, since Sigma_b0 is a number times I and no full matrix, got {list(shape)}"
        )


def check_variances_of_rows(value: float | Tensor, rows: int) -> None:
    """u_0 of a U_0 that is diagonal: a number, [K], or [.., 1, K], which cannot be taken for a matrix [K, K]."""
    shape = _shape(value)
    if shape not in ((), (rows,)) and shape[-2:] != (1, rows):
        raise ValueError(
            f"row_var must be a number, or a tensor of shape [{rows}], or [.., 1, {rows}] for a batch of memories, "
            f"since U_0 is diagonal here and no full matrix, got {list(shape)}"
        )


def _shape(value: float | Tensor) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def check_codes(codes: Tensor, code_size: int, mask: Tensor | None = None) -> None:
    """codes [.., T, C] floating and finite, T >= 1; mask [.., T] boolean, or weights, on the same device."""
    if not isinstance(codes, Tensor):
        raise ValueError(f"codes must be a torch.Tensor, got {type(codes).__name__}; torch.as_tensor makes one")
    if codes.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"codes must be float32 or float64, got {codes.dtype}; memory algebra is never done in less")
    if codes.ndim < 2 or codes.shape[-1] != code_size:
        raise ValueError(
            f"codes must have the shape [.., frames, {code_size}] for code_size={code_size}, got {list(codes.shape)}"
        )
    if codes.shape[-2] == 0:
        raise ValueError(f"an episode needs at least one frame, got codes of shape {list(codes.shape)}")
    if mask is not None:
        if not isinstance(mask, Tensor):
            raise ValueError(f"mask must be a torch.Tensor, got {type(mask).__name__}")
        if mask.dtype not in (torch.bool, codes.dtype):
            raise ValueError(
                f"mask must be boolean (True where a frame counts), or weights of type {codes.dtype}, got {mask.dtype}"
            )
        if mask.shape != codes.shape[:-1]:
            raise ValueError(
                f"mask must have the shape {list(codes.shape[:-1])}, one entry a frame, got {list(mask.shape)}"
            )
        if mask.device != codes.device:
            raise ValueError(f"codes are on {codes.device} but the mask is on {mask.device}; move one of them")
    if may_wait(codes):
        if not bool(codes.detach().sum().isfinite()):  # a quick look: then all are finite
            finite = codes.isfinite().all(-1)
            if not bool((finite if mask is None else finite | (mask == 0)).all()):
                raise NonFiniteError("codes hold NaN or infinity; mask those frames out or mend them first")
        if mask is not None and not bool((mask >= 0).all() & mask.isfinite().all()):
            raise ValueError("the weights of frames must be finite and not negative")


def check_state(state: MemoryState, codes: Tensor, clusters: int, rows: int, located: bool) -> None:
    """A state of these sizes that goes together with codes [.., T, C] in the engine's layout."""
    tensor, code_size, rows = state.row_mean, codes.shape[-1], rows + located
    if tuple(tensor.shape[-3:]) != (clusters, rows, code_size) or state.located != located:
        raise ValueError(
            f"the state belongs to another memory: its rows have the shape {list(tensor.shape[-3:])}, expected "
            f"[{clusters}, {rows}, {code_size}] (clusters, rows{' with the location' * located}, code size)"
        )
    check_shape("row_cov", state.row_cov, clusters, rows, rows)
    if tensor.dtype != codes.dtype or tensor.device != codes.device:
        raise ValueError(
            f"codes are {codes.dtype} on {codes.device} but the state is {tensor.dtype} on {tensor.device}; "
            "convert one of them with .to(...)"
        )
    ours, theirs = tensor.shape[:-3], codes.shape[:-2]
    try:
        torch.broadcast_shapes(ours, theirs)
    except RuntimeError as error:
        raise ValueError(
            f"the state has the batch dimensions {list(ours)}, the codes {list(theirs)}; they must be equal, or one "
            "of them missing"
        ) from error


def check_finite(name: str, tensor: Tensor) -> Tensor:
    """The tensor, if there is neither NaN nor infinity in it."""
    if not bool(tensor.isfinite().all()):
        raise NonFiniteError(f"{name} holds NaN or infinity")
    return tensor


def check_symmetric(name: str, matrix: Tensor) -> None:
    """Matrices [.., K, K] that are covariances, to rounding."""
    if not may_wait(matrix):
        return
    asymmetry, scale = (matrix - matrix.mT).abs().amax((-1, -2)), matrix.diagonal(dim1=-2, dim2=-1).abs().amax(-1)
    if bool((asymmetry > ASYMMETRY * scale).any()):
        raise ValueError(f"{name} is not symmetric")


def check_stored(state: MemoryState) -> None:
    """A state that can go into a file or come out of one: q(M) is a distribution, of one type and one batch."""
    mean, cov = check_finite("row_mean", state.row_mean), check_finite("row_cov", state.row_cov)
    if mean.dtype not in (torch.float32, torch.float64) or cov.dtype != mean.dtype:
        raise ValueError(f"row_mean and row_cov must both be float32 or float64, got {mean.dtype} and {cov.dtype}")
    if mean.shape[:-1] != cov.shape[:-1]:
        shapes = f"{list(mean.shape)} and {list(cov.shape)}"
        raise ValueError(f"row_mean and row_cov must be [.., H, J, C] and [.., H, J, J], got {shapes}")
    check_symmetric("the covariance of the rows (row_cov)", cov)
    cholesky(cov.detach(), "the covariance of the rows (row_cov)")


def check_clusters(clusters: Tensor, shape: tuple[int, ...], count: int) -> None:
    """Numbers of clusters, one for every code."""
    if not isinstance(clusters, Tensor):
        raise ValueError(f"clusters must be a torch.Tensor, got {type(clusters).__name__}")
    if clusters.dtype != torch.int64 or tuple(clusters.shape) != shape:
        raise ValueError(
            f"clusters must be int64 of shape {list(shape)}, got {clusters.dtype} of shape {list(clusters.shape)}"
        )
    if may_wait(clusters) and not bool(((clusters >= 0) & (clusters < count)).all()):
        raise ValueError(f"clusters must lie in 0 .. {count - 1}, got {int(clusters.min())} .. {int(clusters.max())}")


def warn_of_scale(codes: Tensor, prior: Prior, mask: Tensor | None) -> None:
    """Codes [.., T, C] far larger or smaller than the prior expects are explained as one cluster, or as noise."""
    if codes.numel() < FEWEST:  # too few to tell
        return
    offset = prior.row_mean[..., -1, :].mean(-2, keepdim=True) if prior.located else torch.zeros_like(codes[..., :1, :])
    squares = (codes - offset).square().mean(-1)
    found = float(squares.mean() if mask is None else squares[(mask > 0).expand_as(squares)].mean())
    means = prior.translate(-offset).row_mean.square().mean(-1).sum(-1)
    spread = (1 / prior.row_precision.diagonal(dim1=-2, dim2=-1)).sum(-1)
    expected = float(prior.noise_scale + spread.mean() + means.mean())
    if found > FAR * expected or 0 < found < expected / FAR:
        warnings.warn(
            f"the codes have a mean square of {found:.2g}, this memory's prior expects about {expected:.2g}, so they "
            "will be told apart badly; fit the prior to them with memory.fit_prior(codes), or make the memory with "
            "for_codes",
            stacklevel=5,
        )
