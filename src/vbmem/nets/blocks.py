"""What encoder and decoder share: the two styles, the residual block, the checks of their arguments."""

import torch
from torch import Tensor, nn

from vbmem.nets.layers import residual_conv
from vbmem.nets.precision import at_least_float32

Style = str
"""`basic`: batch norm and ReLU (appendix F.1). `improved`: group norm and swish (appendix F.2)."""

SMALLEST_IMAGE = 8
CHANNELS_PER_GROUP = 4


def activation(style: Style) -> nn.Module:
    """ReLU (basic) or swish (improved)."""
    return nn.ReLU() if style == "basic" else nn.SiLU()


def normalisation(style: Style, filters: int) -> nn.Module:
    """Batch norm over all frames of the batch (basic) or group norm in groups of four channels (improved)."""
    if style == "basic":
        # TensorFlow's defaults; its momentum 0.99 is the weight of the past, torch's that of the present.
        return nn.BatchNorm2d(filters, eps=1e-3, momentum=0.01)
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

    def __init__(self, filters: int, style: Style) -> None:
        super().__init__()
        basic = style == "basic"
        self.residual = nn.Sequential(
            residual_conv(filters, before_batch_norm=basic),
            normalisation(style, filters),
            activation(style),
            residual_conv(filters, before_batch_norm=basic),
            normalisation(style, filters),
        )
        self.activation = activation(style)

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.activation(features + self.residual(features))
        return output


def check_arguments(image_size: int, channels: int, filters: int, style: Style) -> None:
    """Raise ValueError unless an encoder and a decoder can be built from these."""
    if image_size < SMALLEST_IMAGE:
        raise ValueError(f"images must be at least {SMALLEST_IMAGE} pixels wide and high, not {image_size}")
    if channels not in (1, 3):
        raise ValueError(f"images must have 1 channel (grey) or 3 (colour), not {channels}")
    check_style(style)
    if style == "improved" and filters % CHANNELS_PER_GROUP:
        raise ValueError(
            f"the improved style normalises groups of {CHANNELS_PER_GROUP} channels: "
            f"filters must be a multiple of {CHANNELS_PER_GROUP}, not {filters}"
        )


def check_style(style: Style) -> None:
    """Raise ValueError unless the style is one of the two."""
    if style not in ("basic", "improved"):
        raise ValueError(f"the style must be 'basic' or 'improved', not {style!r}")
