"""What the engine passes around: frozen records of tensors, each stating the density it parametrises.

Letters: T frames, H clusters, K rows, C code size; `..` any batch dimensions (the tree memory's partitions are the
last of them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from vbmem.linalg import inverse_and_logdet

if TYPE_CHECKING:
    from vbmem.memory.choice import Choice


@dataclass(frozen=True)
class TensorRecord:
    """A frozen dataclass whose tensor fields can be mapped over together."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        changes = {f.name: function(value) for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}
        return replace(self, **changes)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast every tensor, as `Tensor.to`."""
        return self.map(lambda tensor: tensor.to(*args, **kwargs))

    def detach(self) -> Self:
        return self.map(torch.Tensor.detach)


@dataclass(frozen=True)
class Prior(TensorRecord):
    """p(M_h) = MN(R_0, U_0, I),  p(b_h) = N(mu_b0, v_b0 I),  p(s),  p(z | s=h, w) = N(M_h'w + b_h, sigma_z^2 I)."""

    noise_var: Tensor  # []               sigma_z^2
    row_mean: Tensor  # [.., 1, K, C]     R_0
    row_precision: Tensor  # [.., 1, K, K]     U_0^-1
    row_natural: Tensor  # [.., 1, K, C]     U_0^-1 R_0
    row_logdet: Tensor  # [.., 1]           log det U_0
    loc_mean: Tensor  # [.., 1 or H, C]   mu_b0
    loc_var: Tensor  # [.., 1 or H]      v_b0
    has_location: bool  # False: b_h = 0, and the two fields above are zero
    choice: Choice  # p(s)

    @classmethod
    def of(
        cls, noise_var: Tensor, rows: tuple[Tensor, Tensor], locations: tuple[Tensor, Tensor] | None, choice: Choice
    ) -> Prior:
        """From means and variances: R_0 and U_0 of the rows, mu_b0 and v_b0 of the locations, if there are any."""
        row_mean, row_var = rows
        precision, logdet = inverse_and_logdet(row_var, "the prior covariance of the rows (row_var)")
        nowhere = torch.zeros_like(row_mean[..., :1, :].sum(-2)), torch.zeros_like(logdet)
        loc_mean, loc_var = nowhere if locations is None else locations
        natural = precision @ row_mean
        return cls(noise_var, row_mean, precision, natural, logdet, loc_mean, loc_var, locations is not None, choice)

    def translate(self, offset: Tensor) -> Prior:
        """The prior of codes moved by `offset` [.., 1, C]."""
        return replace(self, loc_mean=self.loc_mean + offset)


@dataclass(frozen=True)
class MemoryState(TensorRecord):
    """What a memory holds after writing: q(M_h) = MN(R_h, U_h, I) and q(b_h) = N(mu_h, v_h I)."""

    row_mean: Tensor  # [.., H, K, C]  R
    row_cov: Tensor  # [.., H, K, K]  U
    loc_mean: Tensor  # [.., H, C]     mu_b
    loc_var: Tensor  # [.., H]        v_b

    def translate(self, offset: Tensor) -> MemoryState:
        """The memory of codes moved by `offset` [.., 1, C], for every offset there is."""
        loc_mean = self.loc_mean + offset
        batch = loc_mean.shape[:-2]
        row_mean, row_cov = (rows.expand(*batch, *rows.shape[-3:]) for rows in (self.row_mean, self.row_cov))
        return MemoryState(row_mean, row_cov, loc_mean, self.loc_var.expand(loc_mean.shape[:-1]))


@dataclass(frozen=True)
class Addresses(TensorRecord):
    """Where the frames lie in memory: q(s_t = h) = theta_th and q(w_t | s_t = h) = N(mu_th, Sigma_h).

    Masked frames have theta = 0 in every cluster.
    """

    assignment: Tensor  # [.., T, H]     theta
    weight_mean: Tensor  # [.., T, H, K]  mu_w
    weight_cov: Tensor  # [.., H, K, K]  Sigma_w, the same for all frames


@dataclass(frozen=True)
class Statistics(TensorRecord):
    """All that a global step and the bound need of the codes. Sums over frames, so those of two parts add up."""

    count: Tensor  # [.., H]        n    = sum theta
    code_sum: Tensor  # [.., H, C]     S_z  = sum theta z
    weight_sum: Tensor  # [.., H, K]     S_w  = sum theta w
    weight_outer: Tensor  # [.., H, K, K]  S_ww = sum theta w w' + n Sigma_w
    weight_code: Tensor  # [.., H, K, C]  S_wz = sum theta w z'
    code_square: Tensor  # [..]           S_zz = sum |z|^2, with the codes' variance where they have one

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Bound(TensorRecord):
    """The evidence lower bound of an episode in nats, term by term, each of shape [..].

    For codes known exactly the first term is `log_likelihood` = E log p(z | y, Omega); for codes with a posterior
    variance it is `kl_codes` = E KL(q(z) || p(z | y, Omega)), and log p(x | z) of the decoder is still to be added.
    """

    log_likelihood: Tensor | None
    kl_codes: Tensor | None
    kl_assignments: Tensor
    kl_weights: Tensor
    kl_rows: Tensor
    kl_locations: Tensor

    @property
    def total(self) -> Tensor:
        divergences = self.kl_assignments + self.kl_weights + self.kl_rows + self.kl_locations
        if self.log_likelihood is not None:
            return self.log_likelihood - divergences
        assert self.kl_codes is not None
        return -self.kl_codes - divergences

    def terms(self) -> dict[str, Tensor]:
        """Every term that is present, by name, and the total."""
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in present.items() if value is not None} | {"total": self.total}
