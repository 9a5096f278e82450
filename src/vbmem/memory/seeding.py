"""Where a write starts from: frames chosen as first guesses of the cluster locations.

Batched, on the device of the codes, without waiting for it, and not differentiated through (paper, 3.2.1).
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def kmeans_plus_plus(
    codes: Tensor, count: int, mask: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """k-means++ seeds (Arthur & Vassilvitskii 2007): [.., T, C] -> [.., count, C].

    The first is a frame drawn uniformly, each further one with probability proportional to its squared distance to
    the nearest seed so far. Drawing from the weights d^2 is arg max(log d^2 + Gumbel noise). Where every frame is
    already a seed, the draw is uniform again.
    """
    squares = codes.square().sum(-1)  # [.., T]
    tiny = torch.finfo(codes.dtype).tiny
    distance = torch.ones_like(squares)
    seeds: list[Tensor] = []
    for index in range(count):
        score = distance.clamp_min(tiny).log() + _gumbel(squares, generator)
        chosen = _keep(score, mask).argmax(-1)
        seed = _take(codes, chosen.unsqueeze(-1))  # [.., 1, C]
        seeds.append(seed)
        to_seed = squares - 2 * (codes @ seed.mT).squeeze(-1) + seed.square().sum(-1)
        # A seed's distance to itself is rounding noise: make it nothing, so that it is not drawn again.
        to_seed = to_seed.scatter(-1, chosen.unsqueeze(-1), 0.0).clamp_min(0)
        distance = to_seed if index == 0 else torch.minimum(distance, to_seed)
    return torch.cat(seeds, dim=-2)


@torch.no_grad()
def random_frames(
    codes: Tensor, count: int, mask: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """`count` different frames at random, [.., T, C] -> [.., count, C]; repeated in turn where there are fewer."""
    score = _keep(_gumbel(codes[..., 0], generator), mask)
    order = score.argsort(dim=-1, descending=True)  # the masked ones come last
    frames = codes.shape[-2] if mask is None else mask.sum(-1, keepdim=True).clamp_min(1)
    turn = torch.arange(count, device=codes.device).expand(*order.shape[:-1], count) % frames
    return _take(codes, order.gather(-1, turn))


def _gumbel(like: Tensor, generator: torch.Generator | None) -> Tensor:
    uniform = torch.empty_like(like).uniform_(generator=generator)
    tiny = torch.finfo(like.dtype).tiny
    return -(-uniform.clamp_min(tiny).log()).clamp_min(tiny).log()


def _keep(score: Tensor, mask: Tensor | None) -> Tensor:
    return score if mask is None else score.masked_fill(~mask, -torch.inf)


def _take(codes: Tensor, index: Tensor) -> Tensor:
    """codes [.., T, C], index [.., n] -> [.., n, C]."""
    return codes.gather(-2, index.unsqueeze(-1).expand(*index.shape, codes.shape[-1]))
