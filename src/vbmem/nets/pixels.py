"""Distributions over frames, given the outputs of a decoder.

Both are built with `from_network`, which lifts the outputs to float32 before anything nonlinear, so that
densities are float32 (or float64) even when the decoder ran in bfloat16.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from vbmem.nets.precision import at_least_float32

Likelihood = Literal["gaussian", "bernoulli"]


@dataclass(frozen=True)
class FrameFormat:
    """What frames look like: float [.., channels, size, size] in [0, 1]."""

    size: int  # pixels of a side
    channels: int  # 1 or 3
    likelihood: Likelihood = "gaussian"  # of a pixel; bernoulli for pixels of 0 and 1


# The floor bounds the density of a frame; the span leaves room for pixels the code says nothing about.
STD_FLOOR = 5e-3
STD_SPAN = 0.5


class Pixels(Protocol):
    """Independent distributions of the pixels of N frames [N, channels, H, W]."""

    parameters_per_pixel: ClassVar[int]

    @classmethod
    def from_network(cls, outputs: Tensor) -> Self:
        """Unbounded outputs [N, parameters_per_pixel * channels, H, W] of a decoder -> distribution."""

    @property
    def mean(self) -> Tensor:
        """Expected frames [N, channels, H, W]."""

    def log_prob(self, frames: Tensor) -> Tensor:
        """Log-density of each frame, summed over pixels and channels: [N]."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One frame each, [N, channels, H, W], clamped to [0, 1]; not differentiable."""


@dataclass(frozen=True)
class GaussianPixels:
    """N(mean, std^2) for every pixel and channel."""

    parameters_per_pixel: ClassVar[int] = 2

    mean: Tensor  # [N, channels, H, W], in (0, 1)
    std: Tensor  # [N, channels, H, W], in (0.005, 0.505)

    @classmethod
    def from_network(cls, outputs: Tensor) -> Self:
        mean, std = torch.sigmoid(at_least_float32(outputs)).chunk(2, dim=1)
        return cls(mean, STD_FLOOR + STD_SPAN * std)

    def log_prob(self, frames: Tensor) -> Tensor:
        squares = ((frames - self.mean) / self.std).square()
        return -(0.5 * squares + self.std.log() + 0.5 * math.log(2 * math.pi)).sum(dim=(1, 2, 3))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        mean, std = self.mean.detach(), self.std.detach()
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return (mean + std * noise).clamp(0, 1)


@dataclass(frozen=True)
class BernoulliPixels:
    """Bernoulli(sigmoid(logits)) for every pixel and channel of binary frames."""

    parameters_per_pixel: ClassVar[int] = 1

    logits: Tensor  # [N, channels, H, W]

    @classmethod
    def from_network(cls, outputs: Tensor) -> Self:
        return cls(at_least_float32(outputs))

    @property
    def mean(self) -> Tensor:
        return torch.sigmoid(self.logits)

    def log_prob(self, frames: Tensor) -> Tensor:
        return -F.binary_cross_entropy_with_logits(self.logits, frames, reduction="none").sum(dim=(1, 2, 3))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(self.mean.detach(), generator=generator)


_PIXELS: dict[str, type[Pixels]] = {"gaussian": GaussianPixels, "bernoulli": BernoulliPixels}


def pixels_class(likelihood: Likelihood) -> type[Pixels]:
    """The class of the named likelihood."""
    if likelihood not in _PIXELS:
        raise ValueError(f"the likelihood must be one of {', '.join(_PIXELS)}, not {likelihood!r}")
    return _PIXELS[likelihood]
