"""Each update raises the bound, and is the one written out: the paper's theorem, or a linear regression."""

from dataclasses import replace
from typing import Any

import numpy as np

from memory import oracle
from memory.zoo import (
    Problem,
    Sizes,
    close,
    every_factorised_memory,
    every_memory,
    every_start,
    make_problem,
    over_sizes,
)
from tiny import seeded
from vbmem.memory import MemoryState

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
    before = problem.update_locations() if problem.memory.factorised else problem
    assert_not_lower(before, problem)
    assert_not_lower(problem.update_memory(), before)


@every_memory
def test_an_update_from_a_random_state_gains_visibly(name):
    problem = make_problem(name)
    clusters, rows = problem.memory.layout

    def gain(after: Problem, before: Problem) -> float:
        return (after.bound().total - before.bound().total).item()

    weights = problem.update_weights()
    assert gain(weights, problem) > 0.1 or rows == 0
    assert gain(weights.update_assignments(), weights) > 0.1 or clusters == 1
    if problem.memory.factorised:
        locations = problem.update_locations()
        assert gain(locations, problem) > 0.1
        assert gain(locations.update_memory(), locations) > 0.1
    else:
        assert gain(problem.update_memory(), problem) > 0.1


@every_memory
@every_start
def test_every_iteration_of_a_write_raises_the_bound(name, start):
    problem = make_problem(name)
    previous = None
    for iterations in range(1, 6):
        state, addresses = problem.memory.write(problem.codes, iterations, start, generator=seeded())
        total = problem.memory.bound(problem.codes, state, addresses).total
        assert previous is None or total >= previous - ROUNDING * (1 + previous.abs())
        previous = total


# --- Joint and factorised -------------------------------------------------------------------------------------------


def joint(problem: Problem) -> Problem:
    """The same state and addresses in the memory that does not hold rows and locations apart."""
    arguments: dict[str, Any] = problem.memory.config() | {"factorised": False}
    return replace(problem, memory=type(problem.memory)(**arguments))


@every_factorised_memory
@over_sizes
def test_a_joint_global_step_ends_no_lower_than_a_factorised_one(name, sizes):
    problem = make_problem(name, sizes)
    close(joint(problem).bound(), problem.bound())
    factorised = problem
    for _ in range(5):
        factorised = factorised.update_memory()
        assert_not_lower(joint(problem).update_memory(), factorised)


@every_factorised_memory
def test_a_joint_write_goes_on_from_a_converged_factorised_one_without_a_fall(name):
    problem = make_problem(name, Sizes(frames=20))
    memory, other, codes = problem.memory, joint(problem).memory, problem.codes
    state, addresses = memory.write(codes, 300, problem.state)
    before = previous = memory.bound(codes, state, addresses).total
    for expand in (False, True):
        for iterations in range(1, 9):
            total = other.bound(codes, *other.write(codes, iterations, state, expand=expand)).total
            assert total >= previous - ROUNDING * previous.abs()
            previous = total
        assert previous > before + 1e-3
        previous = before


# --- Written out ----------------------------------------------------------------------------------------------------


@every_memory
@over_sizes
def test_the_updates_are_those_written_out(name, sizes):
    problem = make_problem(name, sizes)
    weights, memory = problem.update_weights(), problem.update_memory()
    assignments = weights.update_assignments()
    for index, z, q, prior in oracle.episodes(problem):
        mu_w, Sigma_w = oracle.weights(z, q, prior)
        close(weights.addresses.weight_mean[index], mu_w)
        close(weights.addresses.weight_cov[index], Sigma_w)
        q_optimal = replace(q, mu_w=mu_w, Sigma_w=Sigma_w)
        close(assignments.addresses.assignment[index], oracle.assignments(z, q_optimal, prior))
        if not problem.memory.factorised:
            R, U = oracle.rows(z, q, prior)
            close(memory.state.row_mean[index], R)
            close(memory.state.row_cov[index], U)


# --- Against the theorems -------------------------------------------------------------------------------------------


