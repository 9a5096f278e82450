"""The paper's two encoder-decoder pairs (appendix F), and what lies between them."""

import itertools

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


NORMS = {"batch": batch_norm, "group": group_norm}
ACTIVATIONS = {"relu": nn.ReLU, "swish": nn.SiLU}
ORDERS = {"up-first": True, "up-last": False}
LINEAR = {"": False, "-linear": True}


def _put_together(norm: str, activation: str, order: str, linear: str) -> None:
    """Register the pair with this norm and activation, whose decoder doubles its features first or last in a block,
    and maybe with a linear map beside either; the seed of one that doubles last is orthogonal, as in the improved
    pair."""
    first = ORDERS[order]
    parts = BlockParts(
        NORMS[norm],
        ACTIVATIONS[activation],
        doubling_first=first,
        orthogonal_seed=not first,
        linear=LINEAR[linear],
    )

    @register(f"{norm}-{activation}-{order}{linear}")
    def make(frame: FrameFormat, filters: int, embedding_size: int, code_size: int) -> Networks:
        return convolutional(parts, frame, filters, embedding_size, code_size)


for chosen in itertools.product(NORMS, ACTIVATIONS, ORDERS, LINEAR):
    _put_together(*chosen)


def convolutional(parts: BlockParts, frame: FrameFormat, filters: int, embedding_size: int, code_size: int) -> Networks:
    """A convolutional pair made of these parts."""
    encoder, decoder = Encoder(frame, filters, embedding_size, parts), Decoder(frame, filters, code_size, parts)
    return Networks(encoder, decoder, parts.activation)
