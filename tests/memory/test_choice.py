"""p(s) as a part of the model: what every one of them must hold, and a new one of three lines."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from memory.zoo import Sizes, close, make_problem, normal
from vbmem import load_memory, save_memory
from vbmem.memory import (
    CategoricalMemory,
    Choice,
    MemoryState,
    MixtureMemory,
    TreeMemory,
    UniformChoice,
    WeightedChoice,
)
from vbmem.memory import engine as steps
from vbmem.memory.choice import smoothed_usage


class ZipfChoice(Choice):
    """The toy: p(s = h) ~ 1 / (h + 1), whatever the number of clusters. All there is to add for a new p(s)."""

    kind = "zipf"

    def log_prior(self, clusters: int, like: Tensor) -> Tensor:
        return -torch.arange(1, clusters + 1).to(like).log() - math.log(sum(1 / h for h in range(1, clusters + 1)))


CHOICES = {"uniform": UniformChoice(), "weights": WeightedChoice([1.0, 5.0, 2.0]), "zipf": ZipfChoice()}
every_choice = pytest.mark.parametrize("choice", CHOICES.values(), ids=list(CHOICES))
MEMORIES = {
    "categorical": lambda choice: CategoricalMemory(4, 3, choice=choice),
    "mixture": lambda choice: MixtureMemory(4, 2, 3, choice=choice),
    "tree": lambda choice: TreeMemory(4, 2, 3, 2, choice=choice),
}
every_memory = pytest.mark.parametrize("make", MEMORIES.values(), ids=list(MEMORIES))
CODES = 2 * normal(9, 4)


def weights_of(choice: Choice) -> Tensor:
    return choice.log_prior(3, CODES).exp()


@every_choice
def test_it_is_a_distribution(choice):
    assert weights_of(choice).sum().item() == pytest.approx(1)


@every_choice
def test_assignments_are_bayes_rule_and_their_divergence_is_that_from_the_prior(choice):
    log_likelihood = 3 * normal(2, 3, 5)
    theta = choice.assign(log_likelihood)
    joint = weights_of(choice)[:, None] * log_likelihood.exp()
    close(theta, joint / joint.sum(-2, keepdim=True))
    close(choice.log_evidence(log_likelihood.unsqueeze(-3)), joint.sum(-2).log())
    q = torch.distributions.Categorical(theta.mT)
    p = torch.distributions.Categorical(weights_of(choice))
    close(choice.kl(theta.mT), torch.distributions.kl_divergence(q, p).sum(-1))
    assert (choice.kl(torch.zeros(4, 3)) == 0).all()  # masked frames pay nothing


@every_choice
def test_it_is_drawn_from(choice):
    drawn = choice.sample((2, 40_000), 3, CODES, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 40_000)
    for row in drawn:
        assert (row.bincount(minlength=3) / 40_000 - weights_of(choice)).abs().max() < 0.012


@every_memory
@every_choice
def test_every_iteration_of_a_write_raises_the_bound(make, choice):
    memory, previous = make(choice), -math.inf
    state, addresses = memory.write(CODES, 1, generator=torch.Generator().manual_seed(0))
    for _ in range(8):
        bound = float(memory.bound(CODES, state, addresses).total)
        assert bound >= previous - 1e-9
        previous = bound
        state, addresses = memory.write(CODES, 2, state)


@every_memory
@every_choice
def test_the_bound_of_a_memory_is_below_that_of_its_frames_alone(make, choice):
    """At the best addresses both are the same but for the divergence of the memory."""
    memory = make(choice)
    state, _ = memory.write(CODES, 3, generator=torch.Generator().manual_seed(0))
    bound = memory.bound(CODES, state, memory.address(state, CODES))
    paid = bound.kl_rows + bound.kl_locations
    close(memory.local_bound(state, CODES).sum() - paid, bound.total, rtol=1e-9)


@every_memory
@every_choice
def test_it_goes_with_the_memory_into_a_file(make, choice, tmp_path):
    memory = make(choice)
    state, _ = memory.write(CODES, 2)
    save_memory(tmp_path / "a.memory", memory, state)
    loaded, again = load_memory(tmp_path / "a.memory")
    assert type(loaded.choice) is type(choice)
    for name, tensor in choice.tensors().items():
        assert torch.equal(loaded.choice.tensors()[name], tensor)
    assert torch.equal(loaded.log_predictive(again, CODES), memory.log_predictive(state, CODES))


@every_choice
def test_it_says_how_often_clusters_are_sampled_and_how_dense_codes_are(choice):
    problem = make_problem("mixture", Sizes(part_size=2))
    far = 100.0 * torch.arange(3).double().reshape(3, 1).expand(3, 2)
    memory = MixtureMemory(2, 2, 3, choice=choice)
    state = MemoryState.of(problem.state.factor_mean, problem.state.factor_cov, far, problem.state.loc_var)
    samples = memory.sample(state, 40_000, torch.Generator().manual_seed(0))
    nearest = (samples[:, :1] / 100).round().long().clamp(0, 2).squeeze(-1)
    assert (nearest.bincount(minlength=3) / 40_000 - weights_of(choice)).abs().max() < 0.012
    alone = memory.log_densities(state, far)
    close(memory.log_predictive(state, far), (alone + weights_of(choice).log()).logsumexp(-1))


def test_weights_of_one_are_the_uniform_choice():
    problem = make_problem("mixture")
    weighted = MixtureMemory(3, 2, 3, choice=WeightedChoice(torch.ones(3)))
    for one, other in zip(
        steps.sweep(problem.parts, problem.state, weighted.prior(problem.codes)),
        steps.sweep(problem.parts, problem.state, MixtureMemory(3, 2, 3).prior(problem.codes)),
        strict=True,
    ):
        close(one, other)


def test_smoothed_usage_is_that_of_one_more_frame_spread_by_the_prior():
    close(smoothed_usage(torch.tensor([3.0, 0.0]), torch.tensor([0.25, 0.75])), torch.tensor([3.25, 0.75]) / 4)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, 2.0], r"expected 3 weights, one for every cluster, got \[2\]"),
        ([1.0, 0.0, 1.0], "weights must be positive and finite, got 0 in it"),
        (1.0, r"expected 3 weights, one for every cluster, got \[\]"),
    ],
)
def test_weights_that_fit_no_clusters_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        MixtureMemory(4, 2, 3, choice=WeightedChoice(weights))


def test_a_file_with_a_choice_nobody_registered_is_refused(tmp_path):
    memory = MixtureMemory(4, 2, 3, choice=ZipfChoice())
    save_memory(tmp_path / "a.memory", memory, memory.prior_state())
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(Choice.kinds, "zipf")
        with pytest.raises(ValueError, match=r"a\.memory .* p\(s\) is 'zipf', known are uniform, weights"):
            load_memory(tmp_path / "a.memory")
