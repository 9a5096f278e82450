"""Looking for the clusters that explain a code best without looking at all of them.

Every code has a list of clusters. A search also looks at the neighbours of two of them, the best and another one, and
at one cluster anywhere, and keeps the best of all: never worse than what was there before. The neighbours of a cluster
are found in the same way, as the clusters that explain its location. So a search costs the same for any number of
clusters. Where little is known, a code is first compared with a few clusters, the anchors, about as many as the square
root of their number, and then with those in the cells of the best anchors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vbmem.memory.blocks import BITS, Projection
from vbmem.memory.threads import side_by_side

NEIGHBOURS = 16  # of a cluster
ANCHORS = 8  # times the square root of H: clusters that a new code is compared with
PROBES = 4  # anchors whose cells it is then compared with
BLOCK, DEVICE_BLOCK = 2**12, 2**15  # codes taken at a time, on the CPU and elsewhere
ROOM, DEVICE_ROOM = 2**17, 2**26  # numbers of clusters' rows gathered at a time, on the CPU and elsewhere


@dataclass(frozen=True)
class Found:
    """The best clusters of n codes, the best first."""

    clusters: Tensor  # int64 [n, m]
    met: Tensor  # [n, m, K + 1]  v, and last log p(s=h) + l_th in bits but for a constant of the code


@dataclass(frozen=True)
class Clusters:
    """The clusters of one memory, without batch dimensions, as codes meet them; see `blocks.Projection`."""

    rows: Tensor  # [H, K + 1, C + 1]  V_h, and below it e_h
    halved: Tensor | None  # [H, C]

    @classmethod
    def of(cls, projection: Projection) -> Clusters:
        return cls(projection.rows.movedim(-3, -2).contiguous(), projection.halved)

    def meet(self, codes: Tensor, lists: Tensor) -> Tensor:
        """Codes [n, C] and the clusters in their lists, int64 [n, S], or in one list [S] for all: as `Found.met`."""
        shared, listed = lists.ndim == 1, lists.shape[-1]
        _, count, wide = self.rows.shape
        size = max((ROOM if codes.is_cpu else DEVICE_ROOM) // (listed * count * (1 if shared else wide)), 32)
        met = codes.new_empty(len(codes), listed, count)
        for begin in range(0, len(codes), size):
            part = codes[begin : begin + size]
            z, here = with_one(part), met[begin : begin + size]
            if shared:
                here.copy_((z @ self.rows[lists].flatten(0, 1).mT).view_as(here))
            else:
                rows = self.rows.index_select(0, lists[begin : begin + size].flatten()).view(len(part), -1, wide)
                here.copy_(torch.bmm(rows, z.unsqueeze(-1)).view_as(here))
            if self.halved is None:
                continue
            if shared:
                here[..., -1] += part.square() @ self.halved[lists].mT
            else:
                halved = self.halved.index_select(0, lists[begin : begin + size].flatten()).view(len(part), listed, -1)
                here[..., -1] += torch.bmm(halved, part.square().unsqueeze(-1)).squeeze(-1)
        if count > 1:
            met[..., -1] += 0.5 * BITS * met[..., :-1].square().sum(-1)
        return met

    def best(self, codes: Tensor, lists: Tensor, count: int, but: Tensor | None = None) -> Found:
        """The best so many of the clusters in the lists [n, S], each once, for every code [n, C]; `but` [n] never."""
        lists = lists.sort(-1).values
        met = self.meet(codes, lists)
        out = torch.zeros_like(lists, dtype=torch.bool)
        out[:, 1:] = lists[:, 1:] == lists[:, :-1]
        if but is not None:
            out |= lists == but.unsqueeze(-1)
        return _top(lists, met, met[..., -1].masked_fill(out, -torch.inf), count)

    def search(
        self, codes: Tensor, known: Tensor, neighbours: Tensor, keys: Tensor, but: Tensor | None = None
    ) -> Found:
        """As good as the clusters that are `known` [n, m], or better: one search for every code [n, C].

        Args:
            codes: [n, C].
            known: int64 [n, m], the best first.
            neighbours: int64 [H, g], of every cluster.
            keys: random whole numbers, int64 [n].
            but: int64 [n], clusters that are not to be found.
        """
        others = max(known.shape[-1] - 1, 1)
        other = known.gather(-1, (keys % others + 1).clamp_max(known.shape[-1] - 1).unsqueeze(-1))
        near = neighbours[torch.cat([known[:, :1], other], -1)].flatten(1)
        anywhere = (keys // others % len(self.rows)).unsqueeze(-1)
        return self.best(codes, torch.cat([known, near, anywhere], -1), known.shape[-1], but)


@dataclass(frozen=True)
class Cells:
    """A first look at many clusters: some of them are anchors, and every cluster is in the cells of those that explain
    its location best."""

    clusters: Clusters
    anchors: Tensor  # int64 [r]
    members: Tensor  # int64 [r, l], the anchor itself where a cell is not full

    @classmethod
    def of(cls, clusters: Clusters, locations: Tensor, least: int) -> Cells:
        """Of clusters at these locations [H, C], for finding at `least` so many clusters, or NEIGHBOURS."""
        count = len(locations)
        few = min(max(math.isqrt(ANCHORS**2 * count), least, NEIGHBOURS + 1), count)
        anchors = torch.arange(few, device=locations.device) * count // few

        def chosen(block: slice) -> Tensor:
            return clusters.meet(locations[block], anchors)[..., -1].topk(min(2, few), dim=-1).indices

        choices = torch.cat(list(side_by_side(chosen, blocks_of(locations))))  # [H, 2]
        room = 2 * math.ceil(count / few) + 2
        cell = choices.mT.flatten()  # first choices before second ones
        order = cell.argsort(stable=True)
        counts = cell.bincount(minlength=few)
        place = torch.arange(len(cell), device=cell.device) - (counts.cumsum(0) - counts)[cell[order]]
        fits = place < room
        members = anchors.unsqueeze(-1).repeat(1, room)
        members[cell[order][fits], place[fits]] = order[fits] % count
        return cls(clusters, anchors, members)

    def find(self, codes: Tensor, count: int, known: Tensor | None = None, but: Tensor | None = None) -> Found:
        """So many clusters for codes [n, C]: the best of those in the cells and, as far as any are, of those that are
        `known`, int64 [n, m]; `but` [n] never."""
        most = min(max(PROBES, count + 1), len(self.anchors))
        best = self.clusters.meet(codes, self.anchors)[..., -1].topk(most, dim=-1).indices
        lists = [self.members[best[:, :PROBES]].flatten(1), self.anchors[best]]
        return self.clusters.best(codes, torch.cat(lists if known is None else [*lists, known], -1), count, but)

    def neighbours(self, locations: Tensor) -> Tensor:
        """The clusters that explain each cluster's location [H, C] best, without itself: int64 [H, g]."""
        own = torch.arange(len(locations), device=locations.device)
        count = min(NEIGHBOURS, len(locations) - 1)

        def found(block: slice) -> Tensor:
            return self.find(locations[block], count, but=own[block]).clusters

        return torch.cat(list(side_by_side(found, blocks_of(locations))))


