"""Where in its clusters a new code lies: like the frames that were written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from vbmem.linalg import cholesky
from vbmem.memory.checks import check_finite
from vbmem.memory.engine import draw, of_each
from vbmem.memory.seeding import take
from vbmem.memory.state import Addresses, MemoryState, Statistics, TensorRecord

MOST_KEPT = 64  # frames of a cluster whose weights are kept
KERNEL = 0.5  # width of the kernels about them, of that which is best for normal data


@dataclass(frozen=True)
class KeptWeights(TensorRecord):
    """Weights of written frames, each with the cluster it likeliest belongs to; of many, some drawn at random.

    A memory's rows say in which directions the frames of a cluster differ, not where in them they lie. Few frames lie
    in few places, and what is drawn between these is a blend of them.
    """

    weights: Tensor  # [.., H, M, K]  E[w | s=h] of M frames or fewer, then zeros
    count: Tensor  # [.., H]        how many these are

    @classmethod
    def of(cls, addresses: Addresses) -> KeptWeights:
        """Those of frames with these addresses; of more than `MOST_KEPT` in a cluster, that many."""
        clusters, weights = draw(addresses, sample=False)  # [.., T], [.., T, K]
        names = torch.arange(addresses.assignment.shape[-1], device=clusters.device)
        mine = clusters.unsqueeze(-2) == names.unsqueeze(-1)  # [.., H, T]
        return cls._chosen(weights.unsqueeze(-3), mine.to(weights), mine.sum(-1))

    def updated(self, new: KeptWeights, mine: Tensor, theirs: Tensor) -> KeptWeights:
        """These and new ones, of clusters that hold so many frames [.., H] of either; as many of them as these are."""
        shares = [
            (kept._present * (frames / kept.count.clamp_min(1)).unsqueeze(-1))
            for kept, frames in ((self, mine), (new, theirs))
        ]
        both = torch.cat([self.weights, new.weights], -2)
        return self._chosen(both, torch.cat(shares, -1), (mine + theirs).ceil())

    def without(self, gone: KeptWeights) -> KeptWeights:
        """None of clusters that some frames left: which are whose is not known."""
        return replace(self, count=self.count.where(gone.count == 0, 0.0))._cleared()

    @staticmethod
    def joined(parts: list[KeptWeights]) -> KeptWeights:
        """Of clusters side by side."""
        most = max(part.weights.shape[-2] for part in parts)
        padded = [F.pad(p.weights, (0, 0, 0, most - p.weights.shape[-2])) for p in parts]
        return KeptWeights(torch.cat(padded, -3), torch.cat([part.count for part in parts], -1))

    def only(self, clusters: Tensor) -> KeptWeights:
        """Of these clusters, int64 [.., n]."""
        return self.map(lambda tensor: of_each(tensor, clusters))

    def check(self, state: MemoryState) -> None:
        """Raise ValueError unless they are those of a memory with this state."""
        *_, most, _ = 0, 0, *self.weights.shape
        shapes = {"weights": (*state.loc_var.shape, max(1, most), state.rows), "count": tuple(state.loc_var.shape)}
        for name, shape in shapes.items():
            tensor = check_finite(f"weights.{name}", getattr(self, name))
            if tuple(tensor.shape) != shape:
                raise ValueError(f"weights.{name} must have the shape {list(shape)}, got {list(tensor.shape)}")
        if not bool(((self.count >= 0) & (self.count <= most) & (self.count == self.count.round())).all()):
            raise ValueError(f"weights.count must hold whole numbers from 0 to {most}, got {self.count.tolist()}")

    @property
    def _present(self) -> Tensor:
        """1 for a frame, 0 for what only fills up, [.., H, M]."""
        places = torch.arange(self.weights.shape[-2], device=self.count.device)
        return (places < self.count.unsqueeze(-1)).to(self.weights)

    @classmethod
    def _chosen(cls, weights: Tensor, shares: Tensor, most: Tensor) -> KeptWeights:
        """Of weights [.., 1 or H, n, K], as many as there may be [.., H], likelier those with large shares [.., H, n],
        and none without a share; always the same."""
        generator = torch.Generator(shares.device).manual_seed(0)
        waits = torch.empty_like(shares).exponential_(generator=generator) / shares  # inf where there is none
        count = torch.minimum((shares > 0).sum(-1), most).clamp_max(MOST_KEPT)
        chosen = waits.topk(max(1, int(count.max())), largest=False).indices  # [.., H, M]
        return cls(take(weights.expand(*shares.shape, -1), chosen), count.to(weights))._cleared()

    def _cleared(self) -> KeptWeights:
        """With nothing behind the weights that count."""
        return replace(self, weights=self.weights * self._present.unsqueeze(-1))


def draw_weights(
    clusters: Tensor,
    sums: Statistics,
    state: MemoryState,
    kept: KeptWeights | None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Weights w of codes of these clusters, [.., n] -> [.., n, K], with mean and covariance of those of the N frames
    that cluster h holds,

        m = S_w / (N + a),   V = (S_ww + a I) / (N + a) - m m',   a = 1 / H

    with q(w)'s own uncertainty, and of one more frame in all that has the prior's, N(0, I). That is what a cluster
    without frames draws from. Of few frames the weights are far from it: a single one lies where its weights are, and
    N(0, I) hardly ever comes there. Without locations S_w is not known, and m = 0.

    Where weights of n of the frames are kept, they lie about one of those, by the smoothed bootstrap (Silverman and
    Young 1987), which has about that mean and covariance as well:

        w = m + (w_t - m + h e) / (1 + h^2)^1/2,   e ~ N(0, V),   h = c (4 / ((K + 2) n))^(1 / (K + 4))

    with h by Silverman's rule for normal data, and c = `KERNEL` since these are not. Otherwise w ~ N(m, V).

    Args:
        clusters: int64 [.., n].
        sums: of the frames, [.., H, ...].
        state: the memory they were addressed with.
        kept: weights of some of them.
        generator: of the draws.
    """
    rows, extra = state.rows, 1 / sums.count.shape[-1]
    count = (sums.count + extra)[..., None, None]
    outer = sums.weight_outer / count
    second = outer[..., :rows, :rows] + extra / count * torch.eye(rows, dtype=outer.dtype, device=outer.device)
    mean = outer[..., :rows, rows:].sum(-1)  # S_w is beside S_ww, or nothing
    factor = cholesky(second - mean.unsqueeze(-1) * mean.unsqueeze(-2), "the covariance of written weights")
    noise = torch.randn(*clusters.shape, rows, 1, generator=generator, dtype=outer.dtype, device=outer.device)
    about, spread = of_each(mean, clusters), (of_each(factor, clusters) @ noise).squeeze(-1)
    if kept is None:
        return (about + spread).to(state.row_mean)
    held = of_each(kept.count, clusters).to(outer)
    place = (torch.rand(held.shape, generator=generator, dtype=held.dtype, device=held.device) * held).long()
    frames = take(kept.weights.flatten(-3, -2), clusters * kept.weights.shape[-2] + place).to(outer)
    width = (KERNEL * (4 / ((rows + 2) * held.clamp_min(1))) ** (1 / (rows + 4))).unsqueeze(-1)
    near = (frames - about + width * spread) / (1 + width.square()).sqrt()
    return (about + torch.where(held.unsqueeze(-1) > 0, near, spread)).to(state.row_mean)
