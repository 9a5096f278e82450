"""What a better write is worth with the same weights: the bound of CIFAR-10 pictures by posterior, start, iterations.

    python benchmarks/better_writes.py --data-dir DIR [--model NAME] [--split valid|test] [--seeds N] [--out FILE.json]

The encoder's codes and the likelihood of the pictures do not depend on the write, so each is computed once. Image
bound: nats a frame over all episodes of the split, as `vbmem evaluate` has it. Memory bound: of the codes' means alone.
Spread: the standard deviation over seeds of a single episode's memory bound, in nats a frame.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from report import emit
from vbmem.data.loading import load_images
from vbmem.models.memory_model import MemoryModel
from vbmem.pretrained import load_network
from vbmem.train.runs import make_source

WRITES: list[dict[str, Any]] = [
    {"factorised": True, "start": "kmeans++", "iterations": 10},  # as landed
    {"factorised": True, "start": "kmeans++", "iterations": 300},
    {"factorised": True, "start": "ward", "iterations": 10},
    {"start": "kmeans++", "iterations": 10},
    {"start": "kmeans", "iterations": 10},
    {"start": "kmeans++", "iterations": 10, "starts": 4},
    {"start": "kmeans", "iterations": 10, "starts": 4},
    {"start": "ward", "iterations": 10, "expand": False},
    {"start": "ward", "iterations": 5},
    {"start": "ward", "iterations": 10},
    {"start": "ward", "iterations": 20},
    {"start": "ward", "iterations": 30},
    {"start": "ward", "iterations": 100},
    {"start": "ward", "iterations": 20, "starts": 4},
]
console = Console(width=120)


@torch.no_grad()
def encoded(network: MemoryModel, saved: Any, images: Any, split: str, device: torch.device) -> tuple[Tensor, ...]:
    """Means and variances of the codes [B, T, C] of every episode, and log p(x | z) a frame, [B]."""
    torch.manual_seed(saved.seed)
    source = make_source(saved.data, images, split, saved.seed, device)
    means, variances, likelihoods = [], [], []
    for indices in source.epoch_indices(0).to(device):
        frames = source.frames(indices)
        q = network.infer(frames)
        codes = q.mean + q.var.sqrt() * torch.randn_like(q.mean)
        likelihoods.append(network.score(codes, frames) / frames.shape[1])
        means.append(q.mean)
        variances.append(q.var.expand_as(q.mean))
    return torch.cat(means), torch.cat(variances), torch.cat(likelihoods)


@torch.no_grad()
def measured(network: MemoryModel, how: dict[str, Any], codes: tuple[Tensor, ...], seeds: int) -> dict[str, Any]:
    means, variances, likelihood = codes
    config = network.memory.config() | {"factorised": how.get("factorised", False)}
    memory = type(network.memory)(**config)
    arguments = {name: value for name, value in how.items() if name != "factorised"}
    own, image, seconds = [], [], []
    for seed in range(seeds):  # also of a Ward clustering: the rows start at random
        torch.manual_seed(seed)
        begun = time.perf_counter()
        state, addresses = memory.write(means, **arguments)
        own.append(memory.bound(means, state, addresses).total / means.shape[1])  # waits for the device
        seconds.append(float(own[-1].sum()) * 0 + time.perf_counter() - begun)
        costs = memory.bound(means, state, addresses, variances).total / means.shape[1]
        image.append(likelihood + costs)
    bounds = torch.stack(own)  # [seeds, episodes]
    images = torch.stack(image).mean(0)
    return {
        **how,
        "memory_bound": float(bounds.mean()),
        "spread_over_seeds": float(bounds.std(0).mean()) if len(bounds) > 1 else 0.0,
        "image_bound": float(images.mean()),
        "standard_error": float(images.std() / math.sqrt(len(images))),
        "ms_an_episode": 1e3 * min(seconds) / len(means),
        "image": images,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default="cifar10-mixture")
    parser.add_argument("--split", default="test", choices=["valid", "test"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    saved = load_network(arguments.model, device)
    network = saved.network
    assert isinstance(network, MemoryModel)
    images = load_images("cifar10", arguments.data_dir, progress=False)
    codes = encoded(network, saved, images, arguments.split, device)
    results = [measured(network, how, codes, arguments.seeds) for how in WRITES]
    landed = results[0]["image"]
    table = Table(title=f"{arguments.model}, {len(landed)} {arguments.split} episodes: nats a frame")
    for heading in ("posterior", "start", "iterations", "memory", "spread", "pictures", "gain", "ms an episode"):
        table.add_column(heading, justify="right")
    for result in results:
        gain = result.pop("image") - landed
        result["gain"], error = float(gain.mean()), float(gain.std() / math.sqrt(len(gain)))
        result["gain_error"] = error
        posterior = (
            "factorised"
            if result.get("factorised")
            else "joint"
            if result.get("expand") is False
            else "joint, expanded"
        )
        start = result["start"] + (f", best of {result['starts']}" if "starts" in result else "")
        numbers = (f"{result[name]:.1f}" for name in ("memory_bound", "spread_over_seeds", "image_bound"))
        table.add_row(
            posterior,
            start,
            str(result["iterations"]),
            *numbers,
            f"{result['gain']:+.1f} ± {error:.1f}",
            f"{result['ms_an_episode']:.2f}",
        )
    console.print(table)
    emit(
        {"model": arguments.model, "split": arguments.split, "seeds": arguments.seeds, "writes": results}, arguments.out
    )


if __name__ == "__main__":
    main()
