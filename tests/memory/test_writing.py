"""How a write starts, how long it goes on, and where its stream comes from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from memory.zoo import Sizes, close, every_memory, every_start, make_problem, normal
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
from vbmem.memory.streams import Stream

# --- Starts ---------------------------------------------------------------------------------------------------------


@every_memory
@every_start
def test_every_start_writes_and_is_reproducible(name, start):
    problem = make_problem(name, Sizes(batch=(2,)))
    memory, codes = problem.memory, problem.codes
    state, addresses = memory.write(codes, 3, start, generator=seeded(1))
    empty = memory.prior_state((2,), dtype=torch.float64)
    assert memory.bound(codes, state, addresses).total.shape == (2,)
    assert state.row_mean.shape == empty.row_mean.shape
    assert state.row_cov.shape == empty.row_cov.shape
    close(memory.write(codes, 3, start, generator=seeded(1))[0], state, rtol=0, atol=0)


@every_memory
def test_the_default_start_and_iterations_are_the_papers_but_for_a_joint_mixture(name):
    problem = make_problem(name)
    memory: Any = problem.memory
    codes, kind = problem.codes, memory.kind
    clustered: Any = "kmeans++" if memory.factorised else "ward"
    start = {"categorical": "data", "mixture": clustered, "tree": clustered}.get(kind, "random")
    iterations = {"categorical": 2, "mixture": 10, "tree": 10}.get(kind, 50)
    expected, _ = memory.write(codes, iterations, start, generator=seeded())
    close(memory.write(codes, generator=seeded())[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mixture", "tree-general"])
def test_long_episodes_and_training_start_at_kmeans(name, monkeypatch):
    problem = make_problem(name, Sizes(frames=20))
    memory, codes = problem.memory, problem.codes
    monkeypatch.setattr("vbmem.memory.starting.WARD_FRAMES", 19)
    expected, _ = memory.write(codes, 2, "kmeans", generator=seeded())
    close(memory.write(codes, 2, generator=seeded())[0], expected, rtol=0, atol=0)
    monkeypatch.setattr("vbmem.memory.starting.WARD_FRAMES", 256)
    expected, _ = memory.write(codes, 2, "kmeans", generator=seeded(), expand=False)
    close(memory.write(codes.requires_grad_(), 2, generator=seeded())[0], expected, rtol=0, atol=0)


def three_groups(frames: int = 30, apart: float = 20.0) -> torch.Tensor:
    """Codes [frames, 4] in three groups, well separated."""
    centres = apart * torch.eye(3, 4, dtype=torch.float64)
    return centres.repeat(frames // 3, 1) + normal(frames, 4)


@pytest.mark.parametrize("start", ["kmeans", "ward"])
@pytest.mark.parametrize(
    "memory", [CategoricalMemory(4, 3, row_var=50.0), MixtureMemory(4, 1, 3, loc_var=50.0)], ids=repr
)
def test_a_start_at_means_finds_well_separated_groups(memory, start):
    codes = three_groups()
    for seed in range(5):
        _, addresses = memory.write(codes, 1, start, generator=seeded(seed))
        groups = addresses.assignment.argmax(-1).reshape(-1, 3)
        assert (groups == groups[0]).all()
        assert len(set(groups[0].tolist())) == 3


@pytest.mark.parametrize("start", ["random", "data", "kmeans++", "kmeans", "ward"])
@pytest.mark.parametrize("mask", [None, torch.arange(30) < 8], ids=["", "masked"])
@pytest.mark.parametrize(
    "memory",
    [
        CategoricalMemory(4, 4, row_mean=20 * torch.eye(4).flip(0)),
        MixtureMemory(4, 1, 4, loc_mean=20 * torch.eye(4).flip(0), loc_var=torch.tensor([1.0, 2.0, 1.0, 0.5])),
        TreeMemory(8, 1, 4, 2, loc_mean=20 * torch.eye(4).flip(0).repeat(1, 2), factorised=True),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("error")  # means that lie apart are part of what the prior expects
def test_clusters_with_a_mean_each_hold_the_frames_near_it(memory, start, mask):
    codes = three_groups().repeat(1, memory.partitions)
    state, addresses = memory.write(codes, 10, start, mask, generator=seeded())
    assert state.row_mean.shape[:-3] == (memory.partitions,) * memory.partitioned  # one memory, no batch of four
    groups = addresses.assignment[..., :8, :].argmax(-1)
    assert (groups == torch.tensor([3, 2, 1, 3, 2, 1, 3, 2])).all()


def test_a_ward_start_is_the_same_every_time():
    codes, memory = normal(2, 30, 3), MixtureMemory(3, 0, 4)
    first, _ = memory.write(codes, 2, "ward", generator=seeded(1))
    close(memory.write(codes, 2, "ward", generator=seeded(2))[0], first, rtol=0, atol=0)


# --- Several starts -------------------------------------------------------------------------------------------------


@every_memory
def test_of_several_starts_the_best_of_each_episode_is_kept(name):
    problem = make_problem(name, Sizes(batch=(2, 2), frames=12))
    memory, codes = problem.memory, problem.codes
    state, addresses = memory.write(codes, 4, "random", generator=seeded(), starts=3)
    copies = codes.expand(3, 2, 2, -1, -1)
    every = memory.write(copies, 4, "random", generator=seeded())
    totals = memory.bound(copies, *every).total
    assert len(totals.argmax(0).unique()) > 1
    close(memory.bound(codes, state, addresses).total, totals.amax(0))


def test_a_ward_start_is_one_of_several():
    """It is the same every time, so the others start elsewhere."""
    memory, codes = MixtureMemory(3, 0, 5), 2 * normal(40, 12, 3)

    def total(start, starts):
        return memory.bound(codes, *memory.write(codes, 3, start, generator=seeded(1), starts=starts)).total

    ward, kmeans, best = total("ward", 1), total("kmeans", 1), total("ward", 2)
    close(best, torch.maximum(ward, kmeans))
    assert (kmeans > ward).any()
    assert (ward > kmeans).any()


def test_several_starts_of_masked_episodes_are_those_of_the_others():
    problem = make_problem("mixture", Sizes(batch=(2,), frames=12))
    memory, codes = problem.memory, problem.codes
    mask = torch.tensor([[True] * 9 + [False] * 3] * 2)
    state, addresses = memory.write(codes, 4, "random", mask, seeded(), starts=3)
    kept, kept_addresses = memory.write(codes[:, :9], 4, "random", None, seeded(), starts=3)
    close(state, kept)
    close(memory.bound(codes, state, addresses), memory.bound(codes[:, :9], kept, kept_addresses))


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
    memory = CategoricalMemory(4, 4, row_var=1e5)
    for start in ("data", "kmeans++", "kmeans", "ward"):
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
    ("memory", "spread", "var"),
    [
        (GaussianMemory(400, 50, row_var=0.3), 0.05 * 0.3**0.5, 0.3),
        (ShiftedGaussianMemory(400, 50, row_var=0.3, loc_var=1e-9), 0.05 * 0.3**0.5, 0.3),
        (MixtureMemory(400, 50, 3, noise_var=0.5, loc_var=1e-9), 1 / 400, 1 / 400),
        (MixtureMemory(400, 50, 3, noise_var=0.5, loc_var=1e-9, row_var=0.8), 2**0.5 / 400, 2 / 400),
        (TreeMemory(400, 50, 3, 2, noise_var=0.5, loc_var=1e-9), 1 / 200, 1 / 200),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_the_first_rows_are_as_wide_and_as_uncertain_as_the_references(memory, spread, var):
    """R ~ N(R_0, 0.05^2 u), U = u; with clusters, for u = 0.4, R ~ N(R_0, 1/C^2), U = 1/C, and in proportion: seen in
    the first weights, whose precision is I + (R R' + C U) / sigma^2 and whose mean is that^-1 R z / sigma^2."""
    codes = normal(5, 400)
    _, addresses = memory.write(codes, 1, "random", generator=seeded(1))
    precision = addresses.weight_cov.inverse()
    size, diagonal = 400 // memory.partitions, precision.diagonal(dim1=-2, dim2=-1)
    expected = 1 + size * (spread**2 + var) / memory.noise_var
    close(diagonal, torch.full_like(diagonal, expected), rtol=0.05, atol=0)
    met = (addresses.weight_mean.unsqueeze(-2) @ precision.unsqueeze(-4)).squeeze(-2) * memory.noise_var  # R z
    found = met.square().mean((-1, -2)) / memory.split(codes).square().sum(-1)
    assert float(found.mean()) ** 0.5 == pytest.approx(spread, rel=0.1)


def test_an_unknown_start_is_refused():
    memory: Any = MixtureMemory(3, 2, 2)
    for write in (memory.write, memory.write_stream):
        with pytest.raises(ValueError, match=r"one of prior, random, data, kmeans\+\+, kmeans, ward .* got 'means'"):
            write(normal(5, 3), start="means")


# --- How long -------------------------------------------------------------------------------------------------------


@every_memory
def test_a_longer_write_continues_a_shorter_one(name):
    problem = make_problem(name, Sizes(batch=(2,)))
    memory, codes = problem.memory, problem.codes
    half, _ = memory.write(codes, 3, problem.state, expand=False)
    whole, _ = memory.write(codes, 7, problem.state, expand=False)
    close(memory.write(codes, 4, half, expand=False)[0], whole)


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
    assert (full >= early - 1e-9 * full.abs()).all()
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
    means, covs = zip(*((s.row_mean, s.row_cov) for s in (done, problem.state)), strict=True)
    start = MemoryState(torch.stack(means), torch.stack(covs))
    together, _ = memory.write(codes, 500, start, tol=1e-7)
    alone, _ = memory.write(problem.codes, 500, problem.state, tol=1e-7)
    close(together.map(lambda t: t[1]), alone, rtol=1e-7, atol=1e-9)  # rounding, after many iterations


# --- Streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian-general", "categorical", "mixture", "tree-factorised", "tree-feature"])
@every_start
def test_a_stream_can_start_from_anything(name, start):
    """One chunk of fewer frames than the seeds are chosen from: any start raises the bound as a write does."""
    problem = make_problem(name, Sizes(frames=12))
    memory, codes = problem.memory, problem.codes
    state = memory.write_stream(list(codes.split(5)), 6, start, seeded())
    total = memory.bound(codes, state, memory.address(state, codes)).total
    first = memory.write_stream(list(codes.split(5)), 1, start, seeded())
    assert total >= memory.bound(codes, first, memory.address(first, codes)).total
    close(memory.write_stream(list(codes.split(5)), 6, start, seeded()), state, rtol=0, atol=0)


def test_seeds_of_a_stream_come_from_all_of_it():
    """A sample of 4 frames out of 400 in 40 chunks is uniform: its mean is that of the stream."""
    chunks = [torch.arange(10 * i, 10 * i + 10, dtype=torch.float64).unsqueeze(-1) for i in range(40)]
    stream = Stream(chunks, 1)
    drawn = torch.stack([stream.sample(4, seeded(seed)) for seed in range(200)])
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
        state = engine.global_step(sums, state, prior).where(sums.count >= 0.5, problem.state)
    close(memory.write_online(problem.codes, problem.state), state)


@every_memory
def test_an_online_write_raises_the_bound(name):
    problem = make_problem(name, Sizes(frames=20))
    memory, codes = problem.memory, problem.codes

    def bound(state):
        return memory.bound(codes, state, memory.address(state, codes)).total

    assert bound(memory.write_online(codes, problem.state)) > bound(problem.state) + 1


@pytest.mark.parametrize(
    "memory", [CategoricalMemory(4, 3, row_var=50.0), MixtureMemory(4, 1, 3, loc_var=50.0)], ids=repr
)
def test_an_online_write_keeps_a_cluster_where_it_started_until_it_holds_a_frame(memory, monkeypatch):
    """Groups that come one after the other: a cluster that went back to the prior would be lost to its group."""
    codes = three_groups().reshape(-1, 3, 4).movedim(0, 1).flatten(0, 1)

    def bound(state):
        return memory.bound(codes, state, memory.address(state, codes)).total

    state = memory.write_online(codes, "ward", seeded())
    groups = memory.address(state, codes).assignment.argmax(-1).reshape(3, -1)
    assert (groups == groups[:, :1]).all()
    assert len(set(groups[:, 0].tolist())) == 3
    monkeypatch.setattr("vbmem.memory.writing.HELD", -1.0)
    assert bound(state) > bound(memory.write_online(codes, "ward", seeded())) + 100


# --- Scales ---------------------------------------------------------------------------------------------------------

FAR = "the codes have a mean square of .* this memory's prior expects about .*fit_prior"


@every_memory
@pytest.mark.parametrize("factor", [1e-4, 1e3])
def test_codes_on_another_scale_than_the_priors_are_told_once(name, factor):
    problem = make_problem(name, Sizes(batch=(2,)))
    memory = problem.memory
    centre = memory.join(problem.prior.row_mean[..., -1, :].mean(-2, keepdim=True)) if memory.located else 0
    codes, mask = centre + factor * problem.codes, torch.tensor([[True, True, False, True, True, True]] * 2)
    for arguments in ({}, {"mask": mask}, {"starts": 2}):
        with pytest.warns(UserWarning, match=FAR) as told:
            memory.write(codes, 3, **arguments)
        assert len(told) == 1
        assert told[0].filename == __file__


@every_memory
def test_codes_the_prior_expects_are_written_in_silence(name):
    """Warnings are errors here."""
    problem = make_problem(name, Sizes(frames=20))
    memory = problem.memory
    codes = memory.sample(memory.prior_state(dtype=torch.float64), 30, seeded())
    memory.write(codes, 1)


def test_training_is_not_told_of_scales():
    """It would have to wait for the device."""
    codes = (1e-4 * normal(6, 3)).requires_grad_()
    MixtureMemory(3, 2, 2).write(codes, 1)
