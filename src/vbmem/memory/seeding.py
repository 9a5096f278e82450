"""Where a write starts from: first guesses of the cluster locations, frames or means of a quick clustering.

Batched, on the device of the codes, without waiting for it, and not differentiated through (paper, 3.2.1).
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from vbmem.memory.threads import block_size, plain, side_by_side

CANDIDATES = 4  # frames from which greedy k-means++ takes the best
LLOYD_STEPS = 4


def next_seed(
    codes: Tensor,
    squares: Tensor,
    products: Tensor | None,
    distance: Tensor,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """A frame drawn with probability proportional to `distance` [.., T], and the distances with it as a seed too.

    `squares` [.., T] are |z|^2, `products` [.., T, T] those of all frames with each other, if there are any. Drawing
    from weights is arg max(log weight + Gumbel noise); where all are 0 the draw is uniform.
    """
    chosen = _draws(distance, mask, generator).argmax(-1, keepdim=True)
    seed = take(codes, chosen)  # [.., 1, C]
    return seed, torch.minimum(distance, _distances(codes, squares, products, seed, chosen).squeeze(-2))


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
    the nearest seed so far. `next_seed` may be another rule, or compiled.
    """
    squares = codes.square().sum(-1)
    # One large product instead of many small ones, where it has no more numbers than the codes.
    products = codes @ codes.mT if codes.shape[-2] <= codes.shape[-1] else None
    distance = torch.full_like(squares, torch.finfo(codes.dtype).max)
    if mask is not None:
        distance = distance.where(mask, 0.0)
    seeds: list[Tensor] = []
    for _ in range(count):
        seed, distance = next_seed(codes, squares, products, distance, mask, generator)
        seeds.append(seed)
    return torch.cat(seeds, dim=-2)


