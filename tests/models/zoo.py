"""Every model of `tiny`, with frames to put through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tiny import MEMORY_MODELS, MODELS, OWN_MODELS, tiny_network
from vbmem.nets import CodePosterior, Likelihood

B, T = 2, 5

every_model = pytest.mark.parametrize("name", [*MODELS, *OWN_MODELS])
every_memory_model = pytest.mark.parametrize("name", MEMORY_MODELS)
every_own_model = pytest.mark.parametrize("name", OWN_MODELS)


def make(name: str, likelihood: Likelihood = "gaussian", channels: int = 1, **changes: Any) -> Any:
    """In float64, and nearer to its initial weights: further away the statistician overflows."""
    return tiny_network(name, likelihood, channels, spread=0.1, **changes).double()


def frames(*batch: int, channels: int = 1, binary: bool = False, seed: int = 1) -> Tensor:
    """Frames [*batch, channels, 8, 8]; [B, T, 1, 8, 8] unless told otherwise."""
    shape = (*(batch or (B, T)), channels, 8, 8)
    pixels = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return pixels.round() if binary else pixels


@contextmanager
def recorded_draws() -> Iterator[list[Tensor]]:
    """What `torch.randn` and `torch.randn_like` return within, in order."""
    draws: list[Tensor] = []

    def recorded(function):
        def draw(*args, **kwargs):
            noise = function(*args, **kwargs)
            draws.append(noise.double())
            return noise

        return draw

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", recorded(torch.randn))
        patch.setattr(torch, "randn_like", recorded(torch.randn_like))
        yield draws


class FixedCodes(nn.Module):
    """In the place of a model's head: the same posterior for whatever frames."""

    def __init__(self, mean: Tensor, var: float = 0.1) -> None:
        super().__init__()
        self.mean, self.var = mean, torch.full_like(mean, var)

    def forward(self, embeddings: Tensor) -> CodePosterior:
        return CodePosterior(self.mean, self.var)


def close(actual: Tensor, expected: object, *, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected.expand_as(actual), rtol=rtol, atol=atol)


def close_terms(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(actual) == set(expected)
    for name, value in actual.items():
        close(value, expected[name])


def as_likely(sample: Tensor, expected: Tensor | float, deviations: float = 4.0) -> None:
    """The mean over the first dimension lies within so many standard errors of what is expected."""
    error = sample.std(0) / len(sample) ** 0.5
    away = (sample.mean(0) - expected).abs() / error.clamp_min(1e-12)
    assert (away < deviations).all(), f"{away.max():.1f} standard errors away"
