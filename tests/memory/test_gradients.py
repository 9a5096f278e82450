"""A write is differentiable through all its iterations, and stationary where it has converged."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from memory.zoo import Sizes, every_memory, make_problem, normal
from vbmem.memory import CategoricalMemory, MemoryState, MixtureMemory
from vbmem.memory.choice import WeightedChoice
from vbmem.memory.state import TensorRecord

TINY = Sizes(frames=3, part_size=2, rows=2, clusters=2)


def written_bound(memory, codes, start, mask=None):
    state, addresses = memory.write(codes, 3, start, mask)
    return memory.bound(codes, state, addresses).total


def tensors(record: TensorRecord) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(record).items() if isinstance(value, torch.Tensor)}


@every_memory
def test_gradient_of_a_written_bound_for_the_codes(name):
    problem = make_problem(name, TINY)
    codes = problem.codes.requires_grad_()
    assert gradcheck(lambda z: written_bound(problem.memory, z, problem.state), codes, rtol=1e-6, atol=1e-7)


@every_memory
def test_gradient_of_a_written_bound_for_the_noise(name):
    problem = make_problem(name, TINY)
    config = problem.memory.config()

    def bound(noise_var):
        memory = type(problem.memory)(**(config | {"noise_var": noise_var}))
        return written_bound(memory, problem.codes, problem.state)

    noise_var = torch.as_tensor(config["noise_var"], dtype=torch.float64).requires_grad_()
    assert gradcheck(bound, noise_var, rtol=1e-6, atol=1e-7)


@every_memory
def test_gradient_of_the_bound_for_the_code_variance(name):
    problem = make_problem(name, TINY)
    code_var = torch.full_like(problem.codes, 0.8, requires_grad=True)

    def bound(code_var):
        return problem.memory.bound(problem.codes, problem.state, problem.addresses, code_var).total

    assert gradcheck(bound, code_var, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("last", [1, 2, 4, 9])
@every_memory
def test_the_gradient_can_be_that_of_the_last_iterations_alone(name, last):
    """As if a write began there, at a state that is given."""
    problem, steps = make_problem(name, TINY), 4
    codes = problem.codes.requires_grad_()
    state, addresses = problem.memory.write(codes, steps, problem.state, gradient_iterations=last, expand=False)
    (found,) = torch.autograd.grad(problem.memory.bound(codes, state, addresses).total, codes)
    first = problem.state
    if steps > last:
        first = problem.memory.write(codes.detach(), steps - last, first, expand=False)[0]
    again, its = problem.memory.write(codes, min(last, steps), first, expand=False)
    (expected,) = torch.autograd.grad(problem.memory.bound(codes, again, its).total, codes)
    torch.testing.assert_close(tensors(state), tensors(again), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@every_memory
def test_gradient_with_masked_frames_is_that_of_the_others(name):
    problem = make_problem(name, TINY)
    mask = torch.tensor([True, False, True])
    codes = problem.codes.requires_grad_()
    (masked,) = torch.autograd.grad(written_bound(problem.memory, codes, problem.state, mask), codes)
    kept = problem.codes[mask].detach().requires_grad_()
    (removed,) = torch.autograd.grad(written_bound(problem.memory, kept, problem.state), kept)
    torch.testing.assert_close(masked[mask], removed, rtol=1e-9, atol=1e-10)
    assert (masked[~mask] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_is_finite_where_assignments_underflow(dtype):
    """Two groups so far apart that the softmax is exactly 0 in the other's cluster."""
    memory = MixtureMemory(3, 2, 2)
    problem = make_problem("mixture", Sizes(frames=8))
    codes = problem.codes.to(dtype)
    codes[4:] += 1e3
    codes.requires_grad_()
    state, addresses = memory.write(codes, 3, generator=torch.Generator().manual_seed(0))
    assert (addresses.assignment == 0).any()
    (gradient,) = torch.autograd.grad(memory.bound(codes, state, addresses).total, codes)
    assert gradient.isfinite().all()


@every_memory
def test_a_converged_write_is_a_stationary_point_of_the_bound(name):
    """The gradient for every parameter of q vanishes (covariances: its symmetric part; q(s): for its logits)."""
    problem = make_problem(name, Sizes(frames=5, part_size=3, rows=2, clusters=2))
    memory, codes = problem.memory, problem.codes
    state, _ = memory.write(codes, 300, problem.state)
    addresses = memory.address(state, codes)

    state = state.map(lambda t: t.clone().requires_grad_())
    logits = addresses.assignment.log().requires_grad_()
    addresses = addresses.map(lambda t: t.clone().requires_grad_())
    total = memory.bound(codes, state, replace(addresses, assignment=logits.softmax(-1))).total
    parameters = tensors(state) | tensors(addresses) | {"assignment": logits}
    gradients = torch.autograd.grad(total, list(parameters.values()), allow_unused=True, materialize_grads=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.endswith("cov"):
            gradient = (gradient + gradient.mT) / 2
        if parameter == "row_cov" and memory.factorised:  # in which rows and location cannot be correlated
            gradient[..., -1, :-1] = gradient[..., :-1, -1] = 0
        assert gradient.numel() == 0 or gradient.abs().max() < 1e-6, parameter


def test_the_start_is_not_differentiated_through():
    """Seeds are frames, but constants: only the iterations carry gradients (paper, 3.2.1)."""
    memory = CategoricalMemory(3, 2)
    codes = normal(2, 3).requires_grad_()

    def gradient(start):
        state, addresses = memory.write(codes, 2, start)
        return torch.autograd.grad(memory.bound(codes, state, addresses).total, codes)[0]

    empty = memory.prior_state(dtype=torch.float64)
    width = torch.full_like(empty.loc_var, 1 / 3)
    both_frames = MemoryState.of(empty.factor_mean, empty.factor_cov, codes.detach(), width)
    torch.testing.assert_close(gradient("data"), gradient(both_frames), rtol=1e-9, atol=1e-10)


def test_weights_of_clusters_receive_gradients_from_long_and_from_many_episodes():
    for shape in ((20_000, 4), (100, 40, 4)):
        weights = torch.ones(2, dtype=torch.float64, requires_grad=True)
        memory = MixtureMemory(4, 1, 2).with_prior(choice=WeightedChoice(weights))
        state, _ = memory.write(normal(*shape), 1, "prior")
        assert memory.log_predictive(state, normal(*shape)).requires_grad