def greedy_seed(
    codes: Tensor,
    squares: Tensor,
    products: Tensor | None,
    distance: Tensor,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """The best of a few frames drawn as by `next_seed`, all different: that which leaves the least sum of distances.

    The masked frames are finite here, and their distances 0.
    """
    count = min(CANDIDATES, codes.shape[-2])
    score, chosen = _draws(distance, mask, generator).topk(count, dim=-1, sorted=False)  # [.., n]
    seeds = take(codes, chosen)  # [.., n, C]
    to_seeds = _distances(codes, squares, products, seeds, chosen)
    distances = torch.minimum(distance.unsqueeze(-2), to_seeds)  # [.., n, T]
    best = distances.sum(-1).masked_fill(score == -torch.inf, torch.inf).argmin(-1, keepdim=True)
    return take(seeds, best), take(distances, best).squeeze(-2)


def lloyd_step(codes: Tensor, means: Tensor, mask: Tensor | None = None) -> Tensor:
    """Every mean [.., count, C] moved to the mean of the frames nearest to it; one without frames stays."""
    squares, cluster = means.square().sum(-1).unsqueeze(-2), torch.arange(means.shape[-2], device=codes.device)

    def sums(codes: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        nearest = (squares - 2 * codes @ means.mT).argmin(-1)  # [.., T]
        return member_sums(codes, nearest, cluster, mask)

    if torch.compiler.is_compiling() or not plain(codes):
        total, size = sums(codes, mask)
    else:  # what frames and means need together stays in the cache
        parts = codes.split(block_size(means.shape[-2], 1, codes.shape[-1]), -2)
        masks = [None] * len(parts) if mask is None else mask.split(parts[0].shape[-2], -1)
        each = side_by_side(lambda part: sums(*part), list(zip(parts, masks, strict=True)))
        total, size = functools.reduce(lambda a, b: (a[0] + b[0], a[1] + b[1]), each)
    return (total / size.clamp_min(1)).where(size > 0, means)


@torch.no_grad()
def kmeans_means(
    codes: Tensor,
    count: int,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    most: Tensor | None = None,
    next_seed: Callable[..., tuple[Tensor, Tensor]] = greedy_seed,
    lloyd_step: Callable[..., Tensor] = lloyd_step,
) -> Tensor:
    """Greedy k-means++ seeds, then a few steps of k-means: [.., T, C] -> [.., count, C].

    Where at `most` [.., 1] are wanted of an episode, only the first so many mean anything. `next_seed` and `lloyd_step`
    may be compiled, but not given a generator then.
    """
    codes, centre, mask = centred(codes, mask)
    means = kmeans_plus_plus(codes, count, mask, generator, next_seed)
    if most is not None:  # out of reach of all frames
        surplus = torch.arange(count, device=codes.device) >= most
        means = means.masked_fill(surplus.unsqueeze(-1), torch.finfo(means.dtype).max ** 0.25)
    for _ in range(LLOYD_STEPS):
        means = lloyd_step(codes, means, mask)
    return means + centre


@torch.no_grad()
def random_frames(
    codes: Tensor, count: int, mask: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """`count` different frames at random, [.., T, C] -> [.., count, C]; repeated in turn where there are fewer."""
    score = _keep(_gumbel(codes[..., 0], generator), mask)
    order = score.argsort(dim=-1, descending=True)  # the masked ones come last
    frames = codes.shape[-2] if mask is None else mask.sum(-1, keepdim=True).clamp_min(1)
    turn = torch.arange(count, device=codes.device).expand(*order.shape[:-1], count) % frames
    return take(codes, order.gather(-1, turn))


def claim(cost: Tensor) -> Tensor:
    """The cluster of each of n <= H seeds, no two the same, the cheapest pair first: [.., H, n] -> int64 [.., n]."""
    count = cost.shape[-1]
    clusters, seeds = (torch.arange(size, device=cost.device) for size in cost.shape[-2:])
    owner = torch.zeros_like(cost[..., 0, :], dtype=torch.int64)
    for _ in range(count):
        best = cost.flatten(-2).argmin(-1, keepdim=True)  # [.., 1]
        cluster, seed = best // count, best % count
        owner = owner.scatter(-1, seed, cluster)
        gone = (clusters == cluster).unsqueeze(-1) | (seeds == seed).unsqueeze(-2)
        cost = cost.masked_fill(gone, torch.inf)
    return owner


def _distances(codes: Tensor, squares: Tensor, products: Tensor | None, seeds: Tensor, chosen: Tensor) -> Tensor:
    """Of the seeds [.., n, C], which are the frames `chosen` [.., n], to all frames, squared: [.., n, T]."""
    met = seeds @ codes.mT if products is None else take(products, chosen)
    distances = squares.unsqueeze(-2) - 2 * met + seeds.square().sum(-1, keepdim=True)
    # A seed's distance to itself is rounding noise: make it nothing, so that it is not drawn again.
    return distances.scatter(-1, chosen.unsqueeze(-1), 0.0).clamp_min(0)


def _draws(distance: Tensor, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
    """Scores [.., T], the largest of which are frames drawn with probability proportional to `distance`."""
    log_weight = distance.clamp_min(torch.finfo(distance.dtype).tiny).log()
    return _keep(log_weight + _gumbel(distance, generator), mask)


def _gumbel(like: Tensor, generator: torch.Generator | None) -> Tensor:
    uniform = torch.empty_like(like).uniform_(generator=generator)
    tiny = torch.finfo(like.dtype).tiny
    return -(-uniform.clamp_min(tiny).log()).clamp_min(tiny).log()


def _keep(score: Tensor, mask: Tensor | None) -> Tensor:
    return score if mask is None else score.masked_fill(~mask, -torch.inf)


def take(codes: Tensor, index: Tensor) -> Tensor:
    """codes [.., T, C], index [.., n] -> [.., n, C]."""
    return codes.gather(-2, index.unsqueeze(-1).expand(*index.shape, codes.shape[-1]))


def centred(codes: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The codes less their mean, 0 where masked; their mean [.., 1, C]; and the mask [.., T]."""
    if mask is None:
        centre = codes.mean(-2, keepdim=True)
        return codes - centre, centre, None
    mask = mask.expand(codes.shape[:-1])
    counts = mask.unsqueeze(-1)
    centre = codes.where(counts, 0.0).sum(-2, keepdim=True) / counts.sum(-2, keepdim=True).clamp_min(1)
    return (codes - centre).where(counts, 0.0), centre, mask


def member_means(codes: Tensor, label: Tensor, cluster: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean of the frames whose `label` [.., T] is that of a `cluster` [.., n], or 0: [.., n, C]; their number."""
    total, size = member_sums(codes, label, cluster, mask)
    return total / size.clamp_min(1), size


def member_sums(codes: Tensor, label: Tensor, cluster: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `member_means`, but their sum."""
    member = label.unsqueeze(-2) == cluster.unsqueeze(-1)
    if mask is not None:
        member, codes = member & mask.unsqueeze(-2), codes.where(mask.unsqueeze(-1), 0.0)
    member = member.to(codes.dtype)
    size = member.sum(-1, keepdim=True)
    return member @ codes, size
