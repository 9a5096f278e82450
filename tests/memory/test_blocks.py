"""Frames in blocks, episodes in groups, threads by the work: none of it changes what is written or read."""

from typing import get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from memory.zoo import MEMORIES, Sizes, close, every_memory, make_problem, normal, variances
from vbmem.memory import blocks, seeding, threads
from vbmem.memory.sized import Noise
from vbmem.memory.threads import block_size, one_thread, side_by_side

LONG = Sizes(frames=23, part_size=4, rows=2, clusters=3)
KINDS = ["gaussian", "categorical", "shifted", "shifted-factorised", "mixture", "mixture-factorised", "tree"]


def everything(problem, mask=None):
    """All that a memory makes of many frames."""
    memory, state, codes = problem.memory, problem.state, problem.codes
    written, addresses = memory.write(codes, 4, state, mask)
    settled, last = memory.write(codes, 6, state, mask, tol=1e-3)
    sums, local = memory.local_step(state, codes, mask)
    bounds = [memory.bound(codes, state, addresses), memory.bound(codes, state, addresses, torch.full_like(codes, 0.3))]
    found = [written, addresses, settled, last, sums, local, *bounds, memory.address(state, codes, mask)]
    found += [memory.log_predictive(state, codes), memory.log_densities(state, codes)]
    found += [memory.local_bound(state, codes), memory.local_bound(state, codes, torch.full_like(codes, 0.3))]
    return found


@pytest.fixture
def in_small_blocks(monkeypatch):
    """A function after which a block is of 4 frames, or as many as it is told, two of them at a time."""

    def shrink(size=4):
        for module in ("blocks", "reading", "seeding"):
            monkeypatch.setattr(f"vbmem.memory.{module}.block_size", lambda *sizes: size)
        monkeypatch.setattr(blocks, "BLOCKS", 2)

    return shrink


def assert_same_in_blocks(problem, shrink, mask=None):
    expected = everything(problem, mask)
    shrink()
    assert blocks.in_blocks(problem.parts, problem.state, problem.prior)
    for found, wanted in zip(everything(problem, mask), expected, strict=True):
        close(found, wanted, rtol=1e-8, atol=1e-8)


@every_memory
def test_blocks_equal_one_block(name, in_small_blocks):
    assert_same_in_blocks(make_problem(name, LONG), in_small_blocks)


@pytest.mark.parametrize("noise", get_args(Noise))
@pytest.mark.parametrize("name", KINDS)
def test_blocks_equal_one_block_with_every_noise_and_weights_of_frames(name, noise, in_small_blocks):
    problem = make_problem(name, LONG._replace(batch=(2,)))
    shape = problem.memory.noise_shape(noise)
    memory = problem.memory.with_scales(noise_var=variances(*shape, seed=9) if shape else torch.tensor(0.6))
    problem = type(problem)(memory, problem.codes, problem.state, problem.addresses)
    mask = variances(*problem.codes.shape[:-1]) * (normal(*problem.codes.shape[:-1]) > -1)
    assert_same_in_blocks(problem, in_small_blocks, mask)


