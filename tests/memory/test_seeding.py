"""Where a write starts: which frames, how often, and never a masked one; means of k-means and of Ward's clustering."""

from typing import Any

import pytest
import torch
from sklearn.cluster import AgglomerativeClustering

from memory.zoo import normal
from tiny import seeded
from vbmem.memory import ward
from vbmem.memory.seeding import (
    claim,
    greedy_seed,
    kmeans_means,
    kmeans_plus_plus,
    lloyd_step,
    next_seed,
    random_frames,
)
from vbmem.memory.ward import ward_means

both = pytest.mark.parametrize("choose", [kmeans_plus_plus, random_frames])
means_of = pytest.mark.parametrize("means", [kmeans_means, ward_means])
DRAWS = 20_000


def indices(seeds: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Which frame each seed is, [.., count]; every seed must be a frame, to the bit."""
    equal = (seeds.unsqueeze(-2) == codes.unsqueeze(-3)).all(-1)
    assert equal.any(-1).all()
    return equal.int().argmax(-1)


@both
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_seeds_are_distinct_frames_while_there_are_enough(choose, batch):
    codes = normal(*batch, 7, 3)
    for count in (1, 4, 7):
        seeds = choose(codes, count, generator=seeded())
        assert seeds.shape == (*batch, count, 3)
        chosen = indices(seeds, codes).reshape(-1, count)
        assert all(len(set(row.tolist())) == count for row in chosen)


@both
def test_more_seeds_than_frames_use_every_frame(choose):
    codes = normal(2, 3, 4)
    chosen = indices(choose(codes, 8, generator=seeded()), codes)
    assert all(set(row.tolist()) == {0, 1, 2} for row in chosen)


def test_random_frames_repeat_in_turn():
    codes = normal(3, 4)
    chosen = indices(random_frames(codes, 8, generator=seeded()), codes).tolist()
    assert chosen[:3] == chosen[3:6]
    assert chosen[6:] == chosen[:2]


@both
def test_masked_frames_are_never_chosen(choose):
    codes = normal(50, 6, 3)
    mask = torch.tensor([True, False, True, True, False, False]).expand(50, 6)
    codes = codes.where(mask.unsqueeze(-1), float("nan"))
    for count in (2, 3, 5):
        chosen = indices(choose(codes, count, mask, seeded()), codes)
        assert mask.gather(-1, chosen).all()
        assert all(len(set(row.tolist())) == min(count, 3) for row in chosen)


@both
def test_an_episode_with_one_frame_left_repeats_it(choose):
    codes = normal(5, 3)
    mask = torch.tensor([False, False, True, False, False])
    assert (choose(codes, 4, mask, seeded()) == codes[2]).all()


@both
def test_copies_of_one_frame_are_fine(choose):
    codes = normal(1, 3).expand(6, 3)
    assert (choose(codes, 4, generator=seeded()) == codes[0]).all()


def test_kmeans_plus_plus_takes_one_of_each_before_a_copy():
    distinct = normal(3, 2)
    codes = distinct.repeat(4, 1)
    for seed in range(20):
        chosen = indices(kmeans_plus_plus(codes, 3, generator=seeded(seed)), distinct)
        assert set(chosen.tolist()) == {0, 1, 2}


@both
def test_a_generator_makes_the_choice_reproducible(choose):
    codes = normal(20, 3)
    first = choose(codes, 5, generator=seeded(1))
    torch.rand(3)  # the global generator plays no part
    assert (choose(codes, 5, generator=seeded(1)) == first).all()
    assert (choose(codes, 5, generator=seeded(2)) != first).any()


def assert_frequencies(counts: torch.Tensor, probabilities: torch.Tensor) -> None:
    """Chi-square below its 99.99 % quantile for 4 degrees of freedom."""
    assert len(probabilities) == 5
    expected = probabilities * counts.sum()
    assert ((counts - expected).square() / expected).sum() < 23.5


@both
def test_the_first_seed_is_uniform(choose):
    codes = normal(5, 2)
    chosen = indices(choose(codes.expand(DRAWS, 5, 2), 1, generator=seeded()), codes)
    assert_frequencies(chosen.flatten().bincount(minlength=5), torch.full((5,), 0.2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_second_seed_is_drawn_by_squared_distance(dtype):
    codes = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [-2.0, 1.0], [0.5, 0.5], [3.0, -1.0]], dtype=dtype)
    chosen = indices(kmeans_plus_plus(codes.expand(6 * DRAWS, 6, 2), 2, generator=seeded()), codes)
    for first in range(6):
        others = [frame for frame in range(6) if frame != first]
        distances = (codes[others] - codes[first]).square().sum(-1)
        second = chosen[chosen[:, 0] == first, 1].bincount(minlength=6)
        assert second[first] == 0
        assert_frequencies(second[others], distances / distances.sum())


def test_the_third_seed_is_drawn_by_the_distance_to_the_nearer_of_two():
    codes = torch.tensor([[0.0], [10.0], [1.0], [2.0], [5.0], [9.0], [7.0]], dtype=torch.float64)
    chosen = indices(kmeans_plus_plus(codes.expand(20 * DRAWS, 7, 1), 3, generator=seeded()), codes)
    ends = (chosen[:, :2].sort(-1).values == torch.tensor([0, 1])).all(-1)
    nearest = torch.minimum(codes[2:, 0].square(), (codes[2:, 0] - 10).square())
    assert_frequencies(chosen[ends, 2].bincount(minlength=7)[2:], nearest / nearest.sum())


@pytest.mark.parametrize("choose", [kmeans_plus_plus, random_frames, kmeans_means, ward_means])
def test_seeds_carry_no_gradient(choose):
    assert not choose(normal(5, 2).requires_grad_(), 2).requires_grad


# --- Means of a quick clustering ------------------------------------------------------------------------------------


def in_order(means: torch.Tensor) -> torch.Tensor:
    """Sorted by the first coordinate, to compare sets of means [count, C]."""
    return means[means[:, 0].argsort()]


def assert_same_means(actual, expected, **tolerance) -> None:
    torch.testing.assert_close(in_order(actual), in_order(expected), **tolerance)


def sklearn_means(codes: torch.Tensor, count: int) -> torch.Tensor:
    label = AgglomerativeClustering(count, linkage="ward").fit_predict(codes.numpy())
    return torch.stack([codes[torch.from_numpy(label == one)].mean(0) for one in range(count)])


def clustered(*shape: int, seed: int = 0) -> torch.Tensor:
    """Codes in some clumps of unequal width, [.., T, C]."""
    *batch, frames, size = shape
    clumps = 4 * normal(*batch, 5, size, seed=seed)
    which = torch.randint(5, (*batch, frames, 1), generator=seeded(seed)).expand(shape)
    return clumps.gather(-2, which) + normal(*shape, seed=seed + 1) * (which + 1) / 4


@pytest.mark.parametrize("make", [normal, clustered])
@pytest.mark.parametrize("size", [1, 2, 20])
@pytest.mark.parametrize(
    ("frames", "counts"), [(2, [1, 2]), (9, [1, 4, 8]), (64, [1, 3, 10, 40, 63]), (200, [2, 9, 60])]
)
def test_ward_cuts_the_tree_as_sklearn_does(make, size, frames, counts):
    codes = make(3, frames, size)
    for count in counts:
        means = ward_means(codes, count)
        assert means.shape == (3, count, size)
        for one, episode in zip(means, codes, strict=True):
            assert_same_means(one, sklearn_means(episode, count))


def test_ward_of_a_geometric_series_takes_a_round_for_every_merger():
    codes = torch.logspace(0, 12, 40, dtype=torch.float64).unsqueeze(-1)
    for count in (1, 5, 20):
        assert_same_means(ward_means(codes, count), sklearn_means(codes, count))


def test_ward_with_a_fixed_number_of_rounds(monkeypatch):
    """As on a GPU, where nobody looks: the same means, and whatever comes of contrived codes is finite."""
    codes = clustered(4, 80, 6)
    expected = ward_means(codes, 5)
    monkeypatch.setattr(ward, "_may_look", lambda tensor: False)
    assert (ward_means(codes, 5) == expected).all()
    series = torch.logspace(0, 100, 200, dtype=torch.float64).unsqueeze(-1)
    means = ward_means(series, 5)
    assert means.isfinite().all()
    assert len(means.unique()) == 5


def test_ward_of_a_batch_is_a_loop():
    codes = clustered(2, 3, 90, 4)
    mask = torch.rand(2, 3, 90, generator=seeded()) < torch.tensor([0.9, 0.3, 0.05]).unsqueeze(-1)
    together, masked = ward_means(codes, 6), ward_means(codes, 6, mask)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(together[i, j], ward_means(codes[i, j], 6))
            torch.testing.assert_close(masked[i, j], ward_means(codes[i, j], 6, mask[i, j]))


def test_a_mask_is_for_all_partitions():
    codes, mask = clustered(2, 3, 20, 4), torch.rand(2, 1, 20, generator=seeded()) < 0.6
    for means in (ward_means(codes, 3, mask), kmeans_means(codes, 3, mask, seeded())):
        assert means.shape == (2, 3, 3, 4)
    assert (ward_means(codes, 3, mask) == ward_means(codes, 3, mask.expand(2, 3, 20))).all()


def test_ward_of_masked_frames_is_that_without_them():
    codes = clustered(4, 70, 3)
    mask = torch.rand(4, 70, generator=seeded()) < torch.tensor([[0.9], [0.5], [0.2], [0.06]])
    codes = codes.where(mask.unsqueeze(-1), float("nan"))
    for count in (1, 4, 12):
        for means, episode, kept in zip(ward_means(codes, count, mask), codes, mask, strict=True):
            torch.testing.assert_close(means, ward_means(episode[kept], count))


def test_ward_does_not_depend_on_the_order_of_frames():
    codes = clustered(60, 5)
    shuffled = codes[torch.randperm(60, generator=seeded())]
    assert_same_means(ward_means(shuffled, 8), ward_means(codes, 8))


def test_ward_means_come_in_the_order_of_their_first_frames():
    codes = torch.tensor([[5.0], [0.0], [5.1], [9.0], [0.1]])
    torch.testing.assert_close(ward_means(codes, 3), torch.tensor([[5.05], [0.05], [9.0]]))


def test_fewer_frames_than_clusters_are_repeated_in_turn():
    codes = normal(3, 4)
    assert indices(ward_means(codes, 8), codes).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    mask = torch.tensor([[True, False, True, True], [False, True, False, False], [True] * 4])
    chosen = indices(ward_means(normal(3, 4, 2), 4, mask), normal(3, 4, 2))
    assert chosen.tolist() == [[0, 2, 3, 0], [1, 1, 1, 1], [0, 1, 2, 3]]


@means_of
def test_one_mean_is_that_of_all_frames_and_one_frame_is_all_means(means):
    codes = normal(2, 7, 3)
    torch.testing.assert_close(means(codes, 1), codes.mean(-2, keepdim=True))
    torch.testing.assert_close(means(codes[:, :1], 1), codes[:, :1])
    torch.testing.assert_close(means(codes[:, :1], 3), codes[:, :1].expand(2, 3, 3))


@means_of
def test_an_episode_without_frames_has_finite_means(means):
    codes = torch.full((2, 5, 3), float("nan"))
    codes[1] = normal(5, 3)
    mask = torch.tensor([[False] * 5, [True] * 5])
    for count in (1, 3, 7):
        assert means(codes, count, mask).isfinite().all()


@means_of
@pytest.mark.parametrize("scale", [0.0, 1e-18, 1e-9, 1.0, 1e6])
def test_means_of_copies_are_the_copies(means, scale):
    distinct = scale * normal(3, 2).float()
    codes = distinct.repeat(30, 1)
    torch.testing.assert_close(means(codes, 3).unique(dim=0), distinct.unique(dim=0), rtol=1e-5, atol=1e-6 * scale)
    spare = means(codes, 5)  # clusters of copies are cut in two
    torch.testing.assert_close(spare.unique(dim=0)[0], distinct.unique(dim=0)[0], rtol=1e-5, atol=1e-6 * scale)


def test_a_hundred_copies_take_few_rounds():
    rounds = []

    def counted(*arguments):
        rounds.append(1)
        return ward.merge_neighbours(*arguments)

    for codes in (torch.ones(100, 3), torch.eye(100), torch.arange(100.0).unsqueeze(-1)):
        rounds.clear()
        ward_means(codes, 2, merge_neighbours=counted)
        assert len(rounds) < 20


@pytest.mark.parametrize("means", [ward_means, lambda codes, count: kmeans_means(codes, count, generator=seeded())])
def test_means_far_from_the_origin_in_float32(means):
    far = (clustered(64, 20) + 1000).float()
    near = (far.double() - 1000).float()
    assert_same_means(means(far, 5) - 1000, means(near, 5), rtol=0, atol=1e-3)


def within(codes: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """Sum of squared distances to the nearest mean, [..]."""
    return torch.cdist(codes, means).square().amin(-1).sum(-1)


def test_greedy_seeds_and_lloyd_steps_lower_the_sum_of_distances():
    codes = clustered(200, 40, 4)
    plain = kmeans_plus_plus(codes, 6, generator=seeded())
    greedy = kmeans_plus_plus(codes, 6, generator=seeded(), next_seed=greedy_seed)
    means = kmeans_means(codes, 6, generator=seeded())
    assert within(codes, plain).mean() > within(codes, greedy).mean() > within(codes, means).mean()


@pytest.mark.parametrize("rule", [next_seed, greedy_seed])
def test_seeds_are_the_same_whether_products_are_made_once_or_again_and_again(rule):
    codes, mask = clustered(20, 40, 50), torch.rand(20, 40, generator=seeded()) < 0.7

    def without(codes, squares, products, *rest):
        assert products.shape == (20, 40, 40)
        return rule(codes, squares, None, *rest)

    at_once = kmeans_plus_plus(codes, 6, mask, seeded(), rule)
    assert (kmeans_plus_plus(codes, 6, mask, seeded(), without) == at_once).all()


def test_a_lloyd_step_never_raises_the_sum_of_distances_and_leaves_a_lonely_mean():
    codes = normal(10, 30, 4)
    means = torch.cat([random_frames(codes, 4, generator=seeded()), torch.full((10, 1, 4), 100.0)], -2)
    for _ in range(5):
        moved = lloyd_step(codes, means)
        assert (within(codes, moved) <= within(codes, means)).all()
        assert (moved[:, 4] == 100).all()
        means = moved


def test_k_means_ignores_masked_frames():
    codes = normal(20, 12, 3)
    mask = torch.rand(20, 12, generator=seeded()) < 0.5
    mask[:, 0] = True
    nothing = codes.where(mask.unsqueeze(-1), float("nan"))
    other = codes.where(mask.unsqueeze(-1), 1e3)
    for count in (1, 3, 9):
        means = kmeans_means(nothing, count, mask, seeded())
        assert (means == kmeans_means(other, count, mask, seeded())).all()
    few = mask.sum(-1) <= 9  # every frame is a mean
    assert few.any()
    distance = torch.cdist(codes, means).amin(-1)
    assert distance[few][mask[few]].max() < 1e-6


def test_a_greedy_seed_of_few_frames_is_never_a_masked_one():
    codes = normal(50, 6, 3)
    mask = torch.tensor([True, False, False, True, False, False]).expand(50, 6)
    distance = torch.full((50, 6), 1.0, dtype=torch.float64).where(mask, 0.0)
    for _ in range(3):
        seed, distance = greedy_seed(codes, codes.square().sum(-1), None, distance, mask, seeded())
        assert mask.gather(-1, indices(seed, codes)).all()


def test_k_means_is_reproducible_with_a_generator():
    codes = normal(40, 3)
    first = kmeans_means(codes, 5, generator=seeded(1))
    torch.rand(3)
    assert (kmeans_means(codes, 5, generator=seeded(1)) == first).all()
    assert (kmeans_means(codes, 5, generator=seeded(2)) != first).any()


@means_of
@pytest.mark.parametrize("count", [5, 40])
def test_no_value_is_looked_at_on_a_device(means, count):
    """A tensor on the meta device has none to show."""
    codes = torch.empty(2, 3, 30, 4, device="meta")
    for mask in (None, torch.empty(2, 1, 30, dtype=torch.bool, device="meta")):
        assert means(codes, count, mask).shape == (2, 3, count, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_compiled_steps_compute_the_same():
    codes, mask = clustered(2, 16, 3), torch.rand(2, 16, generator=seeded()) < 0.8
    torch.compiler.reset()
    steps: Any = (greedy_seed, lloyd_step, ward.merge_neighbours)
    seed, lloyd, merge = (torch.compile(step, fullgraph=True, dynamic=False, backend="aot_eager") for step in steps)
    for given in (None, mask):
        torch.manual_seed(0)
        expected = kmeans_means(codes, 4, given)
        torch.manual_seed(0)
        torch.testing.assert_close(kmeans_means(codes, 4, given, None, None, seed, lloyd), expected)
        torch.testing.assert_close(ward_means(codes, 4, given, None, merge), ward_means(codes, 4, given))


def test_every_seed_goes_to_a_cluster_of_its_own_the_cheapest_pair_first():
    cost = torch.tensor([[[1.0, 0.0], [2.0, 5.0], [4.0, 3.0]], [[9.0, 8.0], [7.0, 6.0], [5.0, 4.0]]])
    assert claim(cost).tolist() == [[1, 0], [1, 2]]