def follow(clusters: Clusters, locations: Tensor, neighbours: Tensor, salt: int) -> Tensor:
    """The neighbours [H, g] of clusters that have moved to the locations [H, C]: one search."""
    own = torch.arange(len(locations), device=locations.device)
    keys = random_keys(own, salt)

    def found(block: slice) -> Tensor:
        return clusters.search(locations[block], neighbours[block], neighbours, keys[block], own[block]).clusters

    return torch.cat(list(side_by_side(found, blocks_of(locations))))


def blocks_of(codes: Tensor) -> list[slice]:
    """Codes [n, C] in parts that are taken one at a time, or side by side."""
    size = BLOCK if codes.is_cpu else DEVICE_BLOCK
    return [slice(begin, begin + size) for begin in range(0, len(codes), size)]


def with_one(codes: Tensor) -> Tensor:
    """z~ = (z, 1): [n, C] -> [n, C + 1]."""
    return torch.cat([codes, codes.new_ones(len(codes), 1)], -1)


def random_keys(numbers: Tensor, salt: int) -> Tensor:
    """A random whole number for each of the numbers, int64 [n], the same wherever they come from: [n]."""
    keys = numbers * 65537 + salt
    for factor in (-7046029254386353131, -4658895280553007687):  # odd, and half of their bits are set
        keys = keys * factor
        keys = keys ^ ((keys >> 31) & 0x1FFFFFFFF)
    return keys & 0x7FFFFFFFFFFFFFFF


def _top(lists: Tensor, met: Tensor, score: Tensor, count: int) -> Found:
    place = score.topk(count, dim=-1).indices
    return Found(lists.gather(-1, place), met.gather(-2, place.unsqueeze(-1).expand(-1, -1, met.shape[-1])))
