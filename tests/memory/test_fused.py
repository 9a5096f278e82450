"""The fused local step of a GPU is the engine's: for every memory, noise and weight of frames, and its gradient."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from memory.gpu import DEVICE, KINDS, needs_kernels, noisy_and_weighted
from memory.zoo import MEMORIES, Sizes, close, every_memory, make_problem, normal
from vbmem.memory import engine, fused
from vbmem.memory.blocks import LocalPass
from vbmem.memory.projection import Projection
from vbmem.memory.sized import Noise

LONG = Sizes(frames=37, part_size=4, rows=2, clusters=3)

pytestmark = needs_kernels


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Everything is fused, however small, part by part."""
    monkeypatch.setattr(fused, "pays", lambda *_: True)
    monkeypatch.setattr(fused, "CHUNK", 32)


def on_device(problem):
    """Its parts, state and prior in float32; and all in float64."""
    memory, codes, state = problem.memory, problem.codes.to(DEVICE), problem.state.to(DEVICE)
    single = memory.split(codes.float()), state.to(torch.float32), memory.prior(codes.float())
    return single, (memory.split(codes), state, memory.prior(codes))


def assert_same(problem, mask=None):
    (parts, state, prior), (exact_parts, exact_state, exact_prior) = on_device(problem)
    weights = None if mask is None else problem.memory.lift(mask.to(DEVICE), -2)
    local = LocalPass(state, prior, bounded=True)
    local.add(parts, weights)
    sums = local.statistics()
    addresses, expected = engine.local_step(exact_parts, exact_state, exact_prior, weights)
    close(sums.to(torch.float64), expected, rtol=1e-4, atol=1e-4)
    bound = local.bound(sums, state)
    close(bound.total.double(), engine.bound(expected, exact_state, addresses, exact_prior).total, rtol=1e-5, atol=1e-4)


@every_memory
@pytest.mark.parametrize("batch", [(), (2,)])
def test_fused_equals_the_engine(name, batch):
    assert_same(make_problem(name, LONG._replace(batch=batch)))


@pytest.mark.parametrize("noise", get_args(Noise))
@pytest.mark.parametrize("name", KINDS)
def test_fused_equals_the_engine_with_every_noise_and_weights_of_frames(name, noise):
    assert_same(*noisy_and_weighted(make_problem(name, LONG._replace(batch=(2,))), noise))


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(frames=1, part_size=1, rows=1, clusters=1),
        Sizes(frames=70, part_size=20, rows=6, clusters=70),  # several tiles of clusters
        Sizes(frames=20, part_size=300, rows=2, clusters=9),  # a code in two parts
        Sizes(frames=20, part_size=7, rows=17, clusters=5),
    ],
)
def test_fused_equals_the_engine_at_every_size(sizes):
    assert_same(make_problem("mixture", sizes))


def test_assignments_add_up_to_1_however_large_their_logarithms_are():
    problem = make_problem("mixture", Sizes(frames=64, part_size=30, rows=3, clusters=40))
    memory = problem.memory.with_scales(noise_var=torch.tensor(1e-4))
    (parts, state, prior), _ = on_device(replace(problem, memory=memory))
    moments = fused.moments(parts, None, Projection.of(state, prior))
    close(moments.codes[-1, :, -1].sum(), 64.0, rtol=1e-5)


@pytest.mark.parametrize("name", [*KINDS, "mixture-cluster"])
def test_its_gradient_is_the_engines(name, monkeypatch):
    monkeypatch.setattr(fused, "DENSE", 100)
    (parts, state, prior), (exact_parts, exact_state, exact_prior) = on_device(make_problem(name, LONG))

    def gradients(codes, memory, local):
        codes, rows = codes.detach().requires_grad_(), memory.row_mean.detach().requires_grad_()
        sums = local(codes, replace(memory, row_mean=rows))
        total = sum(x.flatten() @ normal(x.numel(), seed=i).to(x) for i, x in enumerate(sums.tensors().values()))
        return torch.autograd.grad(total, [codes, rows])

    def pass_over(codes, memory):
        local = LocalPass(memory, prior)
        local.add(codes)
        return local.statistics()

    found = gradients(parts, state, pass_over)
    wanted = gradients(exact_parts, exact_state, lambda codes, memory: engine.local_step(codes, memory, exact_prior)[1])
    for mine, theirs in zip(found, wanted, strict=True):
        close(mine.double(), theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", sorted(MEMORIES))
def test_a_fused_write_equals_a_plain_one(name, monkeypatch):
    problem = make_problem(name, LONG)
    codes, state = problem.codes.to(DEVICE), problem.state.to(DEVICE)
    written, _ = problem.memory.write(codes.float(), 3, state.to(torch.float32))
    streamed = problem.memory.write_stream(list(codes.float().split(20)), 3, state.to(torch.float32))
    monkeypatch.setattr(fused, "pays", lambda *_: False)
    expected, _ = problem.memory.write(codes, 3, state)
    close(written.to(torch.float64), expected, rtol=1e-3, atol=1e-3)
    close(streamed.to(torch.float64), expected, rtol=1e-3, atol=1e-3)
