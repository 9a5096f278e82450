"""The paper's two encoder-decoder pairs (appendix F)."""

from torch import nn

from vbmem.nets.blocks import BlockParts, batch_norm, group_norm
from vbmem.nets.decoder import Decoder
from vbmem.nets.encoder import Encoder
from vbmem.nets.pixels import FrameFormat
from vbmem.nets.registry import Networks, register

BASIC = BlockParts(norm=batch_norm, activation=nn.ReLU)
IMPROVED = BlockParts(norm=group_norm, activation=nn.SiLU, doubling_first=False, orthogonal_seed=True)


@register("basic")
def basic(frame: FrameFormat, filters: int, embedding_size: int, code_size: int) -> Networks:
    """Batch norm and ReLU (appendix F.1)."""
    return convolutional(BASIC, frame, filters, embedding_size, code_size)


@register("improved")
def improved(frame: FrameFormat, filters: int, embedding_size: int, code_size: int) -> Networks:
    """Group norm and swish, blocks that double last, an orthogonal seed (appendix F.2)."""
    return convolutional(IMPROVED, frame, filters, embedding_size, code_size)


def convolutional(parts: BlockParts, frame: FrameFormat, filters: int, embedding_size: int, code_size: int) -> Networks:
    """A convolutional pair made of these parts."""
    encoder, decoder = Encoder(frame, filters, embedding_size, parts), Decoder(frame, filters, code_size, parts)
    return Networks(encoder, decoder, parts.activation)
