"""Models, pictures and runs so small that everything takes milliseconds: what tests of several folders share."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn

from vbmem.data import ImageSet
from vbmem.models import DKMConfig, FrameFormat, MemoryConfig, ModelConfig, StatisticianConfig, VAEConfig
from vbmem.nets import Likelihood
from vbmem.pretrained import Model
from vbmem.train import DataConfig, RunConfig, Stage, Trainer

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- Models ---------------------------------------------------------------------------------------------------------

MEMORY_MODELS: dict[str, MemoryConfig] = {
    "gaussian": MemoryConfig("gaussian", code_size=4, rows=2, iterations=6, filters=8, style="basic"),
    "categorical": MemoryConfig("categorical", code_size=4, rows=3, filters=8, style="basic"),
    "shifted": MemoryConfig("shifted", code_size=4, rows=2, iterations=6, filters=8, factorised=True),
    "mixture": MemoryConfig(
        "mixture", code_size=4, rows=2, clusters=3, iterations=4, filters=8, factorised=True, learned_code_var=False
    ),
    "tree": MemoryConfig(
        "tree",
        code_size=6,
        rows=2,
        clusters=3,
        partitions=2,
        iterations=4,
        filters=8,
        factorised=True,
        learned_code_var=False,
    ),
}
MODELS: dict[str, Any] = {  # settings of every kind, which have few fields in common
    "vae": VAEConfig(code_size=4, filters=8),
    "statistician": StatisticianConfig(code_size=4, context_size=7, filters=8),
    "dkm": DKMConfig(code_size=5, rows=3, filters=8),
    **MEMORY_MODELS,
}
OWN_MODELS: dict[str, MemoryConfig] = {  # codes with a part of their own
    "own part": MemoryConfig("shifted", code_size=6, own_size=2, rows=2, iterations=4, filters=8),
    "own part of the content": MemoryConfig(
        "mixture", code_size=6, own_size=2, own_prior="network", rows=1, clusters=3, iterations=3, filters=8
    ),
    "sees recall": MemoryConfig(
        "tree", code_size=6, own_size=2, sees_recall=True, rows=1, clusters=2, iterations=3, filters=8, factorised=True
    ),
    "weighs recall": replace(
        MEMORY_MODELS["mixture"],
        code_size=6,
        own_size=2,
        learned_code_var=True,
        sees_recall=True,
        weighs_recall=True,
        learned_scales=True,
        noise_var=0.5,
    ),
}
# What is written and stored has a shape of its own where a tree has nothing to share out.
KINDS = MEMORY_MODELS | {"tree of one partition": replace(MEMORY_MODELS["tree"], partitions=1)}


def tiny_network(
    name: str = "mixture",
    likelihood: Likelihood = "gaussian",
    channels: int = 3,
    size: int = 8,
    spread: float = 0.2,
    **changes: Any,
) -> Any:
    """A model of `MODELS`, `KINDS` or `OWN_MODELS`, untrained and in evaluation mode.

    No weight or running statistic is left where it starts: the weights are moved by `spread`, so that codes differ.
    """
    torch.manual_seed(0)
    config = replace((MODELS | KINDS | OWN_MODELS)[name], **changes)
    network = config.build(FrameFormat(size, channels, likelihood)).eval()
    with torch.no_grad():
        for weights in network.parameters():
            weights.add_(spread * torch.randn(weights.shape))  # the same in any layout
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                assert module.running_mean is not None
                assert module.running_var is not None
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
    return network


def tiny_model(*args: Any, called: str = "tiny", **options: Any) -> Model:
    """`tiny_network` as a person uses it."""
    network = tiny_network(*args, **options).requires_grad_(False)
    return Model(network, called, card={"data": "noise"}, memory=network.scaled_memory())


# --- Pictures -------------------------------------------------------------------------------------------------------


def noise(count: int, size: int = 8, channels: int = 3, seed: int = 0) -> np.ndarray:
    """uint8 [count, size, size, channels]."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, channels), np.uint8)


def waves(count: int, size: int = 32, channels: int = 3, seed: int = 0) -> Tensor:
    """Smooth pictures in [0, 1], each the sum of four cosines in every channel: [count, channels, size, size]."""
    random, axis = seeded(seed), torch.linspace(0, 1, size)
    pictures = torch.full((count, channels, size, size), 0.5)
    for _ in range(4):
        across, down, phase, height = torch.rand(4, count, channels, 1, 1, generator=random)
        pictures += height / 4 * torch.cos(2 * math.pi * (2 * across * axis + 2 * down * axis.unsqueeze(-1) + phase))
    return pictures.clamp(0, 1)


def as_bytes(pictures: Tensor) -> np.ndarray:
    """uint8 [T, H, W, channels], as Pillow has them."""
    return (pictures * 255).round().byte().movedim(1, -1).numpy()


def squares(count: int = 80, seed: int = 0) -> ImageSet:
    """Grey pictures of 8 x 8 with one bright quarter, which is the label, and a little noise: easy to learn."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, count)
    pictures = generator.integers(20, 40, (count, 8, 8, 1)).astype(np.uint8)
    for picture, label in zip(pictures, labels, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        picture[row : row + 4, column : column + 4] += 200
    return ImageSet("squares", pictures, labels)


# --- Runs -----------------------------------------------------------------------------------------------------------

DATA = DataConfig("squares", batch_size=2, episode_length=4)


def tiny_run(model: ModelConfig = MODELS["vae"], epochs: int = 4, **settings: Any) -> RunConfig:
    return RunConfig(**{"data": DATA, "model": model, "stages": (Stage(epochs, 1e-2),), "patience": 1000, **settings})


def tiny_trainer(config: RunConfig, run_dir: Path, images: ImageSet | None = None, **options: Any) -> Any:
    """A `Trainer`; tests put other things in the place of its parts, so its type is left open.

    What it says is found in `tiny_trainer(..).console.file.getvalue()`.
    """
    return Trainer(config, images or squares(), run_dir, CPU, console=Console(file=io.StringIO()), **options)
