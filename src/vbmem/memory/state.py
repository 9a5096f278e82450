"""What the engine passes around: frozen records of tensors, each stating the density it parametrises.

Letters: T frames, H clusters, K factor rows, J of them with the location, C code size; `..` any batch dimensions (the
tree memory's partitions are the last of them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor, nn

from vbmem.linalg import cholesky, inverse_and_logdet

if TYPE_CHECKING:
    from vbmem.memory.choice import Choice


@dataclass(frozen=True)
class TensorRecord:
    """A frozen dataclass whose tensor fields can be mapped over together."""

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        changes: dict[str, Any] = {name: function(tensor) for name, tensor in self.tensors().items()}
        return replace(self, **changes)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast every tensor, as `Tensor.to`."""
        return self.map(lambda tensor: tensor.to(*args, **kwargs))

    def detach(self) -> Self:
        return self.map(torch.Tensor.detach)


Record = TypeVar("Record", bound=TensorRecord)


@dataclass(frozen=True)
class Prior(TensorRecord):
    """p(M_h) = MN(R_0, U_0, Psi_h / s),  p(s),  p(z | s=h, w) = N(M_h'w~, Psi_h),  w~ = (w, 1); without locations, w.

    Rows and noise go together feature by feature, which keeps the rows conjugate: Psi_h is diagonal, s its mean. With
    the same noise everywhere, Psi = s I, this is the paper's p(M_h) = MN(R_0, U_0, I).
    """

    noise_var: Tensor  # [.., 1 or H, C]     diagonals of Psi
    noise_scale: Tensor  # []                  s
    row_mean: Tensor  # [.., 1 or H, J, C]  R_0
    row_precision: Tensor  # [.., 1 or H, J, J]  U_0^-1
    row_natural: Tensor  # [.., 1 or H, J, C]  U_0^-1 R_0
    row_logdet: Tensor  # [.., 1 or H]        log det U_0
    located: bool  # the last row is a location b_h
    factorised: bool  # q(M, b) = q(M) q(b), as in the paper
    round: bool  # of the factor rows R_0 = 0 and U_0 = u I, so that the prior is the same after a rotation of w
    choice: Choice  # p(s)

    @property
    def joint(self) -> bool:
        """Whether q(M, b) is one matrix, of factors and a location."""
        return self.located and not self.factorised and self.row_mean.shape[-2] > 1

    @classmethod
    def of(
        cls,
        noise_var: Tensor,
        rows: tuple[Tensor, Tensor],
        locations: tuple[Tensor, Tensor] | None,
        choice: Choice,
        *,
        factorised: bool,
        round: bool,
    ) -> Prior:
        """From means and variances of the factor rows [.., 1, K, C], [.., 1, K, K] and of the locations, if there are
        any, [.., 1 or H, C], [.., 1 or H]."""
        row_mean, row_var = rows
        precision, logdet = inverse_and_logdet(row_var, "the prior covariance of the rows (row_var)")
        if locations is not None:
            loc_mean, loc_var = locations
            row_mean = below(row_mean, loc_mean)
            precision = block_diagonal(precision, 1 / loc_var)
            logdet = logdet + loc_var.log()
        natural = precision @ row_mean
        located, scale = locations is not None, noise_var.mean()
        return cls(noise_var, scale, row_mean, precision, natural, logdet, located, factorised, round, choice)

    def of_episodes(self, group: slice, depth: int) -> Prior:
        """Of some of the episodes along the first of `depth` batch dimensions; all share what has no such dimension."""
        core = {"noise_var": 2, "row_mean": 3, "row_precision": 3, "row_natural": 3, "row_logdet": 1}
        changes: dict[str, Any] = {
            name: tensor[group]
            for name, size in core.items()
            if (tensor := getattr(self, name)).ndim == size + depth and len(tensor) > 1
        }
        return replace(self, **changes)

    def translate(self, offset: Tensor) -> Prior:
        """The prior of codes moved by `offset` [.., 1, C]."""
        if not self.located:
            return self
        row_mean = _moved(self.row_mean, offset)
        return replace(self, row_mean=row_mean, row_natural=self.row_precision @ row_mean)


