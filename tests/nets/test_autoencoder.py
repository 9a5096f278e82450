"""Encoder and decoder of every size, and together: shapes, gradients, precision, compilation."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from vbmem.nets import CodeHead, Decoder, Encoder, FrameFormat
from vbmem.nets.blocks import ResidualBlock
from vbmem.nets.convolutional import BASIC, IMPROVED
from vbmem.nets.decoder import doublings
from vbmem.nets.encoder import feature_sizes

STYLES = {"basic": BASIC, "improved": IMPROVED, "linear": replace(IMPROVED, linear=True)}


def autoencoder(style, image_size=16, channels=3, likelihood="gaussian", code_size=5):
    frame = FrameFormat(image_size, channels, likelihood)
    images: dict[str, Any] = {"frame": frame, "filters": 8, "parts": STYLES[style]}
    encoder = Encoder(embedding_size=2 * code_size, **images)
    head = CodeHead(2 * code_size, code_size, STYLES[style].activation)
    decoder = Decoder(code_size=code_size, **images)
    return nn.ModuleList([encoder, head, decoder])


def loss(networks, frames):
    encoder, head, decoder = networks
    return -decoder(head(encoder(frames)).rsample()).log_prob(frames).mean()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("image_size", [8, 9, 16, 28, 32, 33, 64])
def test_any_image_size_works(style, channels, image_size):
    encoder, head, decoder = autoencoder(style, image_size, channels)
    frames = torch.rand(2, channels, image_size, image_size)
    embeddings = encoder(frames)
    posterior = head(embeddings)
    pixels = decoder(posterior.mean)
    assert embeddings.shape == (2, 10)
    assert posterior.mean.shape == posterior.var.shape == (2, 5)
    assert pixels.mean.shape == pixels.std.shape == pixels.sample().shape == frames.shape
    assert pixels.log_prob(frames).shape == (2,)


@pytest.mark.parametrize(
    ("image_size", "sizes"),
    [
        (8, [8, 3]),
        (16, [16, 7, 2]),
        (28, [28, 13, 5, 1]),
        (32, [32, 15, 6, 2]),
        (64, [64, 31, 14, 6, 2]),
    ],
)
def test_features_shrink_as_announced(image_size, sizes):
    assert feature_sizes(image_size) == sizes
    features, seen = torch.rand(2, 1, image_size, image_size), [image_size]
    encoder = Encoder(FrameFormat(image_size, 1), filters=4, embedding_size=2, parts=BASIC)
    for layer in encoder.blocks:
        features = layer(features)
        if isinstance(layer, ResidualBlock):
            seen.append(features.shape[-1])
    assert seen == sizes


def test_the_seed_doubles_until_it_covers_the_image():
    for image_size in range(8, 300):
        covered = 4 * 2 ** doublings(image_size)
        assert covered // 2 < image_size <= covered
    assert [doublings(n) for n in (8, 28, 32, 33, 64)] == [1, 3, 3, 4, 4]


def test_the_crop_is_central():
    decoder = Decoder(FrameFormat(28, 1), filters=4, code_size=3, parts=BASIC)
    whole = Decoder(FrameFormat(32, 1), filters=4, code_size=3, parts=BASIC)
    whole.load_state_dict(decoder.state_dict())
    codes = torch.randn(6, 3)
    torch.testing.assert_close(decoder(codes).mean, whole(codes).mean[:, :, 2:-2, 2:-2])


def test_improved_blocks_are_basic_blocks_reversed():
    order = {style: [type(layer) for layer in autoencoder(style)[2].blocks[:2]] for style in STYLES}
    assert order["basic"] == [nn.ConvTranspose2d, ResidualBlock]
    assert order["improved"] == [ResidualBlock, nn.ConvTranspose2d]


def test_the_encoder_centres_the_frames():
    encoder = autoencoder("improved")[0]
    assert (encoder(torch.full((1, 3, 16, 16), 0.5)) == 0).all()


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("style", STYLES)
def test_every_parameter_receives_a_gradient(style, likelihood):
    networks = autoencoder(style, likelihood=likelihood).double()
    loss(networks, torch.rand(6, 3, 16, 16).double()).backward()
    for name, weights in networks.named_parameters():
        if style == "basic" and name.endswith(("residual.0.bias", "residual.3.bias")):
            assert weights.grad is None, name  # batch norm would cancel these biases
        else:
            assert weights.grad.abs().max() > 1e-10, name


@pytest.mark.parametrize("style", STYLES)
def test_under_autocast_distributions_are_float32(style):
    encoder, head, decoder = autoencoder(style)
    frames = torch.rand(8, 3, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        embeddings = encoder(frames)
        posterior = head(embeddings)
        pixels = decoder(posterior.mean)
        log_prob = pixels.log_prob(frames)
    assert embeddings.dtype == torch.bfloat16
    results = [posterior.mean, posterior.var, posterior.rsample(), pixels.mean, pixels.std, log_prob]
    assert [result.dtype for result in results] == [torch.float32] * 6
    exact = torch.distributions.Normal(pixels.mean.double(), pixels.std.double()).log_prob(frames.double())
    torch.testing.assert_close(log_prob.double(), exact.sum(dim=(1, 2, 3)), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("style", STYLES)
def test_channels_last_gives_the_same_loss(style):
    networks, frames = autoencoder(style).double(), torch.rand(4, 3, 16, 16).double()
    torch.manual_seed(0)
    plain = loss(networks, frames)
    torch.manual_seed(0)
    last = loss(networks.to(memory_format=torch.channels_last), frames.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, plain)


@pytest.mark.parametrize("style", STYLES)
def test_the_loss_compiles_without_graph_breaks(style):
    networks, frames = autoencoder(style, image_size=8), torch.rand(4, 3, 8, 8)
    torch.manual_seed(0)
    eager = loss(networks, frames)
    torch.manual_seed(0)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")(networks, frames)
    torch.testing.assert_close(compiled, eager)
