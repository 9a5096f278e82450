"""Weights of new codes are like those of the frames that were written."""

from dataclasses import replace

import pytest
import torch

from memory.zoo import MEMORIES, close, every_memory, normal
from tiny import seeded
from vbmem.memory import GaussianMemory, MixtureMemory, WrittenMemory
from vbmem.memory.known import known_of
from vbmem.memory.state import Addresses, Statistics
from vbmem.memory.usage import KERNEL, MOST_KEPT, UNKNOWN, KeptWeights, draw_weights

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
        drawn = draw_weights(clusters, written.sums, written.state, None, seeded(h))
        assert drawn.shape == (*clusters.shape, rows)
        spread = second[..., h, :, :].diagonal(dim1=-2, dim2=-1).sqrt()
        assert ((drawn.mean(-2) - first[..., h, :]).abs() <= 5 * spread / DRAWS**0.5).all()
        size = spread.unsqueeze(-1) * spread.unsqueeze(-2)
        assert ((drawn.mT @ drawn / DRAWS - second[..., h, :, :]).abs() <= 12 * size / DRAWS**0.5).all()


@pytest.mark.parametrize("frames", [None, 0, 5])
def test_a_cluster_without_frames_draws_from_the_prior(frames):
    memory = MixtureMemory(4, 3, 2)
    kept = None if frames is None else KeptWeights(torch.full((frames, 3), 9.0), torch.ones(frames, dtype=torch.int64))
    state = memory.prior_state()
    sums = Statistics.none(state, memory.prior(state.row_mean))
    drawn = draw_weights(torch.zeros(DRAWS, dtype=torch.int64), sums, state, kept, seeded())
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
    sums, choice, weights = known_of(memory, state, codes.repeat(40, 1))
    written = WrittenMemory(memory, state, choice, 80, sums=sums, weights=weights)
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


ROWED = [name for name in MEMORIES if not name.startswith("categorical")]


@pytest.mark.parametrize("name", ROWED)
def test_the_weights_of_every_frame_are_kept_in_the_cluster_it_likeliest_belongs_to(name):
    memory = MEMORIES[name](3, 2, 3)
    codes = 2 * normal(30, memory.code_size)
    written = WrittenMemory.write(memory, codes, generator=seeded())
    assert written.weights is not None
    addresses, kept = written.address(codes), written.weights
    partitions = zip(
        memory.with_partitions(addresses.assignment, -3),
        memory.with_partitions(addresses.weight_mean, -4),
        memory.with_partitions(kept.weights, -3),
        memory.with_partitions(kept.clusters, -2),
        strict=True,
    )
    for theta, mean, weights, clusters in partitions:
        likeliest = theta.argmax(-1)
        assert torch.equal(clusters, likeliest)
        close(weights, mean[torch.arange(30), likeliest], atol=1e-6)


def kept_of(weights: torch.Tensor, clusters: torch.Tensor, most: int) -> KeptWeights:
    """Of frames with these weights [T, K], each in its cluster [T] of so many."""
    assignment = torch.nn.functional.one_hot(clusters, most).double()
    means = weights.unsqueeze(-2).expand(-1, most, -1)
    return KeptWeights.of(Addresses(assignment, means, torch.eye(weights.shape[-1]).double().expand(most, -1, -1)))


def test_of_many_frames_some_are_kept_drawn_at_random():
    weights = torch.arange(1000.0, dtype=torch.float64).unsqueeze(-1)
    kept = kept_of(weights, (weights.squeeze(-1) >= 990).long(), 2)
    assert kept.counts(2).tolist() == [MOST_KEPT, 10]
    of_first = kept.weights[kept.clusters == 0]
    assert len(of_first.unique()) == MOST_KEPT
    assert of_first.max() < 990
    assert 350 < float(of_first.mean()) < 640  # 495, with a standard error of 36
    assert sorted(kept.weights[kept.clusters == 1].flatten().tolist()) == list(range(990, 1000))


