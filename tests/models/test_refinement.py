"""Refinement in evaluation: the mean of q(z) moves towards what its prior expects, and the whole bound follows."""

import pytest
import torch

from models import oracle
from models.zoo import close, close_terms, frames, make, recorded_draws
from vbmem.models.base import normal_kl
from vbmem.nets import CodePosterior

REFINED = ["vae", "statistician", "gaussian", "mixture", "tree", "own part", "sees recall"]
each_model = pytest.mark.parametrize("name", REFINED)


@torch.no_grad()
@pytest.mark.parametrize("name", ["categorical", "mixture", "tree", "own part"])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_content_moves_towards_what_is_recalled_and_is_addressed_anew(name, share):
    model, pictures = make(name, learned_code_var=True, factorised=True), frames()
    model.refinement, size = share, model.content_size
    posterior = model.head(oracle.embed(model, pictures))
    memory = model.scaled_memory()
    torch.manual_seed(1)
    state, addresses = memory.write(posterior.mean[..., :size], model.iterations)
    moved = (1 - share) * posterior.mean[..., :size] + share * memory.recall(state, addresses)
    torch.manual_seed(1)
    with recorded_draws() as draws:
        evidence = model(pictures)
    means = torch.cat([moved, posterior.mean[..., size:]], -1)
    codes = means + posterior.var.sqrt() * draws[-1]
    close(evidence.log_likelihood, oracle.log_likelihood(model, codes, pictures))
    addresses = memory.address(state, moved)
    expected = oracle.memory_divergences(memory, moved, posterior.var[..., :size], state, addresses)
    if model.config.own_size:
        expected["kl_own"] = oracle.own_divergence(means[..., size:], posterior.var[..., size:])
    close_terms(evidence.divergences, expected)


@torch.no_grad()
def test_a_vae_moves_towards_zero():
    model, pictures = make("vae"), frames()
    model.refinement = 0.4
    posterior = model.head(oracle.embed(model, pictures))
    with recorded_draws() as draws:
        evidence = model(pictures)
    moved = CodePosterior(0.6 * posterior.mean, posterior.var)
    close(evidence.divergences["kl_codes"], normal_kl(moved).sum(-1))
    codes = moved.mean + moved.var.sqrt() * draws[0]
    close(evidence.log_likelihood, oracle.log_likelihood(model, codes, pictures))


@torch.no_grad()
def test_a_statistician_moves_towards_what_its_context_expects():
    model, pictures = make("statistician"), frames()
    torch.manual_seed(0)
    plain = model(pictures)
    model.refinement = 1.0
    torch.manual_seed(0)
    refined = model(pictures)
    assert (refined.divergences["kl_codes"] < plain.divergences["kl_codes"]).all()
    close(refined.divergences["kl_context"], plain.divergences["kl_context"])


@torch.no_grad()
@each_model
def test_no_share_and_training_leave_q_as_it_is(name):
    model, pictures = make(name), frames()
    for mode in (True, False):
        model.train(mode)
        reports = []
        for model.refinement in (0.0, 0.5):
            torch.manual_seed(0)
            reports.append(model(pictures).elbo)
        assert torch.equal(*reports) == mode


def test_models_say_whether_they_can():
    assert all(make(name).refines for name in REFINED)
    assert not make("dkm").refines
