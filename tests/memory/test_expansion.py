"""Parameter expansion: the memory is the same after it, the bound no lower, and a write converges sooner."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from memory.zoo import MEMORIES, Problem, Sizes, close, covariance, every_memory, make_problem, normal, over_sizes
from tiny import seeded
from vbmem.memory import MixtureMemory, ShiftedGaussianMemory, engine
from vbmem.memory.expansion import best_change, best_rotation, best_shift, expand

ROUNDING = 1e-10  # relative to the bound

# What is free to change: the shift of a joint memory, the rotation where the prior of the rows is round.
BOTH = ["shifted", "mixture", "mixture-cluster", "tree", "tree-feature"]
SHIFT = ["shifted-general", "mixture-general", "mixture-feature", "tree-general"]
ROTATION = ["gaussian", "shifted-round", "mixture-round", "tree-round"]
NEITHER = [name for name in MEMORIES if name not in BOTH + SHIFT + ROTATION]
LONG = Sizes(frames=20)
every_change = pytest.mark.parametrize("name", BOTH + SHIFT + ROTATION)


def expandable(name: str, sizes: Sizes = LONG) -> Problem:
    """A problem after its local and its global step; with factorised memories whose rows have a round prior."""
    if not name.endswith("round"):
        problem = make_problem(name, sizes)
    else:
        problem = make_problem(name.replace("round", "factorised"), sizes)
        changes: dict[str, Any] = {"row_var": 0.6, "row_mean": 0.0}
        problem = replace(problem, memory=type(problem.memory)(**(problem.memory.config() | changes)))
    return problem.update_weights().update_assignments().update_memory()


def changed(problem: Problem, change: Tensor, back: Tensor) -> Problem:
    """w~ <- D w~ and M <- D'^-1 M."""
    state, addresses = problem.state, problem.addresses
    rows = state.rows
    turn, shift = change[..., :rows, :rows], change[..., :rows, rows:].sum(-1)  # A^-1 and -A^-1 c
    moved = (turn.unsqueeze(-4) @ addresses.weight_mean.unsqueeze(-1)).squeeze(-1) + shift.unsqueeze(-3)
    return replace(
        problem,
        state=replace(state, row_mean=back.mT @ state.row_mean, row_cov=back.mT @ state.row_cov @ back),
        addresses=replace(addresses, weight_mean=moved, weight_cov=turn @ addresses.weight_cov @ turn.mT),
    )


def best(problem: Problem) -> tuple[Tensor, Tensor]:
    return best_change(problem.sums, problem.state, problem.prior)


def total(problem: Problem) -> Tensor:
    return problem.bound().total


# --- The same memory ------------------------------------------------------------------------------------------------


@every_change
@over_sizes
def test_an_expansion_never_lowers_the_bound(name, sizes):
    problem = expandable(name, sizes)
    after, before = total(changed(problem, *best(problem))), total(problem)
    assert (after >= before - ROUNDING * (1 + before.abs())).all()


@every_change
def test_an_expansion_gains_visibly(name):
    problem = expandable(name)
    assert total(changed(problem, *best(problem))) > total(problem) + 0.05


@every_change
@over_sizes
def test_what_is_recalled_stays_the_same_and_the_statistics_follow(name, sizes):
    problem = expandable(name, sizes)
    change, back = best(problem)
    identity = torch.eye(change.shape[-1], dtype=torch.float64).expand_as(change)
    close(change @ back, identity, atol=1e-9)
    after = changed(problem, change, back)
    close(engine.recall(after.state, after.addresses), engine.recall(problem.state, problem.addresses), atol=1e-9)
    close(after.sums.weight_outer, change @ problem.sums.weight_outer @ change.mT, atol=1e-9)
    close(after.sums.weight_code, change @ problem.sums.weight_code, atol=1e-9)
    close(after.bound().log_likelihood, problem.bound().log_likelihood, rtol=1e-9)
    close(expand(problem.sums, problem.state, problem.prior), after.state)


@pytest.mark.parametrize("name", ROTATION)
def test_a_factorised_memory_stays_factorised(name):
    problem = expandable(name)
    change, _ = best(problem)
    if problem.memory.located:
        assert not change[..., :-1, -1].any()
        assert not change[..., -1, :-1].any()
        state = expand(problem.sums, problem.state, problem.prior)
        assert not state.row_cov[..., -1, :-1].any()


@pytest.mark.parametrize("name", SHIFT)
def test_a_prior_that_is_not_round_allows_a_shift_alone(name):
    problem = expandable(name)
    change, _ = best(problem)
    rows = problem.state.rows
    close(change[..., :rows, :rows], torch.eye(rows, dtype=torch.float64).expand_as(change[..., :rows, :rows]))
    assert change[..., :rows, -1].abs().min() > 1e-6


