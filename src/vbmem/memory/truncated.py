"""Truncated assignments: a local step that compares each frame with a few clusters instead of with all H.

    q(s_t = h) = theta_th ~ p(s=h) exp(l_th)  for the candidates h in K_t,  and 0 for all others

That is one more family of q(s), so that the engine's bound holds as it is; at the optimal theta a frame adds
log sum_{h in K_t} p(s=h) exp(l_th) to it. Every iteration looks for better candidates among the neighbours of the
present ones (see `neighbours`), and keeps the best of both. The sum over K_t never falls by that, and so each local and
each global step raises the bound. With all clusters in K_t nothing differs from `engine.local_step`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from vbmem.memory.blocks import LocalPass
from vbmem.memory.choice import kl_of_assignments
from vbmem.memory.levels import Levels
from vbmem.memory.neighbours import Clusters, block_size, each_part, follow, random_keys, with_one
from vbmem.memory.projection import Moments, Projection
from vbmem.memory.starting import Start
from vbmem.memory.state import Addresses, MemoryState, Prior

LOOKS = 1, 3  # iterations, before clusters are settled, that look on levels as well as among neighbours
SEEDED = 1024  # clusters up to which the start of a write is the same as without candidates
BLOCKS = 8  # of frames, whose sums are kept until they are added up


class Candidates:
    """The clusters that every frame of an episode is compared with, kept from each iteration to the next.

    Args:
        size: m, how many for every frame, at most as many as there are clusters.
        first: the number of the first frame, where others have those before it. Random choices follow the numbers.
    """

    def __init__(self, size: int, first: int = 0) -> None:
        self.size, self.first, self.iteration = size, first, 0
        self.kept: Tensor | None = None  # int32 [.., T, m], after the first pass
        self._fresh: list[Tensor] = []  # in the first pass, [.., n, m] for one part after the other
        self._neighbours: dict[tuple[int, ...], Tensor] = {}  # int64 [H, g], of every episode

    def local_pass(self, state: MemoryState, prior: Prior, *, bounded: bool = False) -> TruncatedPass:
        """A local step with the candidates that were found before, and what is better near them."""
        if self._fresh:
            self.kept, self._fresh = torch.cat(self._fresh, -2), []
        self.iteration += 1
        return TruncatedPass(self, state, prior, bounded=bounded)

    def of_frames(self, begin: int, count: int) -> Tensor | None:
        """The place of those of so many frames, int32 [.., n, m]; none in the first pass."""
        if self.kept is None:
            return None
        if begin + count > self.kept.shape[-2]:
            raise ValueError(
                f"a pass gave more than the {self.kept.shape[-2]} frames of the first one, but with candidates every "
                "pass must give the same frames in the same order"
            )
        return self.kept[..., begin : begin + count, :]

    def add(self, found: Tensor) -> None:
        """In the first pass, those of the next frames, int32 [.., n, m]."""
        self._fresh.append(found)

    def near(self, episode: tuple[int, ...], clusters: Clusters, locations: Tensor) -> tuple[Tensor, Levels | None]:
        """The neighbours of every cluster of an episode, as the locations [H, C] are now, int64 [H, g]; and, in the
        first iterations, the levels of its clusters."""
        levels, known = None, self._neighbours.get(episode)
        if self.iteration in LOOKS:
            levels = Levels(clusters, locations, self.size, self.iteration)
            known = levels.neighbours() if known is None else known
        assert known is not None  # as of the first iteration
        found = follow(clusters, locations, known, self.iteration)
        self._neighbours[episode] = found
        return found, levels


def first_start(
    start: Start | MemoryState | None, clusters: int, candidates: Candidates | None
) -> Start | MemoryState | None:
    """Where a write starts that was told to start there: by default, many clusters with few candidates start at random
    frames, since all else compares every cluster with every frame."""
    return "data" if start is None and candidates is not None and clusters > SEEDED else start


class TruncatedPass(LocalPass):
    """A `LocalPass` in which frames meet their candidates only; without gradients.

    Args:
        candidates: of the frames; better ones are added to them.
        state: the memory, with locations.
        prior: its prior.
        bounded: keep also what the bound needs of the addresses.
    """

    def __init__(self, candidates: Candidates, state: MemoryState, prior: Prior, *, bounded: bool = False) -> None:
        super().__init__(state, prior, bounded=bounded)
        self.candidates, self._frames = candidates, 0
        self._episodes: dict[tuple[int, ...], _Episode] = {}

    @torch.no_grad()
    def _add(self, codes: Tensor, mask: Tensor | None, *, keep: bool) -> Addresses | None:
        if self._projection is None:
            self._projection = Projection.of(self.state, self.prior)
        batch = torch.broadcast_shapes(codes.shape[:-2], self._projection.rows.shape[:-3])
        known = self.candidates.of_frames(self._frames, codes.shape[-2])
        numbers = torch.arange(codes.shape[-2], device=codes.device) + (self.candidates.first + self._frames)
        self._frames += codes.shape[-2]
        found = known
        if found is None:
            found = codes.new_empty(*batch, len(numbers), self.candidates.size, dtype=torch.int32)
            self.candidates.add(found)
        addresses = self._projection.room(codes) if keep else None
        for episode in itertools.product(*map(range, batch)):
            if episode not in self._episodes:
                self._episodes[episode] = self._episode(episode, batch)
            kept = None if addresses is None else addresses.map(lambda x, e=episode: x[e])  # type: ignore[misc]
            frames = _Frames(
                _of(episode, batch, codes, 2),
                None if mask is None else _of(episode, batch, mask, 1),
                None if known is None else known[episode],
                numbers,
            )
            self._episodes[episode].add(frames, found[episode], kept)
        return addresses

    def _episode(self, episode: tuple[int, ...], batch: torch.Size) -> _Episode:
        """One of the batch, whose sums are a part of those of all."""
        assert self._projection is not None
        whole = self._projection
        if self._moments is None:
            count, clusters, wide = whole.rows.shape[-3:]
            shares = 1 if whole.halved is None else clusters
            shapes = (clusters, count, wide), (shares, wide - 1), ()
            sums, *rest = (whole.rows.new_zeros((*batch, *shape), dtype=torch.float64) for shape in shapes)
            self._moments = Moments(sums.movedim(-3, -2), *rest)
        halved = None if whole.halved is None else _of(episode, batch, whole.halved, 2)
        rows, back = _of(episode, batch, whole.rows, 3), _of(episode, batch, whole.back, 3)
        projection = Projection(rows, back, halved, _of(episode, batch, whole.log_prior, 1))
        clusters_of_it = Clusters.of(projection)
        locations = _of(episode, batch, self.state.loc_mean, 2)
        near = self.candidates.near(episode, clusters_of_it, locations)
        moments = self._moments.map(lambda tensor: tensor[episode])
        return _Episode(
            projection, clusters_of_it, *near, moments, self.candidates.size, self.candidates.iteration, self.bounded
        )


@dataclass(frozen=True)
class _Frames:
    """Of one episode."""

    codes: Tensor  # [n, C]
    mask: Tensor | None  # [n]
    known: Tensor | None  # [n, m]
    numbers: Tensor  # [n]

    def some(self, places: Tensor) -> _Frames:
        mask, known = (None if tensor is None else tensor[places] for tensor in (self.mask, self.known))
        return replace(self, codes=self.codes[places], mask=mask, known=known, numbers=self.numbers[places])

    def in_order(self) -> Tensor:
        """Places of the frames, int64 [n], those with the same best cluster together, since what they meet is then in
        the cache."""
        return self.numbers - self.numbers[:1] if self.known is None else self.known[:, 0].argsort(stable=True)


@dataclass(frozen=True)
class _Share:
    """What the frames of a block leave with u of the clusters, which are all different."""

    candidates: Tensor  # int64 [n, m]
    theta: Tensor  # [n, m]
    weights: Tensor  # [n, m, K]  v
    clusters: Tensor  # int64 [u]
    sums: Tensor  # [u, K + 1, C + 1]  S_vz~, and below it S_z~
    squares: Tensor  # [1 or u, C]
    kl_assignments: Tensor  # []


@dataclass(frozen=True)
class _Episode:
    """The truncated local step of frames that share one memory."""

    projection: Projection
    clusters: Clusters
    neighbours: Tensor  # [H, g]
    levels: Levels | None  # in the first iterations
    moments: Moments  # to which the frames are added
    size: int  # m
    salt: int  # of random choices
    bounded: bool

    def add(self, frames: _Frames, found: Tensor, kept: Addresses | None) -> None:
        """More frames; their candidates [n, m], and their addresses if they are kept, are filled in."""
        blocks = frames.in_order().split(block_size(frames.codes))
        for begin in range(0, len(blocks), BLOCKS):
            several = blocks[begin : begin + BLOCKS]
            shares = each_part(lambda places: self.share(frames.some(places)), several, frames.codes)
            for places, share in zip(several, shares, strict=True):
                found[places] = share.candidates.int()
                self._sum(share)
                if kept is not None:
                    self._fill(kept, places, share)

    def share(self, frames: _Frames) -> _Share:
        """The best candidates of the frames, theta, and the sums over them that a global step needs."""
        codes, mask = frames.codes, frames.mask
        known = None if frames.known is None else frames.known.long()
        if self.levels is not None:
            looked = self.levels.find(codes, self.size)
            known = looked if known is None else torch.cat([looked, known], -1)
        assert known is not None
        best = self.clusters.search(codes, known, self.size, self.neighbours, random_keys(frames.numbers, self.salt))
        *_, logarithm = best.met.unbind(-1)
        theta = (logarithm - logarithm.amax(-1, keepdim=True)).exp2()
        theta = theta * ((1 if mask is None else mask) / theta.sum(-1)).unsqueeze(-1)
        v = best.met[..., :-1]
        clusters, order, begins = _in_bags(best.clusters.flatten(), len(self.neighbours))
        frame = order // self.size

        def by_cluster(vectors: Tensor, weights: Tensor) -> Tensor:
            """sum_t of weights [n, m] times vectors [n, ?], for each of the clusters: [u, ?]."""
            return embedding_bag(frame, vectors, begins, mode="sum", per_sample_weights=weights.flatten()[order])

        z, squares = with_one(codes), codes.square()
        sums = [by_cluster(z, theta * weight) for weight in v.unbind(-1)] + [by_cluster(z, theta)]
        own_noise = self.projection.halved is not None
        kl = theta.new_zeros(())
        if self.bounded:
            kl = kl_of_assignments(theta.unsqueeze(-2), self.projection.log_prior[best.clusters]).sum()
        squares = by_cluster(squares, theta) if own_noise else theta.sum(-1).unsqueeze(0) @ squares
        return _Share(best.clusters, theta, v, clusters, torch.stack(sums, 1), squares, kl)

    def _sum(self, share: _Share) -> None:
        self.moments.codes.movedim(-2, -3).index_add_(0, share.clusters, share.sums.double())
        if self.projection.halved is None:
            self.moments.code_square.add_(share.squares)
        else:
            self.moments.code_square.index_add_(0, share.clusters, share.squares.double())
        self.moments.kl_assignments.add_(share.kl_assignments)

    def _fill(self, kept: Addresses, frames: Tensor, share: _Share) -> None:
        """Clusters that are not candidates have theta = 0 and, as good as any, weights of 0."""
        means = (self.projection.back[share.candidates] @ share.weights.unsqueeze(-1)).squeeze(-1)
        place = share.candidates.unsqueeze(-1).expand_as(means)
        kept.assignment[frames] = torch.zeros_like(kept.assignment[frames]).scatter(-1, share.candidates, share.theta)
        kept.weight_mean[frames] = torch.zeros_like(kept.weight_mean[frames]).scatter(-2, place, means)


def _in_bags(clusters: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of clusters [n] of so many: which there are, each once, [u]; an order in which the same follow each other, [n];
    and where in it each begins, [u]. On a device all are there, many with nothing, so that nothing waits for it."""
    ordered, order = clusters.sort(stable=True)
    if clusters.is_cpu:
        present, counts = ordered.unique_consecutive(return_counts=True)
        return present, order, counts.cumsum(0) - counts
    present = torch.arange(count, device=clusters.device)
    return present, order, torch.searchsorted(ordered, present)


def _of(episode: tuple[int, ...], batch: torch.Size, tensor: Tensor, dims: int) -> Tensor:
    """Of a tensor with so many dimensions after those of the batch, which it may lack."""
    return tensor.expand(*batch, *tensor.shape[tensor.ndim - dims :])[episode]
