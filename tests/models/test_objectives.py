"""What is written before all frames are scored: the whole episode, half of it, or a stream of it."""

import itertools

import pytest
import torch
from torch.distributions import MultivariateNormal

from models.zoo import B, close, every_memory_model, frames, make

OBJECTIVES = ["episode", "generalisation", "online"]


def codes_in_groups(episodes, length, size):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    group = torch.randint(3, (episodes, length, 1), generator=generator)
    centres = 3 * normal(episodes, 3, size)
    return centres.gather(1, group.expand(-1, -1, size)) + 0.5 * normal(episodes, length, size)


def shuffled(codes):
    """Frames in the order that an objective draws first of all."""
    order = torch.rand(codes.shape[:2]).argsort(-1)
    return torch.stack([episode[index] for episode, index in zip(codes, order, strict=True)])


def states_equal(state, expected):
    for name, tensor in vars(state.map(torch.Tensor.detach)).items():
        if name == "located":
            continue
        close(tensor, getattr(expected, name))


@every_memory_model
@pytest.mark.parametrize(("length", "half"), [(6, 3), (5, 2), (1, 1)])
def test_generalisation_writes_a_random_half_of_the_frames(name, length, half):
    model = make(name, objective="generalisation")
    codes = codes_in_groups(3, length, model.config.code_size)
    torch.manual_seed(7)
    state, addresses = model.write(model.memory, codes)
    torch.manual_seed(7)
    expected, _ = model.memory.write(shuffled(codes)[:, :half], model.iterations)
    states_equal(state, expected)
    assert addresses.assignment.shape[-2] == length
    states_equal(addresses, model.memory.address(expected, codes))


@pytest.mark.parametrize(("share", "written"), [(0.25, 2), (0.8, 6), (1.0, 8), (0.01, 1)])
def test_generalisation_writes_the_share_asked_for(share, written):
    model = make("mixture", objective="generalisation", written_share=share)
    codes = codes_in_groups(3, 8, model.config.code_size)
    torch.manual_seed(7)
    state, _ = model.write(model.memory, codes)
    torch.manual_seed(7)
    states_equal(state, model.memory.write(shuffled(codes)[:, :written], model.iterations)[0])


@every_memory_model
def test_online_writes_the_shuffled_frames_one_by_one(name):
    model = make(name, objective="online")
    codes = codes_in_groups(3, 5, model.config.code_size)
    torch.manual_seed(7)
    state, addresses = model.write(model.memory, codes)
    torch.manual_seed(7)
    expected = model.memory.write_online(shuffled(codes))
    states_equal(state, expected)
    states_equal(addresses, model.memory.address(expected, codes))


@every_memory_model
def test_the_episode_is_written_as_it_is(name):
    model = make(name)
    codes = codes_in_groups(3, 5, model.config.code_size)
    torch.manual_seed(7)
    state, addresses = model.write(model.memory, codes)
    torch.manual_seed(7)
    expected_state, expected_addresses = model.memory.write(codes, model.iterations)
    states_equal(state, expected_state)
    states_equal(addresses, expected_addresses)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_bound_of_the_model_is_that_of_what_was_written(objective):
    model, pictures = make("mixture", objective=objective), frames()
    posterior = model.head(model.embed(pictures))
    torch.manual_seed(3)
    state, addresses = model.write(model.memory, posterior.mean)
    torch.manual_seed(3)
    terms = model(pictures).divergences
    for term, value in model.memory.bound(posterior.mean, state, addresses, posterior.var).terms().items():
        if term != "total":
            close(terms[term], value)


@every_memory_model
@pytest.mark.parametrize("objective", ["generalisation", "online"])
def test_the_whole_episode_gives_the_better_bound_on_average(name, objective):
    bounds = {}
    for kind in ("episode", objective):
        model = make(name, objective=kind, iterations=30)
        codes = codes_in_groups(40, 8, model.config.code_size)
        torch.manual_seed(0)
        bounds[kind] = model.memory.bound(codes, *model.write(model.memory, codes)).total.mean()
    assert bounds[objective] < bounds["episode"]


def log_evidence(codes, rows):
    """log p(Z) of a categorical memory with unit prior and noise, over all assignments of frames to rows."""
    length = len(codes)
    terms = []
    for assignment in itertools.product(range(rows), repeat=length):
        same = torch.tensor([[a == b for a in assignment] for b in assignment], dtype=torch.float64)
        density = MultivariateNormal(torch.zeros(length, dtype=torch.float64), same + torch.eye(length).double())
        terms.append(density.log_prob(codes.T).sum())
    return torch.stack(terms).logsumexp(0) - length * torch.tensor(float(rows)).log()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_bounds_the_evidence_from_below(objective):
    model = make("categorical", objective=objective)
    codes = codes_in_groups(6, 4, 4)
    bound = model.memory.bound(codes, *model.write(model.memory, codes)).total
    evidence = torch.stack([log_evidence(episode, model.config.rows) for episode in codes])
    assert (bound < evidence).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains_through_the_write(objective):
    model = make("mixture", objective=objective)
    model(frames()).divergences["kl_rows"].sum().backward()
    weights = model.encoder.to_embedding.weight
    assert weights.grad.isfinite().all()
    assert weights.grad.abs().max() > 0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_copies_are_shuffled_each_on_its_own(objective):
    evidence = make("categorical", objective=objective)(frames(), copies=8)
    assert all(len(episode.unique()) > 1 for episode in evidence.divergences["kl_locations"].unflatten(0, (8, B)).T)
