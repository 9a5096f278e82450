"""What encoder and decoder share: the parts they are made of, the residual block, the check of their frames."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vbmem.nets.layers import residual_conv
from vbmem.nets.pixels import FrameFormat
from vbmem.nets.precision import at_least_float32

SMALLEST_FRAME = 8
CHANNELS_PER_GROUP = 4


@dataclass(frozen=True)
class BlockParts:
    """What convolutional networks are made of.

    Args:
        norm: makes a normaliser of that many channels.
        activation: makes a nonlinearity.
        doubling_first: whether a block of the decoder doubles its features before or after its residual block.
        orthogonal_seed: whether the decoder's first linear map starts orthogonal.
        linear: whether a linear map between frames and codes is added to what either network says. It finds principal
            components within a few epochs, while convolutions take long to carry as much detail.
    """

    norm: Callable[[int], nn.Module]
    activation: Callable[[], nn.Module]
    doubling_first: bool = True
    orthogonal_seed: bool = False
    linear: bool = False


def batch_norm(filters: int) -> nn.Module:
    """Batch norm over all frames of the batch."""
    # TensorFlow's defaults; its momentum 0.99 is the weight of the past, torch's that of the present.
    return nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01)


def group_norm(filters: int) -> nn.Module:
    """Group norm in groups of four channels."""
    if filters % CHANNELS_PER_GROUP:
        raise ValueError(
            f"group norm has groups of {CHANNELS_PER_GROUP} channels: "
            f"filters must be a multiple of {CHANNELS_PER_GROUP}, not {filters}"
        )
    return FusedGroupNorm(filters // CHANNELS_PER_GROUP, filters, eps=1e-6)


class FusedGroupNorm(nn.GroupNorm):
    """Group norm, spelled out where it is compiled: torch's own would copy channels-last features back and forth."""

    def forward(self, features: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return super().forward(features)
        groups: Tensor = at_least_float32(features).unflatten(1, (self.num_groups, -1))
        var, mean = torch.var_mean(groups, dim=(2, 3, 4), correction=0, keepdim=True)
        normal = ((groups - mean) * torch.rsqrt(var + self.eps)).flatten(1, 2)
        return (normal * self.weight[:, None, None] + self.bias[:, None, None]).to(features.dtype)


class ResidualBlock(nn.Module):
    """act(x + norm(conv(act(norm(conv(x)))))), with 3x3 convolutions that keep the shape [N, F, H, W].

    The paper's basic decoder has transposed convolutions here. At stride 1 they are convolutions with the
    kernel turned by 180 degrees, and the initialiser is symmetric, so one block serves everywhere.
    """

    def __init__(self, filters: int, parts: BlockParts) -> None:
        super().__init__()
        norms = [parts.norm(filters) for _ in range(2)]
        batch_normed = isinstance(norms[0], nn.BatchNorm2d)
        self.residual = nn.Sequential(
            residual_conv(filters, before_batch_norm=batch_normed),
            norms[0],
            parts.activation(),
            residual_conv(filters, before_batch_norm=batch_normed),
            norms[1],
        )
        self.activation = parts.activation()

    def forward(self, features: Tensor) -> Tensor:
        return self.activation(features + self.residual(features))


def check_frame(frame: FrameFormat) -> None:
    """Raise ValueError unless a convolutional encoder and decoder can be built for such frames."""
    if frame.size < SMALLEST_FRAME:
        raise ValueError(f"frames must be at least {SMALLEST_FRAME} pixels wide and high, not {frame.size}")
    if frame.channels not in (1, 3):
        raise ValueError(f"frames must have 1 channel (grey) or 3 (colour), not {frame.channels}")
