"""Codes that VAE, Neural Statistician and DKM draw and find again, against their definitions."""

import pytest
import torch

from models.matrix_normal import MatrixNormal
from models.zoo import B, T, as_likely, close, frames, make
from tiny import MODELS, seeded

COUNT = 20_000
every_baseline = pytest.mark.parametrize("name", ["vae", "statistician", "dkm"])


@every_baseline
def test_codes_have_their_shapes_and_the_generator_decides_them(name):
    model = make(name)
    embeddings, size = model.embed(frames()), MODELS[name].code_size
    drawn = [model.new_codes(embeddings, 3, seeded(seed)) for seed in (0, 0, 1)]
    assert drawn[0].shape == (B, 3, size)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    means = model.same_codes(embeddings)
    assert means.shape == (B, T, size)
    assert torch.equal(means, model.same_codes(embeddings))
    sampled = [model.same_codes(embeddings, seeded(seed), sample=True) for seed in (0, 0, 1)]
    assert torch.equal(sampled[0], sampled[1])
    assert not torch.equal(sampled[0], sampled[2])


@every_baseline
@torch.no_grad()
def test_sampled_codes_are_distributed_as_those_the_bound_decodes(name):
    model, pictures = make(name), frames(1, 3)
    decoded = []

    def score(codes, _):
        decoded.append(codes)
        return codes.sum((-1, -2))

    model.score = score
    model(pictures, 4000)
    embeddings = model.embed(pictures).repeat(4000, 1, 1)
    sampled = model.same_codes(embeddings, seeded(), sample=True)
    for power in (1, 2):
        mean, error = decoded[0].pow(power).mean(0), decoded[0].pow(power).std(0) / 4000**0.5
        assert ((sampled.pow(power).mean(0) - mean).abs() < 6 * error).all()


@torch.no_grad()
def test_the_vae_draws_standard_normal_codes_whatever_the_episode():
    model = make("vae")
    one, other = (model.new_codes(model.embed(frames(1, T, seed=seed)), COUNT, seeded()) for seed in (1, 2))
    assert torch.equal(one, other)
    as_likely(one[0], 0.0)
    as_likely(one[0].square(), 1.0)
    close(model.same_codes(model.embed(frames())), model.infer(frames()).mean)


@torch.no_grad()
def test_the_statistician_draws_a_context_for_every_code():
    model = make("statistician")
    embeddings = model.embed(frames(1, T))
    context = model.infer_context(embeddings)
    codes = model.new_codes(embeddings, COUNT, seeded())[0]
    contexts = context.mean + context.var.sqrt() * torch.randn(COUNT, 7, dtype=torch.float64, generator=seeded(1))
    mean, log_std = model.code_prior(contexts).chunk(2, -1)
    for got, expected in ((codes, mean), (codes.square(), mean.square() + torch.exp(2 * log_std.clamp(-7, 3)))):
        as_likely(got - expected, 0.0)
    joined = torch.cat([embeddings, context.mean.unsqueeze(1).expand(1, T, 7)], -1)
    close(model.same_codes(embeddings), model.code_head(joined).mean)


@torch.no_grad()
def test_the_dkm_draws_weights_and_memory_for_every_code():
    model = make("dkm")
    embeddings = model.embed(frames(1, T))
    memory = model.memory.with_prior(row_mean=model.row_mean)
    state, _ = memory.write(embeddings)
    codes = model.new_codes(embeddings, COUNT, seeded())[0]
    weights = torch.randn(COUNT, 3, dtype=torch.float64, generator=seeded(1))
    torch.manual_seed(2)
    rows = MatrixNormal(state.row_mean[0, 0], state.row_cov[0, 0]).sample((COUNT,))  # [COUNT, K, C]
    drawn = torch.einsum("nk,nkc->nc", weights, rows)
    for moment in (lambda z: z, torch.square, lambda z: z[:, :1] * z[:, 1:]):
        as_likely(moment(codes) - moment(drawn), 0.0)
    close(model.same_codes(embeddings), memory.reconstruct(state, embeddings))
