"""The stochastic regulariser: its draws, and where in the model it acts."""

import math

import pytest
import torch

from models import oracle
from models.zoo import as_likely, close, close_terms, frames, make, recorded_draws
from vbmem.models import Regulariser
from vbmem.models.memory_model import regularised

STAGES = [Regulariser(), Regulariser(epsilon=1e-6, delta=2e-6), Regulariser(0.3, 0.2, 0.5, 2.0, 5.0)]


def means_and_recalled(*shape):
    torch.manual_seed(0)
    return (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for _ in range(2))


def shares(regulariser, frames=20_000, size=3):
    """t of every frame, found again from every coordinate: [frames, size]."""
    mean, recalled = means_and_recalled(2, frames // 2, size)
    return ((regularised(mean, recalled, regulariser) - recalled) / (mean - recalled)).detach().flatten(0, 1)


@pytest.mark.parametrize("regulariser", STAGES)
def test_the_share_stays_in_its_range(regulariser):
    low = regulariser.gamma - regulariser.epsilon
    t = shares(regulariser)
    assert t.min() >= low - 1e-9
    assert t.max() <= low + regulariser.delta + 1e-9


def test_the_share_is_gamma_on_average_and_spreads_as_its_beta():
    t = shares(Regulariser())[:, 0]
    as_likely(t, 0.5)
    std = 0.2 * math.sqrt(1 / (4 * (8 + 8 + 1)))
    assert t.std().item() == pytest.approx(std, rel=0.03)


def test_the_share_has_the_mean_of_a_lopsided_beta():
    as_likely(shares(STAGES[2])[:, 0], 0.3 - 0.2 + 0.5 * 2 / (2 + 5))


@pytest.mark.parametrize("regulariser", [STAGES[0], STAGES[2]])
def test_a_frame_has_one_share_for_all_coordinates_and_no_two_frames_the_same(regulariser):
    t = shares(regulariser, frames=100)
    close(t, t[:, :1], rtol=1e-6)
    assert len(t[:, 0].unique()) == 100


def test_gradients_flow_into_both_means():
    mean, recalled = means_and_recalled(2, 4, 3)
    torch.manual_seed(0)
    moved = regularised(mean, recalled, Regulariser())
    moved.sum().backward()
    t = ((moved - recalled) / (mean - recalled)).detach()
    close(mean.grad, t)
    close(recalled.grad, 1 - t)


@pytest.mark.parametrize("name", ["gaussian", "mixture", "tree"])
def test_in_evaluation_it_does_nothing(name):
    model, pictures = make(name), frames()
    reports = []
    for model.regulariser in (None, Regulariser()):
        torch.manual_seed(0)
        reports.append(model(pictures).per_frame())
    assert all(torch.equal(reports[0][term], reports[1][term]) for term in reports[0])


@pytest.mark.parametrize("name", ["gaussian", "mixture", "tree"])
def test_in_training_it_leaves_the_writing_alone(name):
    model, pictures = make(name).train(), frames()
    evidences = []
    for model.regulariser in (None, Regulariser()):
        torch.manual_seed(0)
        evidences.append(model(pictures))
    without, regularised = (evidence.divergences for evidence in evidences)
    for term in ("kl_assignments", "kl_weights", "kl_rows", "kl_locations"):
        close(regularised[term], without[term])
    for measure in ("memory_share", "memory_kl"):
        close(evidences[1].measures[measure], evidences[0].measures[measure])
    assert (regularised["kl_codes"] < without["kl_codes"]).all()  # nearer to what is recalled


@torch.no_grad()
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_the_moved_mean_is_both_decoded_and_compared_with_the_memory(gamma):
    """With delta = 0, every share is gamma."""
    model, pictures = make("mixture").train(), frames()  # group norm: the same in training
    model.regulariser = Regulariser(gamma, epsilon=0.0, delta=0.0)
    posterior = model.head(oracle.embed(model, pictures))
    torch.manual_seed(1)
    state, addresses = model.memory.write(posterior.mean, model.iterations)
    moved = gamma * posterior.mean + (1 - gamma) * model.memory.recall(state, addresses)
    torch.manual_seed(1)
    with recorded_draws() as draws:
        evidence = model(pictures)
    codes = moved + posterior.var.sqrt() * draws[0]
    close(evidence.log_likelihood, oracle.log_likelihood(model, codes, pictures))
    expected = oracle.memory_divergences(model.memory, moved, posterior.var, state, addresses)
    close_terms(evidence.divergences, expected)


def test_it_is_off_unless_somebody_sets_it():
    assert make("mixture").regulariser is None
