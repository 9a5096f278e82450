"""Reading from a written memory: recall, samples, densities."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from memory.zoo import MEMORIES, Sizes, close, every_located_memory, every_memory, make_problem, normal, over_sizes
from vbmem.memory import CategoricalMemory, MemoryState, MixtureMemory
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
            row = addresses.weight_mean[..., t, h, :].unsqueeze(-2) @ state.factor_mean[..., h, :, :]
            theta = addresses.assignment[..., t, h].unsqueeze(-1)
            parts[..., t, :] += theta * (row.squeeze(-2) + state.loc_mean[..., h, :])
    close(memory.reconstruct(state, problem.codes), memory.join(parts))
    assert memory.reconstruct(state, problem.codes).shape == problem.codes.shape


@every_memory
def test_a_written_memory_recalls_what_was_written(name):
    """Tight noise and room enough: what is read back is what was written, to a few hundredths."""
    problem = make_problem(name, Sizes(frames=4, rows=4, clusters=4))
    config = problem.memory.config()
    memory = type(problem.memory)(**(config | {"noise_var": 1e-3 * torch.as_tensor(config["noise_var"])}))
    state, _ = memory.write(problem.codes, 50, "data", generator=torch.Generator().manual_seed(0))
    close(memory.reconstruct(state, problem.codes), problem.codes, rtol=0, atol=0.05)


# --- Samples --------------------------------------------------------------------------------------------------------


def cluster_covariance(problem) -> torch.Tensor:
    """Of a new code in each cluster: R'R of the factors + (1 + tr U / s) Psi, tr U with the location's variance."""
    state, prior = problem.state, problem.prior
    multiple = 1 + state.row_cov.diagonal(dim1=-2, dim2=-1).sum(-1) / prior.noise_scale
    return state.factor_mean.mT @ state.factor_mean + (multiple.unsqueeze(-1) * prior.noise_var).diag_embed()


def predictive_moments(problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of a new code, a mixture; the partitions of a tree are independent."""
    state = problem.state
    second = cluster_covariance(problem) + state.loc_mean.unsqueeze(-1) * state.loc_mean.unsqueeze(-2)
    second = second.mean(-3)
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
    rows = problem.state
    state = MemoryState.of(rows.factor_mean, rows.factor_cov, locations, rows.loc_var)
    samples = problem.memory.sample(state, 4000, torch.Generator().manual_seed(0))
    corners = (samples > 0).long() @ torch.tensor([2, 1])
    assert (corners.bincount(minlength=4) / 4000 - 0.25).abs().max() < 0.03


@every_located_memory
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
    inverse = torch.linalg.pinv(state.factor_mean)  # [.., H, C, K]

    def chosen(per_cluster):
        index = clusters.reshape(*clusters.shape, *[1] * (per_cluster.ndim - clusters.ndim))
        return per_cluster.take_along_dim(index, clusters.ndim - 1)

    shift = (parts - chosen(state.loc_mean)).unsqueeze(-2)
    weights = shift @ chosen(inverse)
    return (shift - weights @ chosen(state.factor_mean)).squeeze(-2), weights.squeeze(-2)


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
    """R_h'R_h of the factors, and beside it Psi_h of the codes and tr U_h Psi_h / s of the memory."""
    problem = make_problem(name)
    state, n = problem.state, 40_000
    clusters = torch.full((*state.loc_var.shape[:-1], n), problem.memory.layout[0] - 1)
    samples = problem.memory.sample(state, n, torch.Generator().manual_seed(0), clusters=clusters, sample=sample)
    centred = problem.memory.split(samples) - state.loc_mean[..., -1:, :]
    rows = state.factor_mean[..., -1, :, :]
    cov = cluster_covariance(problem)[..., -1, :, :] if sample else rows.mT @ rows
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
        rows, location = state.factor_mean[index[:-1]][h], state.loc_mean[index[:-1]][h]
        parts[index] = addresses.weight_mean[index][h] @ rows + location
    read = memory.read(state, problem.codes, sample=False)
    assert read.shape == problem.codes.shape
    close(read, memory.join(parts))


