"""The Neural Statistician: its bound written out by hand, and what its pooling may and may not depend on."""

from typing import Any

import pytest
import torch

from models import oracle
from models.zoo import T, close, close_terms, frames, make, recorded_draws
from vbmem.models import FrameFormat, StatisticianConfig

PUBLISHED_COUNT = 170_795_590  # trainable parameters of the reference code at T = 64, which pools over the features


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_the_bound_equals_the_oracle(likelihood):
    model, pictures = make("statistician", likelihood), frames(binary=likelihood == "bernoulli")
    with recorded_draws() as draws:
        evidence = model(pictures)
    assert [tuple(draw.shape) for draw in draws] == [(2, T, 7), (2, T, 4)]  # a context for every frame, and a code
    expected = oracle.statistician(model, pictures, *draws)
    close_terms({"log_likelihood": evidence.log_likelihood, **evidence.divergences}, expected)


def test_the_order_of_the_frames_does_not_change_the_context():
    model = make("statistician")
    embeddings = model.embed(frames())
    order = [3, 0, 4, 2, 1]
    before, after = model.infer_context(embeddings), model.infer_context(embeddings[:, order])
    close(after.mean, before.mean)
    close(after.var, before.var)
    features = model.before_pooling(embeddings)
    assert not torch.allclose(features.mean(-1), features[:, order].mean(-1))  # as pooling over features would


def test_the_context_depends_on_every_frame():
    model = make("statistician")
    embeddings = model.embed(frames()).detach().requires_grad_()
    model.infer_context(embeddings).mean.sum().backward()
    assert (embeddings.grad.abs().sum(-1) > 0).all()


def test_the_context_of_repeated_frames_is_that_of_the_frames():
    model = make("statistician")
    embeddings = model.embed(frames())
    once, twice = model.infer_context(embeddings), model.infer_context(torch.cat([embeddings, embeddings], 1))
    close(twice.mean, once.mean)


@pytest.mark.parametrize("length", [1, 2, 9])
def test_episodes_of_any_length_have_a_bound(length):
    assert make("statistician")(frames(2, length)).elbo.isfinite().all()


def test_the_divergence_of_the_context_counts_once_an_episode():
    model, pictures = make("statistician"), frames()
    repeated = torch.cat([pictures, pictures], 1)
    once, twice = (model(x).divergences["kl_context"] for x in (pictures, repeated))
    close(twice, once)


def test_the_parameter_count_is_the_published_one_but_for_the_pooling():
    """Pooled over the episode, the context's first dense kernel has 2 C = 400 rows; over the features, T = 64."""
    with torch.device("meta"):
        model: Any = StatisticianConfig(code_size=200, context_size=6400).build(FrameFormat(32, 3))
    assert model.context_head[0].in_features == 400
    count = sum(weights.numel() for weights in model.parameters())
    assert count == PUBLISHED_COUNT + (400 - 64) * 2 * 6400


def test_the_parameter_count_follows_its_formula():
    size, context = 4, 7
    model = StatisticianConfig(context, code_size=size, filters=8).build(FrameFormat(8, 1))
    networks = sum(weights.numel() for part in (model.encoder, model.decoder) for weights in part.parameters())
    wide, deep = 2 * size, 2 * context
    pooling = wide * wide + wide
    context_head = wide * deep + deep + deep * deep + deep
    code_head = (wide + context) * wide + wide + wide * wide  # no bias in the last layer
    code_prior = context * wide + wide + wide * wide + wide
    count = sum(weights.numel() for weights in model.parameters())
    assert count == networks + pooling + context_head + code_head + code_prior
