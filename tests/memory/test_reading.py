"""Reading from a written memory: recall, samples, densities."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from zoo import MEMORIES, Sizes, close, every_memory, make_problem, normal, over_sizes

from vbmem.memory import CategoricalMemory, MixtureMemory


@every_memory
@over_sizes
def test_reconstruction_is_the_sum_over_clusters(name, sizes):
    problem = make_problem(name, sizes)
    memory, state = problem.memory, problem.state
    addresses = memory.address(state, problem.codes)
    parts = torch.zeros_like(problem.parts)
    for t in range(sizes.frames):
        for h in range(memory.layout[0]):
            row = addresses.weight_mean[..., t, h, :].unsqueeze(-2) @ state.row_mean[..., h, :, :]
            theta = addresses.assignment[..., t, h].unsqueeze(-1)
            parts[..., t, :] += theta * (row.squeeze(-2) + state.loc_mean[..., h, :])
    close(memory.reconstruct(state, problem.codes), memory.join(parts))
    assert memory.reconstruct(state, problem.codes).shape == problem.codes.shape


@every_memory
def test_a_written_memory_recalls_what_was_written(name):
    """Tight noise and room enough: what is read back is what was written, to a few hundredths."""
    problem = make_problem(name, Sizes(frames=4, rows=4, clusters=4))
    memory = type(problem.memory)(**(problem.memory.config() | {"noise_var": 1e-3}))
    state, _ = memory.write(problem.codes, 50, "data", generator=torch.Generator().manual_seed(0))
    close(memory.reconstruct(state, problem.codes), problem.codes, rtol=0, atol=0.05)


# --- Samples --------------------------------------------------------------------------------------------------------


def predictive_moments(problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of a new code: a mixture whose part h has covariance R'R + (sigma^2 + v + tr U) I;
    the partitions of a tree are independent."""
    state, noise_var = problem.state, problem.prior.noise_var
    size = state.loc_mean.shape[-1]
    second = state.row_mean.mT @ state.row_mean + state.loc_mean.unsqueeze(-1) * state.loc_mean.unsqueeze(-2)
    scale = noise_var + state.loc_var + state.row_cov.diagonal(dim1=-2, dim2=-1).sum(-1)
    second = (second + scale[..., None, None] * torch.eye(size, dtype=torch.float64)).mean(-3)
    mean = state.loc_mean.mean(-2)
    cov = second - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    if problem.memory.kind == "tree":
        return mean.flatten(), torch.block_diag(*cov)
    return mean, cov


@every_memory
def test_samples_have_the_predictive_mean_and_covariance(name):
    problem = make_problem(name)
    n = 40_000
    samples = problem.memory.sample(problem.state, n, torch.Generator().manual_seed(0))
    assert samples.shape == (n, problem.memory.code_size)
    mean, cov = predictive_moments(problem)
    centred = samples - mean
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    assert ((samples.mean(0) - mean).abs() < 4.5 * samples.std(0) / math.sqrt(n)).all()
    assert ((products.mean(0) - cov).abs() < 4.5 * products.std(0) / math.sqrt(n)).all()


def test_each_sample_of_a_tree_draws_its_partitions_independently():
    """Two far apart locations in each of two partitions: all four combinations come, a quarter each."""
    problem = make_problem("tree", Sizes(part_size=1, clusters=2))
    locations = torch.tensor([[[-100.0], [100.0]]] * 2, dtype=torch.float64)
    state = replace(problem.state, loc_mean=locations)
    samples = problem.memory.sample(state, 4000, torch.Generator().manual_seed(0))
    corners = (samples > 0).long() @ torch.tensor([2, 1])
    assert (corners.bincount(minlength=4) / 4000 - 0.25).abs().max() < 0.03


@every_memory
@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_samples_of_a_batch_come_from_their_own_memory(name, batch):
    problem = make_problem(name, Sizes(batch=batch))
    far = 1e6 * torch.arange(math.prod(batch), dtype=torch.float64).reshape(*batch)
    dims = problem.state.loc_mean.ndim - len(batch)
    state = problem.state.translate(far.reshape(*batch, *[1] * dims))
    samples = problem.memory.sample(state, 5, torch.Generator().manual_seed(0))
    assert samples.shape == (*batch, 5, problem.memory.code_size)
    assert (samples - far[..., None, None]).abs().max() < 1e3


def test_a_generator_makes_samples_reproducible():
    problem = make_problem("mixture")

    def draw(seed):
        return problem.memory.sample(problem.state, 5, torch.Generator().manual_seed(seed))

    assert (draw(1) == draw(1)).all()
    assert (draw(1) != draw(2)).any()


# --- Densities ------------------------------------------------------------------------------------------------------


@every_memory
def test_the_predictive_density_integrates_to_1(name):
    """On the line, for partitions of one coordinate; a tree's density is a product, so its cube integrates to 1 too."""
    problem = make_problem(name, Sizes(part_size=1))
    memory = problem.memory
    grid = torch.linspace(-40, 40, {1: 2001, 2: 161, 3: 81}[memory.code_size], dtype=torch.float64)
    points = torch.cartesian_prod(*[grid] * memory.code_size).reshape(-1, memory.code_size)
    density = memory.log_predictive(problem.state, points).exp()
    volume = (grid[1] - grid[0]) ** memory.code_size
    assert (density.sum() * volume).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("name", ["gaussian-general", "categorical-general", "shifted", "mixture-general"])