@every_memory
def test_readings_have_the_mean_and_covariance_of_the_addresses(name):
    """Given s=h, a reading has the mean R_h'mu_h + b_h and the covariance R_h'Sigma_h R_h + (1 + tr U_h S_h / s) Psi_h
    with S_h = E w~w~' = mu_h mu_h' + Sigma_h, of w~ = (w, 1)."""
    problem = make_problem(name, Sizes(frames=3))
    memory, state, n = problem.memory, problem.state, 30_000
    address = memory.address(state, problem.codes)
    theta, mu, sigma = address.assignment, address.weight_mean, address.weight_cov
    assert (theta.amax(-1) < 0.999).any() or theta.shape[-1] == 1  # soft enough to matter
    rows, cov, prior = state.factor_mean, state.row_cov, problem.prior
    means = torch.einsum("...thk,...hkc->...thc", mu, rows) + state.loc_mean.unsqueeze(-3)
    extended = torch.cat([mu, mu.new_ones(*mu.shape[:-1], int(state.located))], -1)
    spread = torch.einsum("...thk,...hkl,...thl->...th", extended, cov, extended)
    spread = spread + (state.factor_cov * sigma).sum((-1, -2)).unsqueeze(-2)
    scale = (1 + spread / prior.noise_scale).unsqueeze(-1) * prior.noise_var.unsqueeze(-3)  # [.., T, H, C]
    within = (rows.mT @ sigma @ rows).unsqueeze(-4) + scale.diag_embed()
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


@pytest.mark.parametrize("name", ["categorical", "categorical-general", "categorical-cluster"])
def test_a_categorical_memory_predicts_exactly(name):
    problem = make_problem(name)
    memory, state = problem.memory, problem.state
    clusters = torch.distributions.MultivariateNormal(state.loc_mean, cluster_covariance(problem))
    expected = clusters.log_prob(problem.codes.unsqueeze(-2)).logsumexp(-1) - math.log(memory.rows)
    close(memory.log_predictive(state, problem.codes), expected)


@every_memory
def test_the_predictive_density_of_certain_rows_is_a_mixture_of_gaussians(name):
    """Nothing but w is uncertain of a code then, and that is integrated out exactly."""
    problem = make_problem(name, Sizes(batch=(2,)))
    memory, state = problem.memory, replace(problem.state, row_cov=1e-12 * problem.state.row_cov)
    cov = cluster_covariance(replace(problem, state=state))
    clusters = torch.distributions.MultivariateNormal(state.loc_mean.unsqueeze(-3), cov.unsqueeze(-4))
    density = clusters.log_prob(problem.parts.unsqueeze(-2)).logsumexp(-1) - math.log(memory.layout[0])
    expected = density.sum(-2) if memory.kind == "tree" else density
    close(memory.log_predictive(state, problem.codes), expected, rtol=1e-6, atol=1e-6)


@every_memory
def test_the_predictive_density_is_the_average_over_memories(name):
    """E over M ~ q and w ~ N(0, I) of N(z; M'w~, Psi), by Monte Carlo, cluster by cluster."""
    problem = make_problem(name, Sizes(frames=3, part_size=2))
    state, prior, draws = replace(problem.state, row_cov=0.1 * problem.state.row_cov), problem.prior, 40_000
    random = torch.Generator().manual_seed(0)

    def noise(*shape):
        return torch.randn(draws, *shape, generator=random, dtype=torch.float64)

    scale = (prior.noise_var / prior.noise_scale).sqrt().unsqueeze(-2)
    M = state.row_mean + scale * (torch.linalg.cholesky(state.row_cov) @ noise(*state.row_mean.shape))
    w = noise(*state.row_mean.shape[:-1])
    if state.located:
        w[..., -1] = 1
    mean = (w.unsqueeze(-2) @ M).squeeze(-2)  # [draws, .., H, C]
    var = prior.noise_var.expand(*mean.shape[1:])
    log_densities = problem.memory.log_densities(state, problem.codes)  # [.., T, H]
    for t, code in enumerate(problem.parts.unbind(-2)):
        square = ((code.unsqueeze(-2) - mean).square() / var).sum(-1)
        density = (-0.5 * (square + (2 * math.pi * var).log().sum(-1))).exp()
        error = 4.5 * density.std(0) / math.sqrt(draws)
        predicted = log_densities[..., t, :].exp()
        seen = predicted > 1e-4  # often enough
        assert ((density.mean(0) - predicted).abs() < error + 0.1 * predicted)[seen].all()  # in w it is approximate


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
    assert empty.row_mean.shape == problem.state.row_mean.shape
    assert empty.row_cov.shape == problem.state.row_cov.shape
    assert empty.located == problem.state.located
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


@every_located_memory
def test_what_becomes_of_a_code_does_not_depend_on_those_beside_it(name):
    problem = make_problem(name, Sizes(frames=5))
    memory, state = problem.memory, problem.state
    far = torch.cat([problem.codes, problem.codes[..., :1, :] + 1e12], -2)
    for read in (memory.log_predictive, memory.local_bound, memory.reconstruct):
        alone, beside = read(state, problem.codes), read(state, far)
        close(beside.narrow(problem.codes.ndim - 2, 0, 5), alone)
