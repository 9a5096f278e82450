"""How well damaged frames are recalled from memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from vbmem.data.damage import blur, hide_right
from vbmem.memory.written import WrittenMemory
from vbmem.paper.metrics.neighbours import hit_rate, nearest
from vbmem.paper.metrics.trial import STEPS, Rows, Trial
from vbmem.pretrained.model import Model


def recall(trial: Trial) -> dict[str, Rows]:
    """From the episode's memory and, where it can be resized, from one with a cluster for every frame."""
    memories = [trial.memory]
    if "clusters" in trial.model.memory.sizes:
        large = trial.model.resize(clusters=len(trial.frames))
        memories.append(large.write(trial.frames, generator=trial.generator))
    return recall_errors(trial.model, trial.frames, memories, trial.generator)


def damage(frames: Tensor, generator: Generator) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Frames [T, channels, H, W] in [0, 1] as they are, with clipped noise, half hidden, and blurred.

    Returns:
        By name, the damaged frames and which pixels are known; None for all.
    """
    noise = torch.empty_like(frames).normal_(generator=generator)
    return {
        "none": (frames, None),
        **{f"noise {std}": ((frames + std * noise).clamp(0, 1), None) for std in (0.1, 0.2, 0.3, 0.5)},
        "right half grey": hide_right(frames),
        **{f"blur {sigma}": (blur(frames, sigma), None) for sigma in (1.0, 2.0)},
    }


def recall_errors(
    model: Model, frames: Tensor, memories: Sequence[WrittenMemory], generator: Generator
) -> dict[str, Rows]:
    """Squared error per pixel of damaged frames and of what is made of them, from the clean frame and from its
    reconstruction, the best these networks can do; and the hit rate. Only "nearest frame" has the frames to look at.
    Which pixels are missing is known to the reading."""
    best = model.decode(model.encode(frames).mean)
    measures: dict[str, Rows] = {"error": {}, "error from reconstruction": {}, "hit rate": {}}
    for name, (damaged, known) in damage(frames, generator).items():
        reads = {m.empty.layout[0]: model.read(m, damaged, STEPS[-1], known=known, sample=False) for m in memories}
        made = {
            "damaged": damaged,
            "encoder-decoder": model.decode(model.encode(damaged).mean),
            **{f"H={h}, {steps} reads": read[steps - 1] for h, read in reads.items() for steps in STEPS},
            "nearest frame": frames[nearest(damaged.flatten(1), frames.flatten(1))],
        }
        measures["error"][name] = {way: float(F.mse_loss(x, frames)) for way, x in made.items()}
        measures["error from reconstruction"][name] = {way: float(F.mse_loss(x, best)) for way, x in made.items()}
        measures["hit rate"][name] = {way: hit_rate(x.flatten(1), frames.flatten(1)) for way, x in made.items()}
    return measures
