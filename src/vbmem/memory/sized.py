"""Sizes and prior of a memory, and how its codes and tensors are laid out for the engine."""

from __future__ import annotations

import copy
import math
from abc import ABC
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Real
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from vbmem.linalg import inverse_and_logdet
from vbmem.memory.checks import check_codes, check_positive, check_shape, check_size, check_state, check_symmetric
from vbmem.memory.choice import UNIFORM, Choice
from vbmem.memory.state import MemoryState, Prior

Scale = float | Tensor
Noise = Literal["global", "feature", "cluster"]
SCALES = ("noise_var", "row_var", "row_mean", "loc_var", "loc_mean")


@dataclass(repr=False, eq=False)
class SizedMemory(ABC):
    """A latent-space memory over codes of size C, and the prior it starts from.

    Dimensions of the prior's tensors before those given here are batch dimensions, shown as `..`, and broadcast against
    those of the codes.

    Args:
        code_size: C, the size of a code.
        rows: K, the factor rows of a cluster.
        noise_var: sigma_z^2, a positive number (or a scalar tensor, which may be trained); or one for every feature
            [C]; or for every cluster and feature [H, C]. Where it differs by feature, so do the rows, in proportion:
            the scales below are then what they are in the mean over all features.
        row_var: U_0, a number times I, one for every row [K], or a matrix [.., K, K].
        row_mean: R_0, a number or [.., K, C], the same for every cluster.
    """

    code_size: int
    rows: int
    _: KW_ONLY
    noise_var: Scale = 1.0
    row_var: Scale = 1.0
    row_mean: Scale = 0.0

    # Not fields: what only some memories can be told.
    clusters = 1
    partitions = 1
    choice = UNIFORM
    factorised = False

    kind: ClassVar[str]
    sizes: ClassVar[tuple[str, ...]] = ("code_size", "rows")
    fewest_rows: ClassVar[int] = 1
    located: ClassVar[bool] = False
    """Whether clusters have locations."""
    float32_ratio: ClassVar[float] = 1e3
    """Of squares to the noise, up to which float32 is well within 1 % of float64; from 1e4 on it may be off."""
    _noises: ClassVar[tuple[Noise, ...]] = get_args(Noise)
    partitioned: ClassVar[bool] = False
    """Whether states and addresses have a dimension of partitions, their last batch dimension."""

    def __post_init__(self) -> None:
        for name in self.sizes:
            setattr(self, name, check_size(name, getattr(self, name), self.fewest_rows if name == "rows" else 1))
        for field in fields(self):
            if field.name in SCALES and isinstance(value := getattr(self, field.name), Real):
                setattr(self, field.name, float(value))  # NumPy's numbers could not be saved
        self.choice.log_prior(self.layout[0], torch.empty((), device="meta"))  # for its check, without the numbers
        check_positive("noise_var", self.noise_var)
        self._check_noise()
        self._check_rows()

    def noise_shape(self, noise: Noise) -> tuple[int, ...]:
        """Of noise_var: one for all, for every feature, or for every cluster and feature."""
        return {"global": (), "feature": (self.code_size,), "cluster": (self.layout[0], self.code_size)}[noise]

    def _check_noise(self) -> None:
        known = [self.noise_shape(noise) for noise in self._noises]
        shape = tuple(self.noise_var.shape) if isinstance(self.noise_var, Tensor) else ()
        if shape not in known:
            others = " or ".join(str(list(other)) for other in known[1:])
            expected = "one number" + f", or a tensor of shape {others}" * bool(others)
            raise ValueError(f"noise_var must be {expected}, got a tensor of shape {list(shape)}")

    def _check_rows(self) -> None:
        matrix = isinstance(self.row_var, Tensor) and self.row_var.ndim > 1
        check_shape("row_var", self.row_var, *(self.rows, self.rows) if matrix else (self.rows,))
        check_positive("row_var", self.row_var, diagonal=matrix)
        if isinstance(self.row_var, Tensor) and matrix:
            check_symmetric("the prior covariance of the rows (row_var)", self.row_var)
        check_shape("row_mean", self.row_mean, self.rows, self.code_size)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={getattr(self, name)}" for name in self.sizes)
        return f"{type(self).__name__}({sizes})"

    def config(self) -> dict[str, Any]:
        """The constructor's arguments: sizes and prior."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def resize(self, **sizes: int) -> Self:
        """A memory with the same prior and other sizes, for example `resize(clusters=100)`.

        Networks trained with the one work with the other: no parameter depends on these sizes.
        """
        self._check_resizable(sizes)
        return type(self)(**(self.config() | sizes))

    def with_prior(self, **values: Scale | Choice) -> Self:
        """The same memory with parts of its prior replaced by tensors under training, which are not checked."""
        changed = copy.copy(self)
        for name, value in values.items():
            setattr(changed, name, value)
        return changed

    @property
    def scales(self) -> dict[str, Scale]:
        """noise_var, row_var, row_mean, loc_var and loc_mean, as far as it has them."""
        return {name: getattr(self, name) for name in SCALES if hasattr(self, name)}

    def with_scales(self, **scales: Scale) -> Self:
        """The same memory with some of its `scales` replaced; those it has not are passed over."""
        return self.with_prior(**{name: value for name, value in scales.items() if hasattr(self, name)})

    def _check_resizable(self, sizes: dict[str, int]) -> None:
        resizable = [name for name in self.sizes if name in ("rows", "clusters")]
        for name in sizes:
            if name not in resizable:
                raise ValueError(f"{type(self).__name__} cannot change {name!r}; it has {' and '.join(resizable)}")

    def prior(self, like: Tensor) -> Prior:
        """The prior as the engine takes it, with the dtype and device of `like`."""
        noise_var = as_tensor(self.noise_var, like)
        noise_var = noise_var.expand(torch.broadcast_shapes(noise_var.shape, (1, self.code_size)))
        row_mean, row_var = self._row_prior(like)
        locations = self._location_prior(like)
        if locations is not None:
            locations = self.split(locations[0]), self.lift(locations[1], -2)
        rows = self.split(row_mean).unsqueeze(-3), self.lift(row_var, -3).unsqueeze(-3)
        numbers = not any(isinstance(x, Tensor) and x.ndim for x in (self.row_mean, self.row_var))
        return Prior.of(
            self.split(noise_var),
            rows,
            locations,
            self.choice,
            factorised=self.factorised,
            round=numbers and not isinstance(self.row_mean, Tensor) and self.row_mean == 0 and self.layout[1] > 0,
        )

    def _row_prior(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """R_0 [.., K, C] and U_0 [.., K, K]."""
        row_mean, row_var = as_tensor(self.row_mean, like), as_tensor(self.row_var, like)
        if row_mean.ndim == 0:
            row_mean = row_mean.expand(self.rows, self.code_size)
        if row_var.ndim < 2:
            row_var = row_var.expand(self.rows).diag_embed()
        return row_mean, row_var

    def _location_prior(self, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """mu_b0 [.., 1 or H, C] and v_b0 [.., 1 or H], where there are locations."""
        return None

    @property
    def layout(self) -> tuple[int, int]:
        """(H, K) of the engine's model."""
        return self.clusters, self.rows

    def split(self, codes: Tensor) -> Tensor:
        """Codes as the engine takes them: [.., T, C], for the tree [.., G, T, C / G]."""
        return codes.unflatten(-1, (self.partitions, -1)).movedim(-2, -3) if self.partitioned else codes

    def join(self, parts: Tensor) -> Tensor:
        """Inverse of `split`."""
        return parts.movedim(-3, -2).flatten(-2) if self.partitioned else parts

    def lift(self, tensor: Tensor, dim: int) -> Tensor:
        """Make room for the partitions at `dim`, where there are any."""
        return tensor.unsqueeze(dim) if self.partitioned else tensor

    def reduce(self, tensor: Tensor, dim: int) -> Tensor:
        """Sum over the partitions at `dim`, where there are any."""
        return tensor.sum(dim) if self.partitioned else tensor

    def with_partitions(self, tensor: Tensor, dim: int) -> Tensor:
        """With a dimension of the partitions at `dim`, also where there is only one."""
        return tensor if self.partitioned else tensor.unsqueeze(dim)

    def prior_state(
        self,
        batch: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> MemoryState:
        """The empty memory: q(M) = p(M) and q(b) = p(b)."""
        like = self.split(torch.empty(*batch, 1, self.code_size, dtype=dtype, device=device))
        return self._state_of(self.prior(like), like.shape[:-2])

    def check(self, state: MemoryState) -> None:
        """Raise ValueError unless the state is one of this memory's sizes."""
        check_state(state, self.split(state.row_mean.new_empty(1, self.code_size)), *self.layout, self.located)

    def _state_of(self, prior: Prior, batch: tuple[int, ...]) -> MemoryState:
        row_cov, _ = inverse_and_logdet(prior.row_precision, "the prior precision of the rows")
        batch = torch.broadcast_shapes(batch, prior.row_mean.shape[:-3], row_cov.shape[:-3])
        sizes = (*batch, self.layout[0])
        row_mean, row_cov = (x.expand(*sizes, *x.shape[-2:]) for x in (prior.row_mean, row_cov))
        return MemoryState(row_mean, row_cov, prior.located)

    def _enter(
        self, codes: Tensor, state: MemoryState | None = None, mask: Tensor | None = None, *, start: object = None
    ) -> tuple[Tensor, Tensor | None, Prior, Tensor]:
        """Checks, then codes, mask and prior in the engine's layout, moved by the offset that comes fourth.

        The model is the same after moving codes, prior and state together. With the codes near the origin, float32
        loses nothing to the cancellation of |z|^2 against |b|^2. Codes that are written are moved by their mean; those
        that are read from a `state` by the middle of its clusters, so that no code changes what becomes of another.
        """
        check_codes(codes, self.code_size, mask)
        prior, parts = self.prior(codes), self.split(codes)
        for given in (state, start):
            if isinstance(given, MemoryState):
                check_state(given, parts, *self.layout, self.located)
        counts = None
        if mask is not None:
            mask = self.lift(mask, -2)
            counts = (mask > 0).unsqueeze(-1)
            parts = parts.where(counts, 0)  # NaN in a masked frame must not reach a sum
        if not prior.located:
            centre = torch.zeros_like(parts[..., :1, :])
        elif state is not None:
            centre = _middle(state.detach(), parts)
        elif counts is None:
            centre = parts.detach().mean(-2, keepdim=True)
        else:
            centre = parts.detach().sum(-2, keepdim=True) / counts.sum(-2, keepdim=True).clamp_min(1)
        return parts - centre, mask, prior.translate(-centre), centre


def _middle(state: MemoryState, parts: Tensor) -> Tensor:
    """Where the clusters of a memory are in the mean, the surer ones of their location counting more: one place for
    every episode of codes [.., T, C], [.., 1, C]."""
    surety = 1 / state.loc_var.unsqueeze(-1)
    places = (surety * state.loc_mean).sum(-2, keepdim=True) / surety.sum(-2, keepdim=True)
    shape = (*parts.shape[:-2], 1, parts.shape[-1])
    places = places.expand(torch.broadcast_shapes(places.shape, shape))
    return places.sum_to_size(shape) * (math.prod(shape) / places.numel())


def location_prior(mean: Scale, var: Scale, code_size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """mu_b0 [.., 1 or H, C] and v_b0 [.., 1 or H], of a number or [C] or the first, and of a number or the second."""
    loc_mean, loc_var = as_tensor(mean, like), as_tensor(var, like)
    if loc_mean.ndim < 2:
        loc_mean = loc_mean.expand(1, code_size)
    return loc_mean, loc_var if loc_var.ndim else loc_var.unsqueeze(-1)


def as_tensor(value: Scale, like: Tensor) -> Tensor:
    """A number or tensor with the dtype and device of `like`."""
    if isinstance(value, Tensor):
        return value.to(like)
    return torch.full((), value, dtype=like.dtype, device=like.device)
