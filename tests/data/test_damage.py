"""Blur, noise and hidden parts."""

import math

import numpy as np
import torch

from vbmem.data.damage import blur, damaged


def test_blur_is_the_gaussian_convolution():
    point = torch.zeros(1, 2, 15, 15)
    point[0, 1, 7, 7] = 1
    weights = [math.exp(-(i**2) / 2) for i in range(-3, 4)]
    expected = np.outer(weights, weights) / sum(weights) ** 2
    blurred = blur(point, 1.0)
    np.testing.assert_allclose(blurred[0, 1, 4:11, 4:11], expected, atol=1e-6)
    assert float(blurred[0, 0].max()) == 0
    np.testing.assert_allclose(blur(torch.full((1, 1, 8, 8), 0.3), 2.0), 0.3, rtol=1e-5)


def test_damage_hides_the_right_blurs_and_adds_noise() -> None:
    picture = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8)
    frame = (picture.float() + 0.5) / 256
    same, known = damaged(frame, noise=0, hidden=0, sigma=0)
    assert known is None
    assert torch.equal((same * 256).floor().byte(), picture)
    hidden, known = damaged(frame, noise=0, hidden=0.5, sigma=0)
    assert known is not None
    assert known.tolist() == [True] * 4 + [False] * 4
    assert torch.equal(hidden[..., :4], same[..., :4])
    assert bool((hidden[..., 4:] == 0.5).all())
    blurred, _ = damaged(frame, noise=0, hidden=0, sigma=2)
    assert blurred.var() < 0.5 * same.var()
    noisy, _ = damaged(frame, noise=1, hidden=0, sigma=0)
    assert 0 <= float(noisy.min()) < float(noisy.max()) <= 1
