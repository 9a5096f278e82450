"""Damage for a picture to be recalled from: blur, noise, a part hidden."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor


def damaged(picture: Tensor, noise: float, hidden: float, blur: float) -> tuple[Tensor, Tensor | None]:
    """A uint8 picture [channels, H, W] as damaged floats in [0, 1], and which of its pixels are known, or None for all.

    Args:
        noise: standard deviation.
        hidden: share of the width that is missing, on the right.
        blur: radius in pixels.
    """
    image = Image.fromarray(picture.movedim(0, -1).squeeze(-1).numpy()).filter(ImageFilter.GaussianBlur(blur))
    pixels = torch.from_numpy(np.array(image)).reshape(*picture.shape[1:], -1).movedim(-1, 0)
    pixels = (pixels.float() + 0.5) / 256
    pixels = (pixels + noise * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    if not hidden:
        return pixels, None
    width = picture.shape[-1]
    known = torch.arange(width) < round(width * (1 - hidden))
    return torch.where(known, pixels, 0.5), known
