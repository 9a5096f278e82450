"""The Dynamic Kanerva Machine's memory (Wu et al. 2018), the baseline of figure 2.

The same linear Gaussian model as `GaussianMemory`, another inference: addresses are least-squares projections with a
fixed variance, and the memory is updated by recursive least squares, frame after frame.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from vbmem.linalg import inverse_and_logdet
from vbmem.memory.checks import check_positive, check_size
from vbmem.memory.compiling import compiled
from vbmem.memory.precision import full_precision
from vbmem.memory.reading import Memory
from vbmem.memory.sized import Scale
from vbmem.memory.state import Addresses, MemoryState

R0_SCALE = 0.05  # the reference implementation's standard deviation of R_0


def online_step(code: Tensor, rows: Tensor, cov: Tensor, noise_var: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Recursive least squares with one frame [.., 1, C]: its address, and the memory after it.

    w = (R R' + sigma^2 I)^-1 R z;   k = U w / (w'U w + sigma^2);   R += k (z - R'w)';   U -= k w'U
    """
    weight = _project(code, rows, noise_var)  # [.., 1, K]
    spread = weight @ cov  # w'U
    gain = spread.mT / (spread @ weight.mT + noise_var)  # [.., K, 1]
    return weight, rows + gain @ (code - weight @ rows), cov - gain @ spread


def _project(codes: Tensor, rows: Tensor, noise_var: Tensor) -> Tensor:
    """(R R' + sigma^2 I)^-1 R z for every frame: codes [.., T, C], rows [.., K, C] -> [.., T, K]."""
    identity = torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device)
    inverse, _ = inverse_and_logdet(rows @ rows.mT + noise_var * identity, "R R' + sigma^2 I")
    return codes @ rows.mT @ inverse


def _same_numbers(given: Tensor, drawn: Tensor) -> bool:
    if given.shape != drawn.shape or given.is_meta or drawn.is_meta:
        return False
    return bool((given.detach().to(drawn) == drawn).all())


@dataclass(repr=False, eq=False)
class KanervaMemory(Memory):
    """K rows written by the Dynamic Kanerva Machine's rules.

    Args:
        code_size: C, the size of a code.
        rows: K.
        address_var: the fixed variance of q(w), which is N(mean, address_var I).
        noise_var: sigma_z^2.
        row_var: U_0, a number times I or a matrix [.., K, K].
        row_mean: R_0. At R_0 = 0 every address is 0 and nothing is ever written, so by default R_0 is drawn once
            from N(0, 0.05^2), always the same draw.
    """

    address_var: Scale = 0.3
    _: KW_ONLY
    row_mean: Scale = None  # type: ignore[assignment]

    kind = "kanerva"
    float32_ratio = 10  # what a frame leaves of U is a difference, which cancels sooner
    _noises = ("global",)
    _online_step = staticmethod(online_step)

    def __post_init__(self) -> None:
        shape = check_size("rows", self.rows), check_size("code_size", self.code_size)
        drawn, given = R0_SCALE * torch.randn(shape, generator=torch.Generator().manual_seed(0)), self.row_mean
        if given is None:
            self.row_mean = drawn
        self._drawn = given is None or (isinstance(given, Tensor) and _same_numbers(given, drawn))  # and saved
        super().__post_init__()
        check_positive("address_var", self.address_var)

    def compile(self) -> None:
        """Compile what the online write repeats for every frame."""
        self._online_step = compiled(online_step)

    @full_precision
    def write(self, codes: Tensor) -> tuple[MemoryState, Addresses]:
        """Online: one pass, each frame addressed with the memory as it then stands; see `online_step`."""
        codes, _, prior, _ = self._enter(codes)
        state = self._state_of(prior, codes.shape[:-2])
        rows, cov = state.row_mean.squeeze(-3), state.row_cov.squeeze(-3)
        weights = []
        for code in codes.split(1, dim=-2):  # [.., 1, C]
            weight, rows, cov = self._online_step(code, rows, cov, prior.noise_scale)
            weights.append(weight)
        state = MemoryState(rows.unsqueeze(-3), cov.unsqueeze(-3), located=False)
        return state, self._addresses(torch.cat(weights, dim=-2))

    @full_precision
    def write_iterative(self, codes: Tensor, iterations: int = 50) -> tuple[MemoryState, Addresses]:
        """Batched: all frames addressed with the same memory, then the memory refitted to all, again and again.

        The refit ignores the addresses' variance:  U = (U_0^-1 + W'W/sigma^2)^-1,  R = U (U_0^-1 R_0 + W'Z/sigma^2).
        """
        codes, _, prior, _ = self._enter(codes)
        state = self._state_of(prior, codes.shape[:-2])
        rows = state.row_mean.squeeze(-3)
        precision, natural = prior.row_precision.squeeze(-3), prior.row_natural.squeeze(-3)
        for _ in range(check_size("iterations", iterations)):
            weights = _project(codes, rows, prior.noise_scale)
            fitted = precision + weights.mT @ weights / prior.noise_scale
            cov, _ = inverse_and_logdet(fitted, "the precision of the memory rows")
            rows = cov @ (natural + weights.mT @ codes / prior.noise_scale)
        state = MemoryState(rows.unsqueeze(-3), cov.unsqueeze(-3), located=False)
        return state, self._addresses(weights)

    def resize(self, **sizes: int) -> KanervaMemory:
        drawn: dict[str, Any] = {"row_mean": None} if self._drawn else {}
        self._check_resizable(sizes)
        return KanervaMemory(**(self.config() | drawn | sizes))

    @full_precision
    def address(self, state: MemoryState, codes: Tensor, mask: Tensor | None = None) -> Addresses:
        """Dynamic addressing: the least-squares weights of each frame given a written memory."""
        codes, mask, prior, _ = self._enter(codes, state, mask)
        return self._addresses(_project(codes, state.row_mean.squeeze(-3), prior.noise_scale), mask)

    def _addresses(self, weights: Tensor, mask: Tensor | None = None) -> Addresses:
        """q(w) = N(weights, address_var I) in the one cluster there is."""
        identity = torch.eye(self.rows, dtype=weights.dtype, device=weights.device)
        assignment = torch.ones_like(weights[..., :1])
        if mask is not None:
            assignment = assignment * mask.unsqueeze(-1)
        return Addresses(
            assignment=assignment,
            weight_mean=weights.unsqueeze(-2),
            weight_cov=(self.address_var * identity).expand(*weights.shape[:-2], 1, -1, -1),
        )
