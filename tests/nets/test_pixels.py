"""Pixel likelihoods against torch.distributions, their ranges and their samples."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, Normal

from vbmem.nets import BernoulliPixels, GaussianPixels

SHAPE = (4, 3, 6, 6)
NEITHER_NAN_NOR_INFINITE = [-1e4, -88.0, -20.0, 0.0, 20.0, 88.0, 1e4]


def test_gaussian_log_prob_agrees_with_torch():
    mean, std, frames = torch.rand(3, *SHAPE).double()
    expected = Normal(mean, std + 0.005).log_prob(frames).sum(dim=(1, 2, 3))
    torch.testing.assert_close(GaussianPixels(mean, std + 0.005).log_prob(frames), expected)


@pytest.mark.parametrize("binary", [True, False])
def test_bernoulli_log_prob_agrees_with_torch(binary):
    logits, frames = 5 * torch.randn(SHAPE).double(), torch.rand(SHAPE).double()
    frames = frames.round() if binary else frames
    expected = Bernoulli(logits=logits, validate_args=False).log_prob(frames).sum(dim=(1, 2, 3))
    torch.testing.assert_close(BernoulliPixels(logits).log_prob(frames), expected)


def test_float32_densities_are_close_to_float64_ones():
    outputs, frames = 3 * torch.randn(2, 6, 32, 32), torch.rand(2, 3, 32, 32)
    single = GaussianPixels.from_network(outputs).log_prob(frames)
    double = GaussianPixels.from_network(outputs.double()).log_prob(frames.double())
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-2)


def test_gaussian_parameters_are_sigmoids_of_the_two_halves():
    outputs = torch.randn(2, 6, 4, 4)
    pixels = GaussianPixels.from_network(outputs)
    torch.testing.assert_close(pixels.mean, outputs[:, :3].sigmoid())
    torch.testing.assert_close(pixels.std, 0.005 + 0.5 * outputs[:, 3:].sigmoid())


def test_the_standard_deviation_fills_its_range_and_never_leaves_it():
    pixels = GaussianPixels.from_network(torch.linspace(-40, 40, 200).expand(1, 2, 1, 200))
    assert pixels.std.min().item() == pytest.approx(0.005)
    assert pixels.std.max().item() == pytest.approx(0.505)
    assert (pixels.std >= 0.005).all()


def test_the_density_of_a_frame_is_bounded():
    pixels = GaussianPixels(torch.full((1, 3, 32, 32), 0.5), torch.full((1, 3, 32, 32), 0.005))
    bound = 3072 * (-math.log(0.005) - 0.5 * math.log(2 * math.pi))
    assert pixels.log_prob(pixels.mean).item() == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("pixels_class", [GaussianPixels, BernoulliPixels])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_outputs_give_finite_densities_and_gradients(pixels_class, dtype):
    extremes = torch.tensor(NEITHER_NAN_NOR_INFINITE, dtype=dtype)
    outputs = extremes.expand(2, 2 * pixels_class.parameters_per_pixel, 1, -1).clone().requires_grad_()
    log_prob = pixels_class.from_network(outputs).log_prob(torch.ones(2, 2, 1, len(extremes)))
    log_prob.sum().backward()
    assert log_prob.dtype == torch.float32
    assert log_prob.isfinite().all()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_gaussian_samples_have_the_stated_mean_and_spread():
    mean, std = torch.rand(1, 3, 2, 2) * 0.4 + 0.3, torch.full((1, 3, 2, 2), 0.05)
    samples = GaussianPixels(mean.expand(20_000, 3, 2, 2), std.expand(20_000, 3, 2, 2)).sample()
    torch.testing.assert_close(samples.mean(0), mean[0], rtol=0, atol=0.003)
    torch.testing.assert_close(samples.std(0), std[0], rtol=0.03, atol=0)


def test_bernoulli_samples_are_binary_with_the_stated_mean():
    pixels = BernoulliPixels(torch.randn(1, 1, 4, 4).expand(20_000, 1, 4, 4))
    samples = pixels.sample()
    assert ((samples == 0) | (samples == 1)).all()
    torch.testing.assert_close(samples.mean(0), pixels.mean[0], rtol=0, atol=0.02)


@pytest.mark.parametrize("pixels_class", [GaussianPixels, BernoulliPixels])
def test_samples_are_frames_and_repeatable(pixels_class):
    outputs = 4 * torch.randn(5, 3 * pixels_class.parameters_per_pixel, 6, 6).requires_grad_()
    pixels = pixels_class.from_network(outputs)
    first, again = (pixels.sample(torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.min() >= 0
    assert first.max() <= 1
    assert not first.requires_grad
