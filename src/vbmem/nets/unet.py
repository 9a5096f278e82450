"""A small U-Net that says where a step through noisy frames leads, given the code of each: see `flow`."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vbmem.nets.blocks import check_frame, group_norm
from vbmem.nets.flow import FINEST
from vbmem.nets.layers import AlignedConv2d, dense
from vbmem.nets.pixels import FrameFormat
from vbmem.nets.registry import register_shortcuts

SMALLEST_SIDE = 8  # features larger than this are halved once more
FREQUENCIES = 32  # with which a time is embedded
HEADS = 4


@register_shortcuts("unet")
class UNet(nn.Module):
    """s(x, t, d | z) of noisy frames x in about [-1, 1].

    Residual blocks at every size of the features, those of the way up joined with those of the way down. Code, time
    and length of the step scale and shift the features of every block; the code is also projected to features of the
    smallest size. It starts at zero, whatever it is given.

    Args:
        frame: what frames look like; their side is halved until it is at most 8.
        code_size: size C of the codes.
        width: channels at the full size, a multiple of 4; at the smaller ones there are twice as many.
        blocks: residual blocks at each size, on either way.
        attention: whether the places of the smallest features attend to each other.
        sees_mean: whether it is also given a mean picture of each code.
    """

    def __init__(
        self, frame: FrameFormat, code_size: int, *, width: int, blocks: int, attention: bool, sees_mean: bool
    ) -> None:
        super().__init__()
        check_frame(frame)
        if width < 4 or width % 4:
            raise ValueError(f"width must be a positive multiple of 4, got {width}")
        if blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {blocks}")
        sides = feature_sides(frame.size)
        widths = [width] + [2 * width] * (len(sides) - 1)
        signal = 4 * width
        self.to_signal = nn.Sequential(
            dense(code_size + 4 * FREQUENCIES, signal, bias=True),
            nn.SiLU(),
            dense(signal, signal, bias=True),
            nn.SiLU(),
        )
        self.seed_shape = (width, sides[-1], sides[-1])
        self.to_seed = dense(code_size, math.prod(self.seed_shape), bias=False)
        self.widen_seed = nn.Conv2d(width, widths[-1], 1)
        self.from_frames = AlignedConv2d((1 + sees_mean) * frame.channels, width, 3, padding=1)

        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        below = width
        for channels in widths:
            chain = [ModulatedBlock(below if n == 0 else channels, channels, signal) for n in range(blocks)]
            self.down.append(nn.ModuleList(chain))
            below = channels
        for channels in reversed(widths):
            chain = [
                ModulatedBlock((below if n == 0 else channels) + channels, channels, signal) for n in range(blocks)
            ]
            self.up.append(nn.ModuleList(chain))
            below = channels
        self.halve = nn.ModuleList(nn.Conv2d(n, n, 3, stride=2, padding=1) for n in widths[:-1])
        self.attend = Attention(widths[-1]) if attention else nn.Identity()
        self.to_frames = nn.Sequential(
            group_norm(width), nn.SiLU(), _zeroed(AlignedConv2d(width, frame.channels, 3, padding=1))
        )

    def forward(
        self, points: Tensor, times: Tensor, lengths: Tensor, codes: Tensor, means: Tensor | None = None
    ) -> Tensor:
        """Points [N, channels, H, W], times [N], lengths [N], codes [N, C] -> directions [N, channels, H, W].

        `means` are mean pictures of the codes, in [0, 1], for a network that sees them.
        """
        signal = self.to_signal(torch.cat([codes, embedded(times), embedded(_stretched(lengths))], dim=-1))
        inputs = points if means is None else torch.cat([points, 2 * means - 1], dim=1)
        features = self.from_frames(inputs)
        kept = []
        for level, chain in enumerate(self.down):
            for block in chain:  # type: ignore[attr-defined]
                features = block(features, signal)
                kept.append(features)
            if level < len(self.halve):
                features = self.halve[level](features)
        seed = self.to_seed(codes).unflatten(1, self.seed_shape)
        features = self.attend(features + self.widen_seed(seed))
        for chain in self.up:
            if features.shape[-1] != kept[-1].shape[-1]:
                features = F.interpolate(features, size=kept[-1].shape[-2:], mode="nearest")
            for block in chain:  # type: ignore[attr-defined]
                features = block(torch.cat([features, kept.pop()], dim=1), signal)
        return self.to_frames(features)


class ModulatedBlock(nn.Module):
    """x + conv(act((1 + scale) norm(conv(act(norm(x)))) + shift)), scale and shift linear in a signal; the last
    convolution starts at zero, and x is projected where the number of channels changes."""

    def __init__(self, inputs: int, outputs: int, signal: int) -> None:
        super().__init__()
        self.first = nn.Sequential(group_norm(inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.norm = group_norm(outputs)
        self.modulate = dense(signal, 2 * outputs, bias=True)
        self.second = nn.Sequential(nn.SiLU(), _zeroed(nn.Conv2d(outputs, outputs, 3, padding=1)))
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, features: Tensor, signal: Tensor) -> Tensor:
        scale, shift = self.modulate(signal)[..., None, None].chunk(2, dim=1)
        inner = (1 + scale) * self.norm(self.first(features)) + shift
        return self.skip(features) + self.second(inner)


class Attention(nn.Module):
    """Every place of the features [N, F, H, W] attends to all, added to them; starts at zero."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = group_norm(channels)
        self.to_parts = nn.Conv2d(channels, 3 * channels, 1)
        self.back = _zeroed(nn.Conv2d(channels, channels, 1))

    def forward(self, features: Tensor) -> Tensor:
        parts = self.to_parts(self.norm(features)).flatten(2).unflatten(1, (3, HEADS, -1))  # [N, 3, heads, F', places]
        query, key, value = parts.mT.unbind(1)
        attended = F.scaled_dot_product_attention(query, key, value)
        return features + self.back(attended.mT.flatten(1, 2).unflatten(2, features.shape[-2:]))


def feature_sides(image_size: int) -> list[int]:
    """Side of the image, then of the features after each halving: 32 -> [32, 16, 8], 28 -> [28, 14, 7], 8 -> [8]."""
    sides = [image_size]
    while sides[-1] > SMALLEST_SIDE:
        sides.append(-(-sides[-1] // 2))
    return sides


def embedded(values: Tensor) -> Tensor:
    """Sines and cosines of numbers in [0, 1], [N] -> [N, 2 FREQUENCIES], of one to 64 radians."""
    frequencies = torch.exp2(torch.linspace(0, 6, FREQUENCIES, dtype=values.dtype, device=values.device))
    angles = values.unsqueeze(-1) * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _stretched(lengths: Tensor) -> Tensor:
    """0 to 0, 1 to 1, and between them every doubling of a length about as far as the last."""
    return torch.log2(1 + FINEST * lengths) / math.log2(1 + FINEST)


def _zeroed(layer: nn.Conv2d) -> nn.Conv2d:
    """The layer, which begins with nothing."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
