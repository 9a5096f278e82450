"""Synthetic episodes have the moments of their generative model."""

import torch

from vbmem.data.synthetic import linear_gaussian_episode


def test_covariance_of_a_code_is_that_of_the_model() -> None:
    generator = torch.Generator().manual_seed(0)
    row_mean = torch.randn(3, 2, dtype=torch.float64, generator=generator)
    codes = linear_gaussian_episode(row_mean.expand(40_000, 3, 2), 1, noise_var=0.5, generator=generator)
    expected = row_mean.T @ row_mean + (3 + 0.5) * torch.eye(2, dtype=torch.float64)  # E M'M + sigma^2 I
    assert (codes.squeeze(-2).T.cov() - expected).abs().max() < 0.15
    assert codes.mean().abs() < 0.05


def test_frames_of_an_episode_share_their_memory() -> None:
    generator = torch.Generator().manual_seed(1)
    codes = linear_gaussian_episode(torch.zeros(2, 30), 50, noise_var=1e-8, generator=generator)
    assert codes.shape == (50, 30)
    assert torch.linalg.matrix_rank(codes, tol=1e-2) == 2
