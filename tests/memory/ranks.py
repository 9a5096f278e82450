"""What each of three processes does for test_shards: they write together, in all and as a pair."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from memory.zoo import MEMORIES, Sizes, make_problem, normal
from vbmem.memory import GaussianMemory, MixtureMemory, TreeMemory, WrittenMemory, blocks, shards, stepping, streams
from vbmem.memory import known as known_of
from vbmem.memory.starting import Start
from vbmem.memory.state import TensorRecord

RANKS = 3
MANY = Sizes(frames=17, part_size=4)
SPLITS: dict[str, list[int]] = {"three": [6, 0, 11], "two": [12, 5]}  # frames of each process; the second has none
FEW = ["mixture", "tree-feature"]  # memories of the pair
STARTS: list[Start] = ["kmeans", "random", "data"]
FITS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "global": lambda: (MixtureMemory(4, 1, 2), {"noise": "global"}),
    "feature": lambda: (TreeMemory(4, 1, 2, 2), {"noise": "feature"}),
    "cluster": lambda: (MixtureMemory(4, 1, 2), {"noise": "cluster", "weights": True, "relevance": True}),
    "gaussian": lambda: (GaussianMemory(4, 2), {"noise": "feature"}),
}


def in_small_pieces(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """So that few frames make several chunks and blocks, and not all of them are seeds."""
    set_attribute(stepping, "SEED_FRAMES", 9)
    set_attribute(streams, "CHUNK", 5)
    set_attribute(shards, "CHUNK", 5)
    set_attribute(known_of, "FRAMES", 4)
    set_attribute(blocks, "block_size", lambda *sizes: 4)


def cases(write: Callable[..., Any], fit: Callable[..., Any], names: Iterable[str] = MEMORIES) -> dict[str, Any]:
    """Of memories, starts and fits what they give, `write(memory, codes, iterations, start, generator, **how)`."""
    found: dict[str, Any] = {}
    for name in names:
        problem = make_problem(name, MANY)
        found[name] = write(problem.memory, problem.codes, 4, problem.state, None)
    problem = make_problem("mixture", MANY._replace(clusters=9))
    found["candidates"] = write(problem.memory, problem.codes, 6, problem.state, None, candidates=3)
    problem = make_problem("mixture-factorised", MANY)
    for start in STARTS:
        generator = torch.Generator().manual_seed(5)
        found[f"start {start}"] = write(problem.memory, problem.codes, 3, start, generator)
    found["float32"] = write(problem.memory, problem.codes.float(), 3, "kmeans++", torch.Generator().manual_seed(6))
    torch.manual_seed(7)
    found["default generator"] = write(problem.memory, problem.codes, 3, "kmeans", None)
    for name, make in FITS.items():
        memory, how = make()
        fitted = fit(memory, normal(17, 4, seed=3), iterations=6, generator=torch.Generator().manual_seed(8), **how)
        found[f"fit {name}"] = {key: torch.as_tensor(value) for key, value in fitted.scales.items()}
    return found


def known(name: str, share: Callable[[torch.Tensor], Any] = lambda codes: codes, **how: Any) -> dict[str, torch.Tensor]:
    """All that a memory written from a stream knows."""
    problem = make_problem(name, MANY)
    written = WrittenMemory.write_stream(problem.memory, share(problem.codes), 3, start=problem.state, **how)
    assert written.sums is not None
    tensors = written.choice.tensors() | written.sums.tensors() | written.state.tensors()
    return tensors | {"frames": torch.tensor(written.frames)}


def together(group: dist.ProcessGroup, split: list[int]) -> dict[str, Any]:
    """The cases with frames split over a group, and what is particular to a group."""
    rank = dist.get_rank(group)

    def mine(codes: torch.Tensor) -> torch.Tensor:
        return codes.split(split)[rank]

    def spoilt(generator: torch.Generator | None) -> None:
        """Only the generator and the start of the first process count."""
        if rank and generator is not None:
            generator.manual_seed(100 + rank)
        elif rank:
            torch.manual_seed(100 + rank)

    def write(memory, codes, iterations, start, generator, **how):
        spoilt(generator)
        return memory.write_stream(mine(codes), iterations, start, generator, group=group, **how)

    def fit(memory, codes, generator, **how):
        spoilt(generator)
        return memory.fit_prior(mine(codes), generator=generator, group=group, **how)

    found = {
        name: as_tensors(case) for name, case in cases(write, fit, MEMORIES if len(split) == RANKS else FEW).items()
    }
    problem = make_problem("mixture", MANY)
    memory, codes, states = problem.memory, problem.codes, []
    memory.write_stream(mine(codes), 4, problem.state, group=group, follow=lambda done, state: states.append(state))
    share, few = shards.shard([codes[:2].numpy(), codes[2:].numpy()], group), shards.shard([codes[:2]], group)
    return found | {
        "followed": states[-1].tensors(),
        "continued": memory.write_stream(mine(codes), 2, states[1], group=group).tensors(),
        "shared": memory.write_stream(share, 4, problem.state, group=group).tensors(),
        "known mixture": known("mixture", mine, group=group),
        "known tree": known("tree", mine, group=group),
        "few": memory.write_stream(few, 4, problem.state, group=group).tensors(),  # fewer than processes
    }


def as_tensors(case: TensorRecord | dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return case if isinstance(case, dict) else case.tensors()


def errors(group: dist.ProcessGroup) -> dict[str, str]:
    """What each process is told where one of them has codes it should not have, or all have none."""
    rank, memory, codes = dist.get_rank(group), MixtureMemory(3, 1, 2), normal(8, 3)
    spoilt = torch.cat([codes, codes.new_full((1, 3), torch.nan)]) if rank == 1 else codes
    sizes = iter([8, 8, 6])
    attempts: dict[str, Any] = {
        "not finite": [codes, spoilt],
        "another type": codes.float() if rank == 1 else codes,
        "no frames": codes[:0],
        "fewer each time": (lambda: [codes[: next(sizes)]]) if rank == 1 else codes,
    }
    found = {}
    for name, chunks in attempts.items():
        try:
            memory.write_stream(chunks, 2, group=group)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def lost(group: dist.ProcessGroup) -> str:
    """The last process dies between two iterations."""

    def die(done: int, state: TensorRecord) -> None:
        if dist.get_rank(group) == RANKS - 1:
            os._exit(0)

    try:
        MixtureMemory(3, 1, 2).write_stream(normal(8, 3), 4, group=group, follow=die)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    in_small_pieces()
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=60), RANKS, rank)
    pair = dist.new_group([0, 2])
    world = dist.group.WORLD
    assert world is not None
    found: dict[str, Any] = {"three": together(world, SPLITS["three"])}
    if rank != 1:
        found["two"] = together(pair, SPLITS["two"])
    else:
        try:
            MixtureMemory(3, 1, 2).write_stream(normal(8, 3), 1, group=pair)
        except Exception as error:
            found["stranger"] = f"{type(error).__name__}: {error}"
    found["errors"] = errors(world)
    torch.save(found, folder / f"{rank}.pt")
    found["lost"] = lost(world)
    torch.save(found, folder / f"{rank}.pt")
