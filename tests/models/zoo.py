"""Every model, by name and small, with frames to put through it. A new model is covered by one more line here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vbmem.models import DKMConfig, EpisodicModel, FrameFormat, MemoryConfig, ModelConfig, StatisticianConfig, VAEConfig
from vbmem.nets import CodePosterior, Likelihood

B, T = 2, 5

MEMORY_MODELS: dict[str, MemoryConfig] = {
    "gaussian": MemoryConfig("gaussian", code_size=4, rows=3, iterations=6, filters=8, style="basic"),
    "categorical": MemoryConfig("categorical", code_size=4, rows=3, filters=8, style="basic"),
    "shifted": MemoryConfig("shifted", code_size=4, rows=2, iterations=6, filters=8),
    "mixture": MemoryConfig("mixture", code_size=4, rows=2, clusters=3, iterations=4, filters=8),
    "tree": MemoryConfig("tree", code_size=6, rows=2, clusters=3, partitions=2, iterations=4, filters=8),
}
MODELS: dict[str, ModelConfig] = {
    "vae": VAEConfig(code_size=4, filters=8),
    "statistician": StatisticianConfig(code_size=4, context_size=7, filters=8),
    "dkm": DKMConfig(code_size=5, rows=3, filters=8),
    **MEMORY_MODELS,
}
every_model = pytest.mark.parametrize("name", MODELS)
every_memory_model = pytest.mark.parametrize("name", MEMORY_MODELS)


def make(name: str, likelihood: Likelihood = "gaussian", channels: int = 1, **changes: object) -> EpisodicModel:
    """A float64 model in evaluation mode, with no weight, bias or running statistic left where it starts."""
    torch.manual_seed(0)
    config = replace(MODELS[name], **changes)
    model = config.build(FrameFormat(8, channels, likelihood)).double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights += 0.1 * torch.randn_like(weights)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
    return model


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
