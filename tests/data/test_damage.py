"""Blur, noise and hidden parts."""

import math

import numpy as np
import torch

from vbmem.data.damage import blur, damaged, randomly_damaged


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


def test_random_damage_is_noise_or_a_hidden_half_of_some_frames():
    frames = torch.rand(20, 30, 3, 8, 8).clamp(0.1, 0.9)
    seen = randomly_damaged(frames, 0.6, torch.Generator().manual_seed(0))
    changed = (seen != frames).flatten(2).any(-1)
    grey = (seen == 0.5).all(-3)  # [20, 30, 8, 8]
    hidden = grey.flatten(2).sum(-1) == 32
    assert abs(changed.double().mean() - 0.6) < 0.06
    assert abs(hidden.double().mean() - 0.2) < 0.06
    halves = {tuple(map(tuple, mask.tolist())) for mask in grey[hidden]}
    assert len(halves) == 4
    assert torch.equal(seen.where(~grey.unsqueeze(-3), 0)[hidden], frames.where(~grey.unsqueeze(-3), 0)[hidden])
    assert 0 <= float(seen.min()) < float(seen.max()) <= 1
    assert torch.equal(randomly_damaged(frames, 0.0), frames)
