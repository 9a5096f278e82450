"""The bound: term by term against loops, against quadrature, against the log evidence."""

import itertools
import math

import numpy as np
import pytest
import torch

from memory import oracle
from memory.zoo import (
    MEMORIES,
    close,
    every_memory,
    make_problem,
    normal,
    over_sizes,
    random_addresses,
    random_state,
    variances,
)
from vbmem.memory import CategoricalMemory, GaussianMemory, MixtureMemory


@every_memory
@over_sizes
def test_every_term_is_the_one_written_out(name, sizes):
    problem = make_problem(name, sizes)
    code_var = variances(*problem.codes.shape, seed=9)
    known = problem.bound().terms()
    uncertain = problem.memory.bound(problem.codes, problem.state, problem.addresses, code_var).terms()
    assert set(known) ^ set(uncertain) == {"log_likelihood", "kl_codes"}

    expected = {term: torch.zeros(sizes.batch, dtype=torch.float64) for term in known | uncertain if term != "total"}
    for index, z, q, prior in oracle.episodes(problem):
        episode = index[: len(sizes.batch)]
        for term, value in oracle.bound(z, q, prior, problem.memory.split(code_var)[index].numpy()).items():
            expected[term][episode] += value
    for terms in (known, uncertain):
        for term in terms.keys() - {"total"}:
            close(terms[term], expected[term])
    shared = sum(expected[term] for term in known.keys() & uncertain.keys() - {"total"})
    close(known["total"], expected["log_likelihood"] - shared)
    close(uncertain["total"], -expected["kl_codes"] - shared)


def normal_density(x, mean, var):
    return -0.5 * ((x - mean) ** 2 / var + np.log(2 * np.pi * var))


