"""Codes with a part of their own: only their content is written, and the rest has a prior of its own."""

from typing import Any

import pytest
import torch
from torch.distributions import Normal

from models import oracle
from models.zoo import B, T, as_likely, close, close_terms, every_own_model, frames, make, recorded_draws
from tiny import MEMORY_MODELS, OWN_MODELS
from vbmem.models import VAE, FrameFormat, MemoryConfig, Regulariser, VAEConfig
from vbmem.models.base import normal_kl

OWN_OF_EACH = {"gaussian": 1, "categorical": 2, "shifted": 3, "mixture": 2, "tree": 2}


def with_own_part(name, **changes):
    """A model of `MEMORY_MODELS` of whose codes a part is the frame's own."""
    return make(name, own_size=OWN_OF_EACH[name], learned_code_var=True, **changes)


def written(model, pictures, seed):
    """q(z) frame by frame, then the memory as a forward pass with this seed writes it."""
    outputs = model.head.layers(oracle.embed(model, pictures))
    means, variances = outputs[..., : model.config.code_size], outputs[..., model.config.code_size :].exp().square()
    memory = model.scaled_memory()
    torch.manual_seed(seed)
    return means, variances, memory, *memory.write(means[..., : model.content_size], model.iterations)


@torch.no_grad()
@pytest.mark.parametrize("name", MEMORY_MODELS)
def test_the_bound_equals_the_oracle(name):
    model, pictures = with_own_part(name), frames()
    content = model.content_size
    assert content + OWN_OF_EACH[name] == model.config.code_size
    assert model.memory.code_size == content
    means, variances, memory, state, addresses = written(model, pictures, seed=5)
    torch.manual_seed(5)
    with recorded_draws() as draws:
        evidence = model(pictures)
    codes = means + variances.sqrt() * draws[-1]
    close(evidence.log_likelihood, oracle.log_likelihood(model, codes, pictures))
    expected = oracle.memory_divergences(memory, means[..., :content], variances[..., :content], state, addresses)
    expected["kl_own"] = oracle.own_divergence(means[..., content:], variances[..., content:])
    close_terms(evidence.divergences, expected)
    paid = sum(value for term, value in expected.items() if term not in ("kl_codes", "kl_own"))
    close(evidence.measures["memory_kl"], paid / T)


@torch.no_grad()
def test_the_divergence_of_the_own_part_is_the_mean_of_its_one_sample_estimate():
    model, pictures = with_own_part("mixture"), frames()
    _, own = model.infer(pictures).cut(model.content_size)
    q = Normal(own.mean, own.var.sqrt())
    z = q.sample((4000,))
    exact = model(pictures).divergences["kl_own"]
    as_likely((q.log_prob(z) - Normal(0.0, 1.0).log_prob(z)).sum((-1, -2)), exact)


class TestNetworkPrior:
    """p(own | content) by a network."""

    @torch.no_grad()
    def test_it_is_charged_at_the_content_that_is_decoded(self):
        model, pictures = make("own part of the content"), frames()
        content = model.content_size
        means, variances, *_ = written(model, pictures, seed=5)
        torch.manual_seed(5)
        with recorded_draws() as draws:
            evidence = model(pictures)
        codes = means + variances.sqrt() * draws[-1]
        close(evidence.log_likelihood, oracle.log_likelihood(model, codes, pictures))
        priors = [oracle.posterior(model.own_head.layers(code[:content])) for code in codes.flatten(0, 1)]
        expected = oracle.own_divergence(means[..., content:], variances[..., content:], priors)
        close(evidence.divergences["kl_own"], expected)
        standard = oracle.own_divergence(means[..., content:], variances[..., content:])
        assert not torch.allclose(expected, standard)

    @torch.no_grad()
    def test_its_divergence_is_on_average_that_of_draws_of_both_parts(self):
        model = make("own part of the content")
        content, own = model.infer(frames()).cut(model.content_size)
        q_content, q_own = (Normal(q.mean, q.var.sqrt()) for q in (content, own))
        z, w = q_content.sample((4000,)), q_own.sample((4000,))
        prior = model.own_prior(z)
        estimate = q_own.log_prob(w) - Normal(prior.mean, prior.var.sqrt()).log_prob(w)
        as_likely((estimate.sum(-1) - normal_kl(own, prior)).sum(-1), 0.0)

    def test_it_starts_at_the_standard_normal(self):
        model: Any = OWN_MODELS["own part of the content"].build(FrameFormat(8, 1))
        prior = model.own_prior(torch.randn(3, 5, model.content_size))
        assert torch.equal(prior.mean, torch.zeros(3, 5, 2))
        assert torch.equal(prior.var, torch.ones(3, 5, 2))


@torch.no_grad()
@pytest.mark.parametrize("copies", [1, 2])
def test_with_all_of_the_code_its_own_it_is_a_vae(copies):
    settings: dict[str, Any] = {"code_size": 4, "filters": 8, "style": "improved"}
    model = MemoryConfig("mixture", own_size=4, **settings).build(FrameFormat(8, 1)).double().eval()
    vae = VAEConfig(**settings).build(FrameFormat(8, 1)).double().eval()
    assert isinstance(model, VAE)
    vae.load_state_dict(model.state_dict())
    bounds = []
    for each in (model, vae):
        torch.manual_seed(0)
        bounds.append(each(frames(), copies).elbo)
    assert torch.equal(*bounds)


@pytest.mark.parametrize("name", MEMORY_MODELS)
def test_without_an_own_part_nothing_is_paid_for_it(name):
    model = make(name)
    assert model.content_size == model.config.code_size
    assert "kl_own" not in model(frames()).divergences


@torch.no_grad()
def test_the_regulariser_moves_the_content_alone():
    model, pictures = make("own part").train(), frames()  # group norm: the same in training
    model.regulariser = Regulariser(0.0, epsilon=0.0, delta=0.0)  # all the way to what is recalled
    means, variances, memory, state, addresses = written(model, pictures, seed=1)
    recalled = memory.recall(state, addresses)
    torch.manual_seed(1)
    with recorded_draws() as draws:
        evidence = model(pictures)
    codes = torch.cat([recalled, means[..., model.content_size :]], -1) + variances.sqrt() * draws[-1]
    close(evidence.log_likelihood, oracle.log_likelihood(model, codes, pictures))


@every_own_model
def test_measures_are_of_the_content(name):
    evidence = make(name)(frames())
    paid = sum(value for term, value in evidence.divergences.items() if term not in ("kl_codes", "kl_own"))
    close(evidence.measures["memory_kl"], paid / T)
    assert evidence.measures["memory_share"].shape == (B,)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"own_size": -1}, "own_size must lie between 0 and code_size, 6, got -1"),
        ({"own_size": 7}, "own_size must lie between 0 and code_size, 6, got 7"),
        ({"own_prior": "network"}, "own_prior network is of a part of the code given the rest; own_size is 0"),
        ({"own_prior": "network", "own_size": 6}, "given the rest; own_size is 6"),
        ({"own_prior": "flat", "own_size": 2}, "own_prior must be one of standard, network, not 'flat'"),
        ({"sees_recall": True, "learned_code_var": False}, "own_size and sees_recall need a learned variance"),
        ({"sees_recall": True, "own_size": 6}, "sees_recall needs a memory"),
        ({"weighs_recall": True, "learned_scales": True}, "weighs_recall weighs by the learned noise"),
        ({"weighs_recall": True, "sees_recall": True}, "weighs_recall weighs by the learned noise"),
        ({"own_size": 2, "learned_code_var": False}, "own_size and sees_recall need a learned variance"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        MemoryConfig(code_size=6, **settings)
