"""How a write starts, how long it goes on, and where its stream comes from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from memory.zoo import Sizes, close, every_memory, make_problem, normal
from tiny import seeded
from vbmem.memory import (
    CategoricalMemory,
    GaussianMemory,
    MemoryState,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
    engine,
)

STARTS = ["prior", "random", "data", "kmeans++"]


# --- Starts ---------------------------------------------------------------------------------------------------------


@every_memory
@pytest.mark.parametrize("start", STARTS)
def test_every_start_writes_and_is_reproducible(name, start):
    problem = make_problem(name, Sizes(batch=(2,)))
    memory, codes = problem.memory, problem.codes
    state, addresses = memory.write(codes, 3, start, generator=seeded(1))
    empty = memory.prior_state((2,), dtype=torch.float64)
    assert memory.bound(codes, state, addresses).total.shape == (2,)
    for field in state.__dataclass_fields__:
        assert getattr(state, field).shape == getattr(empty, field).shape
    close(memory.write(codes, 3, start, generator=seeded(1))[0], state, rtol=0, atol=0)


@every_memory
def test_the_default_start_and_iterations_are_the_papers(name):
    problem = make_problem(name)
    memory: Any = problem.memory
    codes, kind = problem.codes, memory.kind
    start = {"categorical": "data", "mixture": "kmeans++", "tree": "kmeans++"}.get(kind, "random")
    iterations = {"categorical": 2, "mixture": 10, "tree": 10}.get(kind, 50)
    expected, _ = memory.write(codes, iterations, start, generator=seeded())
    close(memory.write(codes, generator=seeded())[0], expected, rtol=0, atol=0)


def test_the_prior_start_is_the_prior_state():
    problem = make_problem("mixture-general")
    memory, codes = problem.memory, problem.codes
    expected, _ = memory.write(codes, 3, memory.prior_state(dtype=torch.float64))
    close(memory.write(codes, 3, "prior")[0], expected)


def test_random_starts_are_spread_and_differ():
    """From the prior, clusters stay alike forever; a random start tells them apart."""
    memory = MixtureMemory(3, 2, 4)
    codes = normal(20, 3)
    alike, _ = memory.write(codes, 5, "prior")
    close(alike.loc_mean, alike.loc_mean[:1].expand(4, 3))
    apart, _ = memory.write(codes, 5, "random", generator=seeded())
    assert torch.pdist(apart.loc_mean).min() > 1e-3


def test_a_data_start_puts_the_locations_on_frames():
    """Four frames far apart, four clusters: each keeps its own."""
    codes = 100 * torch.eye(4, dtype=torch.float64)
    memory = CategoricalMemory(4, 4, row_var=1e6)
    for start in ("data", "kmeans++"):
        state, addresses = memory.write(codes, 1, start, generator=seeded())
        assert (addresses.assignment.sum(-2) == 1).all()
        close(state.loc_mean[addresses.assignment.argmax(-1)], codes, rtol=1e-4, atol=1e-3)


def test_a_gaussian_memory_puts_the_frames_into_its_rows():
    """With as many rows as frames, the first addresses see every frame itself among the rows."""
    codes = normal(3, 5)
    memory = GaussianMemory(5, 3)
    _, addresses = memory.write(codes, 1, "data", generator=seeded())
    empty = memory.prior_state(dtype=torch.float64)
    expected = engine.address(codes, replace(empty, row_mean=codes.unsqueeze(0)), memory.prior(codes))
    # The rows come in any order: compare what does not depend on it.
    close(addresses.weight_mean.square().sum(-1), expected.weight_mean.square().sum(-1))
    close(
        addresses.weight_cov.diagonal(dim1=-2, dim2=-1).sum(-1), expected.weight_cov.diagonal(dim1=-2, dim2=-1).sum(-1)
    )


@pytest.mark.parametrize(
    ("memory", "precision"),
    [
        (GaussianMemory(400, 2, row_var=1e-9), 1 + 400 * 0.05**2),
        (ShiftedGaussianMemory(400, 2, row_var=1e-9), 1 + 400 * 0.05**2),
        (MixtureMemory(400, 2, 3, noise_var=0.5), 1 + (1 + 1 / 400) / 0.5),
        (TreeMemory(400, 2, 3, 2, noise_var=0.5), 1 + (1 + 1 / 200) / 0.5),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_first_rows_are_as_wide_and_as_uncertain_as_the_references(memory, precision):
    """R ~ N(R_0, 0.05^2), U = U_0; with clusters R ~ N(R_0, 1/C^2), U = I/C: seen in the precision of the first
    weights, I + (R R' + C U) / sigma^2."""
    _, addresses = memory.write(normal(5, 400), 1, generator=seeded())
    diagonal = addresses.weight_cov.inverse().diagonal(dim1=-2, dim2=-1)
    close(diagonal, torch.full_like(diagonal, precision), rtol=0.1, atol=0)


def test_an_unknown_start_is_refused():
    memory: Any = MixtureMemory(3, 2, 2)
    for write in (memory.write, memory.write_stream):
        with pytest.raises(ValueError, match=r"start must be one of prior, random, data, kmeans\+\+ .* got 'kmeans'"):
            write(normal(5, 3), start="kmeans")


# --- How long -------------------------------------------------------------------------------------------------------


@every_memory
def test_a_longer_write_continues_a_shorter_one(name):
    problem = make_problem(name, Sizes(batch=(2,)))
    memory, codes = problem.memory, problem.codes
    half, _ = memory.write(codes, 3, problem.state)
    close(memory.write(codes, 4, half)[0], memory.write(codes, 7, problem.state)[0])


def test_tol_stops_early_and_close_to_the_end(monkeypatch):
    problem = make_problem("mixture", Sizes(batch=(2,), frames=30))
    memory, codes = problem.memory, problem.codes
    taken = []
    original = engine.global_step

    def counted(*args):
        taken.append(1)
        return original(*args)

    monkeypatch.setattr(engine, "global_step", counted)

    state, addresses = memory.write(codes, 500, problem.state, tol=1e-7)
    steps = len(taken)
    assert 2 < steps < 400
    close(memory.write(codes, steps, problem.state)[0], state, rtol=0, atol=0)
    early = memory.bound(codes, state, addresses).total
    full = memory.bound(codes, *memory.write(codes, 500, problem.state)).total
    assert (full >= early).all()
    close(early, full, rtol=1e-4, atol=0)


def test_a_huge_tol_takes_the_least_steps_that_can_tell():
    problem = make_problem("gaussian")
    memory, codes = problem.memory, problem.codes
    close(memory.write(codes, 50, problem.state, tol=1e9)[0], memory.write(codes, 2, problem.state)[0])


def test_tol_waits_for_the_slowest_episode():
    """One episode that has converged beside one that has only begun: both go on."""
    problem = make_problem("mixture", Sizes(frames=30))
    memory, codes = problem.memory, problem.codes.expand(2, -1, -1)
    done, _ = memory.write(problem.codes, 500, problem.state)
    start = MemoryState(*(torch.stack([getattr(s, f) for s in (done, problem.state)]) for f in vars(done)))
    together, _ = memory.write(codes, 500, start, tol=1e-7)
    alone, _ = memory.write(problem.codes, 500, problem.state, tol=1e-7)
    close(together.map(lambda t: t[1]), alone, rtol=1e-7, atol=1e-9)  # rounding, after many iterations


# --- Streams --------------------------------------------------------------------------------------------------------


@every_memory
@pytest.mark.parametrize("start", STARTS)
def test_a_stream_can_start_from_anything(name, start):
    """One chunk of fewer frames than the seeds are chosen from: any start raises the bound as a write does."""
    problem = make_problem(name, Sizes(frames=12))
    memory, codes = problem.memory, problem.codes
    state = memory.write_stream(list(codes.split(5)), 20, start, seeded())
    total = memory.bound(codes, state, memory.address(state, codes)).total
    first = memory.write_stream(list(codes.split(5)), 1, start, seeded())
    assert total >= memory.bound(codes, first, memory.address(first, codes)).total
    close(memory.write_stream(list(codes.split(5)), 20, start, seeded()), state, rtol=0, atol=0)


def test_seeds_of_a_stream_come_from_all_of_it(monkeypatch):
    """A sample of 4 frames out of 400 in 40 chunks is uniform: its mean is that of the stream."""
    from vbmem.memory.writing import _frame_sample

    chunks = [torch.arange(10 * i, 10 * i + 10, dtype=torch.float64).unsqueeze(-1) for i in range(40)]
    drawn = torch.stack([_frame_sample(iter(chunks), 4, seeded(seed)) for seed in range(200)])
    assert drawn.shape == (200, 4, 1)
    assert all(len(sample.unique()) == 4 for sample in drawn)
    standard_error = 400 / np.sqrt(12 * 800)
    assert abs(drawn.mean() - 199.5) < 4 * standard_error


def test_a_stream_carries_no_gradient():
    codes = normal(5, 3).requires_grad_()
    assert not MixtureMemory(3, 2, 2).write_stream([codes], 2).row_mean.requires_grad


def test_progress_shows_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    MixtureMemory(3, 2, 2).write_stream([normal(5, 3)], 2, progress=True)
    assert "writing" in capsys.readouterr().err
    MixtureMemory(3, 2, 2).write_stream([normal(5, 3)], 2)
    assert capsys.readouterr() == ("", "")


# --- One pass -------------------------------------------------------------------------------------------------------


@every_memory
def test_an_online_write_is_a_local_and_a_global_step_for_every_frame(name):
    problem = make_problem(name)
    memory, prior = problem.memory, problem.prior
    state, sums = problem.state, None
    for frame in problem.parts.split(1, dim=-2):
        _, part = engine.local_step(frame, state, prior)
        sums = part if sums is None else sums + part
        state = engine.global_step(sums, state, prior)
    close(memory.write_online(problem.codes, problem.state), state)


@every_memory
def test_an_online_write_raises_the_bound(name):
    problem = make_problem(name, Sizes(frames=20))
    memory, codes = problem.memory, problem.codes

    def bound(state):
        return memory.bound(codes, state, memory.address(state, codes)).total

    assert bound(memory.write_online(codes, problem.state)) > bound(problem.state) + 1
