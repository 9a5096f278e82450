"""A write that compares each frame with a few clusters: exact where they are all, and never lowering its bound."""

from typing import get_args

import pytest
import torch

from memory.zoo import MEMORIES, Sizes, close, make_problem, normal, variances
from vbmem.memory import GaussianMemory, MixtureMemory, levels, neighbours, truncated
from vbmem.memory.blocks import LocalPass
from vbmem.memory.choice import DirichletChoice, WeightedChoice
from vbmem.memory.engine import global_step
from vbmem.memory.sized import Noise
from vbmem.memory.truncated import Candidates

CLUSTERED = [name for name in MEMORIES if name.split("-")[0] in ("categorical", "mixture", "tree")]
KINDS = ["categorical", "mixture", "mixture-factorised", "tree", "tree-factorised"]
MANY = Sizes(frames=40, part_size=3, rows=2, clusters=12)


def problem_of(name, sizes=MANY):
    """A categorical memory's clusters are its rows."""
    return make_problem(name, sizes._replace(rows=sizes.clusters) if name.startswith("categorical") else sizes)


def with_noise(problem, noise):
    shape = problem.memory.noise_shape(noise)
    memory = problem.memory.with_scales(noise_var=variances(*shape, seed=9) if shape else torch.tensor(0.6))
    return type(problem)(memory, problem.codes, problem.state, problem.addresses)


@pytest.fixture
def searching(monkeypatch):
    """Few clusters on a level, cells and neighbours, and blocks of 8 frames, so that little is found at once."""
    for name, value in {"NEIGHBOURS": 2, "TOP": 3, "FAN": 2, "CHOICES": 2}.items():
        monkeypatch.setattr(levels, name, value)
    monkeypatch.setattr(neighbours, "BLOCK", 8)
    monkeypatch.setattr(truncated, "LOOKS", (1,))


def lists_of(candidates):
    return (torch.cat(candidates._fresh) if candidates.kept is None else candidates.kept).clone()


def assert_same_local_step(problem, mask=None):
    candidates = Candidates(problem.memory.layout[0])
    exact = LocalPass(problem.state, problem.prior, bounded=True)
    addresses = exact.address(problem.parts, mask)
    for _ in range(2):  # with candidates that are found, and with those that are known
        local = candidates.local_pass(problem.state, problem.prior, bounded=True)
        close(local.address(problem.parts, mask), addresses, rtol=1e-8, atol=1e-8)
        close(local.statistics(), exact.statistics(), rtol=1e-8, atol=1e-8)
        bounds = [one.bound(one.statistics(), problem.state).total for one in (local, exact)]
        close(*bounds, rtol=1e-8)


@pytest.mark.parametrize("name", CLUSTERED)
def test_with_all_clusters_as_candidates_nothing_is_truncated(name, searching):
    assert_same_local_step(problem_of(name, MANY._replace(batch=(2,))))


@pytest.mark.parametrize("noise", get_args(Noise))
@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_truncated_with_every_noise_and_weights_of_frames(name, noise, searching):
    problem = with_noise(problem_of(name), noise)
    assert_same_local_step(problem, variances(*problem.parts.shape[:-1]))


@pytest.mark.parametrize("name", ["mixture", "tree"])
@pytest.mark.parametrize("choice", [WeightedChoice(range(1, 13)), DirichletChoice(0.5).given(variances(12))])
def test_nothing_is_truncated_with_clusters_of_unequal_weights(name, choice, searching):
    problem = problem_of(name)
    memory = problem.memory.with_prior(choice=choice)
    assert_same_local_step(type(problem)(memory, problem.codes, problem.state, problem.addresses))


@pytest.mark.parametrize("noise", get_args(Noise))
@pytest.mark.parametrize("name", KINDS)
def test_every_truncated_iteration_raises_the_bound_and_keeps_candidates_that_are_as_good(name, noise, searching):
    problem = with_noise(problem_of(name), noise)
    mask, state, bounds = variances(*problem.parts.shape[:-1]), problem.state, []
    candidates = Candidates(3)
    for _ in range(8):
        local = candidates.local_pass(state, problem.prior, bounded=True)
        local.add(problem.parts, mask)
        sums = local.statistics()
        bounds.append(local.bound(sums, state).total)
        state = global_step(sums, state, problem.prior)
        bounds.append(local.bound(sums, state).total)
    gains = torch.stack(bounds).diff(dim=0)
    assert gains.min() > -1e-8 * bounds[-1].abs().max()
    assert gains.max() > 0


