"""A first look at many clusters, from few of them down to all.

Every level holds FAN times as many of the clusters as the one above, in cells around those. A code is compared with all
of the first level and then, level by level, with the clusters in the cells of the best so far. So a look costs as much
more for a hundred thousand clusters than for a thousand as there are more levels: two or three times.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vbmem.memory.neighbours import Clusters, Found, in_parts

NEIGHBOURS = 16  # of a cluster
TOP = 2048  # clusters of the first level, at most
FAN = 4  # times as many on the next
PROBES = 4  # clusters whose cells are looked at
ROOM = 4  # for how many times the clusters of a cell on average
CHOICES = 4  # cells that a cluster may be in, as long as they have room


class Levels:
    """All clusters of a memory in levels, each a part of the next, as their locations are now.

    Args:
        clusters: all of them.
        locations: where they are, [H, C].
        least: how many are to be found at most, if more than NEIGHBOURS.
        salt: which clusters are on the levels; what one look misses another may see.
    """

    def __init__(self, clusters: Clusters, locations: Tensor, least: int, salt: int) -> None:
        self.clusters, self.locations, self.salt = clusters, locations, salt
        count = first = len(locations)
        while first > TOP:
            first = -(-first // FAN)
        self.sizes = [min(max(first, least + 1, NEIGHBOURS + 1), count)]
        self.members: list[Tensor] = []  # int64 [r, l], of each level's clusters; themselves where a cell is not full
        while self.sizes[-1] < count:
            finer = self._on_level(min(FAN * self.sizes[-1], count))
            self.members.append(self._cells(finer))
            self.sizes.append(len(finer))

    def find(self, codes: Tensor, count: int, known: Tensor | None = None, but: Tensor | None = None) -> Found:
        """So many clusters for codes [n, C]: the best of those met on the way down and, as far as any are, of those
        that are `known`, int64 [n, m]; `but` [n] never."""
        top = self._on_level(self.sizes[0])
        most = min(max(PROBES, count + 1), len(top))
        best = self.clusters.best_of(codes, top, most)
        for size, members in zip(self.sizes, self.members, strict=False):
            best = torch.cat([members[self._place(best[:, :PROBES], size)].flatten(1), best], -1)
            if members is not self.members[-1]:
                best = self.clusters.best(codes, best, most).clusters
        return self.clusters.best(codes, best if known is None else torch.cat([best, known], -1), count, but)

    def neighbours(self, known: Tensor | None) -> Tensor:
        """The clusters that explain each cluster's location best, without itself: int64 [H, g], the best of those found
        and of those that are `known` [H, g]."""
        own = torch.arange(len(self.locations), device=self.locations.device)
        count = min(NEIGHBOURS, len(self.locations) - 1)

        def found(part: slice) -> Tensor:
            return self.find(self.locations[part], count, None if known is None else known[part], own[part]).clusters

        return in_parts(found, own)

    def _on_level(self, size: int) -> Tensor:
        """So many clusters, spread over all, int64 [size]; those of a level are on all levels below."""
        count = len(self.locations)
        return (torch.arange(size, device=self.locations.device) * count // size + self.salt) % count

    def _place(self, clusters: Tensor, size: int) -> Tensor:
        """Where clusters are on the level of that size: the inverse of `_on_level`."""
        count = len(self.locations)
        return ((clusters - self.salt) % count * size + count - 1) // count

    def _cells(self, finer: Tensor) -> Tensor:
        """The clusters [n] of the next level in cells around those of the last one so far, int64 [r, l]. Each chooses
        those that explain its location best, and first choices go before others until a cell is full."""
        choices = in_parts(lambda part: self.find(self.locations[finer[part]], CHOICES).clusters, finer)  # [n, c]
        size = self.sizes[-1]
        room = ROOM * -(-len(finer) // size)
        cell, order = self._place(choices.mT.flatten(), size).sort(stable=True)
        begins = torch.searchsorted(cell, torch.arange(size, device=cell.device))
        place = (torch.arange(len(cell), device=cell.device) - begins[cell]).clamp_max(room)
        members = self._on_level(size).unsqueeze(-1).repeat(1, room + 1)
        members[cell, place] = finer[order % len(finer)]
        return members[:, :-1]  # in the last place are those for whom there is no room
