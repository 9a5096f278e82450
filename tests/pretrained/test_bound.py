"""The bound of a picture: every term against its definition, and the whole below log p(x | memory)."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal

from tiny import KINDS, seeded, tiny_model, waves

GRID = torch.linspace(-8, 8, 321, dtype=torch.float64)


def expected_log_density(w, R, U, mean, var, noise_var):
    """E log N(z; M'w, noise_var I) over q(z) and q(M), for weights w [n, J], that of a location 1: [n]."""
    size = len(mean)
    squares = (mean - w @ R).square().sum(-1) + var.sum() + size * ((w @ U) * w).sum(-1)
    return -0.5 * (squares / noise_var + size * math.log(2 * math.pi * noise_var))


def log_integrals(R, U, located, mean, var, noise_var):
    """log integral p(w) exp E log p(z | w, h) dw of every cluster, [H], which is what its best q(w | s) reaches; by
    quadrature."""
    clusters, rows = len(R), R.shape[1] - located
    w = torch.cartesian_prod(*[GRID] * rows) if rows else GRID.new_zeros(1, 0)
    prior = Normal(0.0, 1.0).log_prob(w).sum(-1) + rows * (GRID[1] - GRID[0]).log()
    w = torch.cat([w, w.new_ones(len(w), int(located))], -1)
    return torch.stack(
        [(prior + expected_log_density(w, R[h], U[h], mean, var, noise_var)).logsumexp(0) for h in range(clusters)]
    )


def in_partitions(memory, q):
    """(R, U, mean [T, C], var [T, C]) of every partition, in float64."""
    parts = memory.empty.partitions
    states = [tensor.double() for tensor in (memory.state.row_mean, memory.state.row_cov)]
    codes = [tensor.double().chunk(parts, -1) for tensor in (q.mean, q.var)]
    for g in range(parts):
        yield *(tensor[g] if memory.empty.kind == "tree" else tensor for tensor in states), *(c[g] for c in codes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_is_the_sum_of_its_terms(kind):
    """The clusters of all partitions are chosen jointly, as the written frames had them."""
    model = tiny_model(kind)
    memory = model.write(waves(12, 8), generator=seeded())
    frames = torch.cat([waves(2, 8), waves(2, 8, seed=3)])
    q, noise_var = model.encode(frames), float(memory.empty.noise_var)

    z = q.mean + q.var.sqrt() * torch.randn(4, 1, q.mean.shape[-1], generator=seeded()).squeeze(1)
    pixels: Any = model.network.decode(z)
    expected = Normal(pixels.mean, pixels.std).log_prob(frames).sum((1, 2, 3)).double()
    entropy = Normal(q.mean.double(), q.var.double().sqrt()).entropy().sum(-1)
    expected += entropy
    partitions = list(in_partitions(memory, q))
    for t in range(4):
        reached = [
            log_integrals(R, U, memory.state.located, means[t], variances[t], noise_var)
            for R, U, means, variances in partitions
        ]
        terms = []
        for choice in itertools.product(range(memory.empty.layout[0]), repeat=len(partitions)):
            prefix = torch.tensor([choice])
            chances = [memory.choice.probabilities(prefix[:, :g])[0, h] for g, h in enumerate(choice)]
            terms.append(
                sum(chance.log() + reached[g][h] for g, (h, chance) in enumerate(zip(choice, chances, strict=True)))
            )
        expected[t] += torch.stack(terms).logsumexp(0)
    bounds = model.bound(memory, frames, generator=seeded())
    torch.testing.assert_close(bounds.double(), expected, rtol=1e-4, atol=1e-2)


def log_evidence(model, memory, frame, count):
    """Importance-sampled log p(x | memory) of a mixture: z, s and w from q, M and b integrated out given w."""
    state, noise_var = memory.state, float(memory.empty.noise_var)
    q = model.encode(frame)
    mean, std = q.mean[0], q.var[0].sqrt()
    z = mean + std * torch.randn(count, len(mean), generator=seeded(1))
    addresses = memory.address(q.mean)
    theta = 0.9 * addresses.assignment[0] + 0.1 / memory.empty.clusters  # a little wider than q(s), q(w | s)
    s = torch.multinomial(theta, count, replacement=True, generator=seeded(2))
    wider = MultivariateNormal(addresses.weight_mean[0], 1.5 * addresses.weight_cov)  # [H, K]
    noise = torch.randn(count, state.rows, generator=seeded(3))
    w = wider.loc[s] + (wider.scale_tril[s] @ noise.unsqueeze(-1)).squeeze(-1)
    proposal = Normal(mean, std).log_prob(z).sum(-1) + theta[s].log()
    proposal += MultivariateNormal(wider.loc[s], scale_tril=wider.scale_tril[s]).log_prob(w)
    rows = torch.cat([w, torch.ones(count, 1)], -1).unsqueeze(-2)  # the weight of the location is 1
    spread = (rows @ state.row_cov[s] @ rows.mT).squeeze((-1, -2)) + noise_var
    centre = (rows @ state.row_mean[s]).squeeze(-2)
    joint = Normal(centre, spread.sqrt().unsqueeze(-1)).log_prob(z).sum(-1) + Normal(0.0, 1.0).log_prob(w).sum(-1)
    joint += model.network.decode(z).log_prob(frame.expand(count, -1, -1, -1))
    joint += memory.choice.probabilities(torch.empty(1, 0, dtype=torch.int64))[0, s].log()
    return float((joint - proposal).logsumexp(0)) - math.log(count)


def test_it_is_a_lower_bound_on_the_evidence():
    model = tiny_model()
    decoder: Any = model.network.decoder
    decoder.to_pixels.weight *= 0.3  # an untrained q(z) is near the posterior only where pixels say little
    memory = model.write(waves(12, 8), generator=seeded())
    frames = torch.cat([waves(3, 8), waves(2, 8, seed=5)])
    bounds = model.bound(memory, frames, samples=100, generator=seeded()).tolist()
    for frame, bound in zip(frames, bounds, strict=True):
        evidence = log_evidence(model, memory, frame, 20_000)
        assert bound < evidence < bound + 20


def test_more_samples_only_make_a_bound_steadier():
    model = tiny_model()
    memory = model.write(waves(12, 8), generator=seeded())
    frame = waves(1, 8)
    single = torch.cat([model.bound(memory, frame, generator=seeded(seed)) for seed in range(100)])
    many = torch.cat([model.bound(memory, frame, samples=20, generator=seeded(seed)) for seed in range(100, 105)])
    assert abs(single.mean() - many.mean()) < 5 * single.std() * (1 / 100 + 1 / 100) ** 0.5
    assert many.std() < single.std()
