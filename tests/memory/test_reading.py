"""Reading from a written memory: recall, samples, densities."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from memory.zoo import MEMORIES, Sizes, close, every_memory, make_problem, normal, over_sizes
from vbmem.memory import CategoricalMemory, MixtureMemory
from vbmem.memory import engine as steps


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


def affine_parts(problem, samples, clusters):
    """What a code in its cluster's plane leaves of it, z - b_h projected off the rows of R_h, and its weights there."""
    state, parts = problem.state, problem.memory.split(samples)
    inverse = torch.linalg.pinv(state.row_mean)  # [.., H, C, K]

    def chosen(per_cluster):
        index = clusters.reshape(*clusters.shape, *[1] * (per_cluster.ndim - clusters.ndim))
        return per_cluster.take_along_dim(index, clusters.ndim - 1)

    shift = (parts - chosen(state.loc_mean)).unsqueeze(-2)
    weights = shift @ chosen(inverse)
    return (shift - weights @ chosen(state.row_mean)).squeeze(-2), weights.squeeze(-2)


def clusters_for(problem, n, seed=0):
    shape = (*problem.state.loc_var.shape[:-1], n)
    return torch.randint(problem.memory.layout[0], shape, generator=torch.Generator().manual_seed(seed))


@every_memory
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_mean_samples_of_given_clusters_lie_in_their_planes(name, batch):
    """Nothing but w is drawn: z = R_h'w + b_h, with w ~ N(0, I)."""
    problem = make_problem(name, Sizes(batch=batch, part_size=5, rows=2))
    clusters = clusters_for(problem, 4000)
    random = torch.Generator().manual_seed(0)
    samples = problem.memory.sample(problem.state, 4000, random, clusters=clusters, sample=False)
    assert samples.shape == (*batch, 4000, problem.memory.code_size)
    residual, weights = affine_parts(problem, samples, clusters)
    close(residual, torch.zeros_like(residual), atol=1e-9)
    assert (weights.mean(-2).abs() < 4.5 / math.sqrt(4000)).all()
    assert ((weights.square().mean(-2) - 1).abs() < 4.5 * math.sqrt(2 / 4000)).all()


@pytest.mark.parametrize("name", ["categorical", "categorical-general"])
def test_a_mean_sample_of_a_categorical_memory_is_a_row(name):
    problem = make_problem(name, Sizes(rows=4))
    clusters = torch.tensor([3, 0, 0, 2, 1])
    means = problem.memory.sample(problem.state, 5, clusters=clusters, sample=False)
    assert (means == problem.state.loc_mean[clusters]).all()


@every_memory
@pytest.mark.parametrize("sample", [True, False])
def test_what_is_drawn_adds_its_variance_to_the_samples_of_a_cluster(name, sample):
    """R_h'R_h, and beside it sigma^2 I of the codes and (v_h + tr U_h) I of the memory."""
    problem = make_problem(name)
    state, n = problem.state, 40_000
    clusters = torch.full((*state.loc_var.shape[:-1], n), problem.memory.layout[0] - 1)
    samples = problem.memory.sample(state, n, torch.Generator().manual_seed(0), clusters=clusters, sample=sample)
    centred = problem.memory.split(samples) - state.loc_mean[..., -1:, :]
    of_memory = (state.loc_var + state.row_cov.diagonal(dim1=-2, dim2=-1).sum(-1))[..., -1:, None]
    scale = sample * (problem.prior.noise_var + of_memory)
    rows = state.row_mean[..., -1, :, :]
    cov = rows.mT @ rows + scale * torch.eye(rows.shape[-1], dtype=torch.float64)
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    assert (centred.mean(-2).abs() <= 4.5 * centred.std(-2) / math.sqrt(n)).all()
    assert ((products.mean(-3) - cov).abs() <= 4.5 * products.std(-3) / math.sqrt(n) + 1e-12).all()


BAD_CLUSTERS = {
    "too few": (torch.zeros(4, dtype=torch.int64), r"int64 of shape \[5\], got torch\.int64 of shape \[4\]"),
    "for partitions": (torch.zeros(2, 5, dtype=torch.int64), r"shape \[5\], got torch\.int64 of shape \[2, 5\]"),
    "floating": (torch.zeros(5), r"int64 of shape \[5\], got torch\.float32"),
    "too large": (torch.tensor([0, 1, 2, 3, 0]), r"lie in 0 \.\. 2, got 0 \.\. 3"),
    "negative": (torch.tensor([0, -1, 2, 1, 0]), r"lie in 0 \.\. 2, got -1 \.\. 2"),
}