@pytest.mark.parametrize("factorised", [False, True], ids=["joint", "factorised"])
def test_the_bound_is_the_expectation_of_log_p_minus_log_q(factorised):
    """H=2, K=1, C=1: E_q[log p(z, y, Omega) - log q(y, Omega)] by Gauss-Hermite quadrature over M, b and w.

    The integrand is a polynomial of degree 4, so six nodes a variable are exact.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    weights = weights / weights.sum()
    noise_var, row_var, row_mean, loc_var, loc_mean = np.array([0.5, 0.9]), 0.5, 0.3, 1.3, -0.4
    memory = MixtureMemory(
        1,
        1,
        2,
        noise_var=torch.as_tensor(noise_var).unsqueeze(-1),
        row_var=row_var,
        row_mean=row_mean,
        loc_var=loc_var,
        loc_mean=loc_mean,
        factorised=factorised,
    )
    codes, state = 2 * normal(2, 1), random_state(memory)
    addresses = random_addresses(memory, codes)
    assert bool(state.row_cov[:, 0, 1].any()) != factorised

    total = 0.0
    for h in range(2):
        unit = noise_var[h] / noise_var.mean()
        root = np.linalg.cholesky(unit * state.row_cov[h].numpy())
        m, b = state.row_mean[h, :, 0].tolist()
        M = m + root[0, 0] * nodes[:, None] + 0 * nodes
        b = b + root[1, 0] * nodes[:, None] + root[1, 1] * nodes  # given M
        log_q = normal_density(nodes[:, None], 0, 1) + normal_density(nodes, 0, 1) - np.log(np.diag(root)).sum()
        log_p = normal_density(M, row_mean, unit * row_var) + normal_density(b, loc_mean, unit * loc_var)
        total += weights @ (log_p - log_q) @ weights
        for t in range(2):
            theta, mean, var = (
                addresses.assignment[t, h].item(),
                addresses.weight_mean[t, h].item(),
                addresses.weight_cov[h].item(),
            )
            inner = math.log(0.5) - math.log(theta)
            for weight, w in zip(weights, mean + math.sqrt(var) * nodes, strict=True):
                log_p = normal_density(codes[t].item(), M * w + b, noise_var[h]) + normal_density(w, 0, 1)
                inner += weight * (weights @ (log_p - normal_density(w, mean, var)) @ weights)
            total += theta * inner
    assert memory.bound(codes, state, addresses).total.item() == pytest.approx(total, rel=1e-12)


# --- Against the log evidence ---------------------------------------------------------------------------------------


def log_evidence(z: np.ndarray, model: oracle.Model) -> float:
    """log p(z) of a few scalar codes [T, 1] with K <= 1: assignments enumerated, M and b integrated out exactly,
    w by the trapezoid rule (which converges exponentially here)."""
    T, (H, J) = len(z), model.R0.shape[:2]
    K = J - model.located
    grid = np.linspace(-9, 9, 101) if K else np.zeros(1)
    w = np.stack(np.meshgrid(*[grid] * T, indexing="ij"), -1).reshape(-1, T)
    log_weight = (-0.5 * w**2 + np.log((grid[1] - grid[0]) / np.sqrt(2 * np.pi))).sum(-1) if K else np.zeros(1)
    extended = np.stack([w] * K + [np.ones_like(w)] * model.located, -1)  # w~  [.., T, J]
    terms = []
    for s in itertools.product(range(H), repeat=T):
        same, psi = np.equal.outer(s, s), model.psi[list(s), 0]
        mean = (extended * model.R0[list(s), :, 0]).sum(-1)
        U0 = (psi / model.s)[:, None, None] * model.U0[list(s)]
        cov = np.diag(psi) + same * np.einsum("ntj,tjk,nuk->ntu", extended, U0, extended)
        shift = z[:, 0] - mean
        quadratic = (shift * np.linalg.solve(cov, shift[..., None])[..., 0]).sum(-1)
        log_density = -0.5 * (quadratic + np.linalg.slogdet(cov)[1] + T * np.log(2 * np.pi))
        terms.append(np.logaddexp.reduce(log_weight + log_density) - T * np.log(H))
    return float(np.logaddexp.reduce(terms))


@every_memory
def test_the_bound_stays_below_the_log_evidence(name):
    rows = 2 if name.startswith("categorical") else 1
    memory = MEMORIES[name](1, rows, 2)
    codes = 2 * normal(2, memory.code_size)
    evidence = sum(
        log_evidence(z.numpy(), model) for z, model in zip(codes.split(1, -1), oracle.models(memory), strict=True)
    )
    gaps = []
    for start in ("random", "data", "kmeans++"):
        state, addresses = memory.write(codes, 40, start, generator=torch.Generator().manual_seed(1))
        gaps.append(evidence - memory.bound(codes, state, addresses).total.item())
    assert min(gaps) > 0
    assert min(gaps) < 3 * memory.partitions  # mean field costs something, not everything


def test_a_categorical_memory_of_one_row_has_a_tight_bound():
    row_mean, codes = normal(1, 3, seed=2), normal(5, 3)
    memory = CategoricalMemory(3, 1, noise_var=0.7, row_var=1.9, row_mean=row_mean)
    state, addresses = memory.write(codes, 1)
    evidence = 0.0
    for c in range(3):
        cov = 0.7 * np.eye(5) + 1.9
        shift = (codes[:, c] - row_mean[0, c]).numpy()
        evidence += -0.5 * (shift @ np.linalg.solve(cov, shift) + np.linalg.slogdet(2 * np.pi * cov)[1])
    assert memory.bound(codes, state, addresses).total.item() == pytest.approx(evidence, rel=1e-12)


def test_a_gaussian_memory_that_knows_its_rows_has_a_tight_bound():
    """U_0 -> 0: what is left is factor analysis with known loadings, whose posterior is Gaussian."""
    rows = normal(2, 3, seed=1)
    memory = GaussianMemory(3, 2, noise_var=0.7, row_mean=rows, row_var=1e-10)
    codes = normal(5, 3)
    state, addresses = memory.write(codes, 5, "prior")
    exact = torch.distributions.MultivariateNormal(
        torch.zeros(3, dtype=torch.float64), rows.mT @ rows + 0.7 * torch.eye(3, dtype=torch.float64)
    )
    assert memory.bound(codes, state, addresses).total.item() == pytest.approx(
        exact.log_prob(codes).sum().item(), abs=1e-7
    )


# --- Properties -----------------------------------------------------------------------------------------------------


@every_memory
def test_the_prior_state_costs_nothing(name):
    problem = make_problem(name)
    empty = problem.memory.prior_state(dtype=torch.float64)
    bound = problem.memory.bound(problem.codes, empty, problem.addresses)
    close(bound.kl_rows, 0.0, atol=1e-12)
    close(bound.kl_locations, 0.0, atol=1e-12)


@every_memory
def test_divergences_are_not_negative(name):
    problem = make_problem(name)
    terms = problem.memory.bound(problem.codes, problem.state, problem.addresses).terms()
    assert all(terms[term] >= 0 for term in terms if term.startswith("kl"))


@every_memory
def test_expected_divergence_of_the_codes_is_the_mean_of_sampled_ones(name):
    """KL(q(z) || p(z | y, Omega)) with M, b, s and w drawn from q: the reference implementation's estimator."""
    draws = 20_000
    problem = make_problem(name)
    memory, (parts, state, addresses) = problem.memory, (problem.parts, problem.state, problem.addresses)
    noise_var = problem.prior.noise_var
    code_var = variances(*problem.codes.shape, seed=9)
    random = torch.Generator().manual_seed(0)

    def noise(*shape):
        return torch.randn(draws, *shape, generator=random, dtype=torch.float64)

    # [draws, (G,) H, ..]: one memory a draw
    scale = (noise_var / problem.prior.noise_scale).sqrt().unsqueeze(-2)
    M = state.row_mean + scale * (torch.linalg.cholesky(state.row_cov) @ noise(*state.row_mean.shape))
    # [draws, (G,) T, H, J]: addresses for every cluster, of which s picks one
    root = torch.linalg.cholesky(addresses.weight_cov).unsqueeze(-4)
    w = addresses.weight_mean + (root @ noise(*addresses.weight_mean.shape, 1)).squeeze(-1)
    if state.located:
        w = torch.cat([w, w.new_ones(*w.shape[:-1], 1)], -1)
    mean = (w.unsqueeze(-2) @ M.unsqueeze(-4)).squeeze(-2)
    s = torch.distributions.Categorical(probs=addresses.assignment).sample((draws,))
    mean = mean.gather(-2, s[..., None, None].expand(*s.shape, 1, parts.shape[-1])).squeeze(-2)  # [draws, (G,) T, C]
    v = memory.split(code_var)
    index = s.unsqueeze(-1).expand(*s.shape, parts.shape[-1])
    noise_var = noise_var.expand(draws, *state.loc_mean.shape).gather(-2, index)  # of the cluster drawn
    kl = 0.5 * ((v + (parts - mean).square()) / noise_var - 1 + (noise_var / v).log())
    sampled = kl.flatten(1).sum(-1)

    exact = memory.bound(problem.codes, state, addresses, code_var).kl_codes
    assert exact is not None
    standard_error = sampled.std() / math.sqrt(draws)
    assert abs(sampled.mean() - exact) < 4 * standard_error
    assert standard_error < 0.02 * exact


def test_a_bound_needs_no_batch_of_its_own_for_the_codes():
    """One episode against several states: the codes broadcast."""
    problem = make_problem("mixture")
    memory, codes = problem.memory, problem.codes
    start = problem.state.map(lambda t: torch.stack([t, 2 * t]))
    state, addresses = memory.write(codes.expand(2, -1, -1), 3, start)
    total = memory.bound(codes, state, addresses).total
    assert total.shape == (2,)
    close(total[1], memory.bound(codes, state.map(lambda t: t[1]), addresses.map(lambda t: t[1])).total)
