"""The variational autoencoder against its bound written out frame by frame."""

import pytest
import torch
from torch.distributions import Normal

from models import oracle
from models.zoo import as_likely, close_terms, frames, make, recorded_draws


@pytest.mark.parametrize("style", ["basic", "improved"])
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_the_bound_equals_the_oracle(style, likelihood):
    model, pictures = make("vae", likelihood, style=style), frames(binary=likelihood == "bernoulli")
    with recorded_draws() as draws:
        evidence = model(pictures)
    expected = oracle.vae(model, pictures, *draws)
    close_terms({"log_likelihood": evidence.log_likelihood, **evidence.divergences}, expected)


@torch.no_grad()
def test_the_divergence_is_the_mean_of_its_one_sample_estimate():
    model, pictures = make("vae"), frames()
    exact = model(pictures).divergences["kl_codes"]
    posterior = model.head(model.embed(pictures))
    q = Normal(posterior.mean, posterior.var.sqrt())
    z = q.sample((4000,))
    as_likely((q.log_prob(z) - Normal(0.0, 1.0).log_prob(z)).sum((-1, -2)), exact)


def test_episodes_mean_nothing_to_it():
    """The terms of all frames add up to the same, however they are cut into episodes."""
    model, pictures = make("vae"), frames(2, 6)
    torch.manual_seed(0)
    whole = model(pictures)
    torch.manual_seed(0)
    cut = model(pictures.reshape(4, 3, *pictures.shape[2:]))
    for one, other in zip(whole.per_frame().values(), cut.per_frame().values(), strict=True):
        torch.testing.assert_close(one, other.unflatten(0, (2, 2)).mean(-1))
