"""The bound: term by term against loops, against quadrature, against the log evidence."""

import itertools
import math

import numpy as np
import pytest
import torch

from memory import oracle
from memory.zoo import MEMORIES, close, every_memory, make_problem, normal, over_sizes, random_addresses, variances
from vbmem.memory import CategoricalMemory, GaussianMemory, MixtureMemory


@every_memory
@pytest.mark.parametrize("with_code_var", [False, True], ids=["codes-known", "codes-uncertain"])
@over_sizes
def test_every_term_is_the_one_written_out(name, with_code_var, sizes):
    problem = make_problem(name, sizes)
    code_var = variances(*problem.codes.shape, seed=9) if with_code_var else None
    terms = problem.memory.bound(problem.codes, problem.state, problem.addresses, code_var).terms()
    assert ("kl_codes" in terms) == with_code_var
    assert ("log_likelihood" in terms) != with_code_var

    expected = {term: torch.zeros(sizes.batch, dtype=torch.float64) for term in terms if term != "total"}
    for index, z, q, prior in oracle.episodes(problem):
        episode = index[: len(sizes.batch)]
        var = None
        if code_var is not None:
            var = problem.memory.split(code_var)[index].numpy()
        for term, value in oracle.bound(z, q, prior, var).items():
            expected[term][episode] += value
    for term, total in expected.items():
        close(terms[term], total)
    divergences = sum(value for term, value in expected.items() if term != "log_likelihood")
    close(terms["total"], expected.get("log_likelihood", 0) - divergences)


def normal_density(x, mean, var):
    return -0.5 * ((x - mean) ** 2 / var + np.log(2 * np.pi * var))


def test_the_bound_is_the_expectation_of_log_p_minus_log_q():
    """H=2, K=1, C=1: E_q[log p(z, y, Omega) - log q(y, Omega)] by Gauss-Hermite quadrature over M, b and w.

    The integrand is a polynomial of degree 4, so six nodes a variable are exact.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    weights = weights / weights.sum()
    noise_var, row_var, row_mean, loc_var, loc_mean = 0.7, 0.5, 0.3, 1.3, -0.4
    memory = MixtureMemory(
        1, 1, 2, noise_var=noise_var, row_var=row_var, row_mean=row_mean, loc_var=loc_var, loc_mean=loc_mean
    )
    problem = make_problem("mixture")
    codes = problem.codes[:2, :1]
    state = problem.state.map(lambda t: t[:2, :1, :1] if t.ndim == 3 else t[:2, :1] if t.ndim == 2 else t[:2])
    addresses = random_addresses(memory, codes)

    total = 0.0
    for h in range(2):
        M = state.row_mean[h, 0, 0].item() + math.sqrt(state.row_cov[h, 0, 0].item()) * nodes
        b = state.loc_mean[h, 0].item() + math.sqrt(state.loc_var[h].item()) * nodes
        log_ratio_M = normal_density(M, row_mean, row_var) - normal_density(
            M, state.row_mean[h].item(), state.row_cov[h].item()
        )
        log_ratio_b = normal_density(b, loc_mean, loc_var) - normal_density(
            b, state.loc_mean[h].item(), state.loc_var[h].item()
        )
        total += weights @ log_ratio_M + weights @ log_ratio_b
        for t in range(2):
            theta, mean, var = (
                addresses.assignment[t, h].item(),
                addresses.weight_mean[t, h].item(),
                addresses.weight_cov[h].item(),
            )
            w = mean + math.sqrt(var) * nodes
            inner = math.log(0.5) - math.log(theta)
            for (i, M_i), (j, b_j), (k, w_k) in itertools.product(enumerate(M), enumerate(b), enumerate(w)):
                log_p = normal_density(codes[t].item(), M_i * w_k + b_j, noise_var) + normal_density(w_k, 0, 1)
                inner += weights[i] * weights[j] * weights[k] * (log_p - normal_density(w_k, mean, var))
            total += theta * inner
    assert memory.bound(codes, state, addresses).total.item() == pytest.approx(total, rel=1e-12)


# --- Against the log evidence ---------------------------------------------------------------------------------------


def log_evidence(z: np.ndarray, model: oracle.Model) -> float:
    """log p(z) of a few scalar codes [T, 1] with K <= 1: assignments enumerated, M and b integrated out exactly,
    w by the trapezoid rule (which converges exponentially here)."""
    T, (H, K) = len(z), model.R0.shape[:2]
    grid = np.linspace(-9, 9, 181) if K else np.zeros(1)
    w = np.stack(np.meshgrid(*[grid] * T, indexing="ij"), -1).reshape(-1, T)
    log_weight = (-0.5 * w**2 + np.log((grid[1] - grid[0]) / np.sqrt(2 * np.pi))).sum(-1) if K else np.zeros(1)
    terms = []
    for s in itertools.product(range(H), repeat=T):
        same = np.equal.outer(s, s)
        mean, cov = np.zeros_like(w), np.broadcast_to(model.sigma2 * np.eye(T), (len(w), T, T)).copy()
        for t, h in enumerate(s):
            if K:
                mean[:, t] += model.R0[h, 0, 0] * w[:, t]
            if model.Sigma_b0 is not None:
                mean[:, t] += model.mu_b0[h, 0]
                cov[:, t, :] += same[t] * model.Sigma_b0[h, 0, 0]
            if K:
                cov[:, t, :] += same[t] * model.U0[h, 0, 0] * w[:, t, None] * w
        shift = z[:, 0] - mean
        quadratic = (shift * np.linalg.solve(cov, shift[..., None])[..., 0]).sum(-1)
        log_density = -0.5 * (quadratic + np.linalg.slogdet(cov)[1] + T * np.log(2 * np.pi))
        terms.append(np.logaddexp.reduce(log_weight + log_density) - T * np.log(H))
    return float(np.logaddexp.reduce(terms))


@every_memory
@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_stays_below_the_log_evidence(name, seed):
    rows = 2 if name.startswith("categorical") else 1
    memory = MEMORIES[name](1, rows, 2)
    codes = 2 * normal(2, memory.code_size, seed=seed)
    evidence = sum(
        log_evidence(z.numpy(), model) for z, model in zip(codes.split(1, -1), oracle.models(memory), strict=True)
    )
    gaps = []
    for start in ("random", "data", "kmeans++"):
        state, addresses = memory.write(codes, 200, start, generator=torch.Generator().manual_seed(seed))
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
    M = state.row_mean + torch.linalg.cholesky(state.row_cov) @ noise(*state.row_mean.shape)
    b = state.loc_mean + state.loc_var.sqrt().unsqueeze(-1) * noise(*state.loc_mean.shape)
    # [draws, (G,) T, H, K]: addresses for every cluster, of which s picks one
    root = torch.linalg.cholesky(addresses.weight_cov).unsqueeze(-4)
    w = addresses.weight_mean + (root @ noise(*addresses.weight_mean.shape, 1)).squeeze(-1)
    mean = (w.unsqueeze(-2) @ M.unsqueeze(-4)).squeeze(-2) + b.unsqueeze(-3)
    s = torch.distributions.Categorical(probs=addresses.assignment).sample((draws,))
    mean = mean.gather(-2, s[..., None, None].expand(*s.shape, 1, parts.shape[-1])).squeeze(-2)  # [draws, (G,) T, C]
    v = memory.split(code_var)
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
