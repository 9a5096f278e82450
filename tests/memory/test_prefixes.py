"""Joint assignments of the partitions, against dictionaries and by sampling."""

import itertools
import math
from collections import defaultdict

import pytest
import torch
from safetensors.torch import load, save
from torch.nn.functional import one_hot

from memory.zoo import close, normal
from tiny import seeded
from vbmem.memory.choice import draw_clusters
from vbmem.memory.prefixes import PrefixCounts, PrefixNetworks

KINDS = {"counts": PrefixCounts.of, "networks": PrefixNetworks.fit}
either = pytest.mark.parametrize("make", KINDS.values(), ids=list(KINDS))


def soft(partitions: int = 3, frames: int = 12, clusters: int = 3) -> torch.Tensor:
    return (2 * normal(partitions, frames, clusters)).softmax(-1)


def hard(partitions: int = 3, frames: int = 64, clusters: int = 3) -> torch.Tensor:
    """One-hot, and each partition mostly repeats the one before: many joint assignments never occur."""
    clusters_of = torch.randint(clusters, (partitions, frames), generator=seeded(1))
    for g in range(1, partitions):
        repeats = torch.rand(frames, generator=seeded(2 + g)) < 0.8
        clusters_of[g] = clusters_of[g - 1].where(repeats, clusters_of[g])
    return one_hot(clusters_of, clusters).double()


def by_dictionary(theta: torch.Tensor) -> list[dict[tuple[int, ...], torch.Tensor]]:
    """For every partition, the summed theta of each prefix."""
    partitions, frames, clusters = theta.shape
    levels = []
    for g in range(partitions):
        sums: dict[tuple[int, ...], torch.Tensor] = defaultdict(lambda: torch.zeros(clusters, dtype=theta.dtype))
        for t in range(frames):
            sums[tuple(int(theta[i, t].argmax()) for i in range(g))] += theta[g, t]
        levels.append(dict(sums))
    return levels


def usage(theta: torch.Tensor) -> torch.Tensor:
    """m_g, the smoothed usage of every partition by itself: [G, H]."""
    _, frames, clusters = theta.shape
    return (theta.sum(1) + 1 / clusters) / (frames + 1)


def smoothed(counts: torch.Tensor, usage: torch.Tensor, g: int) -> torch.Tensor:
    """p(s^(g) | prefix) from the counts [H] of that prefix."""
    if g == 0:
        return usage
    share = len(counts) ** -g
    return (counts + share * usage) / (counts.sum() + share)


def joint_probabilities(assignments: PrefixCounts) -> torch.Tensor:
    """The product of the conditionals for every joint assignment: [H, .., H]."""
    partitions, clusters = len(assignments.counts), assignments.counts[0].shape[-1]
    joint = torch.ones((), dtype=torch.float64)
    for g in range(partitions):
        rows = torch.tensor(list(itertools.product(range(clusters), repeat=g)), dtype=torch.int64).reshape(
            clusters**g, g
        )
        joint = joint.unsqueeze(-1) * assignments.probabilities(rows).reshape([clusters] * (g + 1))
    return joint


def frequencies(drawn: torch.Tensor, clusters: int) -> torch.Tensor:
    """How often each joint assignment is among [G, n]: [H, .., H]."""
    counts = torch.zeros([clusters] * len(drawn), dtype=torch.float64)
    counts.index_put_(tuple(drawn), torch.ones(drawn.shape[1], dtype=torch.float64), accumulate=True)
    return counts / drawn.shape[1]


# --- Counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [soft(), soft(1, 5, 4), soft(4, 30, 2), soft(3, 1, 5), hard()])
def test_counts_are_those_of_a_dictionary(theta):
    counts = PrefixCounts.of(theta)
    for g, expected in enumerate(by_dictionary(theta)):
        assert counts.prefixes[g].dtype == torch.int64
        assert counts.prefixes[g].shape == (len(expected), g)
        found = dict(zip(map(tuple, counts.prefixes[g].tolist()), counts.counts[g], strict=True))
        assert found.keys() == expected.keys()
        for prefix, row in expected.items():
            torch.testing.assert_close(found[prefix], row)
            conditional = counts.probabilities(torch.tensor([prefix], dtype=torch.int64).reshape(1, g))
            torch.testing.assert_close(conditional[0], smoothed(row, usage(theta)[g], g))


