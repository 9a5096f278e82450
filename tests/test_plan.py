"""The cost model of `benchmarks/plan.py` counts what the library sends and keeps."""

import pytest
import torch

import plan
from vbmem import MixtureMemory
from vbmem.memory.state import Statistics


@pytest.mark.parametrize(("clusters", "rows", "code_size"), [(3, 2, 5), (7, 0, 4)])
def test_the_model_counts_the_numbers_of_a_message_and_of_a_memory(clusters: int, rows: int, code_size: int) -> None:
    memory = MixtureMemory(code_size, rows, clusters)
    state, _ = memory.write(torch.randn(20, code_size), 1)
    sums = Statistics.none(state, memory.prior(state.row_mean))
    size = plan.Size(20, clusters, rows, code_size)
    assert size.message == 8 * (1 + sum(tensor.numel() for tensor in sums.tensors().values()))
    assert size.state == sum(tensor.nbytes for tensor in state.tensors().values())


def test_the_model_is_within_a_third_of_what_long_writes_take() -> None:
    long = [(size, seconds) for _, size, seconds in plan.measured() if size.clusters == 256]
    assert len(long) == 7
    assert all(seconds < 4 / 3 * size.operations / plan.rate() for size, seconds in long)


def test_twice_the_ranks_take_half_the_time_and_send_as_much() -> None:
    (few, *_), (many, *_) = plan.predicted(10**8, 1000, 8), plan.predicted(10**8, 1000, 16)
    assert float(few[2]) == pytest.approx(2 * float(many[2]), abs=0.1)
    assert few[3] == many[3]
