"""From codes to distributions over frames."""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from vbmem.nets.blocks import BlockParts, ResidualBlock, check_frame
from vbmem.nets.layers import dense, doubling_conv, parallel_pointwise_convs
from vbmem.nets.pixels import FrameFormat, Pixels, pixels_class

SEED_SIZE = 4  # side of the features that the code is projected to


def doublings(image_size: int) -> int:
    """How often the 4x4 seed must double to cover the image: 1 for 8 pixels, 3 for 17 to 32, 4 for 64."""
    return math.ceil(math.log2(image_size / SEED_SIZE))


class Decoder(nn.Module):
    """p(x | z): a linear map to 4x4 features, doubling blocks, a centre crop, 1x1 convolutions.

    A block is a transposed convolution and then a residual block, or the reverse, as its parts say.

    Args:
        frame: what frames look like; see `doublings` for the number of blocks.
        filters: channels F of every convolution.
        code_size: size C of the codes.
        parts: what its blocks are made of.
    """

    def __init__(self, frame: FrameFormat, filters: int, code_size: int, parts: BlockParts) -> None:
        super().__init__()
        check_frame(frame)
        self.pixels = pixels_class(frame.likelihood)
        self.filters = filters

        self.to_seed = dense(code_size, filters * SEED_SIZE**2, bias=False)
        if parts.orthogonal_seed:
            nn.init.orthogonal_(self.to_seed.weight)

        layers: list[nn.Module] = []
        for _ in range(doublings(frame.size)):
            pair = [doubling_conv(filters), ResidualBlock(filters, parts)]
            layers += pair if parts.doubling_first else reversed(pair)
        self.blocks = nn.Sequential(*layers)

        start = (SEED_SIZE * 2 ** doublings(frame.size) - frame.size) // 2
        self.crop = slice(start, start + frame.size)
        self.to_pixels = parallel_pointwise_convs(filters, frame.channels, self.pixels.parameters_per_pixel)
        self.frame_shape = (frame.channels, frame.size, frame.size)
        self.linear = dense(code_size, math.prod(self.frame_shape), bias=False) if parts.linear else None

    def forward(self, codes: Tensor) -> Pixels:
        """Codes [N, C] -> distribution over frames [N, channels, H, W]."""
        seed = self.to_seed(codes).unflatten(1, (self.filters, SEED_SIZE, SEED_SIZE))
        features = self.blocks(seed)[:, :, self.crop, self.crop]
        outputs = self.to_pixels(features)
        if self.linear is not None:  # means, or logits, come first
            means = self.linear(codes).unflatten(1, self.frame_shape)
            outputs = outputs + F.pad(means, (0, 0, 0, 0, 0, outputs.shape[1] - means.shape[1]))
        return self.pixels.from_network(outputs)
