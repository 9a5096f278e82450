"""Looking for the clusters that explain a code best without looking at all of them.

Every code has a list of clusters. A search also looks at the neighbours of two of them, the best and another one, and
at one cluster anywhere, and keeps the best of all: never worse than what was there before. The neighbours of a cluster
are found in the same way, as the clusters that explain its location. So a search costs the same for any number of
clusters. Where little is known, a code first looks at clusters from few to all; see `levels`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from vbmem.memory.projection import BITS, Projection
from vbmem.memory.threads import side_by_side

R = TypeVar("R")
Part = TypeVar("Part")

BLOCK, DEVICE_BLOCK = 2**12, 2**17  # codes taken at a time, on the CPU and elsewhere
ROOM, DEVICE_ROOM = 2**17, 2**26  # numbers of clusters' rows gathered at a time, on the CPU and elsewhere


@dataclass(frozen=True)
class Found:
    """The best clusters of n codes, the best first."""

    clusters: Tensor  # int64 [n, m]
    met: Tensor  # [n, m, K + 1]  v, and last log p(s=h) + l_th in bits but for a constant of the code


@dataclass(frozen=True)
class Clusters:
    """The clusters of one memory, without batch dimensions, as codes meet them; see `projection.Projection`."""

    rows: Tensor  # [H + 1, K + 1, C + 1]  V_h, and below it e_h; the last stands for none, with log theta = -inf
    halved: Tensor | None  # [H + 1, C]

    @classmethod
    def of(cls, projection: Projection) -> Clusters:
        rows, halved = pad(projection.rows.movedim(-3, -2), (0, 0, 0, 0, 0, 1)), projection.halved
        rows[-1, -1, -1] = -torch.inf
        return cls(rows, None if halved is None else pad(halved, (0, 0, 0, 1)))

    def meet(self, codes: Tensor, lists: Tensor) -> Tensor:
        """Codes [n, C] and the clusters in their lists, int64 [n, S]: as `Found.met`."""
        listed, (_, count, wide) = lists.shape[-1], self.rows.shape
        met = codes.new_empty(len(codes), listed, count)
        for part in _parts(codes, listed * count * wide):
            z, here, chosen = codes[part], met[part], lists[part].flatten()
            rows = self.rows.index_select(0, chosen).view(len(z), -1, wide)
            here.copy_(torch.bmm(with_one(z).unsqueeze(1), rows.mT).view_as(here))  # much faster than rows times z~
            if self.halved is not None:
                halved = self.halved.index_select(0, chosen).view(len(z), listed, -1)
                here[..., -1] += torch.bmm(z.square().unsqueeze(1), halved.mT).squeeze(1)
        met[..., -1] += 0.5 * BITS * met[..., :-1].square().sum(-1)
        return met

    def best_of(self, codes: Tensor, chosen: Tensor, count: int) -> Tensor:
        """The best so many of the chosen clusters, int64 [S], which are the same for all codes [n, C]: [n, count]."""
        rows = self.rows[chosen].movedim(1, 0).flatten(0, 1)  # [(K + 1) S, C + 1]
        halved = None if self.halved is None else self.halved[chosen]
        found = []
        for part in _parts(codes, len(rows)):
            z = codes[part]
            *v, score = (with_one(z) @ rows.mT).view(len(z), -1, len(chosen)).unbind(1)
            for weight in v:
                score.addcmul_(weight, weight, value=0.5 * BITS)
            if halved is not None:
                score = score + z.square() @ halved.mT
            found.append(chosen[score.topk(count, dim=-1).indices])
        return torch.cat(found)

    def best_different(self, codes: Tensor, lists: Tensor, count: int) -> Tensor:
        """The best so many of the clusters in the lists, int64 [n, S], all different, for codes [n, C]: [n, count]."""
        score = self.meet(codes, lists)[..., -1]
        # A cluster that is infinitely unlikely is still one, unlike a free place in a list.
        score = score.clamp_min(torch.finfo(score.dtype).min).masked_fill(lists == len(self.rows) - 1, -torch.inf)
        return lists.gather(-1, score.topk(count, dim=-1).indices)

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
        self, codes: Tensor, known: Tensor, count: int, neighbours: Tensor, keys: Tensor, but: Tensor | None = None
    ) -> Found:
        """As good as the best of the clusters that are `known` [n, m], or better: one search for every code [n, C].

        Args:
            codes: [n, C].
            known: int64 [n, m], the best first; some may be there twice.
            count: how many to keep.
            neighbours: int64 [H, g], of every cluster.
            keys: random whole numbers, int64 [n].
            but: int64 [n], clusters that are not to be found.
        """
        others = max(known.shape[-1] - 1, 1)
        other = known.gather(-1, (keys % others + 1).clamp_max(known.shape[-1] - 1).unsqueeze(-1))
        near = neighbours[torch.cat([known[:, :1], other], -1)].flatten(1)
        anywhere = (keys // others % len(neighbours)).unsqueeze(-1)
        return self.best(codes, torch.cat([known, near, anywhere], -1), count, but)


def follow(clusters: Clusters, locations: Tensor, neighbours: Tensor, salt: int) -> Tensor:
    """The neighbours [H, g] of clusters that have moved to the locations [H, C]: one search."""
    own = torch.arange(len(locations), device=locations.device)
    keys, count = random_keys(own, salt), neighbours.shape[-1]

    def found(part: slice) -> Tensor:
        return clusters.search(locations[part], neighbours[part], count, neighbours, keys[part], own[part]).clusters

    return part_by_part(found, own)


def part_by_part(function: Callable[[slice], Tensor], items: Tensor) -> Tensor:
    """The function of all items [n], so many at a time: [n, ..]."""
    size = block_size(items)
    return torch.cat(list(each_part(function, [slice(i, i + size) for i in range(0, len(items), size)], items)))


def each_part(function: Callable[[Part], R], parts: Sequence[Part], items: Tensor) -> Iterator[R]:
    """The function of every part of the items, side by side where that helps."""
    return side_by_side(function, parts) if items.is_cpu else map(function, parts)


def block_size(items: Tensor) -> int:
    """How many of the items are taken at a time."""
    return BLOCK if items.is_cpu else DEVICE_BLOCK


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


def _parts(codes: Tensor, numbers: int) -> list[slice]:
    """Codes [n, C], each of which takes so many numbers, in parts for which there is room."""
    size = max((ROOM if codes.is_cpu else DEVICE_ROOM) // numbers, 32)
    return [slice(begin, begin + size) for begin in range(0, len(codes), size)]


def _top(lists: Tensor, met: Tensor, score: Tensor, count: int) -> Found:
    place = score.topk(count, dim=-1).indices
    return Found(lists.gather(-1, place), met.gather(-2, place.unsqueeze(-1).expand(-1, -1, met.shape[-1])))
