"""Each of the four updates raises the bound, and is the paper's theorem."""

import numpy as np
import pytest
import torch

from memory import oracle
from memory.zoo import Problem, close, every_memory, make_problem, over_sizes

ROUNDING = 1e-10  # relative to the bound


def assert_not_lower(after: Problem, before: Problem) -> None:
    new, old = after.bound().total, before.bound().total
    assert (new >= old - ROUNDING * (1 + old.abs())).all(), (new - old).min()


@every_memory
@over_sizes
def test_every_update_raises_the_bound(name, sizes):
    problem = make_problem(name, sizes)
    weights = problem.update_weights()
    assert_not_lower(weights, problem)
    assert_not_lower(weights.update_assignments(), weights)
    locations = problem.update_locations()
    assert_not_lower(locations, problem)
    assert_not_lower(locations.update_rows(), locations)


@every_memory
def test_an_update_from_a_random_state_gains_visibly(name):
    problem = make_problem(name)
    clusters, rows = problem.memory.layout
    has_location = problem.prior.has_location

    def gain(after: Problem, before: Problem) -> float:
        return (after.bound().total - before.bound().total).item()

    weights, locations = problem.update_weights(), problem.update_locations()
    assert gain(weights, problem) > 0.1 or rows == 0
    assert gain(weights.update_assignments(), weights) > 0.1 or clusters == 1
    assert gain(locations, problem) > 0.1 or not has_location
    assert gain(locations.update_rows(), locations) > 0.1 or rows == 0


@every_memory
@pytest.mark.parametrize("start", ["prior", "random", "data", "kmeans++"])
def test_every_iteration_of_a_write_raises_the_bound(name, start):
    problem = make_problem(name)
    previous = None
    for iterations in range(1, 13):
        state, addresses = problem.memory.write(
            problem.codes, iterations, start, generator=torch.Generator().manual_seed(0)
        )
        total = problem.memory.bound(problem.codes, state, addresses).total
        assert previous is None or total >= previous - ROUNDING * (1 + previous.abs())
        previous = total


# --- Against the theorems -------------------------------------------------------------------------------------------


def variances(Sigma_b: np.ndarray) -> np.ndarray:
    """The scalars of Sigma_b = v I, [H, C, C] -> [H]."""
    for matrix in Sigma_b:
        np.testing.assert_allclose(matrix, matrix[0, 0] * np.eye(len(matrix)), atol=1e-12)
    return Sigma_b[:, 0, 0]


@every_memory
@over_sizes
def test_the_updates_are_those_of_theorem_c4(name, sizes):
    """C.4 holds the others: C.1 and C.3 for any sigma_z with H=1, C.2 with K=0, C.5 by partition."""
    problem = make_problem(name, sizes)
    weights = problem.update_weights()
    assignments = weights.update_assignments()
    locations = problem.update_locations()
    rows = locations.update_rows()
    for index, z, q, prior in oracle.episodes(problem):
        sigma2 = prior.sigma2
        mu_w, Sigma_w = oracle.c4_weights(z, q.R, q.U, q.mu_b, sigma2)
        close(weights.addresses.weight_mean[index], mu_w)
        close(weights.addresses.weight_cov[index], Sigma_w)
        theta = oracle.c4_assignments(z, q.R, q.U, q.mu_b, q.Sigma_b, mu_w, Sigma_w, sigma2)
        close(assignments.addresses.assignment[index], theta)
        mu_b = q.mu_b
        if prior.Sigma_b0 is not None:
            mu_b, Sigma_b = oracle.c4_locations(z, q.theta, q.R, q.mu_w, prior.mu_b0, prior.Sigma_b0, sigma2)
            close(locations.state.loc_mean[index], mu_b)
            close(locations.state.loc_var[index], variances(Sigma_b))
        R, U = oracle.c4_rows(z, q.theta, q.mu_w, q.Sigma_w, mu_b, prior.R0, prior.U0, sigma2)
        close(rows.state.row_mean[index], R)
        close(rows.state.row_cov[index], U)


def updates(name: str, **changes) -> tuple[Problem, Problem, Problem]:
    """A random problem with the general prior, its local and its global step."""
    problem = make_problem(name)
    memory = type(problem.memory)(**(problem.memory.config() | changes))
    problem = Problem(memory, problem.codes, problem.state, problem.addresses)
    return problem, problem.update_weights().update_assignments(), problem.update_locations().update_rows()


def test_the_gaussian_memory_is_theorem_c1():
    problem, local, glob = updates("gaussian-general", noise_var=1.0)
    ((_, z, q, prior),) = oracle.episodes(problem)
    mu_w, Sigma_w = oracle.c1_weights(z, q.R[0], q.U[0])
    close(local.addresses.weight_mean[:, 0], mu_w)
    close(local.addresses.weight_cov[0], Sigma_w)
    R, U = oracle.c1_rows(z, q.mu_w[:, 0], q.Sigma_w[0], prior.R0[0], prior.U0[0])
    close(glob.state.row_mean[0], R)
    close(glob.state.row_cov[0], U)


def test_the_categorical_memory_is_theorem_c2():
    problem, local, glob = updates("categorical-general", noise_var=1.0)
    ((_, z, q, prior),) = oracle.episodes(problem)
    R, U = q.mu_b, np.diag(variances(q.Sigma_b))
    close(local.addresses.assignment, oracle.c2_assignments(z, R, U))
    assert prior.Sigma_b0 is not None
    R, U = oracle.c2_rows(z, q.theta, prior.mu_b0, np.diag(variances(prior.Sigma_b0)))
    close(glob.state.loc_mean, R)
    close(glob.state.loc_var, np.diag(U).copy())


def test_the_shifted_memory_is_theorem_c3():
    problem, local, glob = updates("shifted-general")
    ((_, z, q, prior),) = oracle.episodes(problem)
    mu_w, Sigma_w = oracle.c3_weights(z, q.R[0], q.U[0], q.mu_b[0], prior.sigma2)
    close(local.addresses.weight_mean[:, 0], mu_w)
    close(local.addresses.weight_cov[0], Sigma_w)
    assert prior.Sigma_b0 is not None
    mu_b, Sigma_b = oracle.c3_location(z, q.R[0], q.mu_w[:, 0], prior.mu_b0[0], prior.Sigma_b0[0], prior.sigma2)
    close(glob.state.loc_mean[0], mu_b)
    close(glob.state.loc_var, variances(Sigma_b[None]).copy())
    R, U = oracle.c3_rows(z, q.mu_w[:, 0], q.Sigma_w[0], mu_b, prior.R0[0], prior.U0[0], prior.sigma2)
    close(glob.state.row_mean[0], R)
    close(glob.state.row_cov[0], U)