@pytest.mark.parametrize("name", NEITHER)
def test_nothing_happens_to_a_memory_that_allows_neither(name):
    problem = expandable(name)
    close(expand(problem.sums, problem.state, problem.prior), problem.state, rtol=0, atol=0)


def test_a_cluster_without_frames_stays_where_it_is():
    """It is at its prior, where its divergence is nothing."""
    problem = make_problem("mixture", LONG).update_assignments()
    theta = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64).expand_as(problem.addresses.assignment)
    problem = replace(problem, addresses=replace(problem.addresses, assignment=theta)).update_memory()
    state = expand(problem.sums, problem.state, problem.prior)
    close(state.map(lambda x: x[1:]), problem.memory.prior_state(dtype=torch.float64).map(lambda x: x[1:]), atol=1e-10)


# --- The best -------------------------------------------------------------------------------------------------------


@every_change
def test_no_shift_and_no_rotation_nearby_is_better(name):
    """After the best change, every further one of the kind that is free lowers the bound."""
    problem = expandable(name)
    problem = changed(problem, *best(problem))
    if name in BOTH:  # the rotation was the best for the shift before it
        for _ in range(100):
            problem = changed(problem, *best(problem))
    reached, rows = total(problem), problem.state.rows
    identity = torch.eye(problem.state.row_cov.shape[-1], dtype=torch.float64)
    for seed in range(20):
        step = 1e-2 * normal(*problem.state.row_cov.shape, seed=seed)
        step[..., rows:, :] = 0
        if name not in ROTATION + BOTH:
            step[..., :rows, :rows] = 0
        if name not in SHIFT + BOTH:
            step[..., rows:] = 0
        change = identity + step
        assert total(changed(problem, change, change.inverse())) < reached


def test_the_best_shift_is_a_maximum():
    outer, gram, precision = covariance(5, 4, seed=1), covariance(5, 4, seed=2), 1 + normal(5).square()

    def loss(c: Tensor) -> Tensor:
        """Of w - c and b + R'c: n |c|^2 - 2 c'S_w + (c'G_ww c + 2 c'G_wb) / v_0."""
        square = (c.unsqueeze(-2) @ gram[..., :3, :3] @ c.unsqueeze(-1)).squeeze((-1, -2))
        of_location = square + 2 * (c * gram[..., :3, 3]).sum(-1)
        of_weights = outer[..., 3, 3] * c.square().sum(-1) - 2 * (c * outer[..., :3, 3]).sum(-1)
        return of_weights + precision * of_location

    c = best_shift(outer, gram, precision)
    for seed in range(20):
        assert (loss(c + 1e-3 * normal(5, 3, seed=seed)) > loss(c)).all()


@pytest.mark.parametrize("surplus", [-300.0, -2.5, 0.0, 2.5, 300.0])
def test_the_best_rotation_is_a_maximum(surplus):
    outer, gram, row_var = 10 * covariance(5, 3, seed=1), covariance(5, 3, seed=2), 0.3 + normal(5).square()
    d = torch.full((5,), surplus, dtype=torch.float64)

    def gain(A: Tensor) -> Tensor:
        X = A @ A.mT
        of_weights = (X.inverse() @ outer).diagonal(dim1=-2, dim2=-1).sum(-1)
        of_rows = (X @ gram).diagonal(dim1=-2, dim2=-1).sum(-1) / row_var
        return d * torch.linalg.slogdet(A).logabsdet - 0.5 * (of_weights + of_rows)

    turn, A = best_rotation(outer, gram, d, row_var)
    identity = torch.eye(3, dtype=torch.float64)
    close(turn @ A, identity.expand(5, 3, 3), atol=1e-9)
    X = A @ A.mT
    scale = (d.abs()[:, None, None] * X).abs().amax() + outer.abs().amax()
    close((X @ gram @ X / row_var[:, None, None] - d[:, None, None] * X - outer) / scale, torch.zeros(5, 3, 3).double())
    for seed in range(20):
        assert (gain(A @ (identity + 1e-2 * normal(5, 3, 3, seed=seed))) < gain(A)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_expansion_is_finite_where_as_many_frames_as_features_leave_nothing_of_a_weight(dtype):
    """n = C, and a second moment of the weights that rounding makes 0."""
    outer, zeros = torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=dtype)), torch.zeros((), dtype=dtype)
    gram, row_var = covariance(3).to(dtype), torch.ones((), dtype=dtype)
    for surplus in (zeros, zeros - 1, zeros + 1):
        assert all(matrix.isfinite().all() for matrix in best_rotation(outer, gram, surplus, row_var))


