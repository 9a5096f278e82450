"""float32 against float64, eager against compiled, with and without autocast."""

import warnings

import pytest
import torch

from memory.zoo import Sizes, close, every_located_memory, every_memory, make_problem, normal
from tiny import seeded
from vbmem.errors import NonFiniteError
from vbmem.memory import GaussianMemory, MixtureMemory, WrittenMemory, precision

OFFSET = 1000.0
SIZES = Sizes(batch=(2,), frames=40, part_size=8, rows=3, clusters=3)


def written(memory, codes, start):
    """State, addresses and bound after five iterations, in the dtype of the codes and then as float64."""
    state, addresses = memory.write(codes, 5, start.to(codes.dtype))
    bound = memory.bound(codes, state, addresses)
    assert bound.total.dtype == state.row_mean.dtype == addresses.assignment.dtype == codes.dtype
    return state.to(torch.float64), addresses.to(torch.float64), bound.to(torch.float64)


@every_memory
def test_float32_is_within_1e_4_of_float64(name):
    problem = make_problem(name, SIZES)
    codes = problem.codes.float()
    state, addresses, bound = written(problem.memory, codes.double(), problem.state)
    rough_state, rough_addresses, rough_bound = written(problem.memory, codes, problem.state)
    close(rough_state, state, rtol=1e-4, atol=1e-4)
    close(rough_addresses, addresses, rtol=1e-4, atol=1e-4)
    close(rough_bound.total, bound.total, rtol=1e-5, atol=0)


@every_located_memory
def test_float32_holds_for_codes_far_from_the_origin(name):
    """All codes moved by 1000, and the prior with them: float32 resolves 6e-5 there, and nothing more is lost."""
    problem = make_problem(name, SIZES)
    config = problem.memory.config()
    centre = "row_mean" if problem.memory.kind == "categorical" else "loc_mean"
    memory = type(problem.memory)(**(config | {centre: config[centre] + OFFSET}))
    codes = (problem.codes + OFFSET).float()
    start = problem.state.translate(torch.tensor([OFFSET]))
    state, addresses, bound = written(memory, codes.double(), start)
    rough_state, rough_addresses, rough_bound = written(memory, codes, start)
    close(rough_state, state, rtol=0, atol=5e-3)
    close(rough_addresses, addresses, rtol=0, atol=5e-3)
    close(rough_bound.total, bound.total, rtol=1e-4, atol=0)


@every_memory
def test_codes_far_larger_than_the_noise_are_computed_with_in_float64(name):
    problem = make_problem(name, SIZES)
    problem.memory.warns = False
    codes = 100 * problem.codes.float()
    state, addresses = problem.memory.write(codes, 3, problem.state.to(torch.float32))
    exact = problem.memory.write(codes.double(), 3, problem.state.to(torch.float32).to(torch.float64))
    close(state, exact[0].to(torch.float32), rtol=0, atol=0)
    close(addresses, exact[1].to(torch.float32), rtol=0, atol=0)
    close(
        problem.memory.local_bound(state, codes).double(),
        problem.memory.local_bound(state.to(torch.float64), codes.double()),
        rtol=1e-6,
        atol=0,
    )


@every_memory
def test_a_written_memory_takes_codes_far_larger_than_the_noise(name):
    problem = make_problem(name, SIZES)
    problem.memory.warns = False
    codes = 100 * problem.codes[0].float()
    memory = WrittenMemory.write(problem.memory, codes)
    for read in (memory.score, memory.log_predictive, memory.read):
        assert read(codes).dtype == torch.float32
    again = memory.update(codes).forget(codes)
    assert again.state.row_mean.dtype == torch.float32


def test_an_offset_that_no_location_takes_costs_no_precision():
    codes, memory = torch.randn(40, 16, generator=seeded()) + 1000, GaussianMemory(16, 4, noise_var=0.01, row_var=1e6)
    exact = codes.double()
    bounds = [memory.bound(z, *memory.write(z, generator=seeded())).total for z in (codes, exact)]
    assert float(bounds[0]) == pytest.approx(float(bounds[1]), rel=1e-3)


def test_codes_too_large_for_float32_are_warned_of_where_nobody_looks(monkeypatch):
    monkeypatch.setattr(precision, "LOOKED_AT", ())
    codes = 1000 * torch.randn(40, 16, generator=seeded())
    with pytest.warns(UserWarning, match="where float32 may be off") as told:
        GaussianMemory(16, 4, row_var=1e6).write(codes)
    assert told[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        GaussianMemory(16, 4, row_var=1e6).write(codes.double())


def test_what_leaves_the_range_of_float32_is_an_error():
    memory = GaussianMemory(2, 1, noise_var=1e-30)
    state, _ = memory.write(torch.ones(3, 2))
    with pytest.raises(NonFiniteError, match="what log_predictive computed left the range"):
        memory.log_predictive(state, torch.tensor([[1e6, -1e6]]))


@every_memory
def test_autocast_changes_nothing(name):
    problem = make_problem(name, SIZES)
    memory, codes, start = problem.memory, problem.codes.float(), problem.state.to(torch.float32)

    def everything():
        state, addresses = memory.write(codes, 2, start)
        return {
            "state": state,
            "addresses": addresses,
            "address": memory.address(state, codes),
            "bound": memory.bound(codes, state, addresses),
            "reconstruct": memory.reconstruct(state, codes),
            "log_predictive": memory.log_predictive(state, codes),
            "local_bound": memory.local_bound(state, codes),
            "sample": memory.sample(state, 4, torch.Generator().manual_seed(0)),
        }

    expected = everything()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = everything()
    for step, value in actual.items():
        close(value, expected[step], rtol=0, atol=0)


torchs_own_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def write_and_bound(memory, codes, start):
    state, addresses = memory.write(codes, 2, start, expand=False)  # as in training, for which it is compiled
    return state, addresses, memory.bound(codes, state, addresses)


def assert_same(actual, expected) -> None:
    for one, other in zip(actual, expected, strict=True):
        close(one, other)


@torchs_own_warnings
@pytest.mark.parametrize("name", ["gaussian", "tree"])
def test_a_whole_write_is_one_graph_that_computes_the_same(name):
    problem = make_problem(name, Sizes(batch=(2,), frames=8, part_size=4))
    torch.compiler.reset()
    compiled = torch.compile(write_and_bound, fullgraph=True, backend="aot_eager")
    arguments = problem.memory, problem.codes, problem.state
    assert_same(compiled(*arguments), write_and_bound(*arguments))


@torchs_own_warnings
@pytest.mark.parametrize(("start", "expand"), [("kmeans++", False), ("kmeans", None)])
def test_a_compiled_memory_seeds_and_writes_the_same(start, expand):
    problem = make_problem("mixture-general", Sizes(batch=(2,), frames=8, part_size=4))
    memory, codes = problem.memory, problem.codes

    def everything():
        state, addresses = memory.write(codes, 3, start, generator=seeded(), expand=expand)
        return state, addresses, memory.bound(codes, state, addresses)

    expected = everything()
    torch.compiler.reset()
    memory.compile()
    assert_same(everything(), expected)


@pytest.mark.filterwarnings("ignore:the codes have a mean square")
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e4])
def test_a_local_step_far_from_the_origin_has_the_bound_of_float64(offset):
    memory, codes = MixtureMemory(5, 2, 3), normal(200, 5).float() + offset
    state, _ = memory.write(codes)
    _, bound = memory.local_step(state, codes)
    _, exact = memory.local_step(state.to(torch.float64), codes.double())
    assert float(bound) == pytest.approx(float(exact), rel=1e-5)