def test_a_prefix_that_never_occurred_gets_the_usage_of_all_frames():
    theta = torch.tensor([[[0.9, 0.1], [0.8, 0.2]], [[0.3, 0.7], [0.6, 0.4]]])  # the first is always cluster 0
    conditional = PrefixCounts.of(theta).probabilities(torch.tensor([[0], [1], [0]]))
    known = [(0.9 + 0.5 * 1.4 / 3) / 2.5, (1.1 + 0.5 * 1.6 / 3) / 2.5]
    torch.testing.assert_close(conditional, torch.tensor([known, [1.4 / 3, 1.6 / 3], known]))

    theta = hard(3, 10)
    counts = PrefixCounts.of(theta)
    seen = set(map(tuple, counts.prefixes[2].tolist()))
    unseen = [row for row in itertools.product(range(3), repeat=2) if row not in seen]
    assert unseen
    expected = usage(theta)[2].expand(len(unseen), -1)
    torch.testing.assert_close(counts.probabilities(torch.tensor(unseen)), expected)


@either
def test_one_partition_is_drawn_as_often_as_it_was_used(make):
    theta = soft(1, 20, 4)
    assignments = make(theta)
    expected = usage(theta)[0]
    torch.testing.assert_close(assignments.probabilities(torch.empty(2, 0, dtype=torch.int64)), expected.expand(2, -1))
    drawn = assignments.sample(20_000, seeded())
    assert drawn.shape == (1, 20_000)
    assert (frequencies(drawn, 4) - expected).abs().max() < 4.5 * 0.5 / math.sqrt(20_000)


def test_hard_assignments_are_drawn_from_the_empirical_joint_and_one_more_frame():
    """The extra frame lies everywhere: what never occurred is rare, but nothing is impossible."""
    theta = hard()
    counts = PrefixCounts.of(theta)
    empirical = frequencies(theta.argmax(-1), 3)
    assert (empirical == 0).sum() > 5
    joint = joint_probabilities(counts)
    assert (joint > 0).all()
    assert joint[empirical == 0].sum() < 2 / (64 + 1)
    assert (joint - empirical).abs().max() < 1 / (64 + 1)
    drawn = frequencies(counts.sample(20_000, seeded()), 3)
    assert ((drawn - joint).abs() <= 4.5 * (joint * (1 - joint) / 20_000).sqrt() + 1 / 20_000).all()


def test_an_unused_cluster_is_never_impossible():
    theta = one_hot(torch.tensor([[0, 0, 1]]), 4).double()
    first = PrefixCounts.of(theta).probabilities(torch.empty(1, 0, dtype=torch.int64))
    torch.testing.assert_close(first, torch.tensor([[2.25, 1.25, 0.25, 0.25]]).double() / 4)
    weighted = PrefixCounts.of(theta, torch.tensor([0.1, 0.2, 0.3, 0.4])).probabilities(torch.empty(1, 0).long())
    torch.testing.assert_close(weighted, torch.tensor([[2.1, 1.2, 0.3, 0.4]]).double() / 4)


