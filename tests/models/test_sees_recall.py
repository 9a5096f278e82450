"""q(z) that sees what the memory recalls: revised once all is written, and every term of the bound follows it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from models import oracle
from models.zoo import B, close, close_terms, frames, make, recorded_draws
from tiny import MEMORY_MODELS, OWN_MODELS
from vbmem.models import FrameFormat, Regulariser


def revised(model, pictures, seed):
    """Means and variances of the final q(z), and the memory as a forward pass with this seed writes it."""
    embeddings = oracle.embed(model, pictures)
    memory, size = model.scaled_memory(), model.config.code_size
    first = model.head.layers(embeddings)
    torch.manual_seed(seed)
    state, addresses = memory.write(first[..., : model.content_size], model.iterations)
    recalled = memory.recall(state, addresses)
    correction = model.recall_head.layers(torch.cat([embeddings, recalled], -1))
    if model.config.weighs_recall:
        content = slice(model.content_size)
        noise, var = memory.noise_var, first[..., size:][..., content].exp().square()
        product = (first[..., content] * noise + recalled * var) / (noise + var)
        own_mean, own_log_std = (
            numbers[..., model.content_size :] + change
            for numbers, change in zip(first.chunk(2, -1), correction.chunk(2, -1), strict=True)
        )
        means = torch.cat([product, own_mean], -1)
        variances = torch.cat([noise * var / (noise + var), own_log_std.exp().square()], -1)
    else:
        means = torch.cat([recalled, first[..., model.content_size : size]], -1) + correction[..., :size]
        variances = (first + correction)[..., size:].exp().square()
    return means, variances, memory, state, memory.address(state, means[..., : model.content_size])


@torch.no_grad()
@pytest.mark.parametrize("name", [*MEMORY_MODELS, "sees recall", "weighs recall"])
def test_the_bound_equals_the_oracle(name):
    model, pictures = make(name, sees_recall=True, learned_code_var=True), frames()
    means, variances, memory, state, addresses = revised(model, pictures, seed=5)
    torch.manual_seed(5)
    with recorded_draws() as draws:
        evidence = model(pictures)
    codes = means + variances.sqrt() * draws[-1]
    close(evidence.log_likelihood, oracle.log_likelihood(model, codes, pictures))
    content = slice(model.content_size)
    expected = oracle.memory_divergences(memory, means[..., content], variances[..., content], state, addresses)
    if model.config.own_size:
        own = slice(model.content_size, None)
        expected["kl_own"] = oracle.own_divergence(means[..., own], variances[..., own])
    close_terms(evidence.divergences, expected)


@torch.no_grad()
@pytest.mark.parametrize("name", MEMORY_MODELS)
def test_before_training_the_content_is_what_the_memory_recalls(name):
    config = replace(MEMORY_MODELS[name], sees_recall=True, learned_code_var=True)
    model: Any = config.build(FrameFormat(8, 1)).eval()
    embeddings, posterior = model.look(frames().float())
    recalled = torch.randn(*posterior.mean.shape[:-1], model.content_size)
    content, own = model.revise(embeddings, posterior, recalled).cut(model.content_size)
    first_content, first_own = posterior.cut(model.content_size)
    assert torch.equal(content.mean, recalled)
    assert torch.equal(content.var, first_content.var)
    assert torch.equal(own.mean, first_own.mean)


@torch.no_grad()
@pytest.mark.parametrize("own_size", [0, 2])
def test_what_frame_and_memory_say_is_weighed_by_their_precision(own_size):
    config = replace(OWN_MODELS["weighs recall"], own_size=own_size)
    model: Any = config.build(FrameFormat(8, 1)).eval()
    embeddings, posterior = model.look(frames().float())
    recalled = torch.randn(*posterior.mean.shape[:-1], model.content_size)
    first, own = posterior.cut(model.content_size)

    def content(noise_var):
        model.log_scales["noise_var"].fill_(torch.tensor(noise_var).log())
        content, same = model.revise(embeddings, posterior, recalled).cut(model.content_size)
        assert torch.equal(same.mean, own.mean)  # before training
        return content

    torch.testing.assert_close(content(1e-8).mean, recalled)
    torch.testing.assert_close(content(1e8).mean, first.mean)
    torch.testing.assert_close(content(1e8).var, first.var)
    between = content(0.3)
    torch.testing.assert_close(1 / between.var, 1 / first.var + 1 / 0.3)
    torch.testing.assert_close(between.mean / between.var, first.mean / first.var + recalled / 0.3)


def test_what_is_recalled_of_a_frame_depends_on_the_others():
    model = make("sees recall")
    seen: list[Any] = []
    model.recall_head.register_forward_hook(lambda module, inputs, output: seen.append(output.mean))
    pictures = frames()
    others = torch.cat([pictures[:, :1], frames(seed=9)[:, 1:]], 1)
    for each in (pictures, others):
        torch.manual_seed(0)
        model(each)
    assert not torch.allclose(seen[0][:, 0], seen[1][:, 0])


@torch.no_grad()
def test_the_regulariser_moves_the_revised_content():
    model, pictures = make("sees recall").train(), frames()  # group norm: the same in training
    model.regulariser = Regulariser(0.0, epsilon=0.0, delta=0.0)  # all the way to what is recalled
    means, variances, memory, state, addresses = revised(model, pictures, seed=1)
    torch.manual_seed(1)
    with recorded_draws() as draws:
        evidence = model(pictures)
    moved = torch.cat([memory.recall(state, addresses), means[..., model.content_size :]], -1)
    close(evidence.log_likelihood, oracle.log_likelihood(model, moved + variances.sqrt() * draws[-1], pictures))


@pytest.mark.parametrize("objective", ["generalisation", "online"])
def test_it_goes_with_every_objective_and_with_copies(objective):
    evidence = make("sees recall", objective=objective)(frames(), copies=2)
    assert evidence.elbo.shape == (2 * B,)
    evidence.elbo.sum().backward()
