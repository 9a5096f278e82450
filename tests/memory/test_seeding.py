"""k-means++ and random frames: which frames, how often, and never a masked one."""

import pytest
import torch

from memory.zoo import normal
from tiny import seeded
from vbmem.memory.seeding import kmeans_plus_plus, random_frames

both = pytest.mark.parametrize("choose", [kmeans_plus_plus, random_frames])
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


@both
def test_seeds_carry_no_gradient(choose):
    assert not choose(normal(5, 2).requires_grad_(), 2).requires_grad
