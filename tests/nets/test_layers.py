"""Initialisers: their spread, their bounds, and that biases start at zero."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from vbmem.nets import Decoder, Encoder, FrameFormat
from vbmem.nets.convolutional import BASIC, IMPROVED
from vbmem.nets.layers import dense, doubling_conv, halving_conv, parallel_pointwise_convs, residual_conv

FILTERS = 64


def test_residual_convolutions_have_he_variance_cut_at_two_sigma():
    weight = residual_conv(FILTERS, before_batch_norm=False).weight
    untruncated_std = math.sqrt(1.3 * 2 / (9 * FILTERS))
    assert weight.abs().max() <= 2 * untruncated_std
    assert weight.abs().max() > 1.95 * untruncated_std
    assert weight.std().item() == pytest.approx(0.8796 * untruncated_std, rel=0.02)


@pytest.mark.parametrize(
    ("build", "fans"),
    [
        (lambda: halving_conv(FILTERS, FILTERS), 16 * 2 * FILTERS),
        (lambda: halving_conv(3, 4 * FILTERS), 16 * (3 + 4 * FILTERS)),
        (lambda: doubling_conv(FILTERS), 16 * 2 * FILTERS),
    ],
    ids=["halving", "halving-from-colour", "doubling"],
)
def test_strided_convolutions_have_glorot_variance(build, fans):
    weight, std = build().weight, math.sqrt(2 / fans)
    assert weight.std().item() == pytest.approx(std, rel=0.03)
    assert weight.abs().max() <= 2 * std / 0.8796


def test_dense_layers_are_glorot_uniform():
    weight, limit = dense(300, 200, bias=True).weight, math.sqrt(6 / 500)
    assert 0.99 * limit < weight.abs().max() <= limit
    assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.02)


def test_parallel_convolutions_are_initialised_one_by_one():
    layer, limit = parallel_pointwise_convs(FILTERS, 3, count=2), math.sqrt(6 / (FILTERS + 3))
    for weight in layer.weight.chunk(2):
        assert 0.95 * limit < weight.abs().max() <= limit
    assert layer.weight.requires_grad


def test_the_improved_decoder_starts_with_an_orthogonal_map():
    images: dict[str, Any] = {"frame": FrameFormat(8, 1), "filters": 8, "code_size": 12}
    weight = Decoder(parts=IMPROVED, **images).to_seed.weight
    torch.testing.assert_close(weight.T @ weight, torch.eye(12), atol=1e-5, rtol=0)


@pytest.mark.parametrize("parts", [BASIC, IMPROVED], ids=["basic", "improved"])
def test_biases_are_zero_and_normalisers_neutral(parts):
    images: dict[str, Any] = {"frame": FrameFormat(8, 1), "filters": 8, "parts": parts}
    networks = nn.ModuleList([Encoder(embedding_size=6, **images), Decoder(code_size=3, **images)])
    for name, weights in networks.named_parameters():
        if name.endswith("bias"):
            assert (weights == 0).all(), name
        elif weights.ndim == 1:
            assert (weights == 1).all(), name


def test_the_doubling_convolution_is_the_adjoint_of_a_padded_halving_one():
    layer = doubling_conv(4).double()
    small, large = torch.randn(1, 4, 5, 5).double(), torch.randn(1, 4, 10, 10).double()
    halved = nn.functional.conv2d(large, layer.weight, stride=2, padding=1)
    torch.testing.assert_close((layer(small) * large).sum(), (small * halved).sum())
