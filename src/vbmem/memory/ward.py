"""Ward clustering of short episodes: batched, on the device of the codes, the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vbmem.memory.seeding import centred, member_means, take

ROUNDS = 6  # of mergers for every bit of the number of frames; real and random codes needed up to 4.2
NARROW = 64  # slots, below which it does not pay to drop the empty ones


class Merging(NamedTuple):
    """A Ward clustering under way: slots that each hold a cluster, until another takes its frames."""

    distance: Tensor  # [.., n, n] squared, between the means of clusters; inf to itself and to slots that hold none
    size: Tensor  # [.., n]
    into: Tensor  # [.., n] the slot that took the frames of this one, always a lower one; itself where none did
    cost: Tensor  # [.., n] what that added to the sum of squares within clusters; inf where none did
    least: Tensor  # [.., 1] the least cost there was before the last round; no later merger costs less

    @classmethod
    def begin(cls, distance: Tensor, size: Tensor) -> Merging:
        slot = torch.arange(size.shape[-1], device=size.device)
        none = torch.full_like(size, torch.inf)
        return cls(distance, size, slot.expand_as(size), none, none[..., :1])


def merge_neighbours(state: Merging, apart: Tensor) -> Merging:
    """One round: merge all pairs of clusters that are each other's nearest by n_i n_j / (n_i + n_j) |c_i - c_j|^2.

    Two that merge come no nearer to a third than the nearer of them was, so such a pair would merge sooner or later
    anyway. Of those equally near, to rounding, a cluster takes the one least `apart` [n, n], which is i xor j: it has
    no other that far apart, so that choices are mutual, and copies pair up all at once.
    """
    distance, size, into, cost, _ = state
    slot = torch.arange(size.shape[-1], device=size.device)
    largest, rounding = torch.finfo(size.dtype).max, 8 * torch.finfo(size.dtype).eps
    inverse = 1 / size
    costs = (inverse.unsqueeze(-1) + inverse.unsqueeze(-2)).reciprocal_().mul_(distance)
    lowest = costs.amin(-1)
    near = (lowest * (1 + rounding)).clamp_max(largest).unsqueeze(-1)
    excess = costs.sub_(near).clamp_min_(0).mul_(largest).mul_(largest)  # 0 or huge
    nearest = excess.add_(apart).amin(-1)
    other = slot ^ nearest.where(nearest < 2 * len(slot), 0.0).long()
    cheapest = lowest.argmin(-1, keepdim=True)  # mutual even if rounding has it otherwise: no round is idle
    other = other.scatter(-1, other.gather(-1, cheapest), cheapest)
    other = other.where(other.gather(-1, other) == slot, slot)

    # |c - x|^2 = a |c_i - x|^2 + b |c_j - x|^2 - a b |c_i - c_j|^2 for c = a c_i + b c_j; alone, a = b = 1/2.
    paired, taken = other != slot, other < slot
    theirs = size.gather(-1, other)
    joint = size + theirs
    a, b = size / joint, theirs / joint
    ab = (lowest / joint).where(paired, 0.0).masked_fill(taken, -torch.inf)
    rows = _rows(distance, other).mul_(b.unsqueeze(-1))
    distance = (distance * a.unsqueeze(-1)).add_(rows).sub_(ab.unsqueeze(-1))
    columns = distance.gather(-1, other.unsqueeze(-2).expand_as(distance)).mul_(b.unsqueeze(-2))
    distance = distance.mul_(a.unsqueeze(-2)).add_(columns).sub_(ab.unsqueeze(-2))
    least = lowest.amin(-1, keepdim=True)
    return Merging(distance, joint.where(paired, size), other.where(taken, into), lowest.where(taken, cost), least)


@torch.no_grad()
def ward_means(
    codes: Tensor,
    count: int,
    mask: Tensor | None = None,
    most: Tensor | None = None,
    merge_neighbours: Callable[[Merging, Tensor], Merging] = merge_neighbours,
) -> Tensor:
    """The means of a Ward clustering (Ward 1963) cut at `count` clusters, [.., T, C] -> [.., count, C].

    In the order of the clusters' first frames. Where there are fewer frames, or at `most` [.., 1] clusters are wanted
    of an episode, they are repeated in turn. `merge_neighbours` may be compiled.
    """
    frames, _, mask = centred(codes, mask)
    counts = torch.ones_like(codes[..., 0], dtype=torch.bool) if mask is None else mask
    slot = torch.arange(codes.shape[-2], device=codes.device)
    products = frames @ frames.mT
    squares = products.diagonal(dim1=-2, dim2=-1)
    distance = (squares.unsqueeze(-1) + squares.unsqueeze(-2)).sub_(products, alpha=2).clamp_min_(0)
    others = counts.unsqueeze(-1) & counts.unsqueeze(-2) & (slot.unsqueeze(-1) != slot)
    wanted = count if most is None else most.clamp_max(count)
    surplus = counts.sum(-1, keepdim=True) - wanted  # [.., 1] clusters to merge into others
    into, cost = _tree(distance.masked_fill_(~others, torch.inf), surplus, len(slot) - count, merge_neighbours)

    # Cut: only the cheapest mergers count. Then follow each frame from slot to slot, in strides that double.
    order = cost.argsort(dim=-1, stable=True)
    cluster = torch.empty_like(order).scatter(-1, order, into.gather(-1, order).where(slot < surplus, order))
    for _ in range(len(slot).bit_length()):
        cluster = cluster.gather(-1, cluster)
    first = (cluster == slot) & counts
    number = (first.cumsum(-1) - 1).gather(-1, cluster)
    turn = torch.arange(count, device=codes.device) % first.sum(-1, keepdim=True).clamp_min(1)
    return member_means(codes, number, turn, mask)[0]


def _tree(
    distance: Tensor, surplus: Tensor, most: int, merge_neighbours: Callable[[Merging, Tensor], Merging]
) -> tuple[Tensor, Tensor]:
    """Into which frame's slot each frame's went, and at what cost, [.., T]: right for the `surplus` cheapest mergers.

    Some log T rounds do it where one pair at a time would take `most`. On the CPU they end when the cut is certain;
    elsewhere, where looking would mean waiting, their number is fixed, and only contrived codes need more, such as a
    hundred on a line with ever larger gaps. Of those, some clusters then stay unmerged.
    """
    length = distance.shape[-1]
    slot = torch.arange(length, device=distance.device)
    apart = (slot.unsqueeze(-1) ^ slot).to(distance.dtype)
    state = Merging.begin(distance, torch.ones_like(distance[..., 0]))
    frame, into, cost = state.into, state.into, state.cost  # frame [.., n] of a slot: the slots become fewer
    look = _may_look(distance)
    for _ in range(most if look else min(most, ROUNDS * length.bit_length())):
        state = merge_neighbours(state, apart)
        if not look:
            continue
        if bool((_cheaper(cost, state) + _cheaper(state.cost, state) >= surplus).all()):
            break
        held = state.cost == torch.inf
        if len(apart) > NARROW and (left := int(held.sum(-1).max())) <= len(apart) // 2:
            into, cost = _record(state, frame, into, cost)
            keep = held.int().argsort(dim=-1, descending=True, stable=True)[..., :left]
            distance = take(state.distance, keep).gather(-1, keep.unsqueeze(-2).expand(*keep.shape, left))
            state = Merging.begin(distance, state.size.gather(-1, keep))
            frame, apart = frame.gather(-1, keep), apart[:left, :left]
    return _record(state, frame, into, cost)


def _may_look(tensor: Tensor) -> bool:
    """Whether Python can see values without waiting for a device."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _cheaper(cost: Tensor, state: Merging) -> Tensor:
    """How many mergers cost no more than any there may still be, [.., 1]."""
    return (cost <= state.least).sum(-1, keepdim=True)


def _record(state: Merging, frame: Tensor, into: Tensor, cost: Tensor) -> tuple[Tensor, Tensor]:
    """`into` and `cost` [.., T] of all frames, with the mergers among the slots of those `frame` [.., n] names."""
    merged = frame.gather(-1, state.into).where(state.cost < torch.inf, into.gather(-1, frame))
    return into.scatter(-1, frame, merged), cost.scatter(-1, frame, state.cost.minimum(cost.gather(-1, frame)))


def _rows(matrix: Tensor, index: Tensor) -> Tensor:
    """matrix [.., T, T], index [.., T] -> the rows of each matrix in that order; quicker than `gather` on the CPU."""
    length = index.shape[-1]
    offset = length * torch.arange(index.shape[:-1].numel(), device=index.device)
    index = (index.reshape(-1, length) + offset.unsqueeze(-1)).flatten()
    return matrix.reshape(-1, length).index_select(0, index).view_as(matrix)
