"""The record that every model returns, and the divergence that several of them share."""

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from models.zoo import B, T, close, every_model, frames, make
from vbmem.models import Evidence
from vbmem.models.base import normal_kl, repeat_episodes
from vbmem.nets import CodePosterior


@pytest.fixture
def evidence():
    terms = {"kl_a": torch.tensor([1.0, 2.0]), "kl_b": torch.tensor([10.0, 20.0])}
    return Evidence(torch.tensor([100.0, 200.0]), terms, 4, measures={"share": torch.tensor([0.5, 0.6])})


def test_the_bound_is_the_log_likelihood_less_every_divergence(evidence):
    close(evidence.elbo, [89.0, 178.0])


def test_terms_are_reported_per_frame_and_measures_as_they_are(evidence):
    report = evidence.per_frame()
    assert set(report) == {"elbo_per_frame", "log_likelihood", "kl_a", "kl_b", "share"}
    close(report["elbo_per_frame"], [89.0 / 4, 178.0 / 4])
    close(report["log_likelihood"], [25.0, 50.0])
    close(report["kl_a"], [0.25, 0.5])
    close(report["kl_b"], [2.5, 5.0])
    close(report["share"], [0.5, 0.6])


def test_the_extra_objective_is_no_part_of_the_bound():
    with_extra = Evidence(torch.tensor([1.0]), {}, 1, extra_objective=torch.tensor([5.0]))
    assert with_extra.elbo.item() == 1.0
    assert set(with_extra.per_frame()) == {"elbo_per_frame", "log_likelihood"}


@every_model
def test_every_model_reports_a_number_an_episode_for_every_term(name):
    evidence = make(name)(frames())
    assert evidence.episode_length == T
    report = evidence.per_frame()
    assert all(value.shape == (B,) for value in report.values())
    total = report["log_likelihood"] - sum(report[term] for term in evidence.divergences)
    close(report["elbo_per_frame"], total)
    close(report["elbo_per_frame"] * T, evidence.elbo)
    assert all((value >= 0).all() for value in evidence.divergences.values())


@every_model
def test_a_float64_model_stays_float64(name):
    evidence = make(name)(frames())
    assert {value.dtype for value in evidence.per_frame().values()} == {torch.float64}


def test_normal_kl_is_that_of_torch():
    torch.manual_seed(0)
    q, p = (CodePosterior(torch.randn(3, 5, 4), torch.rand(3, 5, 4) + 0.1) for _ in range(2))
    expected = kl_divergence(Normal(q.mean, q.var.sqrt()), Normal(p.mean, p.var.sqrt())).sum(-1)
    close(normal_kl(q, p), expected, rtol=1e-5, atol=1e-5)
    expected = kl_divergence(Normal(q.mean, q.var.sqrt()), Normal(0.0, 1.0)).sum(-1)
    close(normal_kl(q), expected, rtol=1e-5, atol=1e-5)
    assert (normal_kl(q, q) == 0).all()


def test_copies_of_a_batch_follow_one_another():
    batch = torch.arange(6).reshape(2, 3)
    assert torch.equal(repeat_episodes(batch, 3), torch.cat([batch] * 3))
    assert repeat_episodes(batch, 1) is batch
