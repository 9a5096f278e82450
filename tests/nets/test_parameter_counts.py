"""The networks, put together, have exactly as many trainable parameters as the paper's reference code.

Both counts are met with this reading: biases in all convolutions (residual ones too) and in the hidden
layer of the code head; none in the three linear maps to the embedding, the head's output and the seed.
"""

from typing import Any

import pytest
from torch import nn

from vbmem.nets import BlockParts, CodeHead, Decoder, Encoder, FrameFormat
from vbmem.nets.convolutional import BASIC, IMPROVED


def trainable_parameters(parts: BlockParts, filters: int, fixed_var: float | None) -> int:
    code_size = 200
    images: dict[str, Any] = {"frame": FrameFormat(32, 3), "filters": filters, "parts": parts}
    networks = nn.ModuleList(
        [
            Encoder(embedding_size=2 * code_size, **images),
            CodeHead(2 * code_size, code_size, parts.activation, fixed_var),
            Decoder(code_size=code_size, **images),
        ]
    )
    return sum(weights.numel() for weights in networks.parameters() if weights.requires_grad)


@pytest.mark.parametrize(
    ("parts", "filters", "fixed_var", "count"),
    [(BASIC, 32, None, 669_590), (IMPROVED, 64, 0.6, 1_323_798)],
    ids=["vae", "mixture"],
)
def test_parameter_count_equals_the_reference(parts, filters, fixed_var, count):
    assert trainable_parameters(parts, filters, fixed_var) == count
