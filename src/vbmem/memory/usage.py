"""Where in its clusters a new code lies: like the frames that were written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vbmem.linalg import cholesky
from vbmem.memory.checks import check_finite
from vbmem.memory.engine import draw, of_each
from vbmem.memory.seeding import take
from vbmem.memory.state import Addresses, MemoryState, Statistics, TensorRecord
from vbmem.memory.threads import one_thread

MOST_KEPT = 64  # frames of a cluster whose weights are kept
KERNEL = 0.5  # width of the kernels about them, of that which is best for normal data
UNKNOWN = -1  # instead of its cluster, where a frame's weights are not to be used any more


@dataclass(frozen=True)
class KeptWeights(TensorRecord):
    """Weights of written frames, each in the cluster it likeliest belongs to; of many, some drawn at random.

    A memory's rows say in which directions the frames of a cluster differ, not where in them they lie. Few frames lie
    in few places, and what is drawn between these is a blend of them. Of a tree they also say which parts of a code
    have been seen together.
    """

    weights: Tensor  # [.., N, K]  E[w | s] of N frames
    clusters: Tensor  # int64 [.., N]

    @classmethod
    def of(cls, addresses: Addresses) -> KeptWeights:
        """Those of frames with these addresses; of more than `MOST_KEPT` in a cluster, that many."""
        clusters, weights = draw(addresses, sample=False)
        most = torch.full_like(addresses.assignment[..., 0, :], MOST_KEPT)
        return cls(weights, clusters)._some(torch.ones_like(weights[..., 0]), most)

    def updated(self, new: KeptWeights, mine: Tensor, theirs: Tensor) -> KeptWeights:
        """These and new ones, of clusters that hold so many frames [.., H] of either; as many of them as these are."""
        shares = [
            kept._of_each(frames / kept.counts(frames.shape[-1]).clamp_min(1))
            for kept, frames in ((self, mine), (new, theirs))
        ]
        return self.joined(new)._some(torch.cat(shares, -1), (mine + theirs).ceil().clamp_max(MOST_KEPT))

    def without(self, gone: KeptWeights, clusters: int) -> KeptWeights:
        """None of those of so many clusters that some frames left: which are whose is not known."""
        stays = self._of_each(gone.counts(clusters)) == 0
        return replace(self, clusters=self.clusters.where(stays, UNKNOWN))._known()

    def joined(self, other: KeptWeights) -> KeptWeights:
        """Those of both."""
        return KeptWeights(torch.cat([self.weights, other.weights], -2), torch.cat([self.clusters, other.clusters], -1))

    def renamed(self, names: Tensor) -> KeptWeights:
        """With cluster h called names[h], int64 [.., H]; -1 for one that is gone."""
        named = self._of_each(names).where(self.clusters != UNKNOWN, UNKNOWN)
        return replace(self, clusters=named)._known()

    def counts(self, clusters: int) -> Tensor:
        """How many there are in each of so many clusters, [.., H]."""
        return self._members(self.clusters, clusters).sum(-2)

    def near(self, clusters: Tensor, levels: Tensor) -> Tensor:
        """A frame for every new code, of those in its cluster, by levels in [0, 1): [.., n] -> int64 [.., n].

        Of a tree one frame for all partitions, where there is one that is in just these clusters.
        """
        mine, wanted, level = (x.reshape(-1, x.shape[-1]) for x in (self.clusters, clusters, levels))  # [G, N or n]
        paths = torch.cat([mine, wanted], -1).unique(dim=-1, return_inverse=True)[1]
        its_path, wanted_path = paths.tensor_split((mine.shape[-1],))
        together, there = _one_of(its_path, wanted_path, level[0])
        apart = [_one_of(*each)[0] for each in zip(mine, wanted, level, strict=True)]
        return torch.stack([together.where(there, frames) for frames in apart]).reshape(clusters.shape)

    def check(self, state: MemoryState) -> None:
        """Raise ValueError unless they are those of a memory with this state."""
        *partitions, clusters = state.loc_var.shape
        frames = self.clusters.shape[-1:] or (1,)
        shapes = {"clusters": (*partitions, *frames), "weights": (*partitions, *frames, state.rows)}
        for name, shape in shapes.items():
            if tuple(found := getattr(self, name).shape) != shape:
                raise ValueError(f"weights.{name} must have the shape {list(shape)}, got {list(found)}")
        check_finite("weights.weights", self.weights)
        if self.clusters.dtype != torch.int64 or bool(((self.clusters < UNKNOWN) | (self.clusters >= clusters)).any()):
            raise ValueError(f"weights.clusters must hold whole numbers from {UNKNOWN} to {clusters - 1}")

    @staticmethod
    def _members(clusters: Tensor, count: int) -> Tensor:
        """1 where a frame is in a cluster: [.., N] -> int64 [.., N, H]."""
        return one_hot(clusters - UNKNOWN, count - UNKNOWN)[..., -UNKNOWN:]

    def _of_each(self, per_cluster: Tensor) -> Tensor:
        """What the cluster of every frame has, [.., H] -> [.., N]; of any where it is unknown."""
        return of_each(per_cluster, self.clusters.clamp_min(0))

    def _known(self) -> KeptWeights:
        """No weights where the cluster is unknown, nor frames of which all are."""
        known = self.clusters != UNKNOWN
        return replace(self, weights=self.weights.where(known.unsqueeze(-1), 0.0))._frames(known)

    def _frames(self, chosen: Tensor) -> KeptWeights:
        """Those chosen in any partition, [.., N]."""
        frames = chosen.reshape(-1, chosen.shape[-1]).any(0).nonzero().squeeze(-1)
        return self.map(lambda tensor: tensor.index_select(self.clusters.ndim - 1, frames))

    def _some(self, shares: Tensor, most: Tensor) -> KeptWeights:
        """As many of a cluster as there may be [.., H], likelier those with large shares [.., N], and none without a
        share; always the same."""
        waits = shares.new_empty(shares.shape[-1])
        waits = waits.exponential_(generator=torch.Generator(waits.device).manual_seed(0)) / shares  # inf without one
        order = waits.argsort(-1)
        members = self._members(self.clusters.gather(-1, order), most.shape[-1])
        first = ((members.cumsum(-2) <= most.unsqueeze(-2)) & members.bool()).any(-1)  # of its cluster
        return self._frames(first.scatter(-1, order, first) & waits.isfinite())


@one_thread()
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
    if kept is None or not kept.clusters.shape[-1]:
        return (about + spread).to(state.row_mean)
    levels = torch.rand(clusters.shape, generator=generator, dtype=outer.dtype, device=outer.device)
    frames = take(kept.weights, kept.near(clusters, levels)).to(outer)
    held = of_each(kept.counts(sums.count.shape[-1]), clusters)
    width = (KERNEL * (4 / ((rows + 2) * held.clamp_min(1))) ** (1 / (rows + 4))).unsqueeze(-1).to(outer)
    near = (frames - about + width * spread) / (1 + width.square()).sqrt()
    return (about + torch.where(held.unsqueeze(-1) > 0, near, spread)).to(state.row_mean)


def _one_of(groups: Tensor, wanted: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """One at random of those in the wanted group, by a level in [0, 1): int64 [N] and [n] -> which [n], and if any."""
    order = groups.argsort()
    first, last = (torch.searchsorted(groups[order], wanted.contiguous(), right=right) for right in (False, True))
    place = first + (levels * (last - first)).long()
    return order[place.clamp_max(len(order) - 1)], last > first
