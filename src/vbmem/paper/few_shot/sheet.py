"""A picture of what a model draws after it has seen a few drawings of characters it was never trained on."""

import torch
from PIL import Image
from torch import Tensor

from vbmem.paper.figures import SCALE
from vbmem.pretrained.baseline import Baseline
from vbmem.pretrained.model import Model
from vbmem.sheets import grid, titled, together

CHARACTERS, SHOTS, DRAWN = 12, 5, 8  # columns, and rows above and below


def draw_characters(model: Model | Baseline, shots: Tensor, count: int = DRAWN, seed: int = 0) -> Image.Image:
    """A column for every character: above its drawings, below what the model draws, each character by itself.

    Args:
        model: writes the drawings of a character into a memory, and paints from that alone; one without a memory is
            given the drawings.
        shots: uint8 [characters, S, channels, H, W].
        count: pictures that the model draws of each.
        seed: of the draws.

    Returns:
        Mean pixels of drawn codes, under the drawings.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    drawn = torch.stack([_drawn(model, drawings, count, generator) for drawings in shots])
    source = "memory" if isinstance(model, Model) else model.name
    return together(
        titled(_columns(shots / 255), f"Characters never seen: {shots.shape[1]} drawings of each"),
        titled(_columns(drawn), f"Drawn from {source}"),
        down=True,
    )


def _drawn(model: Model | Baseline, drawings: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """New pictures like the drawings of one character: [count, channels, H, W]."""
    if isinstance(model, Baseline):
        return model.generate(drawings, count, generator=generator)
    return model.generate(model.write(drawings, generator=generator), count, generator=generator)


def _columns(pictures: Tensor) -> Image.Image:
    """Pictures [columns, rows, channels, H, W] on a sheet."""
    return grid(pictures.transpose(0, 1).flatten(0, 1), len(pictures), SCALE)
