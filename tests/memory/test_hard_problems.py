"""Random hard problems in float32: every answer is finite or an error of ours, and within 1 % of float64 where
|z|^2 / noise < 1e6; see results/reliability.md."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tiny import seeded
from vbmem.errors import VbmemError
from vbmem.memory import (
    CategoricalMemory,
    GaussianMemory,
    KanervaMemory,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
)

# name -> constructor from (size of a code, or of a tree's partition; rows; clusters; prior)
MEMORIES: dict[str, Callable[..., Any]] = {
    "gaussian": lambda c, k, h, **prior: GaussianMemory(c, k, **prior),
    "categorical": lambda c, k, h, **prior: CategoricalMemory(c, h, **prior),
    "shifted": lambda c, k, h, **prior: ShiftedGaussianMemory(c, k, **prior),
    "shifted-factorised": lambda c, k, h, **prior: ShiftedGaussianMemory(c, k, factorised=True, **prior),
    "mixture": lambda c, k, h, **prior: MixtureMemory(c, k, h, **prior),
    "mixture-factorised": lambda c, k, h, **prior: MixtureMemory(c, k, h, factorised=True, **prior),
    "tree": lambda c, k, h, **prior: TreeMemory(2 * c, k, h, 2, **prior),
    "tree-factorised": lambda c, k, h, **prior: TreeMemory(2 * c, k, h, 2, factorised=True, **prior),
    "kanerva": lambda c, k, h, **prior: KanervaMemory(c, k, **prior),
}
BATCH = 20  # problems of the same sizes and noise
SAFE = 1e6  # |z|^2 / noise below which float32 agrees with float64
WITHIN = 0.01


def draw(name: str, generator: torch.Generator) -> tuple[Any, Tensor]:
    """A memory, and codes [BATCH, T, C] of every kind."""

    def pick(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def power(low: float, high: float) -> float:
        return 10 ** float(torch.empty(()).uniform_(low, high, generator=generator))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    frames, noise = pick(1, 2, 5, 12), power(-8, 8)
    norm = power(-8, 8) if pick(0, 1) else math.sqrt(noise * power(-2, 6))  # the latter where agreement is asked for
    prior = {"noise_var": noise} | ({"row_var": norm**2} if pick(0, 1) else {})
    memory = MEMORIES[name](pick(1, 2, 8, 32), pick(1, 3, 3 * frames), pick(1, 3, 3 * frames), **prior)
    shape = frames, memory.code_size
    kinds: tuple[Callable[[], Tensor], ...] = (
        lambda: normal(*shape),
        lambda: normal(1, shape[1]) + 10.0 ** -pick(3, 5, 7, 9) * normal(*shape),  # near-duplicates
        lambda: normal(1, shape[1]).expand(shape),  # duplicates
        lambda: normal(frames, 1) * normal(1, shape[1]),  # collinear
        lambda: normal(*shape) * torch.tensor([[power(-16, 0)] for _ in range(frames)]),  # of all norms
        lambda: normal(*shape) / 10.0 ** pick(1, 2, 3, 4) + 1,  # far from the origin
    )
    codes = torch.stack([kind() for kind in itertools.islice(itertools.cycle(kinds), BATCH)])
    memory.warns = False
    return memory, norm / math.sqrt(shape[1]) * codes


def outcomes(memory: Any, codes: Tensor, seed: int) -> Iterator[str]:
    """Of every episode: "held", "refused" by an error of ours, or what failed."""
    try:
        yield from judged(memory, codes, seed)
    except VbmemError:
        if codes.ndim == 2:
            yield "refused"
            return
        for episode in codes:
            yield from outcomes(memory, episode, seed)


def judged(memory: Any, codes: Tensor, seed: int) -> list[str]:
    """What is wrong with a write and all that is read from it."""
    generator, wide = seeded(seed), codes.double()
    start = [] if memory.kind == "kanerva" else [memory.first_state(codes, generator=generator)]
    several = memory.layout[0] > 1
    steps = [None] if start else []
    state, addresses = memory.write(codes, *steps, *start)
    found = answers(memory, codes, state, addresses)
    read = memory.read(state, codes, generator)
    fine_state, fine_addresses = state.to(torch.float64), addresses.to(torch.float64)
    exact = answers(memory, wide, fine_state, fine_addresses)
    # Between equal clusters rounding may choose: then only a first iteration ends where that of float64 does.
    first = [1] if several else steps
    fine_start = [s.to(torch.float64) for s in start]
    best = reached_by(memory, wide, memory.write(wide, *first, *fine_start)[0])
    rough = memory.write(codes, *first, *start)[0] if several else state
    reached = reached_by(memory, wide, rough.to(torch.float64))

    count = codes.shape[:-2].numel()
    square = wide.square().sum(-1).amax(-1).reshape(count, 1)
    noise, size = float(memory.noise_var), codes.shape[-1]
    safe = (square / noise < SAFE).squeeze(-1)
    units: dict[str, Any] = {
        "bound": codes.shape[-2] * size,
        "log_predictive": size,
        "local_bound": size,
        "assignment": 1,
        "recall": square.sqrt().clamp_min(noise**0.5),
    }
    wrong: dict[str, Tensor] = {}
    for name, tensor in {**found, **state.tensors(), **addresses.tensors(), "read": read}.items():
        wrong[f"{name} is not finite"] = ~tensor.reshape(count, -1).isfinite().all(-1)
    for name, unit in units.items():
        mine, theirs = found[name].double().reshape(count, -1), exact[name].reshape(count, -1)
        near = WITHIN * (theirs.abs().clamp_min(unit) if isinstance(unit, int) else unit)
        wrong[f"{name} is off"] = safe & ((mine - theirs).abs() > near).any(-1)
    lost = best - reached > WITHIN * best.abs().clamp_min(units["bound"])
    wrong["write is off"] = safe & lost.reshape(count)
    return [next((what for what, where in wrong.items() if where[i]), "held") for i in range(count)]


def answers(memory: Any, codes: Tensor, state: Any, addresses: Any) -> dict[str, Tensor]:
    again = memory.address(state, codes)
    return {
        "bound": memory.bound(codes, state, addresses).total,
        "assignment": again.assignment,
        "weight_mean": again.weight_mean,
        "recall": memory.recall(state, again),
        "log_predictive": memory.log_predictive(state, codes),
        "local_bound": memory.local_bound(state, codes),
    }


def reached_by(memory: Any, codes: Tensor, state: Any) -> Tensor:
    """The bound of codes at a state, all in float64."""
    return memory.bound(codes, state, memory.address(state, codes)).total


def counts(name: str, problems: int) -> Counter[str]:
    generator, result = seeded(0), Counter[str]()
    for seed in range(problems // BATCH):
        result.update(outcomes(*draw(name, generator), seed))
    return result


@pytest.mark.parametrize("problems", [80, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", MEMORIES)
def test_a_hard_problem_is_solved_or_refused(name, problems):
    result = counts(name, problems)
    print(name, dict(result))
    assert set(result) <= {"held", "refused"}, result
    assert result["held"] >= 0.85 * problems


def test_kanerva_keeps_its_covariance():
    codes = torch.full((2, 2), 1000.0)
    memory = KanervaMemory(2, 1, noise_var=0.04)
    state, _ = memory.write(codes)
    exact, _ = memory.write(codes.double())
    torch.testing.assert_close(state.row_cov.double(), exact.row_cov, rtol=1e-2, atol=0)
    assert memory.read(state, codes).isfinite().all()


def test_an_asymmetric_row_var_is_refused():
    with pytest.raises(ValueError, match="not symmetric"):
        GaussianMemory(4, 2, row_var=cast(Any, torch.tensor([[1.0, 0.5], [0.0, 1.0]])))
