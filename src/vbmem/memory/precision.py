"""What memory algebra is done in, float32 or float64, and that what comes of it is finite."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from vbmem.errors import NonFiniteError, NumericalError
from vbmem.memory.state import MemoryState, TensorRecord

if TYPE_CHECKING:
    from vbmem.memory.sized import SizedMemory

P = ParamSpec("P")
R = TypeVar("R")

LOOKED_AT = ("cpu",)  # devices whose numbers can be looked at without waiting for them
REMEDY = "rescale the codes, pass a prior that suits them or use float64"


def full_precision(method: Callable[P, R]) -> Callable[P, R]:
    """Of a memory's method: no autocast, whatever the networks around it run in. On the CPU, float64 inside where the
    codes `strain_float32`, and an error where the result is not finite; elsewhere looking would make the host wait."""
    return _precise(method, centres=True)


def full_precision_as_given(method: Callable[P, R]) -> Callable[P, R]:
    """As `full_precision`, of a method that does not move the codes to the origin first."""
    return _precise(method, centres=False)


def _precise(method: Callable[P, R], centres: bool) -> Callable[P, R]:
    names = tuple(inspect.signature(method).parameters)

    @functools.wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        tensors = [a.row_mean if isinstance(a, MemoryState) else a for a in given.values()]
        device = next((t.device.type for t in tensors if isinstance(t, Tensor)), "cpu")
        if not torch.amp.is_autocast_available(device):
            return method(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            looks = device in LOOKED_AT and not torch.compiler.is_compiling()
            start = given.get("state", given.get("start"))
            wide = looks and strain_float32(args[0], given.get("codes"), start, centres=centres)
            if wide:
                args, kwargs = _cast(args, torch.float64), {name: _cast(x, torch.float64) for name, x in kwargs.items()}
            try:
                result = method(*args, **kwargs)
            except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
                raise NumericalError(f"{method.__name__} met a matrix without eigenvectors; {REMEDY}") from error
            return _finite(method.__name__, _cast(result, torch.float32) if wide else result) if looks else result

    return run


@torch.no_grad()
def strain_float32(memory: SizedMemory, codes: Any, state: Any = None, *, centres: bool = True) -> bool:
    """Whether float32 codes [.., T, C], the rows of a state or their prior variances are so large in units of the noise
    that rounding counts, since what a memory leaves unexplained is a small difference between them. A memory with
    locations moves the codes to the origin first, if it `centres`."""
    if not isinstance(codes, Tensor) or codes.dtype != torch.float32 or codes.ndim < 2:
        return False
    largest = memory.float32_ratio * float(torch.as_tensor(memory.noise_var).min())
    widest = max(float(torch.as_tensor(getattr(memory, name, 0.0)).max()) for name in ("row_var", "loc_var"))

    def large(vectors: Tensor) -> bool:
        return bool((torch.linalg.vector_norm(vectors, dim=-1) > (vectors.shape[-1] * largest) ** 0.5).any())

    if widest > largest or (isinstance(state, MemoryState) and large(state.factor_mean)):
        return True
    return large(codes) and not (centres and memory.located and not large(codes - codes.nanmean(-2, keepdim=True)))


def warn_of_strain(memory: SizedMemory, codes: Tensor) -> None:
    """Where the codes `strain_float32` and are not computed with in float64; see `full_precision`."""
    if codes.device.type not in LOOKED_AT and strain_float32(memory, codes):
        warnings.warn(
            f"codes or prior variances are more than {memory.float32_ratio:g} times the noise variance, where float32 "
            f"may be off by percents; {REMEDY}",
            stacklevel=5,
        )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """The same with every real number in it of this type."""
    if isinstance(value, tuple):
        return tuple(_cast(each, dtype) for each in value)
    numbers = isinstance(value, TensorRecord) or (isinstance(value, Tensor) and value.is_floating_point())
    return value.to(dtype) if numbers else value


def _finite(name: str, result: Any) -> Any:
    """The result, if there is neither NaN nor infinity in it; in training, which counts such steps itself, as it is."""
    for part in result if isinstance(result, tuple) else (result,):
        for tensor in part.tensors().values() if isinstance(part, TensorRecord) else (part,):
            if tensor.requires_grad and torch.is_grad_enabled():
                continue
            if not bool(tensor.sum().isfinite()) and not bool(tensor.isfinite().all()):  # the sum is a quick look
                raise NonFiniteError(f"what {name} computed left the range of {tensor.dtype}; {REMEDY}")
    return result
