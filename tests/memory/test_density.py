"""The density of a code under a cluster, against numerical integration over the weights."""

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from vbmem.memory.density import log_densities

ONE = torch.tensor(1.0, dtype=torch.float64)


def problem(
    size: int, rows: int, *, clusters: int = 2, frames: int = 12, spread: float = 0.3, scale: float = 0.5, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, half of them the first cluster's own, and located clusters whose rows and location are correlated."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    mean = scale * normal(clusters, rows + 1, size)
    root = torch.eye(rows + 1, dtype=torch.float64) + 0.3 * normal(clusters, rows + 1, rows + 1)
    cov = spread * root @ root.mT
    weights = torch.cat([normal(frames, rows), torch.ones(frames, 1, dtype=torch.float64)], -1)
    var = 1 + ((weights @ cov[0]) * weights).sum(-1, keepdim=True)
    codes = weights @ mean[0] + var.sqrt() * normal(frames, size)
    codes[frames // 2 :] = 1.5 * normal(frames - frames // 2, size)
    return codes, mean, cov


def given_weights(codes: Tensor, mean: Tensor, cov: Tensor, weights: Tensor) -> Tensor:
    """log N(z; R~'w~, t(w) I) for weights [N, K]: [H, T, N]."""
    ones = torch.ones(len(weights), mean.shape[-2] - weights.shape[-1], dtype=weights.dtype)
    weights = torch.cat([weights, ones], -1)
    var = 1 + ((weights @ cov) * weights).sum(-1).unsqueeze(-2)
    distance = torch.cdist(codes.expand(len(mean), -1, -1), weights @ mean).square()
    return -0.5 * (distance / var + codes.shape[-1] * (2 * math.pi * var).log())


def quadrature(codes: Tensor, mean: Tensor, cov: Tensor, rows: int) -> Tensor:
    """log E_w N(z; R~'w~, t(w) I) on a grid, [H, T]."""
    axis = torch.linspace(-8, 8, {1: 4001, 2: 161}[rows], dtype=torch.float64)
    weights = torch.cartesian_prod(*[axis] * rows).reshape(-1, rows)
    log_prior = -0.5 * (weights.square() + math.log(2 * math.pi)).sum(-1) + rows * (axis[1] - axis[0]).log()
    return (given_weights(codes, mean, cov, weights) + log_prior).logsumexp(-1)


def gaussian(codes: Tensor, mean: Tensor, cov: Tensor) -> Tensor:
    return torch.distributions.MultivariateNormal(mean, cov).log_prob(codes)


@pytest.mark.parametrize("located", [True, False])
@pytest.mark.parametrize("spread", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 5, 13, 200])
def test_it_is_the_integral_over_the_weights(size, rows, spread, located):
    codes, mean, cov = problem(size, rows, spread=spread)
    if not located:
        mean, cov = mean[:, :rows], cov[:, :rows, :rows]
    error = log_densities(codes, mean, cov, ONE, ONE, located) - quadrature(codes, mean, cov, rows)
    assert error.abs().mean() < 0.15
    assert error.abs().max() < 0.5


def test_with_more_rows_it_is_the_mean_over_sampled_weights():
    codes, mean, cov = problem(20, 4, scale=0.3)
    weights = torch.randn(100_000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sampled = given_weights(codes, mean, cov, weights).logsumexp(-1) - math.log(len(weights))
    error = log_densities(codes, mean, cov, ONE, ONE, True) - sampled
    assert error.abs().mean() < 0.1
    assert error.abs().max() < 0.3


@pytest.mark.parametrize("rows", [0, 3])
def test_it_is_exact_where_rows_are_certain(rows):
    codes, mean, cov = problem(5, rows)
    cov[:, :rows], cov[:, :, :rows] = 0, 0
    ours = log_densities(codes, mean, cov, ONE, ONE, True)
    var = 1 + cov[:, rows, rows]
    for cluster, (own, scale) in enumerate(zip(mean, var, strict=True)):
        total = own[:rows].mT @ own[:rows] + scale * torch.eye(5, dtype=torch.float64)
        torch.testing.assert_close(ours[cluster], gaussian(codes, own[rows], total), rtol=1e-10, atol=1e-9)


def test_a_cluster_without_frames_is_a_mixture_of_scales():
    codes = 2 * torch.randn(30, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cov = torch.diag(torch.tensor([1 / 3] * 6 + [2.0], dtype=torch.float64)).unsqueeze(0)
    mean = torch.zeros(1, 7, 200, dtype=torch.float64)
    squares = torch.linspace(1e-3, 60, 20_001, dtype=torch.float64)  # |w|^2, chi-squared with 6 degrees
    log_prior = torch.distributions.Chi2(6).log_prob(squares) + (squares[1] - squares[0]).log()
    var = 3 + squares / 3
    likelihood = -0.5 * (codes.square().sum(-1, keepdim=True) / var + 200 * (2 * math.pi * var).log())
    exact = (likelihood + log_prior).logsumexp(-1)
    torch.testing.assert_close(log_densities(codes, mean, cov, ONE, ONE, True)[0], exact, rtol=0, atol=0.06)


@pytest.mark.parametrize("size", [1, 2])
def test_it_integrates_to_one(size):
    _, mean, cov = problem(size, 2, clusters=1)
    axis = torch.linspace(-30, 30, 401, dtype=torch.float64)
    codes = torch.cartesian_prod(*[axis] * size).reshape(-1, size)
    total = log_densities(codes, mean, cov, ONE, ONE, True).exp().sum() * (axis[1] - axis[0]) ** size
    assert abs(total - 1) < 0.05


@pytest.mark.parametrize("shape", [(), (1, 5), (2, 5)])
def test_noise_is_a_change_of_units(shape):
    codes, mean, cov = problem(5, 3)
    noise = 0.5 + torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    ours = log_densities(codes, mean, cov, noise, ONE * 1.7, True)
    for cluster in range(2):
        own = noise.expand(2, 5)[cluster]
        unit = log_densities(
            codes / own.sqrt(), mean[cluster, None] / own.sqrt(), cov[cluster, None] / 1.7, ONE, ONE, True
        )
        torch.testing.assert_close(ours[cluster], unit[0] - 0.5 * own.log().sum())


def test_it_does_not_depend_on_the_other_frames_clusters_and_episodes():
    codes, mean, cov = (torch.stack(both) for both in zip(problem(7, 3), problem(7, 3, seed=1), strict=True))
    noise = torch.rand(2, 1, 7, dtype=torch.float64) + 0.5
    together = log_densities(codes, mean, cov, noise, ONE, True)
    assert together.shape == (2, 2, 12)
    for episode in range(2):
        for cluster in range(2):
            for frame in range(12):
                alone = log_densities(
                    codes[episode, frame, None], mean[episode, cluster, None], cov[episode, cluster, None],
                    noise[episode], ONE, True,
                )  # fmt: skip
                torch.testing.assert_close(together[episode, cluster, frame], alone[0, 0])


@pytest.mark.parametrize("located", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_its_gradient_is_right(rows, located):
    if rows == 0 and not located:
        pytest.skip("an empty cluster")
    codes, mean, cov = problem(4, rows, frames=3)
    count = rows + located
    root = torch.linalg.cholesky(cov[:, :count, :count])

    def density(codes, mean, root, noise):
        return log_densities(codes, mean, root @ root.mT, noise, noise.mean(), located)

    noise = torch.full((2, 4), 0.8, dtype=torch.float64)
    inputs = [value.detach().requires_grad_() for value in (codes, mean[:, :count], root, noise)]
    assert gradcheck(density, inputs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 0.5])
def test_its_gradient_is_right_where_rows_are_alike(scale):
    codes, mean, _ = problem(4, 3, frames=3, scale=scale)

    def density(codes, mean, root):
        return log_densities(codes, mean, root @ root.mT, ONE, ONE, True)

    root = 0.6 * torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    inputs = [value.clone().requires_grad_() for value in (codes, mean, root)]
    assert gradcheck(density, inputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 100.0])
def test_it_and_its_gradient_are_finite_at_every_scale(scale, spread, dtype):
    codes, mean, cov = (value.to(dtype) for value in problem(13, 20, scale=scale, spread=spread))
    codes[0], codes[1] = 0, 100 * codes[1]
    noise = ONE.to(dtype).clone()
    inputs = [value.requires_grad_() for value in (codes, mean, cov, noise)]
    density = log_densities(codes, mean, cov, noise, noise, True)
    assert density.isfinite().all()
    density.sum().backward()
    for value in inputs:
        assert value.grad is not None
        assert value.grad.isfinite().all()


@pytest.mark.parametrize("spread", [1e-3, 0.3, 10.0])
def test_float32_is_close_to_float64(spread):
    codes, mean, cov = problem(200, 6, clusters=10, frames=64, spread=spread)
    single = log_densities(codes.float(), mean.float(), cov.float(), ONE.float(), ONE.float(), True)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), log_densities(codes, mean, cov, ONE, ONE, True), rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_frame_has_the_same_density_whatever_others_are_asked_for(rows):
    codes, mean, cov = problem(4, rows, clusters=5, frames=40, spread=3.0, scale=2.0)
    codes = 3 * codes  # so far out that some pairs of a cluster and a frame need many steps
    together = log_densities(codes, mean, cov, ONE, ONE, True)
    alone = [log_densities(frame, mean, cov, ONE, ONE, True) for frame in codes.split(1)]
    torch.testing.assert_close(together, torch.cat(alone, -1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spread", [30.0, 3e4, 1e12])
def test_it_is_smooth_at_the_centre_of_a_cluster_whose_rows_are_uncertain(spread):
    codes = torch.ones(1, 8, dtype=torch.float64) * torch.tensor([[0.0], [1e-12], [1e-9], [1e-4]], dtype=torch.float64)
    mean, cov = torch.zeros(1, 4, 8, dtype=torch.float64), torch.eye(4, dtype=torch.float64).unsqueeze(0)
    cov[..., :3, :3] *= spread
    found = log_densities(codes, mean, cov, ONE, ONE, located=True)
    torch.testing.assert_close(found, found[..., :1].expand_as(found), rtol=0, atol=1e-4)
