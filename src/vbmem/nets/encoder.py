"""From frames to embeddings."""

import math

from torch import Tensor, nn

from vbmem.nets.blocks import BlockParts, ResidualBlock, check_frame
from vbmem.nets.layers import dense, halving_conv
from vbmem.nets.pixels import FrameFormat


def feature_sizes(image_size: int) -> list[int]:
    """Side of the image, then of the features after each halving convolution: 32 -> [32, 15, 6, 2].

    There are as many convolutions as the unpadded 4x4 kernel allows, which ends at a side of 1, 2 or 3:
    one for images of 8 pixels, three (the paper's) for 22 to 45, four for 64.
    """
    sizes = [image_size]
    while sizes[-1] >= 4:
        sizes.append(sizes[-1] // 2 - 1)
    return sizes


class Encoder(nn.Module):
    """Embedding e(x) of square frames: halving convolutions, each with a residual block, then a linear map.

    Args:
        frame: what frames look like; see `feature_sizes` for the number of blocks.
        filters: channels F of every convolution.
        embedding_size: size of e(x); the paper has twice the code size, for the DKM the code size itself.
        parts: what its blocks are made of.
    """

    def __init__(self, frame: FrameFormat, filters: int, embedding_size: int, parts: BlockParts) -> None:
        super().__init__()
        check_frame(frame)
        self.frame_shape = (frame.channels, frame.size, frame.size)
        *larger_sizes, last_size = feature_sizes(frame.size)
        inputs = [frame.channels] + [filters] * (len(larger_sizes) - 1)
        layers = [layer for n in inputs for layer in (halving_conv(n, filters), ResidualBlock(filters, parts))]
        self.blocks = nn.Sequential(*layers)
        self.to_embedding = dense(filters * last_size**2, embedding_size, bias=False)
        self.linear = dense(math.prod(self.frame_shape), embedding_size, bias=False) if parts.linear else None

    def forward(self, frames: Tensor) -> Tensor:
        """Frames [N, channels, H, W] in [0, 1] -> embeddings [N, embedding_size]."""
        if frames.shape[1:] != self.frame_shape:
            expected = ", ".join(map(str, self.frame_shape))
            raise ValueError(f"expected frames [N, {expected}], got {list(frames.shape)}")
        scaled = 2 * frames - 1
        embeddings: Tensor = self.to_embedding(self.blocks(scaled).flatten(1))
        return embeddings if self.linear is None else embeddings + self.linear(scaled.flatten(1))
