"""Frames that lie in several processes are written as if they lay in one."""

from typing import Any

import torch
from torch.multiprocessing.spawn import start_processes

from memory import ranks
from memory.zoo import close, make_problem
from vbmem.memory import MemoryState

Found = dict[str, Any]


def test_several_processes_write_as_one_and_end_as_one(tmp_path, monkeypatch, processes):
    """One test of all, since three processes take some time to start."""
    started = start_processes(ranks.work, (tmp_path,), ranks.RANKS, False, start_method=processes.get_start_method())
    ranks.in_small_pieces(monkeypatch.setattr)
    alone = ranks.cases(
        lambda memory, codes, *others, **how: memory.write_stream(codes, *others, **how),
        lambda memory, codes, **how: memory.fit_prior(codes.numpy(), **how),
    )
    while not started.join():
        pass
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(ranks.RANKS)]
    three, two = [here["three"] for here in found], [here["two"] for here in found if "two" in here]
    assert [len(three), len(two)] == [3, 2]
    assert_all_write_what_one_writes(three, alone)
    assert_all_write_what_one_writes(two, {case: alone[case] for case in alone if case in two[0]})
    assert_an_error_in_one_process_ends_all(found)
    for here in found[:-1]:
        assert here["lost"].startswith("GroupError: another process of the group was lost")


def assert_all_write_what_one_writes(group: list[Found], alone: Found) -> None:
    assert set(alone) <= set(group[0])
    problem = make_problem("mixture", ranks.MANY)
    few = problem.memory.write_stream(problem.codes[:2], 4, problem.state)
    particular = dict.fromkeys(("followed", "continued", "shared"), alone["mixture"]) | {"few": few}
    particular |= {"known mixture": ranks.known("mixture"), "known tree": ranks.known("tree")}
    for case, expected in (alone | particular).items():
        tolerance = 1e-5 if case == "float32" else 1e-8
        for here in group:
            for name, tensor in group[0][case].items():
                close(here[case][name], tensor, rtol=0, atol=0)
        wanted = expected if isinstance(expected, dict) else expected.tensors()
        for name, tensor in wanted.items():
            close(group[0][case][name], tensor, rtol=tolerance, atol=tolerance)


def assert_an_error_in_one_process_ends_all(found: list[Found]) -> None:
    told = [here["errors"] for here in found]
    assert told[1]["not finite"].startswith("NonFiniteError: codes hold NaN")
    assert "not the 8 frames of the first pass, but every iteration needs them all" in told[1]["fewer each time"]
    for case in ("not finite", "fewer each time"):
        for rank in (0, 2):
            assert told[rank][case].startswith("GroupError: another process of the group failed")
    for here in told:
        assert here["another type"].startswith("ValueError: all chunks must be alike, but processes of the group have")
        assert here["no frames"].startswith("ValueError: the stream holds no chunks")
    assert found[1]["stranger"].startswith("ValueError: this process is not one of the group")


def test_following_a_write_changes_nothing_and_it_ends_the_same_to_the_last_bit_from_every_iteration():
    problem = make_problem("mixture", ranks.MANY)
    memory, codes = problem.memory, problem.codes
    told: dict[int, MemoryState] = {}
    written = memory.write_stream(codes, 4, problem.state, follow=told.__setitem__)
    close(written, memory.write_stream(codes, 4, problem.state), rtol=0, atol=0)
    assert list(told) == [1, 2, 3, 4]
    assert isinstance(told[4], MemoryState)
    close(told[4], written, rtol=0, atol=0)
    for done in (1, 2, 3):
        close(memory.write_stream(codes, 4 - done, told[done]), written, rtol=0, atol=0)