@every_memory
def test_a_stream_in_blocks_equals_a_write(name, in_small_blocks):
    problem = make_problem(name, LONG)
    expected, _ = problem.memory.write(problem.codes, 4, problem.state)
    in_small_blocks()
    chunks = list(problem.codes.split([3, 13, 7]))  # one that is a block, and two of several
    close(problem.memory.write_stream(chunks, 4, problem.state), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", KINDS)
def test_blocks_in_float32_are_within_1e_4_of_float64(name, in_small_blocks):
    problem = make_problem(name, LONG)
    expected, addresses = problem.memory.write(problem.codes, 4, problem.state)
    in_small_blocks()
    written, rough = problem.memory.write(problem.codes.float(), 4, problem.state.to(torch.float32))
    close(written.to(torch.float64), expected, rtol=1e-4, atol=1e-4)
    close(rough.to(torch.float64), addresses, rtol=1e-4, atol=1e-4)


@every_memory
@pytest.mark.parametrize("batch", [(5,), (3, 2)])
def test_short_episodes_in_groups_equal_all_at_once(name, batch, monkeypatch):
    problem = make_problem(name, Sizes(batch=batch, frames=5))
    mask = normal(*problem.codes.shape[:-1]) > -1
    expected = problem.memory.write(problem.codes, 3, problem.state, mask)
    monkeypatch.setattr(blocks, "CACHE", 1)
    assert len(blocks.groups_of_episodes(problem.parts, problem.state, problem.prior)) == len(problem.parts)
    for found, wanted in zip(problem.memory.write(problem.codes, 3, problem.state, mask), expected, strict=True):
        close(found, wanted, rtol=1e-8, atol=1e-8)


def test_k_means_in_blocks_equals_one_block(in_small_blocks):
    codes, means, mask = normal(2, 23, 3), normal(2, 4, 3, seed=1), normal(2, 23, seed=2) > -1
    expected = [seeding.lloyd_step(codes, means), seeding.lloyd_step(codes, means, mask)]
    in_small_blocks()
    close(seeding.lloyd_step(codes, means), expected[0])
    close(seeding.lloyd_step(codes, means, mask), expected[1])


def test_gradients_are_not_made_in_blocks(in_small_blocks):
    problem = make_problem("mixture", LONG)
    codes = problem.codes.clone().requires_grad_()
    in_small_blocks()
    assert not blocks.in_blocks(codes, problem.state, problem.prior)
    written, _ = problem.memory.write(codes, 2, problem.state)
    (gradient,) = torch.autograd.grad(written.row_mean.square().sum(), codes)
    assert gradient.abs().min() > 0


class Largest(TorchDispatchMode):
    """The size of the largest tensor that an operator made."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_iter(result) if isinstance(leaf, torch.Tensor)]
        self.numel = max(self.numel, *(tensor.numel() for tensor in tensors), 0)
        return result


@pytest.mark.parametrize("name", ["mixture-cluster", "tree"])
def test_nothing_grows_with_frames_and_clusters_but_what_is_returned(name, in_small_blocks):
    problem = make_problem(name, Sizes(frames=160, part_size=4, rows=2, clusters=30))
    memory, state, codes = problem.memory, problem.state, problem.codes
    addresses = memory.address(state, codes)
    in_small_blocks(16)
    with one_thread():  # a dispatch mode sees its own thread only
        threads._local.threads = 1
        for act in (
            lambda: memory.write_stream(codes, 2, state),
            lambda: memory.local_step(state, codes),
            lambda: memory.log_predictive(state, codes),
            lambda: memory.local_bound(state, codes),
            lambda: memory.bound(codes, state, addresses, torch.full_like(codes, 0.3)),
            lambda: memory.first_state(codes, "kmeans"),
        ):
            with Largest() as largest:
                act()
            assert largest.numel < 30 * 160


def test_a_block_is_chosen_from_the_sizes():
    assert block_size(256, 4, 64) == 288
    assert block_size(10, 6, 200) > block_size(100, 6, 200) > block_size(10_000, 6, 200) == threads.FEWEST
    assert block_size(1, 0, 2) == threads.MOST


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_changes_no_bit(two_threads, in_small_blocks):
    problem = make_problem("mixture", LONG)
    in_small_blocks()
    found = everything(problem)
    torch.set_num_threads(1)
    for several, single in zip(found, everything(problem), strict=True):
        close(several, single, rtol=0, atol=0)


def test_threads_are_given_back_also_after_an_error(two_threads):
    def fail(item: int) -> None:
        assert torch.get_num_threads() == 1
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"), one_thread():
        list(side_by_side(fail, [1, 2, 3]))
    assert torch.get_num_threads() == 2
    memory = MEMORIES["mixture"](3, 2, 3)
    with pytest.raises(ValueError, match="iterations"):
        memory.write(normal(6, 3), 0)
    assert torch.get_num_threads() == 2
    assert list(side_by_side(lambda _: torch.get_num_threads(), [1, 2])) == [1, 1]
    assert torch.get_num_threads() == 2


def test_blocks_keep_inference_mode(two_threads, in_small_blocks):
    problem = make_problem("mixture", LONG)
    in_small_blocks()
    with torch.inference_mode():
        written, addresses = problem.memory.write(problem.codes, 2, problem.state)
    assert written.row_mean.is_inference()
    assert addresses.assignment.is_inference()
