"""A first look at many clusters, from few of them down to all.

Every level holds FAN times as many of the clusters as the one above, in cells around those. A code is compared with all
of the first level and then, level by level, with the clusters in the cells of the best so far. So the cost of a look
grows with the number of levels, the logarithm of that of the clusters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vbmem.memory.neighbours import Clusters, part_by_part

NEIGHBOURS = 16  # of a cluster
TOP = 2048  # clusters of the first level, at most
FAN = 4  # times as many on the next
ROOM = 2  # times as many places in a cell as there are clusters for it on average
CHOICES = 4  # cells where a cluster looks for a place


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
        self.members: list[Tensor] = []  # int64 [r, l], of each level's clusters; H where a place is free
        while self.sizes[-1] < count:
            finer = self._on_level(min(FAN * self.sizes[-1], count))
            self.members.append(self._cells(finer))
            self.sizes.append(len(finer))

    def find(self, codes: Tensor, count: int, but: Tensor | None = None) -> Tensor:
        """So many clusters for codes [n, C], the best of those met on the way down, first: int64 [n, count]; `but` [n]
        never."""
        most = min(count + 1, self.sizes[0])
        best = self.clusters.best_of(codes, self._on_level(self.sizes[0]), most)
        for size, members in zip(self.sizes, self.members, strict=False):
            lists = members[self._place(best, size)].flatten(1)
            best = self.clusters.best_different(codes, lists, most)
        if but is None:
            return best[:, :count]
        others = (best == but.unsqueeze(-1)).to(torch.uint8).argsort(dim=-1, stable=True)  # before the one that is not
        return best.gather(-1, others[:, :count])

    def neighbours(self) -> Tensor:
        """The clusters that explain each cluster's location best, without itself: int64 [H, g]."""
        own = torch.arange(len(self.locations), device=self.locations.device)
        count = min(NEIGHBOURS, len(self.locations) - 1)
        return part_by_part(lambda part: self.find(self.locations[part], count, own[part]), own)

    def _on_level(self, size: int) -> Tensor:
        """So many clusters, spread over all, int64 [size]; those of a level are on all levels below."""
        count = len(self.locations)
        return (torch.arange(size, device=self.locations.device) * count // size + self.salt) % count

    def _place(self, clusters: Tensor, size: int) -> Tensor:
        """Where clusters are on the level of that size: the inverse of `_on_level`."""
        count = len(self.locations)
        return ((clusters - self.salt) % count * size + count - 1) // count

    def _cells(self, finer: Tensor) -> Tensor:
        """The clusters [n] of the next level in cells around those of the last one so far, int64 [r, l]. Each is in
        one: its own, or the first with room of those that explain its location best."""
        size = self.sizes[-1]
        room = ROOM * -(-len(finer) // size)
        choices = part_by_part(lambda part: self.find(self.locations[finer[part]], CHOICES), finer)  # [n, c]
        coarse = self._on_level(size)
        # A row and a column more than there are cells and places, for those that have a cell and that find no room.
        members = torch.full((size + 1, room + 1), len(self.locations), device=finer.device)
        members[:-1, 0] = coarse
        has_cell = coarse[self._place(finer, size) % size] == finer
        taken = torch.ones(size + 1, dtype=torch.int64, device=finer.device)
        for choice in choices.unbind(-1):
            cell, order = self._place(choice, size).masked_fill(has_cell, size).sort(stable=True)
            begins = torch.searchsorted(cell, torch.arange(size + 1, device=cell.device))
            place = (torch.arange(len(cell), device=cell.device) - begins[cell] + taken[cell]).clamp_max(room)
            members[cell, place] = finer[order]
            has_cell = has_cell.scatter(0, order, (place < room) | (cell == size))
            taken = taken.scatter_add(0, cell, (place < room).long())
        return members[:-1, :-1].contiguous()