@pytest.mark.parametrize(("clusters", "message"), BAD_CLUSTERS.values(), ids=list(BAD_CLUSTERS))
def test_bad_clusters_are_refused(clusters, message):
    problem = make_problem("mixture")
    with pytest.raises(ValueError, match=message):
        problem.memory.sample(problem.state, 5, clusters=clusters)


def test_clusters_of_a_tree_are_given_for_every_partition():
    problem = make_problem("tree")
    with pytest.raises(ValueError, match=r"int64 of shape \[2, 5\], got torch\.int64 of shape \[5\]"):
        problem.memory.sample(problem.state, 5, clusters=torch.zeros(5, dtype=torch.int64))


# --- Reading back ---------------------------------------------------------------------------------------------------


@every_memory
@over_sizes
def test_a_mean_reading_is_that_of_the_most_probable_cluster(name, sizes):
    problem = make_problem(name, sizes)
    memory, state = problem.memory, problem.state
    addresses = memory.address(state, problem.codes)
    parts = torch.zeros_like(problem.parts)
    for index in itertools.product(*map(range, parts.shape[:-1])):  # a frame of a partition
        h = int(addresses.assignment[index].argmax())
        parts[index] = addresses.weight_mean[index][h] @ state.row_mean[index[:-1]][h] + state.loc_mean[index[:-1]][h]
    read = memory.read(state, problem.codes, sample=False)
    assert read.shape == problem.codes.shape
    close(read, memory.join(parts))


@every_memory
def test_readings_have_the_mean_and_covariance_of_the_addresses(name):
    """Given s=h, a reading has the mean R_h'mu_h + b_h and the covariance R_h'Sigma_h R_h + (v_h + tr U_h S_h
    + sigma^2) I with S_h = E ww' = mu_h mu_h' + Sigma_h."""
    problem = make_problem(name, Sizes(frames=3))
    memory, state, n = problem.memory, problem.state, 30_000
    address = memory.address(state, problem.codes)
    theta, mu, sigma = address.assignment, address.weight_mean, address.weight_cov
    assert (theta.amax(-1) < 0.999).any() or theta.shape[-1] == 1  # soft enough to matter
    rows, cov, loc, loc_var = state.row_mean, state.row_cov, state.loc_mean, state.loc_var
    means = torch.einsum("...thk,...hkc->...thc", mu, rows) + loc.unsqueeze(-3)
    spread = torch.einsum("...thk,...hkl,...thl->...th", mu, cov, mu) + (cov * sigma).sum((-1, -2)).unsqueeze(-2)
    scale = spread + loc_var.unsqueeze(-2) + problem.prior.noise_var
    within = (rows.mT @ sigma @ rows).unsqueeze(-4) + scale[..., None, None] * torch.eye(rows.shape[-1]).double()
    second = (theta[..., None, None] * (within + means.unsqueeze(-1) * means.unsqueeze(-2))).sum(-3)
    mean = steps.recall(state, address)
    close(mean, (theta.unsqueeze(-1) * means).sum(-2))

    repeated = problem.codes.repeat(n, 1)  # frames are addressed each on its own
    read = memory.read(state, repeated, torch.Generator().manual_seed(0))
    parts = memory.split(read.unflatten(0, (n, -1)))  # [n, .., T, C / G]
    products = (parts - mean).unsqueeze(-1) * (parts - mean).unsqueeze(-2)
    expected = second - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    assert ((parts.mean(0) - mean).abs() < 5 * parts.std(0) / math.sqrt(n)).all()
    assert ((products.mean(0) - expected).abs() < 5 * products.std(0) / math.sqrt(n)).all()


@every_memory
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_a_generator_makes_readings_reproducible(name, batch):
    problem = make_problem(name, Sizes(batch=batch))

    def read(seed):
        return problem.memory.read(problem.state, problem.codes, torch.Generator().manual_seed(seed))

    assert read(1).shape == problem.codes.shape
    assert (read(1) == read(1)).all()
    assert (read(1) != read(2)).any()


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
    prior: dict[str, Any] = {"noise_var": 0.3, "row_var": 0.2, "row_mean": 0.1, "loc_var": 0.6, "loc_mean": normal(4)}
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