def test_new_weights_lie_about_kept_ones_with_the_mean_and_covariance_of_all():
    """A smoothed bootstrap: by hand for two frames of one cluster, at -3 and 3."""
    memory = MixtureMemory(5, 1, 1)
    kept = KeptWeights(torch.tensor([[-3.0], [3.0]]), torch.tensor([0, 0]))
    state = memory.prior_state(dtype=torch.float64)
    sums = Statistics.none(state, memory.prior(state.row_mean))
    outer = torch.tensor([[[18.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)  # S_ww of both: N = 2, S_w = 0
    sums = replace(sums, count=sums.count + 2, weight_outer=outer)
    drawn = draw_weights(torch.zeros(DRAWS, dtype=torch.int64), sums, state, kept, seeded()).squeeze(-1)
    var = (18 + 1) / (2 + 1)
    width = KERNEL * (4 / (3 * 2)) ** (1 / 5)
    about = 3 / (1 + width**2) ** 0.5
    assert float(drawn.mean()) == pytest.approx(0, abs=0.08)
    assert float((drawn > 0).double().mean()) == pytest.approx(0.5, abs=0.05)
    spread = width * var**0.5 / (1 + width**2) ** 0.5
    expected = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(torch.ones(2).double()),
        torch.distributions.Normal(torch.tensor([-about, about]).double(), torch.full((2,), spread).double()),
    )
    for at in (-4.0, -3.0, -2.0, -1.0, 0.5, 1.5, 2.5, 3.5):
        found = float((drawn < at).double().mean())
        assert found == pytest.approx(float(expected.cdf(torch.tensor(at).double())), abs=0.012)


@pytest.mark.parametrize("name", ROWED)
def test_new_codes_of_few_frames_lie_nearer_to_these_than_blends_do(name):
    memory = MEMORIES[name](12, 3, 2)
    codes = 4 * normal(8, memory.code_size)
    written = WrittenMemory.write(memory, codes, 30, generator=seeded())

    def distance(memory: WrittenMemory) -> float:
        drawn = memory.sample(500, seeded(), sample=False)
        return float(torch.cdist(drawn, codes).min(-1).values.square().mean())

    assert distance(written) < 0.75 * distance(replace(written, weights=None))


def test_the_partitions_of_a_tree_lie_near_one_frame():
    """Four frames in the same two clusters, at (1, 1), (2, 2), (-1, -1) and (-2, -2): never one part of each."""
    at = torch.tensor([1.0, 2.0, -1.0, -2.0])
    kept = KeptWeights(at.expand(2, 4).unsqueeze(-1), torch.zeros(2, 4, dtype=torch.int64))
    levels = torch.rand(2, 1000, generator=seeded())
    frames = kept.near(torch.zeros(2, 1000, dtype=torch.int64), levels)
    assert torch.equal(frames[0], frames[1])
    assert frames[0].bincount().min() > 200


def test_parts_that_no_frame_has_together_are_taken_from_several():
    kept = KeptWeights(torch.zeros(2, 3, 1), torch.tensor([[0, 0, 1], [0, 0, 1]]))
    frames = kept.near(torch.tensor([[0, 1, 1], [1, 0, 1]]), torch.rand(2, 3, generator=seeded()))
    assert frames[0, 0] in (0, 1)
    assert frames[1].tolist()[0] == frames[0].tolist()[1] == 2
    assert frames[1, 1] in (0, 1)
    assert frames[:, 2].tolist() == [2, 2]


def test_updated_weights_are_those_of_both_and_old_ones_fade():
    old = kept_of(torch.zeros(40, 2).double(), torch.zeros(40).long(), 2)
    new = kept_of(torch.ones(60, 2).double(), torch.arange(60) % 2, 2)
    frames, more = torch.tensor([40.0, 0.0]), torch.tensor([30.0, 30.0])

    def old_ones(kept: KeptWeights) -> int:
        return int((kept.weights[:, 0] == 0).sum())

    both = old.updated(new, frames, more)
    assert both.counts(2).tolist() == [MOST_KEPT, 30]  # of 70 and 30
    assert 30 <= old_ones(both) <= 40
    assert (both.weights[both.clusters == 1] == 1).all()
    faded = old.updated(new, 0.01 * frames, more)
    assert faded.counts(2).tolist() == [31, 30]
    assert old_ones(faded) <= 4


def test_kept_weights_stand_for_all_frames_of_their_cluster():
    """A thousand frames of which 64 are kept are not outnumbered by a hundred new ones."""
    old = kept_of(torch.zeros(1000, 1).double(), torch.zeros(1000).long(), 1)
    new = kept_of(torch.ones(100, 1).double(), torch.zeros(100).long(), 1)
    both = old.updated(new, torch.tensor([1000.0]), torch.tensor([100.0]))
    assert both.counts(1).tolist() == [MOST_KEPT]
    assert int((both.weights == 1).sum()) < 16  # about 6


def test_a_cluster_that_gave_frames_away_keeps_no_weights():
    codes = torch.cat([normal(10, 3), normal(8, 3) + 40])
    written = WrittenMemory.write(MixtureMemory(3, 1, 2, loc_var=900.0), codes, 30, seeded())
    left = written.forget(codes[:2])
    assert written.weights is not None
    assert left.weights is not None
    assert sorted(written.weights.counts(2).tolist()) == [8, 10]
    assert sorted(left.weights.counts(2).tolist()) == [0, 8]
    assert left.sample(50, seeded()).isfinite().all()
    assert left.update(codes[:3]).sample(50, seeded()).isfinite().all()


def test_a_frame_of_a_tree_that_one_partition_does_not_know_is_kept_by_the_other():
    kept = KeptWeights(torch.ones(2, 3, 1), torch.tensor([[0, 1, 1], [0, 0, 1]]))
    left = kept.without(KeptWeights(torch.ones(2, 1, 1), torch.tensor([[0], [0]])), 2)
    assert left.clusters.tolist() == [[1, 1], [UNKNOWN, 1]]
    assert left.weights.flatten().tolist() == [1, 1, 0, 1]


def test_merged_memories_keep_the_weights_of_both():
    memory = MixtureMemory(3, 1, 4, loc_var=60.0)
    one, other = (
        WrittenMemory.write(memory, 5 * normal(n, 3, seed=n) + at, 30, seeded()) for n, at in ((9, 0.0), (20, 10.0))
    )
    merged = one.merge(other)
    assert merged.weights is not None
    counts = merged.weights.counts(merged.usage.shape[-1])
    assert int(counts.sum()) == 29
    close(counts.double(), merged._require_sums().count.round(), atol=1e-6)


def test_a_memory_of_a_stream_keeps_no_weights_nor_does_one_without_rows():
    codes = normal(20, 3)
    written = WrittenMemory.write(MixtureMemory(3, 1, 2), codes, generator=seeded())
    streamed = WrittenMemory.of_stream(written.empty, written.state, codes.split(7))
    assert streamed.weights is None
    assert streamed.update(codes + 1).weights is None
    assert WrittenMemory.write(MEMORIES["categorical"](3, 2, 3), codes).weights is None