@dataclass(frozen=True)
class MemoryState(TensorRecord):
    """What a memory holds after writing: q(M_h) = MN(R_h, U_h, Psi_h / s); for a single noise, MN(R_h, U_h, I).

    J rows: K factors and, where there are locations, the location as the last.
    """

    row_mean: Tensor  # [.., H, J, C]  R
    row_cov: Tensor  # [.., H, J, J]  U
    located: bool = True  # the last row is a location b_h

    @classmethod
    def of(cls, row_mean: Tensor, row_cov: Tensor, loc_mean: Tensor, loc_var: Tensor) -> MemoryState:
        """From q(M) = MN(R, U, .) of the factors, [.., H, K, C] and [.., H, K, K], and q(b) = N(mu, v .) of the
        locations, [.., H, C] and [.., H], independent of each other."""
        return cls(below(row_mean, loc_mean), block_diagonal(row_cov, loc_var))

    @property
    def rows(self) -> int:
        """K."""
        return self.row_mean.shape[-2] - self.located

    @property
    def factor_mean(self) -> Tensor:
        """Of the factor rows alone, [.., H, K, C]."""
        return self.row_mean[..., : self.rows, :]

    @property
    def factor_cov(self) -> Tensor:
        """[.., H, K, K]."""
        return self.row_cov[..., : self.rows, : self.rows]

    @property
    def loc_mean(self) -> Tensor:
        """mu_b, [.., H, C]; 0 where there are no locations."""
        return self.row_mean[..., -1, :] if self.located else torch.zeros_like(self.row_mean[..., 0, :])

    @property
    def loc_var(self) -> Tensor:
        """v_b, [.., H]; 0 where there are no locations."""
        return self.row_cov[..., -1, -1] if self.located else torch.zeros_like(self.row_cov[..., 0, 0])

    def where(self, condition: Tensor, other: MemoryState) -> MemoryState:
        """This one in the clusters where the condition [.., H] holds, else the other."""
        both = zip((self.row_mean, self.row_cov), (other.row_mean, other.row_cov), strict=True)
        row_mean, row_cov = (mine.where(condition[..., None, None], theirs) for mine, theirs in both)
        return replace(self, row_mean=row_mean, row_cov=row_cov)

    def translate(self, offset: Tensor) -> MemoryState:
        """The memory of codes moved by `offset` [.., 1, C], for every offset there is."""
        if self.located:
            row_mean = _moved(self.row_mean, offset)
        else:
            row_mean = self.row_mean.expand(
                *torch.broadcast_shapes(self.row_mean.shape[:-3], offset.shape[:-2]), -1, -1, -1
            )
        return replace(self, row_mean=row_mean, row_cov=self.row_cov.expand(*row_mean.shape[:-3], -1, -1, -1))


def joined(records: Sequence[Record]) -> Record:
    """One record of several groups of episodes, along their first dimension."""
    names = records[0].tensors()
    changes: dict[str, Any] = {name: torch.cat([record.tensors()[name] for record in records]) for name in names}
    return replace(records[0], **changes)


def below(rows: Tensor, last: Tensor) -> Tensor:
    """[.., K, C] and [.., C] -> [.., K + 1, C], leading dimensions broadcast."""
    batch = torch.broadcast_shapes(rows.shape[:-2], last.shape[:-1])
    rows, last = rows.expand(*batch, *rows.shape[-2:]), last.expand(*batch, last.shape[-1])
    return torch.cat([rows, last.unsqueeze(-2)], dim=-2)


def block_diagonal(matrix: Tensor, last: Tensor) -> Tensor:
    """[.., K, K] and [..] -> [.., K + 1, K + 1], leading dimensions broadcast."""
    corner = nn.functional.pad(last[..., None, None], (matrix.shape[-1], 0, matrix.shape[-1], 0))
    return nn.functional.pad(matrix, (0, 1, 0, 1)) + corner