def test_a_search_looks_at_the_present_candidates_of_a_frame_and_keeps_the_best(searching):
    problem = problem_of("mixture", MANY._replace(clusters=60))
    candidates = Candidates(3)
    found = []
    for _ in range(2):
        candidates.local_pass(problem.state, problem.prior).add(problem.parts)
        found.append(lists_of(candidates).long())
    addresses = problem.memory.address(problem.state, problem.codes).assignment
    before, after = (addresses.gather(-1, lists).sort(-1).values for lists in found)
    assert (after >= before - 1e-12).all()
    assert (after > before + 1e-12).any()
    assert (after.diff() >= 0).all()
    assert all(len(set(row.tolist())) == 3 for row in found[1])


@pytest.mark.parametrize("name", KINDS)
def test_a_truncated_write_does_not_depend_on_how_the_frames_are_split(name, searching):
    problem = problem_of(name)
    written, addresses = problem.memory.write(problem.codes, 6, problem.state, candidates=3)
    assert ((addresses.assignment > 0).sum(-1) <= 3).all()
    for sizes in ([40], [3, 17, 20]):
        streamed = problem.memory.write_stream(list(problem.codes.split(sizes)), 6, problem.state, candidates=3)
        close(streamed, written, rtol=1e-7, atol=1e-8)


def test_random_choices_follow_the_numbers_of_the_frames(searching):
    problem = problem_of("mixture")
    whole, later = Candidates(3), Candidates(3, first=16)
    for _ in range(4):
        whole.local_pass(problem.state, problem.prior).add(problem.parts)
        later.local_pass(problem.state, problem.prior).add(problem.parts[16:])
    assert torch.equal(lists_of(whole)[16:], lists_of(later))


@pytest.mark.parametrize("rows", [0, 2])
def test_a_truncated_write_predicts_new_codes_as_well_as_an_exact_one(rows):
    bent, out = normal(3, 32, seed=1), normal(32, 8, seed=2) / 4
    codes = (normal(3000, 3, seed=3) @ bent).sin() @ out + 0.3 * normal(3000, 8, seed=4)
    memory = MixtureMemory(8, rows, 100, noise_var=0.2, row_var=0.3, loc_var=2.0)
    start = memory.first_state(codes[:400], "kmeans", generator=torch.Generator().manual_seed(0))
    exact, few = (memory.write_stream(codes[:2500], 8, start, candidates=count) for count in (None, 8))
    assert memory.log_predictive(few, codes[2500:]).mean() > memory.log_predictive(exact, codes[2500:]).mean() - 0.1


@pytest.mark.parametrize("name", ["mixture", "tree"])
def test_a_truncated_write_that_stops_early_returns_few_clusters_a_frame(name):
    problem = problem_of(name)
    state, addresses = problem.memory.write(problem.codes, 50, problem.state, tol=1e-3, candidates=3)
    assert ((addresses.assignment > 0).sum(-1) <= 3).all()
    close(addresses.assignment.sum(-1), 1.0)
    assert problem.memory.bound(problem.codes, state, addresses).total.isfinite().all()


def test_many_clusters_start_at_random_frames(monkeypatch):
    monkeypatch.setattr(truncated, "SEEDED", 5)
    problem = problem_of("mixture")
    found = [
        problem.memory.write(problem.codes, 2, start, generator=torch.Generator().manual_seed(0), candidates=3)
        for start in (None, "data")
    ]
    close(found[0][0], found[1][0])


def test_candidates_do_nothing_for_a_memory_without_that_many_clusters():
    codes = normal(20, 3)
    for memory in (GaussianMemory(3, 2), MixtureMemory(3, 1, 4)):
        start = memory.first_state(codes, generator=torch.Generator().manual_seed(0))
        close(memory.write(codes, 3, start, candidates=4)[0], memory.write(codes, 3, start)[0])


def test_candidates_are_refused_where_they_cannot_be():
    problem = problem_of("mixture")
    with pytest.raises(ValueError, match="candidates must be a whole number of at least 1, got 0"):
        problem.memory.write(problem.codes, candidates=0)
    with pytest.raises(ValueError, match="candidates are chosen without gradients"):
        problem.memory.write(problem.codes.clone().requires_grad_(), candidates=3)


def test_a_stream_that_grows_is_refused():
    problem, passes = problem_of("mixture"), []

    def chunks():
        passes.append(0)
        return [problem.codes] * (1 if len(passes) < 4 else 2)

    with pytest.raises(ValueError, match="more than the 40 frames of the first one"):
        problem.memory.write_stream(chunks, 6, problem.state, candidates=3)
