"""Damage for pictures to be recalled from: blur, noise, a part hidden."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

LOUDEST = 0.5  # standard deviation of noise in training


def blur(frames: Tensor, sigma: float) -> Tensor:
    """Convolve with a Gaussian that is cut off at 3 sigma; outside, the border goes on."""
    radius = math.ceil(3 * sigma)
    kernel = torch.arange(-radius, radius + 1).to(frames).div(sigma).square().div(-2).softmax(0)
    padded = F.pad(frames, (radius,) * 4, mode="replicate").flatten(0, 1).unsqueeze(1)  # one channel each
    blurred = F.conv2d(F.conv2d(padded, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))
    return blurred.view_as(frames).clamp(0, 1)  # rounding may leave the interval


def hide_right(frames: Tensor, share: float = 0.5) -> tuple[Tensor, Tensor]:
    """Frames [.., W] with the right `share` of their width grey, and which columns are still known, bool [W]."""
    width = frames.shape[-1]
    known = torch.arange(width) < round(width * (1 - share))
    return frames.masked_fill(~known, 0.5), known


def randomly_damaged(frames: Tensor, share: float, generator: torch.Generator | None = None) -> Tensor:
    """Frames [.., channels, H, W] in [0, 1], of which about this share is damaged: of these a third has a half hidden,
    left, right, above or below, the others noise of up to `LOUDEST`. Static shapes, and no wait for the host."""
    if not share:
        return frames
    *batch, _, height, width = frames.shape

    def drawn() -> Tensor:  # a number in [0, 1) for every frame
        return torch.rand((*batch, 1, 1, 1), generator=generator, device=frames.device)

    noise = torch.randn(frames.shape, generator=generator, device=frames.device)
    noisy = (frames + LOUDEST * drawn() * noise).clamp(0, 1)
    across = torch.arange(width, device=frames.device) < width / 2
    down = (torch.arange(height, device=frames.device) < height / 2).unsqueeze(-1)
    kept = torch.where(drawn() < 0.5, across, down) ^ (drawn() < 0.5)
    hidden = frames.where(kept, 0.5)
    damage = torch.where(drawn() < 1 / 3, hidden, noisy)
    return torch.where(drawn() < share, damage, frames)


def damaged(frame: Tensor, noise: float, hidden: float, sigma: float) -> tuple[Tensor, Tensor | None]:
    """A frame [channels, H, W] in [0, 1], damaged, and which of its columns are known, or None for all.

    Args:
        noise: standard deviation.
        hidden: share of the width that is missing, on the right.
        sigma: of the blur, in pixels.
    """
    if sigma:
        frame = blur(frame.unsqueeze(0), sigma)[0]
    frame = (frame + noise * torch.randn(frame.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    return hide_right(frame, hidden) if hidden else (frame, None)