def _moved(row_mean: Tensor, offset: Tensor) -> Tensor:
    return below(row_mean[..., :-1, :], row_mean[..., -1, :] + offset)


@dataclass(frozen=True)
class Addresses(TensorRecord):
    """Where the frames lie in memory: q(s_t = h) = theta_th and q(w_t | s_t = h) = N(mu_th, Sigma_h).

    A masked frame has theta = 0 in every cluster, one of weight omega has theta that sums to omega.
    """

    assignment: Tensor  # [.., T, H]     theta
    weight_mean: Tensor  # [.., T, H, K]  mu_w
    weight_cov: Tensor  # [.., H, K, K]  Sigma_w, the same for all frames


@dataclass(frozen=True)
class Statistics(TensorRecord):
    """All that a global step and the bound need of the codes. Sums over frames, so those of two parts add up."""

    count: Tensor  # [.., H]             n    = sum theta
    weight_outer: Tensor  # [.., H, J, J]       S_ww = sum theta E[w~ w~']
    weight_code: Tensor  # [.., H, J, C]       S_wz = sum theta E[w~] z'
    code_square: Tensor  # [.., 1 or H, C]     S_zz = sum theta z^2, with the codes' variance where they have one

    @classmethod
    def none(cls, state: MemoryState, prior: Prior) -> Statistics:
        """Of no frames."""
        *batch, clusters, rows, code_size = state.row_mean.shape
        squares = prior.noise_var.shape[-2], code_size
        shapes = (clusters,), (clusters, rows, rows), (clusters, rows, code_size), squares
        return cls(*(state.row_mean.new_zeros(*batch, *shape) for shape in shapes))

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Statistics) -> Statistics:
        return self + other.map(torch.neg)

    def without(self, other: Statistics) -> Statistics:
        """Less those of some of the frames, but of no cluster more than it holds.

        Frames that are addressed otherwise than they once were may ask for more. Then a cluster gives the largest share
        c <= 1 for which n - c n' >= 0 and S_ww - c S'_ww is positive semi-definite.
        """
        info = torch.finfo(self.count.dtype)
        eye = torch.eye(self.weight_outer.shape[-1], dtype=self.count.dtype, device=self.count.device)
        size = self.weight_outer.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(info.tiny / info.eps)
        factor = cholesky(self.weight_outer + info.eps * size[..., None, None] * eye, "what frames left")
        half = torch.linalg.solve_triangular(factor, other.weight_outer, upper=False)
        asked = torch.linalg.eigvalsh(torch.linalg.solve_triangular(factor, half.mT, upper=False))[..., -1]
        asked = torch.maximum(asked, other.count / self.count.clamp_min(info.tiny))
        share = 1 / asked.clamp_min(1)
        overall = (share * other.count).sum(-1, keepdim=True) / other.count.sum(-1, keepdim=True).clamp_min(info.tiny)
        squares = share if other.code_square.shape[-2] == share.shape[-1] else overall
        given = Statistics(
            share * other.count,
            share[..., None, None] * other.weight_outer,
            share[..., None, None] * other.weight_code,
            squares.unsqueeze(-1) * other.code_square,
        )
        return self - given


@dataclass(frozen=True)
class Bound(TensorRecord):
    """The evidence lower bound of an episode in nats, term by term, each of shape [..].

    For codes known exactly the first term is `log_likelihood` = E log p(z | y, Omega); for codes with a posterior
    variance it is `kl_codes` = E KL(q(z) || p(z | y, Omega)), and log p(x | z) of the decoder is still to be added.
    """

    log_likelihood: Tensor | None  # E log p(z | y, M), where codes are known exactly
    kl_codes: Tensor | None  # E KL(q(z) || p(z | y, M)), where they are not
    kl_assignments: Tensor  # KL(q(s) || p(s))
    kl_weights: Tensor  # KL(q(w | s) || p(w))
    kl_rows: Tensor  # KL(q(M) || p(M)) of the factor rows, joint ones given the locations
    kl_locations: Tensor  # KL(q(b) || p(b))

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
