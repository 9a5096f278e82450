"""Where a write starts from: frames chosen as first guesses of the cluster locations.

Batched, on the device of the codes, without waiting for it, and not differentiated through (paper, 3.2.1).
"""

from collections.abc import Callable

import torch
from torch import Tensor


def next_seed(
    codes: Tensor,
    squares: Tensor,
    distance: Tensor,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """A frame drawn with probability proportional to `distance` [.., T], and the distances with it as a seed too.

    `squares` [.., T] are |z|^2. Drawing from weights is arg max(log weight + Gumbel noise); where all are 0 the draw
    is uniform.
    """
    tiny = torch.finfo(codes.dtype).tiny
    chosen = _keep(distance.clamp_min(tiny).log() + _gumbel(distance, generator), mask).argmax(-1, keepdim=True)
    seed = _take(codes, chosen)  # [.., 1, C]
    to_seed = squares - 2 * (codes @ seed.mT).squeeze(-1) + seed.square().sum(-1)
    # A seed's distance to itself is rounding noise: make it nothing, so that it is not drawn again.
    to_seed = to_seed.scatter(-1, chosen, 0.0).clamp_min(0)
    return seed, torch.minimum(distance, to_seed)


@torch.no_grad()
def kmeans_plus_plus(
    codes: Tensor,
    count: int,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    next_seed: Callable[..., tuple[Tensor, Tensor]] = next_seed,
) -> Tensor:
    """k-means++ seeds (Arthur & Vassilvitskii 2007): [.., T, C] -> [.., count, C].

    The first is a frame drawn uniformly, each further one with probability proportional to its squared distance to
    the nearest seed so far.
    """
    squares = codes.square().sum(-1)
    distance = torch.full_like(squares, torch.finfo(codes.dtype).max)
    seeds: list[Tensor] = []
    for _ in range(count):
        seed, distance = next_seed(codes, squares, distance, mask, generator)
        seeds.append(seed)
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


def ward_means(codes, count, mask=None):
    import numpy as np
    from sklearn.cluster import AgglomerativeClustering
    out=[]
    flat=codes.reshape(-1,*codes.shape[-2:])
    for i,x in enumerate(flat):
        n=min(count,len(x))
        l=AgglomerativeClustering(n).fit_predict(x.numpy()) if n>1 else np.zeros(len(x),int)
        m=torch.stack([x[torch.from_numpy(l==k)].mean(0) for k in range(n)])
        out.append(m[torch.arange(count)%n])
    return torch.stack(out).reshape(*codes.shape[:-2],count,-1)

def kmeans_means(codes, count, mask=None, generator=None, next_seed=next_seed):
    return kmeans_plus_plus(codes,count,mask,generator,next_seed)