def test_the_predictive_density_integrates_to_1_in_the_plane(name):
    problem = make_problem(name, Sizes(part_size=2))
    grid = torch.linspace(-25, 25, 251, dtype=torch.float64)
    density = problem.memory.log_predictive(problem.state, torch.cartesian_prod(grid, grid)).exp()
    assert (density.sum() * (grid[1] - grid[0]) ** 2).item() == pytest.approx(1, abs=1e-6)


@every_memory
@over_sizes
def test_the_predictive_density_is_the_mixture_of_gaussians_it_says(name, sizes):
    problem = make_problem(name, sizes)
    memory, state, parts = problem.memory, problem.state, problem.parts
    scale = problem.prior.noise_var + state.loc_var + state.row_cov.diagonal(dim1=-2, dim2=-1).sum(-1)
    cov = state.row_mean.mT @ state.row_mean + scale[..., None, None] * torch.eye(parts.shape[-1], dtype=torch.float64)
    clusters = torch.distributions.MultivariateNormal(state.loc_mean.unsqueeze(-3), cov.unsqueeze(-4))
    density = clusters.log_prob(parts.unsqueeze(-2)).logsumexp(-1) - math.log(memory.layout[0])
    expected = density.sum(-2) if memory.kind == "tree" else density
    close(memory.log_predictive(state, problem.codes), expected)


def test_a_categorical_memory_predicts_exactly():
    problem = make_problem("categorical-general")
    memory, state = problem.memory, problem.state
    expected = torch.zeros(6, dtype=torch.float64)
    for h in range(memory.rows):
        deviation = (memory.noise_var + state.loc_var[h]).sqrt()
        expected += torch.distributions.Normal(state.loc_mean[h], deviation).log_prob(problem.codes).sum(-1).exp()
    close(memory.log_predictive(state, problem.codes), (expected / memory.rows).log())


def test_the_predictive_density_is_the_average_over_memories_for_small_covariances():
    """E over M, b ~ q and w ~ N(0, I) of N(z; M'w + b, sigma^2 I), by Monte Carlo; U is small beside the noise, so
    the Gaussian that stands in for the scale mixture is off by less than the error of the average."""
    problem = make_problem("mixture-general", Sizes(part_size=2, frames=4))
    memory = problem.memory
    state = replace(problem.state, row_cov=1e-3 * problem.state.row_cov)
    draws = 100_000
    random = torch.Generator().manual_seed(0)

    def noise(*shape):
        return torch.randn(draws, *shape, generator=random, dtype=torch.float64)

    M = state.row_mean + torch.linalg.cholesky(state.row_cov) @ noise(*state.row_mean.shape)
    b = state.loc_mean + state.loc_var.sqrt().unsqueeze(-1) * noise(*state.loc_mean.shape)
    mean = (noise(3, 1, 2) @ M).squeeze(-2) + b  # [draws, H, C]
    for code, predicted in zip(problem.codes, memory.log_predictive(state, problem.codes).exp(), strict=True):
        square = (code - mean).square().sum(-1)
        density = (-0.5 * square / memory.noise_var).exp().mean(-1) / (2 * np.pi * memory.noise_var)
        assert abs(density.mean() - predicted) < 4 * density.std() / math.sqrt(draws)


def test_density_and_samples_are_of_the_same_distribution():
    """The average log density of samples is minus the entropy: above that of samples of any other memory."""
    problem = make_problem("mixture")
    memory, state = problem.memory, problem.state
    other = state.translate(torch.tensor(1.5))
    own = memory.sample(state, 5000, torch.Generator().manual_seed(0))
    assert memory.log_predictive(state, own).mean() > memory.log_predictive(other, own).mean() + 0.1


# --- Sizes and names ------------------------------------------------------------------------------------------------


@every_memory
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_the_prior_state_is_the_prior(name, batch):
    problem = make_problem(name, Sizes(batch=batch))
    empty = problem.memory.prior_state(batch, dtype=torch.float64)
    for field in empty.__dataclass_fields__:
        assert getattr(empty, field).shape == getattr(problem.state, field).shape
    bound = problem.memory.bound(problem.codes, empty, problem.addresses)
    close(bound.kl_rows, torch.zeros(batch, dtype=torch.float64))
    close(bound.kl_locations, torch.zeros(batch, dtype=torch.float64))


def test_resizing_keeps_the_prior():
    prior = {"noise_var": 0.3, "row_var": 0.2, "row_mean": 0.1, "loc_var": 0.6, "loc_mean": normal(4)}
    memory = MixtureMemory(4, 2, 3, **prior)
    resized = memory.resize(clusters=7, rows=5)
    assert (resized.code_size, resized.rows, resized.clusters) == (4, 5, 7)
    assert all(resized.config()[name] is memory.config()[name] for name in prior)
    assert MixtureMemory(4, 2, 3).resize(rows=5).noise_var == MixtureMemory(4, 2, 3).noise_var
    assert CategoricalMemory(4, 2, row_var=0.2).resize(rows=9).row_var == 0.2


def test_a_resized_memory_starts_from_an_old_state_only_of_its_size():
    memory = MixtureMemory(4, 2, 3)
    state = memory.prior_state()
    with pytest.raises(ValueError, match="another memory"):
        memory.resize(clusters=4).sample(state, 1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gaussian-general", "GaussianMemory(code_size=3, rows=2)"),
        ("categorical", "CategoricalMemory(code_size=3, rows=2)"),
        ("shifted", "ShiftedGaussianMemory(code_size=3, rows=2)"),
        ("mixture", "MixtureMemory(code_size=3, rows=2, clusters=5)"),
        ("tree", "TreeMemory(code_size=6, rows=2, clusters=5, partitions=2)"),
    ],
)
def test_repr_gives_the_sizes(name, expected):
    assert repr(MEMORIES[name](3, 2, 5)) == expected
