"""How far densities of codes under a written memory are from importance sampling, at the paper's size; their cost.

    python benchmarks/densities.py [--codes FILE.npz] [--samples N] [--out FILE.json]

Errors in nats, over every frame and cluster, of the codes that were written, of another episode's, and under clusters
that hold no frames. Codes are synthetic unless a file has some, as `mean` [episodes, frames, size].
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from report import emit
from vbmem.memory import MixtureMemory, density

ROWS, CLUSTERS, FRAMES, SIZE = 6, 10, 64, 200
DEGREES = 8  # of freedom, of the proposal


def synthetic_codes(episodes: int = 2) -> Tensor:
    """Episodes drawn from the prior that memories have by default."""
    memory, generator = MixtureMemory(SIZE, ROWS, CLUSTERS), torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    rows = math.sqrt(0.4) * normal(episodes, CLUSTERS, ROWS, SIZE)
    locations = math.sqrt(2.4) * normal(episodes, CLUSTERS, SIZE)
    pick = torch.randint(CLUSTERS, (episodes, FRAMES), generator=generator)
    episode = torch.arange(episodes).unsqueeze(-1)
    means = (normal(episodes, FRAMES, 1, ROWS) @ rows[episode, pick]).squeeze(-2) + locations[episode, pick]
    return means + math.sqrt(float(memory.noise_var)) * normal(episodes, FRAMES, SIZE)


def log_joint(codes: Tensor, mean: Tensor, cov: Tensor, weights: Tensor) -> Tensor:
    """log N(w; 0, I) N(z; R~'w~, t(w) I) for weights [H, T, N, K] of every code: [H, T, N]."""
    extended = torch.cat([weights, torch.ones_like(weights[..., :1])], -1)
    var = 1 + ((extended @ cov.unsqueeze(1)) * extended).sum(-1)
    products = torch.einsum("hjc,tc->htj", mean, codes)
    square = ((extended @ (mean @ mean.mT).unsqueeze(1)) * extended).sum(-1)
    distance = codes.square().sum(-1).unsqueeze(-1) - 2 * (extended @ products.unsqueeze(-1)).squeeze(-1) + square
    prior = -0.5 * (weights.square() + math.log(2 * math.pi)).sum(-1)
    return prior - 0.5 * (distance / var + codes.shape[-1] * (2 * math.pi * var).log())


def sampled(codes: Tensor, mean: Tensor, cov: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Importance sampling of the integral over w, noise variance 1: log p [H, T] and the share of samples that count.

    The proposal is a t around the Gaussian at the saddle point. Whether that is any good, the share tells.
    """
    cluster = density._reduce(mean @ mean.mT, cov, located=True)
    frames = density._meet(codes, mean, torch.ones(1, codes.shape[-1], dtype=codes.dtype), cluster)
    at = density._evaluate(frames, *density._search(frames))
    centre, std = at.mean.mT.unsqueeze(-2), at.precision.rsqrt().mT.unsqueeze(-2)  # of x, w + c = V x  [H, T, 1, K]
    basis, rows = cluster.basis.unsqueeze(1), mean.shape[-2] - 1
    generator = torch.Generator().manual_seed(1)
    shape = (len(mean), len(codes), samples)
    normal = torch.randn(*shape, rows, dtype=codes.dtype, generator=generator)
    chi = torch.randn(*shape, DEGREES, dtype=codes.dtype, generator=generator).square().sum(-1, keepdim=True)
    offsets = normal * (DEGREES / chi).sqrt()
    weights = (centre + offsets * std) @ basis.mT - cluster.centre.mT.unsqueeze(1)
    log_proposal = (
        math.lgamma((DEGREES + rows) / 2)
        - math.lgamma(DEGREES / 2)
        - 0.5 * rows * math.log(DEGREES * math.pi)
        - 0.5 * (DEGREES + rows) * (offsets.square().sum(-1) / DEGREES).log1p()
        - std.log().sum(-1)
        - torch.linalg.slogdet(basis)[1].unsqueeze(-1)
    )
    ratio = log_joint(codes, mean, cov, weights) - log_proposal
    share = 1 / ratio.softmax(-1).square().sum(-1) / samples
    return ratio.logsumexp(-1) - math.log(samples), share


def clusters_of(memory: MixtureMemory, codes: Tensor) -> tuple[Tensor, Tensor]:
    """R~ and U~ of an episode written into memory."""
    state, _ = memory.write(codes, generator=torch.Generator().manual_seed(0))
    return state.row_mean, state.row_cov


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codes", type=Path)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    codes = torch.from_numpy(np.load(args.codes)["mean"][:2]).double() if args.codes else synthetic_codes()
    memory = MixtureMemory(codes.shape[-1], ROWS, CLUSTERS)
    noise = torch.as_tensor(memory.noise_var, dtype=torch.float64)
    mean, cov = clusters_of(memory, codes[0])
    empty = torch.zeros_like(mean[:1]), torch.diag(torch.tensor([0.4] * ROWS + [2.4], dtype=torch.float64)).unsqueeze(0)
    report = {}
    for name, frames, (rows, spread) in [
        ("written", codes[0], (mean, cov)),
        ("new", codes[1], (mean, cov)),
        ("no frames", codes[1], empty),
    ]:
        scale = noise.sqrt()
        parts = [sampled(part / scale, rows / scale, spread / noise, args.samples) for part in frames.split(16)]
        exact, effective = (torch.cat(both, -1) for both in zip(*parts, strict=True))
        ours = density.log_densities(frames, rows, spread, noise, noise, True) + frames.shape[-1] * scale.log()
        error = ours - exact
        report[name] = {
            "mean": error.mean().item(),
            "mean absolute": error.abs().mean().item(),
            "95 % within": error.abs().flatten().quantile(0.95).item(),
            "largest": error.abs().max().item(),
            "least share of samples": effective.min().item(),
        }
    inputs = [value.float() for value in (codes[0], mean, cov, noise, noise)]
    density.log_densities(*inputs, True)
    start = time.perf_counter()
    for _ in range(20):
        density.log_densities(*inputs, True)
    emit({"nats": report, "milliseconds": 1000 * (time.perf_counter() - start) / 20}, args.out)


if __name__ == "__main__":
    main()
