"""float32 against float64, eager against compiled, with and without autocast."""

import pytest
import torch

from memory.zoo import Sizes, close, every_located_memory, every_memory, make_problem
from tiny import seeded

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
