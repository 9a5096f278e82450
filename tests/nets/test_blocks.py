"""The residual block, its normalisers, and the checks of arguments."""

from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vbmem.nets import Decoder, Encoder, FrameFormat
from vbmem.nets.blocks import ResidualBlock
from vbmem.nets.convolutional import BASIC, IMPROVED

SIZES: dict[str, Any] = {"frame": FrameFormat(16, 3), "filters": 8, "parts": BASIC}


def normalisers(block: nn.Module) -> list[nn.Module]:
    return [m for m in block.modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)]


def test_batch_norm_has_the_tensorflow_defaults():
    layers = normalisers(ResidualBlock(8, BASIC))
    assert [type(layer) for layer in layers] == [nn.BatchNorm2d] * 2
    assert all(layer.momentum == 0.01 and layer.eps == 1e-3 for layer in layers)


def test_group_norm_has_groups_of_four_channels():
    layers = normalisers(ResidualBlock(24, IMPROVED))
    assert [isinstance(layer, nn.GroupNorm) for layer in layers] == [True] * 2
    assert all(layer.num_groups == 6 and layer.eps == 1e-6 for layer in layers)


@pytest.mark.parametrize(("parts", "act"), [(BASIC, F.relu), (IMPROVED, F.silu)], ids=["basic", "improved"])
def test_the_residual_block_is_the_formula_of_its_docstring(parts, act):
    block, features = ResidualBlock(8, parts), torch.randn(3, 8, 5, 5)
    conv1, norm1, _, conv2, norm2 = block.residual
    expected = act(features + norm2(conv2(act(norm1(conv1(features))))))
    torch.testing.assert_close(block(features), expected)


def test_batch_norm_uses_the_batch_in_training_and_the_running_average_after():
    block, features = ResidualBlock(8, BASIC), 3 + 2 * torch.randn(64, 8, 6, 6)
    first_norm: Any = normalisers(block)[0]
    convolved = block.residual[0](features)

    in_training = block(features)
    torch.testing.assert_close(first_norm.running_mean, 0.01 * convolved.mean(dim=(0, 2, 3)))

    block.eval()
    average = first_norm.running_mean.clone()
    assert not torch.allclose(block(features), in_training, atol=1e-2)
    torch.testing.assert_close(first_norm.running_mean, average, rtol=0, atol=0)
    one_by_one = torch.cat([block(one) for one in features.split(1)])
    torch.testing.assert_close(block(features), one_by_one)


def test_after_many_batches_evaluation_agrees_with_training():
    encoder, frames = Encoder(embedding_size=4, **SIZES), torch.rand(16, 3, 16, 16)
    with torch.no_grad():
        for _ in range(700):
            in_training = encoder(frames)
        torch.testing.assert_close(encoder.eval()(frames), in_training, rtol=0.02, atol=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frame": FrameFormat(7, 3)}, "at least 8 pixels wide and high, not 7"),
        ({"frame": FrameFormat(16, 2)}, r"1 channel \(grey\) or 3 \(colour\), not 2"),
        ({"parts": IMPROVED, "filters": 30}, "filters must be a multiple of 4, not 30"),
    ],
    ids=["size", "channels", "filters"],
)
@pytest.mark.parametrize("build", [lambda **a: Encoder(embedding_size=6, **a), lambda **a: Decoder(code_size=3, **a)])
def test_impossible_arguments_are_refused_in_a_sentence(build, change, message):
    with pytest.raises(ValueError, match=message):
        build(**(SIZES | change))


def test_an_unknown_likelihood_is_refused():
    with pytest.raises(ValueError, match="one of gaussian, bernoulli, not 'poisson'"):
        Decoder(code_size=3, **SIZES | {"frame": FrameFormat(16, 3, cast(Any, "poisson"))})


def test_frames_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"expected frames \[N, 3, 16, 16\], got \[2, 1, 16, 16\]"):
        Encoder(embedding_size=6, **SIZES)(torch.rand(2, 1, 16, 16))
