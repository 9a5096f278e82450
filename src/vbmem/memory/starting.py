"""Where a write starts."""

from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from vbmem.linalg import may_wait
from vbmem.memory.reading import Memory
from vbmem.memory.seeding import (
    claim,
    greedy_seed,
    kmeans_means,
    kmeans_plus_plus,
    lloyd_step,
    next_seed,
    random_frames,
    take,
)
from vbmem.memory.state import MemoryState, Prior
from vbmem.memory.threads import block_threads
from vbmem.memory.ward import ward_means

Start = Literal["prior", "random", "data", "kmeans++", "kmeans", "ward"]

WARD_FRAMES = 256  # frames up to which the start of a write is a Ward clustering
FRAMES_EACH = 2  # frames for every cluster with factors that starts at their mean


class StartingMemory(Memory):
    """A memory that is written from a start."""

    default_start: ClassVar[Start]
    _next_seed = staticmethod(next_seed)
    _greedy_seed = staticmethod(greedy_seed)
    _lloyd_step = staticmethod(lloyd_step)

    @block_threads
    def first_state(
        self,
        codes: Tensor,
        start: Start | None = None,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> MemoryState:
        """Where a write of codes [.., T, C] starts; see `write`."""
        parts, mask, prior, centre = self._enter(codes, mask=mask)
        return self.start_state(parts, prior, centre, start, mask, generator).translate(centre)

    # How uncertain and how spread out a write starts: the reference implementation's constants, in units of the prior.
    def _row_spread(self, part_size: int) -> float:
        return 0.05

    def _first_widths(self, empty: MemoryState) -> tuple[Tensor, Tensor]:
        return empty.factor_cov, empty.loc_var

    def start_state(
        self,
        codes: Tensor,
        prior: Prior,
        centre: Tensor,
        start: Start | MemoryState | None,
        mask: Tensor | None,
        generator: torch.Generator | None,
        starts: int = 1,
    ) -> MemoryState:
        """The first state, for codes in the engine's layout [.., T, C]; of several starts, the first dimension."""
        if isinstance(start, MemoryState):
            return start.translate(-centre)
        if start is None:
            start = self._default_start(codes, prior)
        if start not in get_args(Start):
            raise ValueError(f"start must be one of {', '.join(get_args(Start))} or a MemoryState, got {start!r}")
        empty = self._state_of(prior, codes.shape[:-2])
        if start == "prior":
            return empty

        def noise(like: Tensor) -> Tensor:
            return torch.empty_like(like).normal_(generator=generator)

        spread = self._row_spread(codes.shape[-1]) * empty.factor_cov.diagonal(dim1=-2, dim2=-1).sqrt()
        row_mean = empty.factor_mean + spread.unsqueeze(-1) * noise(empty.factor_mean)
        loc_mean = empty.loc_mean
        row_cov, loc_var = self._first_widths(empty)
        if start == "random":
            if prior.located:
                loc_mean = loc_mean + empty.loc_var.sqrt().unsqueeze(-1) * noise(loc_mean)
        else:
            unit = prior.noise_var.mean(-2, keepdim=True).sqrt().detach()  # features count as their noise allows
            frames = (codes.detach() / unit).expand(*empty.row_mean.shape[:-3], *codes.shape[-2:])
            counts = None if mask is None else (mask > 0).expand(frames.shape[:-1])
            count = loc_mean.shape[-2] if prior.located else row_mean.shape[-2]
            most = None
            if start in ("ward", "kmeans") and self.layout[1] and prior.located:
                # Clusters with factors want several frames each; those beyond stay at the prior until they are needed.
                count = min(count, max(1, codes.shape[-2] // FRAMES_EACH))
                if counts is not None:
                    most = (counts.sum(-1, keepdim=True) // FRAMES_EACH).clamp_min(1)  # of each episode
            chosen = self._choose(start, frames, count, counts, most, generator, starts) * unit
            if prior.located:
                wanted = None if most is None else torch.arange(count, device=codes.device) < most
                cluster = _cluster_of_each(chosen, wanted, empty, prior, unit)
                if wanted is not None:
                    chosen = chosen.where(wanted.unsqueeze(-1), take(loc_mean, cluster))
                loc_mean = loc_mean.scatter(-2, cluster.unsqueeze(-1).expand_as(chosen), chosen)
            else:
                row_mean = chosen.unsqueeze(-3)
        if not prior.located:
            return MemoryState(row_mean, row_cov, located=False)
        return MemoryState.of(row_mean, row_cov, loc_mean, loc_var)

    def _default_start(self, codes: Tensor, prior: Prior) -> Start:
        if self.default_start != "kmeans++" or prior.factorised:
            return self.default_start
        return "ward" if codes.shape[-2] <= WARD_FRAMES and not is_training(codes, prior) else "kmeans"

    def _choose(
        self,
        start: Start,
        frames: Tensor,
        count: int,
        mask: Tensor | None,
        most: Tensor | None,
        generator: torch.Generator | None,
        starts: int,
    ) -> Tensor:
        """Where clusters start: [.., T, C] -> [.., count, C]; at `most` [.., 1] of an episode."""
        steps = self if generator is None else StartingMemory  # a compiled function cannot take a generator
        match start:
            case "data":
                return random_frames(frames, count, mask, generator)
            case "kmeans++":
                return kmeans_plus_plus(frames, count, mask, generator, steps._next_seed)
            case "ward" if starts == 1:
                return ward_means(frames, count, mask, most)
            case "ward":  # it is the same every time, so all others start elsewhere
                first = self._choose("ward", frames[:1], count, _part(mask, 0, 1), _part(most, 0, 1), generator, 1)
                others = _part(mask, 1, starts), _part(most, 1, starts)
                return torch.cat([first, self._choose("kmeans", frames[1:], count, *others, generator, 1)])
            case _:
                return kmeans_means(frames, count, mask, generator, most, steps._greedy_seed, steps._lloyd_step)


@torch.no_grad()
def _cluster_of_each(seeds: Tensor, wanted: Tensor | None, empty: MemoryState, prior: Prior, unit: Tensor) -> Tensor:
    """The cluster that starts at each of the seeds [.., n, C], int64 [.., n]: the first n, unless the prior tells
    clusters apart. Then the likeliest pairs find each other, by -2 log p(b_h = seed); `wanted` [.., n] go first."""
    if prior.row_mean.shape[-3] == prior.row_precision.shape[-3] == 1:
        return torch.arange(seeds.shape[-2], device=seeds.device).expand(seeds.shape[:-1])
    precision = (prior.noise_scale / empty.loc_var).unsqueeze(-1)  # [.., H, 1]
    distance = torch.cdist(empty.loc_mean / unit, seeds / unit).square()  # [.., H, n]
    cost = precision * distance - seeds.shape[-1] * precision.log()
    if wanted is not None:
        cost = cost.masked_fill(~wanted.unsqueeze(-2), torch.finfo(cost.dtype).max)
    return claim(cost)


def _part(tensor: Tensor | None, begin: int, end: int) -> Tensor | None:
    return None if tensor is None else tensor[begin:end]


def is_training(codes: Tensor, prior: Prior) -> bool:
    """Whether gradients are asked for, or nothing may wait: then a write does the same, compiled or not."""
    tensors = (codes, prior.noise_var, prior.row_natural, prior.row_precision, *prior.choice.tensors().values())
    asked = any(tensor.requires_grad for tensor in tensors)
    return (torch.is_grad_enabled() and asked) or not may_wait(codes)
