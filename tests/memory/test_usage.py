"""Weights of new codes are like those of the frames that were written."""

from dataclasses import replace

import pytest
import torch

from memory.zoo import MEMORIES, close, every_memory, normal
from tiny import seeded
from vbmem.memory import GaussianMemory, MixtureMemory, WrittenMemory
from vbmem.memory.known import known_of
from vbmem.memory.state import Statistics
from vbmem.memory.usage import draw_weights

DRAWS = 40_000


@every_memory
def test_weights_have_the_mean_and_the_covariance_of_the_frames_and_of_one_more_in_all(name):
    memory = MEMORIES[name](3, 2, 3)
    codes = 2 * normal(30, memory.code_size)
    written = WrittenMemory.write(memory, codes, generator=seeded())
    assert written.sums is not None
    rows, addresses = written.state.rows, written.address(codes)
    extra = 1 / addresses.assignment.shape[-1]
    theta, mean = addresses.assignment, addresses.weight_mean  # [.., T, H], [.., T, H, K]
    count = theta.sum(-2) + extra
    first = (theta.unsqueeze(-1) * mean).sum(-3) / count.unsqueeze(-1)  # [.., H, K]
    if not written.state.located:
        first = torch.zeros_like(first)
    within = (theta.sum(-2) / count)[..., None, None] * addresses.weight_cov
    second = torch.einsum("...th,...thk,...thj->...hkj", theta, mean, mean) / count[..., None, None] + within
    second = second + extra / count[..., None, None] * torch.eye(rows, dtype=torch.float64)
    for h in range(theta.shape[-1]):
        clusters = torch.full((*theta.shape[:-2], DRAWS), h)
        drawn = draw_weights(clusters, written.sums, written.state, seeded(h))
        assert drawn.shape == (*clusters.shape, rows)
        spread = second[..., h, :, :].diagonal(dim1=-2, dim2=-1).sqrt()
        assert ((drawn.mean(-2) - first[..., h, :]).abs() <= 5 * spread / DRAWS**0.5).all()
        size = spread.unsqueeze(-1) * spread.unsqueeze(-2)
        assert ((drawn.mT @ drawn / DRAWS - second[..., h, :, :]).abs() <= 12 * size / DRAWS**0.5).all()


def test_a_cluster_without_frames_draws_from_the_prior():
    memory = MixtureMemory(4, 3, 2)
    state = memory.prior_state()
    sums = Statistics.none(state, memory.prior(state.row_mean))
    drawn = draw_weights(torch.zeros(DRAWS, dtype=torch.int64), sums, state, seeded())
    close(drawn.mean(0), torch.zeros(3), atol=0.03)
    close(drawn.T.cov(), torch.eye(3), atol=0.05)


def test_frames_that_lie_elsewhere_than_the_prior_expects_are_what_is_drawn():
    memory = MixtureMemory(20, 1, 2)
    rows = torch.zeros(2, 2, 20, dtype=torch.float64)
    rows[:, 0] = 5.0  # the only factor; locations are at 0 and 100
    rows[1, 1] = 100.0
    state = replace(
        memory.prior_state(dtype=torch.float64), row_mean=rows, row_cov=1e-6 * torch.eye(2).expand(2, 2, 2).double()
    )
    codes = torch.stack([rows[0, 1] + 3 * rows[0, 0], rows[1, 1] - 2 * rows[1, 0]])
    sums, choice = known_of(memory, state, codes.repeat(40, 1))
    written = WrittenMemory(memory, state, choice, 80, sums=sums)
    for cluster, code in enumerate(codes):
        drawn = written.sample(400, seeded(), cluster=cluster, sample=False)
        by_prior = written.sample(400, seeded(), cluster=cluster, choice="prior", sample=False)
        close(drawn.median(0).values, code, atol=1.0)
        close(by_prior.median(0).values, rows[cluster, 1], atol=1.0)


@pytest.mark.parametrize(("choice", "older"), [("prior", False), ("usage", True)])
def test_by_the_prior_and_of_older_files_weights_are_drawn_from_the_prior(choice, older):
    written = WrittenMemory.write(GaussianMemory(5, 2), normal(8, 5), generator=seeded())
    memory = replace(written, sums=None) if older else written
    generator = seeded()
    clusters = memory._choose(choice, 7, None, generator).squeeze(0)
    expected = memory.empty.sample(memory.state, 7, generator, clusters=clusters)
    assert torch.equal(memory.sample(7, seeded(), choice=choice), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_follow_from_the_seed_and_have_the_type_of_the_memory(dtype):
    written = WrittenMemory.write(MixtureMemory(4, 2, 3), normal(9, 4).to(dtype), generator=seeded())
    one, same, other = (written.sample(5, seeded(seed)) for seed in (0, 0, 1))
    assert one.dtype == dtype
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
