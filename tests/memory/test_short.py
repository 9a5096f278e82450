"""Many short episodes in the fused kernels of a GPU are written as by the engine: every memory, noise and weight."""

from typing import get_args

import pytest
import torch

from memory.gpu import DEVICE, KINDS, needs_kernels, noisy_and_weighted
from memory.zoo import Sizes, close, every_memory, make_problem
from vbmem.memory import short
from vbmem.memory.sized import Noise

SHORT = Sizes(batch=(3,), frames=20, part_size=5, rows=2, clusters=3)

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def in_groups(monkeypatch):
    """Two episodes of this size at a time, and always in the kernels."""
    monkeypatch.setattr(
        short, "pays", lambda codes, state, prior: codes.dtype == torch.float32 and short.suits(state, prior)
    )
    monkeypatch.setattr(short, "AT_A_TIME", 2 * short.numbers(20, 5, 3, 3, 1))


def assert_same(problem, mask=None):
    codes, state = problem.codes.to(DEVICE), problem.state.to(DEVICE)
    mask = None if mask is None else mask.to(DEVICE)
    expected = problem.memory.write(codes, 3, state, mask)
    rough = None if mask is None else mask.float()
    found = problem.memory.write(codes.float(), 3, state.to(torch.float32), rough)
    for mine, theirs in zip(found, expected, strict=True):
        close(mine.to(torch.float64), theirs, rtol=1e-3, atol=1e-3)


@every_memory
@pytest.mark.parametrize("batch", [(3,), (1, 2)])
def test_short_episodes_equal_the_engine(name, batch):
    assert_same(make_problem(name, SHORT._replace(batch=batch)))


@pytest.mark.parametrize("noise", get_args(Noise))
@pytest.mark.parametrize("name", KINDS)
def test_short_episodes_equal_the_engine_with_every_noise_and_weights_of_frames(name, noise):
    assert_same(*noisy_and_weighted(make_problem(name, SHORT), noise))


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(batch=(2,), frames=1, part_size=1, rows=1, clusters=1),
        Sizes(batch=(2,), frames=70, part_size=40, rows=6, clusters=10),  # several tiles of frames and of features
        Sizes(batch=(2,), frames=9, part_size=3, rows=12, clusters=5),
    ],
)
def test_short_episodes_equal_the_engine_at_every_size(sizes):
    assert_same(make_problem("mixture", sizes))


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("mixture", Sizes(frames=64, part_size=200, rows=6, clusters=10), True),
        ("mixture", Sizes(frames=100, part_size=64, rows=2, clusters=5), True),
        ("mixture", Sizes(frames=100, part_size=32, rows=2, clusters=5), False),
        ("mixture", Sizes(frames=40, part_size=64, rows=12, clusters=10), False),
        ("mixture-factorised", Sizes(frames=64, part_size=200, rows=6, clusters=10), False),
        ("gaussian", Sizes(frames=64, part_size=200, rows=6, clusters=10), False),
    ],
)
def test_only_what_was_measured_to_be_quicker_leaves_the_engine(name, sizes, expected):
    problem = make_problem(name, sizes)
    codes = problem.memory.split(problem.codes)
    frames, size = codes.shape[-2:]
    assert short.measured(frames, size, problem.state, problem.memory.prior(codes)) is expected
