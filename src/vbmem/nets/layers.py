"""The linear layers the networks are made of, each with its initialiser; all biases start at zero."""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d, nn.ConvTranspose2d)

# Standard deviation of a unit normal that is cut at two standard deviations.
TRUNCATED_STD = 0.87962566103423978


def dense(inputs: int, outputs: int, *, bias: bool) -> nn.Linear:
    """Glorot-uniform linear layer."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    return _with_zero_bias(layer)


class AlignedConv2d(nn.Conv2d):
    """A convolution that on CUDA fills its channels up to a multiple of eight, for the sake of the tensor cores."""

    def forward(self, features: Tensor) -> Tensor:
        if not features.is_cuda:
            return super().forward(features)
        inputs, outputs = -self.in_channels % 8, -self.out_channels % 8
        weight = F.pad(self.weight, (0, 0, 0, 0, 0, inputs, 0, outputs))
        bias = None if self.bias is None else F.pad(self.bias, (0, outputs))
        filled = F.conv2d(F.pad(features, (0, 0, 0, 0, 0, inputs)), weight, bias, self.stride, self.padding)
        return filled[:, : self.out_channels]


def halving_conv(inputs: int, filters: int) -> nn.Conv2d:
    """Glorot-normal 4x4 convolution with stride 2 and no padding: side n becomes n // 2 - 1."""
    return _glorot_normal(AlignedConv2d(inputs, filters, kernel_size=4, stride=2))


def doubling_conv(filters: int) -> nn.ConvTranspose2d:
    """Glorot-normal 4x4 transposed convolution with stride 2: side n becomes 2 n."""
    return _glorot_normal(nn.ConvTranspose2d(filters, filters, kernel_size=4, stride=2, padding=1))


class CancelledBiasConv2d(nn.Conv2d):
    """A convolution in front of batch norm, which would subtract the bias again. The bias is in the reference's
    parameter count; adding it, and summing its gradient, which is zero, would cost a pass over the features each."""

    def forward(self, features: Tensor) -> Tensor:
        return F.conv2d(features, self.weight, None, self.stride, self.padding)


def residual_conv(filters: int, *, before_batch_norm: bool) -> nn.Conv2d:
    """He-normal 3x3 convolution that keeps the size.

    The weights come from a normal of variance 1.3 * 2 / fan_in, cut at two standard deviations;
    the factor 1.3 makes up for the cut (1.3 * TRUNCATED_STD**2 is 1.006).
    """
    kind = CancelledBiasConv2d if before_batch_norm else nn.Conv2d
    std = math.sqrt(1.3 * 2 / (filters * 3 * 3))
    return _truncated_normal(kind(filters, filters, kernel_size=3, padding=1), std)


def parallel_pointwise_convs(inputs: int, outputs: int, count: int) -> nn.Conv2d:
    """`count` Glorot-uniform 1x1 convolutions of the same features, outputs side by side.

    One layer, so that the features are read once, yet initialised as `count` separate ones.
    """
    layer = AlignedConv2d(inputs, count * outputs, kernel_size=1)
    with torch.no_grad():
        for weight in layer.weight.chunk(count):
            nn.init.xavier_uniform_(weight)
    return _with_zero_bias(layer)


def _glorot_normal(layer: Layer) -> Layer:
    """The layer, its weights truncated normal with standard deviation sqrt(2 / (fan_in + fan_out)) after the cut."""
    inputs, outputs, height, width = layer.weight.shape  # or outputs first: the rule is symmetric
    std = math.sqrt(2 / ((inputs + outputs) * height * width))
    return _truncated_normal(layer, std / TRUNCATED_STD)


def _truncated_normal(layer: Layer, std: float) -> Layer:
    """The layer, its weights draws of N(0, std^2) that lie within two standard deviations."""
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    return _with_zero_bias(layer)


def _with_zero_bias(layer: Layer) -> Layer:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