@pytest.mark.parametrize("theta", [soft(), soft(1, 5, 4), soft(4, 6, 2), hard()], ids=["soft", "one", "deep", "hard"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_evidence_sums_over_all_joint_choices(theta, batch):
    """Against the table of all H^G of them."""
    counts = PrefixCounts.of(theta)
    partitions, _, clusters = theta.shape
    scores = 30 * normal(*batch, partitions, clusters, 7, seed=3)
    expected = joint_probabilities(counts).log()
    for g in range(partitions):
        along = scores[..., g, :, :].movedim(-1, -2)  # [.., 7, H]
        expected = expected + along.reshape(*along.shape[:-1], *(clusters if i == g else 1 for i in range(partitions)))
    torch.testing.assert_close(counts.log_evidence(scores), expected.flatten(-partitions).logsumexp(-1))


def test_the_evidence_is_differentiable_and_finite_where_clusters_are_far_apart():
    counts = PrefixCounts.of(hard().float())
    scores = (1e4 * normal(3, 3, 5)).float().requires_grad_()
    evidence = counts.log_evidence(scores)
    evidence.sum().backward()
    assert evidence.isfinite().all()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


def test_masked_frames_do_not_count():
    theta = soft()
    masked = theta * (torch.arange(12) % 3 > 0).unsqueeze(-1)
    kept = theta[:, torch.arange(12) % 3 > 0]
    for name, tensor in PrefixCounts.of(kept).tensors().items():
        torch.testing.assert_close(PrefixCounts.of(masked).tensors()[name], tensor)


def test_many_partitions_of_many_clusters_do_not_overflow():
    """100^23 prefixes are possible; the five that occur are told apart."""
    theta = one_hot(torch.randint(100, (24, 5), generator=seeded()), 100).float()
    drawn = PrefixCounts.of(theta).sample(500, seeded(), first=theta[0].argmax(-1).repeat(100))
    assert set(map(tuple, drawn.mT.tolist())) >= set(map(tuple, theta.argmax(-1).mT.tolist()))
    likely = [tuple(row) in set(map(tuple, theta.argmax(-1).mT.tolist())) for row in drawn.mT.tolist()]
    assert sum(likely) > 0.95 * 500


# --- Networks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theta", [hard(), soft(3, 64)], ids=["hard", "soft"])
def test_networks_approach_the_counts_where_prefixes_occurred(theta):
    counts, networks = PrefixCounts.of(theta), PrefixNetworks.fit(theta)
    for prefix in counts.prefixes:
        assert (networks.probabilities(prefix) - counts.probabilities(prefix)).abs().max() < 0.1


def test_networks_minimise_the_cross_entropy_over_frames():
    """On the way to the optimum, the entropy of the counts' conditionals, it falls with the steps."""
    theta = soft(2, 40)
    prefix = theta[0].argmax(-1, keepdim=True)

    def cross_entropy(assignments):
        return -(theta[1] * assignments.probabilities(prefix).log()).sum(-1).mean()

    few, many = (cross_entropy(PrefixNetworks.fit(theta, steps=steps)) for steps in (1, 200))
    counts = one_hot(prefix[:, 0], 3).double().mT @ theta[1]  # the optimum is not smoothed
    best = -(theta[1] * (counts / counts.sum(-1, keepdim=True))[prefix[:, 0]].log()).sum(-1).mean()
    assert best <= many < few
    assert many - best < 1e-3


def test_counts_are_all_that_networks_are_fitted_to():
    weights = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    fitted, again = PrefixNetworks.fit(PrefixCounts.of(soft(), weights)), PrefixNetworks.fit(soft())
    assert torch.equal(fitted.base[0], weights)
    for part in ("prefixes", "counts", "inner", "outer"):
        assert all(map(torch.equal, getattr(fitted, part), getattr(again, part)))


@torch.no_grad()
def test_a_fit_is_reproducible_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first, again, other = (PrefixNetworks.fit(soft(), steps=5, seed=seed).tensors() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["inner.0"], other["inner.0"])
    assert not any(tensor.requires_grad for tensor in first.values())


# --- Both -----------------------------------------------------------------------------------------------------------


@either
@pytest.mark.parametrize("theta", [soft(), soft(2, 7, 5), hard()], ids=["soft", "wide", "hard"])
def test_the_conditionals_make_one_distribution_and_samples_follow_it(make, theta):
    assignments = make(theta)
    joint = joint_probabilities(assignments)
    assert joint.sum().item() == pytest.approx(1, abs=1e-12)
    n = 20_000
    drawn = assignments.sample(n, seeded())
    assert drawn.shape == (len(theta), n)
    assert drawn.dtype == torch.int64
    difference = (frequencies(drawn, theta.shape[-1]) - joint).abs()
    assert (difference <= 4.5 * (joint * (1 - joint) / n).sqrt() + 1 / n).all()


@either
def test_a_given_first_partition_is_kept_and_the_others_follow_it(make):
    assignments = make(soft())
    first = torch.arange(3).repeat_interleave(10_000)
    drawn = assignments.sample(30_000, seeded(), first=first)
    assert (drawn[0] == first).all()
    expected = assignments.probabilities(torch.arange(3).unsqueeze(-1)) / 3
    assert (frequencies(drawn[:2], 3) - expected).abs().max() < 4.5 * 0.5 / math.sqrt(30_000)
    assert (make(soft(1)).sample(3, first=first[:3]) == first[:3]).all()


@pytest.mark.parametrize("level", [0.0, 1 - 2**-24, 1.0])
def test_the_extreme_random_numbers_draw_no_cluster_of_probability_0(monkeypatch, level):
    weights = torch.tensor([[0.0, 0.3, 0.8, 0.0], [0.0, 0.1, 0.9, 0.0]])
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda tensor, generator: tensor.fill_(level))
    assert (draw_clusters(weights, None) == (1 if level == 0 else 2)).all()


@either
def test_a_generator_makes_joint_samples_reproducible(make):
    assignments = make(soft())
    assert torch.equal(assignments.sample(20, seeded(1)), assignments.sample(20, seeded(1)))
    assert not torch.equal(assignments.sample(20, seeded(1)), assignments.sample(20, seeded(2)))


@either
@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_file_gives_back_the_same_tensors(make, partitions, dtype):
    assignments = make(soft(partitions).to(dtype))
    loaded = load(save(assignments.tensors() | {"state.row_mean": torch.ones(1)}))
    again = type(assignments).from_tensors(loaded)
    assert again.tensors().keys() == assignments.tensors().keys()
    for name, tensor in assignments.tensors().items():
        assert again.tensors()[name].dtype == tensor.dtype
        assert torch.equal(again.tensors()[name], tensor)
    assert torch.equal(again.sample(50, seeded()), assignments.sample(50, seeded()))


# --- Bad input ------------------------------------------------------------------------------------------------------

BAD_ASSIGNMENTS = {
    "one partition without its dimension": (soft()[0], r"floats \[G, T, H\].* got torch.float64 \[12, 3\]"),
    "whole numbers": (hard().long(), r"floats \[G, T, H\].* got torch.int64 \[3, 64, 3\]"),
    "no frames": (soft()[:, :0], r"a frame that is not masked, got .*\[3, 0, 3\]"),
    "all masked": (torch.zeros(2, 5, 3), "a frame that is not masked"),
    "not probabilities": (2 * soft(), "must hold probabilities, which sum to 1"),
    "masked in one partition": (soft() * torch.tensor([1.0, 1.0, 0.0])[:, None, None], "sum to 1"),
    "negative": (torch.tensor([[[-0.5, 1.5]]]), "must hold probabilities"),
    "NaN": (torch.full((1, 2, 3), torch.nan), "must hold probabilities"),
}


@either
@pytest.mark.parametrize(("theta", "message"), BAD_ASSIGNMENTS.values(), ids=list(BAD_ASSIGNMENTS))
def test_bad_assignments_are_refused(make, theta, message):
    with pytest.raises(ValueError, match=message):
        make(theta)


BAD_PREFIXES = {
    "complete": (torch.zeros(2, 3, dtype=torch.int64), r"g < 3 partitions, got \[2, 3\]"),
    "a single one": (torch.zeros(2, dtype=torch.int64), r"\[n, g\] .* got \[2\]"),
    "floating": (torch.zeros(2, 1), r"must be int64 .* got torch\.float32"),
    "too large": (torch.tensor([[0], [3]]), r"lie in 0 \.\. 2, got 0 \.\. 3"),
    "negative": (torch.tensor([[-1]]), r"lie in 0 \.\. 2, got -1 \.\. -1"),
}


@pytest.mark.parametrize(("prefix", "message"), BAD_PREFIXES.values(), ids=list(BAD_PREFIXES))
def test_bad_prefixes_are_refused(prefix, message):
    with pytest.raises(ValueError, match=message):
        PrefixCounts.of(soft()).probabilities(prefix)


def test_bad_requests_are_refused():
    counts = PrefixCounts.of(soft())
    with pytest.raises(ValueError, match="n must be a whole number of at least 1, got 0"):
        counts.sample(0)
    with pytest.raises(ValueError, match=r"int64 of shape \[4\], got torch\.int64 of shape \[3\]"):
        counts.sample(4, first=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="hidden must be a whole number of at least 1, got 0"):
        PrefixNetworks.fit(soft(), hidden=0)
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, got 0"):
        PrefixNetworks.fit(soft(), steps=0)


@pytest.mark.parametrize("lost", ["prefixes.0", "prefixes.1", "counts.1", "counts.2", "counts", "inner.0", "outer"])
def test_a_file_that_lacks_a_part_is_refused(lost):
    networks = PrefixNetworks.fit(soft())
    tensors = {name: tensor for name, tensor in networks.tensors().items() if not name.startswith(lost)}
    with pytest.raises(ValueError, match="PrefixNetworks needs all parts of every partition, got prefixes of"):
        PrefixNetworks.from_tensors(tensors)


def test_counts_can_be_read_from_a_file_of_networks_but_not_from_another():
    tensors = PrefixNetworks.fit(soft()).tensors()
    assert torch.equal(PrefixCounts.from_tensors(tensors).counts[2], tensors["counts.2"])
    with pytest.raises(ValueError, match=r"PrefixCounts needs all parts of every partition, .* shapes \[\]"):
        PrefixCounts.from_tensors({"state.row_mean": torch.ones(1)})


def test_where_the_clusters_of_all_prefixes_are_gone_others_are_still_chosen():
    """A frame that three clusters share, of which the likeliest was left out when two memories became one."""
    theta = torch.tensor([0.4, 0.35, 0.25]).expand(2, 1, 3)
    left = PrefixCounts.of(theta).renamed(torch.tensor([[-1, 0, 1], [0, 1, -1]]), 2)
    assert [len(prefixes) for prefixes in left.prefixes] == [1, 0]
    close(left.usage[0], torch.tensor([0.35, 0.25]))
    assert left.sample(50, seeded()).shape == (2, 50)
    assert left.combined(left).sample(50, seeded()).shape == (2, 50)