def variances(Sigma_b: np.ndarray) -> np.ndarray:
    """The scalars of Sigma_b = v I, [H, C, C] -> [H]."""
    for matrix in Sigma_b:
        np.testing.assert_allclose(matrix, matrix[0, 0] * np.eye(len(matrix)), atol=1e-12)
    return Sigma_b[:, 0, 0].copy()


def is_block_diagonal(state: MemoryState) -> bool:
    return not bool(state.row_cov[..., -1, :-1].any() or state.row_cov[..., :-1, -1].any())


@every_factorised_memory
@over_sizes
def test_the_updates_of_a_factorised_memory_are_those_of_theorem_c4(name, sizes):
    """C.4 holds C.3 with H=1 and C.5 by partition."""
    problem = make_problem(name, sizes)
    weights, locations, memory = problem.update_weights(), problem.update_locations(), problem.update_memory()
    assignments = weights.update_assignments()
    assert is_block_diagonal(memory.state)
    for index, z, q, prior in oracle.episodes(problem):
        R, U, mu_b, Sigma_b = oracle.apart(q.R, q.U)
        R0, U0, mu_b0, Sigma_b0 = oracle.apart(prior.R0, prior.U0)
        sigma2 = prior.sigma2
        mu_w, Sigma_w = oracle.c4_weights(z, R, U, mu_b, sigma2)
        close(weights.addresses.weight_mean[index], mu_w)
        close(weights.addresses.weight_cov[index], Sigma_w)
        theta = oracle.c4_assignments(z, R, U, mu_b, Sigma_b, mu_w, Sigma_w, sigma2)
        close(assignments.addresses.assignment[index], theta)
        mu_b, Sigma_b = oracle.c4_locations(z, q.theta, R, q.mu_w, mu_b0, Sigma_b0, sigma2)
        for after in (locations, memory):
            close(after.state.loc_mean[index], mu_b)
            close(after.state.loc_var[index], variances(Sigma_b))
        R, U = oracle.c4_rows(z, q.theta, q.mu_w, q.Sigma_w, mu_b, R0, U0, sigma2)
        close(memory.state.factor_mean[index], R)
        close(memory.state.factor_cov[index], U)


def updates(name: str, **changes) -> tuple[Problem, Problem, Problem]:
    """A random problem with the general prior, its local and its global step."""
    problem = make_problem(name)
    memory = type(problem.memory)(**(problem.memory.config() | changes))
    problem = replace(problem, memory=memory)
    return problem, problem.update_weights().update_assignments(), problem.update_memory()


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
    R, U = q.R[:, 0], np.diag(q.U[:, 0, 0])
    close(local.addresses.assignment, oracle.c2_assignments(z, R, U))
    R, U = oracle.c2_rows(z, q.theta, prior.R0[:, 0], np.diag(prior.U0[:, 0, 0]))
    close(glob.state.loc_mean, R)
    close(glob.state.loc_var, np.diag(U).copy())


def test_the_shifted_memory_is_theorem_c3():
    problem, local, glob = updates("shifted-factorised")
    ((_, z, q, prior),) = oracle.episodes(problem)
    (R,), (U,), (mu_b,), _ = oracle.apart(q.R, q.U)
    (R0,), (U0,), (mu_b0,), (Sigma_b0,) = oracle.apart(prior.R0, prior.U0)
    mu_w, Sigma_w = oracle.c3_weights(z, R, U, mu_b, prior.sigma2)
    close(local.addresses.weight_mean[:, 0], mu_w)
    close(local.addresses.weight_cov[0], Sigma_w)
    mu_b, Sigma_b = oracle.c3_location(z, R, q.mu_w[:, 0], mu_b0, Sigma_b0, prior.sigma2)
    close(glob.state.loc_mean[0], mu_b)
    close(glob.state.loc_var, variances(Sigma_b[None]))
    R, U = oracle.c3_rows(z, q.mu_w[:, 0], q.Sigma_w[0], mu_b, R0, U0, prior.sigma2)
    close(glob.state.factor_mean[0], R)
    close(glob.state.factor_cov[0], U)