def test_an_expansion_does_not_jump_with_rounding():
    """Eigenvectors would: their signs, and where eigenvalues are the same, all of them."""
    problem = expandable("mixture", Sizes(frames=20, part_size=6, rows=4))
    state, sums = problem.state, problem.sums
    expected = expand(sums, state, problem.prior)
    for seed in range(20):
        noise = 1e-13 * normal(*sums.weight_outer.shape, seed=seed)
        rounded = replace(sums, weight_outer=sums.weight_outer + noise + noise.mT)
        close(expand(rounded, state, problem.prior), expected, rtol=1e-9, atol=1e-9)
    rough = expand(sums.to(torch.float32), state.to(torch.float32), problem.memory.prior(torch.ones(())))
    close(rough.to(torch.float64), expected, rtol=1e-4, atol=1e-4)


# --- In a write -----------------------------------------------------------------------------------------------------


@every_memory
def test_a_write_expands_by_default_where_rows_and_location_are_joint(name):
    problem = make_problem(name, LONG)
    memory, codes, start = problem.memory, problem.codes, problem.state
    joint = memory.located and not memory.factorised
    close(memory.write(codes, 3, start)[0], memory.write(codes, 3, start, expand=joint)[0], rtol=0, atol=0)


def test_training_does_not_expand_by_default():
    problem = make_problem("mixture", LONG)
    memory, start = problem.memory, problem.state
    codes = problem.codes.clone().requires_grad_()
    close(memory.write(codes, 3, start)[0], memory.write(codes, 3, start, expand=False)[0], rtol=0, atol=0)
    noise_var = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    trained = memory.with_prior(noise_var=noise_var)
    expected, _ = trained.write(problem.codes, 3, start, expand=False)
    close(trained.write(problem.codes, 3, start)[0], expected, rtol=0, atol=0)
    with torch.no_grad():
        expected, _ = memory.write(codes, 3, start, expand=True)
        close(memory.write(codes, 3, start)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*BOTH, "gaussian"])
def test_an_expanded_write_ends_no_lower(name):
    problem = make_problem(name, LONG)
    memory, codes, start = problem.memory, problem.codes, problem.state
    ends = [memory.bound(codes, *memory.write(codes, 10, start, expand=expand)).total for expand in (False, True)]
    assert ends[1] > ends[0]


@pytest.mark.parametrize("name", ["mixture", "tree-feature", "gaussian"])
def test_gradients_flow_with_the_change_held(name, monkeypatch):
    problem = make_problem(name, Sizes(frames=6))
    memory, start = problem.memory, problem.state
    held: list[tuple[Tensor, Tensor]] = []

    def first(*arguments):
        held.append(best_change(*arguments))
        assert not held[-1][0].requires_grad
        return held[-1]

    def bound(codes):
        state, addresses = memory.write(codes, 3, start, expand=True)
        return memory.bound(codes, state, addresses).total

    codes = problem.codes.requires_grad_()
    monkeypatch.setattr("vbmem.memory.expansion.best_change", first)
    (gradient,) = torch.autograd.grad(bound(codes), codes)
    assert len(held) == 2

    def again(*arguments):
        held.append(held.pop(0))
        return held[-1]

    monkeypatch.setattr("vbmem.memory.expansion.best_change", again)
    codes = codes.detach()
    for seed in range(3):
        step = 1e-5 * normal(*codes.shape, seed=seed)
        difference = (bound(codes + step) - bound(codes - step)) / 2
        close((gradient * step).sum(), difference, rtol=1e-5)


def test_an_expanded_write_converges_in_far_fewer_iterations():
    """Little noise, and weights with a mean: plain updates move it into the locations little by little."""
    weights = normal(300, 2, seed=1) + torch.tensor([3.0, -2.0], dtype=torch.float64)
    plane = weights @ normal(2, 8, seed=2) + 0.1 * normal(300, 8, seed=3)
    turned = plane @ torch.linalg.qr(normal(8, 8, seed=9)).Q - 4
    for memory, codes in (
        (ShiftedGaussianMemory(8, 2, noise_var=0.01, loc_var=10.0), plane),
        (MixtureMemory(8, 2, 2, noise_var=0.01, loc_var=10.0), torch.cat([plane, turned])),
    ):
        expanded, longer, plain = (
            memory.bound(codes, *memory.write(codes, iterations, generator=seeded(), expand=expand)).total
            for iterations, expand in ((6, True), (50, True), (200, False))
        )
        assert longer - 0.01 < expanded
        assert plain < expanded - 100
