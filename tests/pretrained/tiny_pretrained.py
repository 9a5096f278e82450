"""Models so small that everything takes milliseconds, untrained but with weights that do something, and pictures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vbmem.models import FrameFormat, MemoryConfig
from vbmem.nets import Likelihood
from vbmem.pretrained import Model

KINDS: dict[str, MemoryConfig] = {
    "gaussian": MemoryConfig("gaussian", code_size=4, rows=2, iterations=6, filters=8, style="basic"),
    "categorical": MemoryConfig("categorical", code_size=4, rows=3, filters=8, style="basic"),
    "shifted": MemoryConfig("shifted", code_size=4, rows=2, iterations=6, filters=8),
    "mixture": MemoryConfig("mixture", code_size=4, rows=2, clusters=3, iterations=4, filters=8),
    "tree": MemoryConfig("tree", code_size=6, rows=2, clusters=3, partitions=2, iterations=4, filters=8),
    "tree of one partition": MemoryConfig("tree", code_size=4, rows=2, clusters=3, partitions=1, filters=8),
}


def tiny_network(kind: str = "mixture", likelihood: Likelihood = "gaussian", channels: int = 3, **changes: object):
    """For pictures of 8 x 8, in evaluation mode; no weight or running statistic is left where it starts."""
    torch.manual_seed(0)
    network = replace(KINDS[kind], **changes).build(FrameFormat(8, channels, likelihood)).eval().requires_grad_(False)
    for weights in network.parameters():
        weights += 0.2 * torch.randn_like(weights)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
    return network


def tiny_model(*args: str, **changes: object) -> Model:
    network = tiny_network(*args, **changes)
    return Model(network, "tiny", card={"data": "noise"}, memory=network.scaled_memory())


def waves(count: int, size: int = 32, channels: int = 3, seed: int = 0) -> Tensor:
    """Smooth pictures in [0, 1], each the sum of four cosines in every channel: [count, channels, size, size]."""
    random, axis = torch.Generator().manual_seed(seed), torch.linspace(0, 1, size)
    pictures = torch.full((count, channels, size, size), 0.5)
    for _ in range(4):
        across, down, phase, height = torch.rand(4, count, channels, 1, 1, generator=random)
        pictures += height / 4 * torch.cos(2 * math.pi * (2 * across * axis + 2 * down * axis.unsqueeze(-1) + phase))
    return pictures.clamp(0, 1)


def as_bytes(pictures: Tensor) -> np.ndarray:
    """uint8 [T, H, W, channels], as Pillow has them."""
    return (pictures * 255).round().byte().movedim(1, -1).numpy()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
