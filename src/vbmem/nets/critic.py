"""A network that tells painted frames from real ones, for the training of a crisp decoder."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vbmem.nets.blocks import check_frame
from vbmem.nets.layers import AlignedConv2d, dense
from vbmem.nets.pixels import FrameFormat
from vbmem.nets.precision import at_least_float32

SMALLEST_SIDE = 4  # features larger than this are halved once more
SLOPE = 0.2


class Critic(nn.Module):
    """D(x, z) = u' f(x) + z' V f(x), the higher the more real a frame looks, for what its code says of it.

    Residual blocks without a norm, each followed by a halving of its features; the code is compared with what is left
    (Miyato and Koyama 2018). A code of zeros asks for the looks alone.

    Args:
        frame: what frames look like.
        code_size: size C of the codes.
        width: channels at the full size; there are twice as many after each of the first two halvings.
    """

    network_dtype: torch.dtype = torch.float32
    """May be bfloat16: the network then runs under autocast."""

    def __init__(self, frame: FrameFormat, code_size: int, *, width: int = 64) -> None:
        super().__init__()
        check_frame(frame)
        side, widths = frame.size, [width]
        while side > SMALLEST_SIDE:
            side = -(-side // 2)
            widths.append(width * 2 ** min(len(widths), 2))
        self.from_frames = AlignedConv2d(frame.channels, width, 3, padding=1)
        self.blocks = nn.Sequential(*(HalvingBlock(*pair) for pair in pairwise(widths)))
        self.to_features = dense(widths[-1] * side**2, widths[-1], bias=True)
        self.looks = dense(widths[-1], 1, bias=False)
        self.of_code = dense(code_size, widths[-1], bias=False)

    def forward(self, frames: Tensor, codes: Tensor) -> Tensor:
        """Frames [N, channels, H, W] in about [0, 1] and codes [N, C] -> [N], float32."""
        laid_out = (2 * frames - 1).contiguous(memory_format=torch.channels_last)
        with torch.autocast(frames.device.type, self.network_dtype, enabled=self.network_dtype != torch.float32):
            features = _rectified(self.blocks(self.from_frames(laid_out)))
            features = _rectified(self.to_features(features.flatten(1)))
            asked = self.looks.weight + self.of_code(codes) / codes.shape[-1] ** 0.5
        return (at_least_float32(features) * at_least_float32(asked)).sum(-1)


class HalvingBlock(nn.Module):
    """skip(x) + conv(halve(act(conv(act(x))))), the skip halved as well: [N, F, H, W] -> [N, F', H / 2, W / 2]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, inputs, 3, padding=1)
        self.second = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        inner = self.second(_halved(_rectified(self.first(_rectified(features)))))
        return self.skip(_halved(features)) + inner


def _halved(features: Tensor) -> Tensor:
    """The mean of every 2 x 2 places."""
    return F.avg_pool2d(features, 2, ceil_mode=True)


def _rectified(features: Tensor) -> Tensor:
    return F.leaky_relu(features, SLOPE)
