"""The Dynamic Kanerva Machine (Wu et al. 2018), trained on an unbiased estimate of its bound."""

import math

import torch
from torch import Tensor, nn

from vbmem.memory import KanervaMemory, MemoryState
from vbmem.memory.kanerva import R0_SCALE
from vbmem.models.base import Evidence, FrameFormat, repeat_episodes
from vbmem.models.baseline import BaselineModel, noise_like
from vbmem.models.settings import DKMConfig


class DKM(BaselineModel):
    config: DKMConfig

    def __init__(self, config: DKMConfig, frame: FrameFormat) -> None:
        super().__init__(config, frame, config.code_size)
        self.address_log_std = nn.Parameter(torch.tensor(0.5 * math.log(0.3)))
        # R_0 is drawn once for the model, as its weights are, and travels with them.
        self.row_mean = nn.Buffer(R0_SCALE * torch.randn(config.rows, config.code_size))
        self.memory = KanervaMemory(config.code_size, config.rows, row_mean=self.row_mean)

    def compile_parts(self) -> None:
        super().compile_parts()
        self.memory.compile()

    def forward(self, frames: Tensor, copies: int = 1) -> Evidence:
        codes = self.embed(self.seen(frames))
        memory, state = self._written(codes)
        addresses = memory.address(state, codes)  # dynamic addressing: with the memory as finally written
        bound = memory.bound(codes, state, addresses)

        mean = repeat_episodes(addresses.weight_mean.squeeze(-2), copies)  # [B, T, K]
        weights = mean + self.address_log_std.exp() * torch.randn_like(mean)
        read = self._read_out(weights, state.map(lambda tensor: repeat_episodes(tensor, copies)))

        extra = None
        if self.config.autoencoder and self.training:
            extra = repeat_episodes(self.score(codes, frames), copies)
        return Evidence(
            log_likelihood=self.score(read, repeat_episodes(frames, copies)),
            divergences={name: repeat_episodes(getattr(bound, name), copies) for name in ("kl_weights", "kl_rows")},
            episode_length=frames.shape[1],
            extra_objective=extra,
        )

    def new_codes(self, embeddings: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """M'w of the written memory, w ~ N(0, I) and M ~ q(M), both anew for every code."""
        _, state = self._written(embeddings)
        weights = noise_like(embeddings, len(embeddings), count, self.config.rows, generator=generator)
        return self._read_out(weights, state, generator)

    def same_codes(
        self, embeddings: Tensor, generator: torch.Generator | None = None, *, sample: bool = False
    ) -> Tensor:
        """M'w of the written memory, w addressed with it as finally written, as in the bound."""
        memory, state = self._written(embeddings)
        addresses = memory.address(state, embeddings)
        if not sample:
            return memory.recall(state, addresses)
        mean = addresses.weight_mean.squeeze(-2)  # [B, T, K]
        noise = noise_like(mean, *mean.shape, generator=generator)
        return self._read_out(mean + self.address_log_std.exp() * noise, state, generator)

    def _written(self, codes: Tensor) -> tuple[KanervaMemory, MemoryState]:
        """The memory with its prior as now trained, and the codes [B, T, C] in it."""
        memory = self.memory.with_prior(row_mean=self.row_mean, address_var=torch.exp(2 * self.address_log_std))
        state, _ = memory.write(codes)
        return memory, state

    def _read_out(self, weights: Tensor, state: MemoryState, generator: torch.Generator | None = None) -> Tensor:
        """M'w of a fresh M ~ q(M) for every w: N(R'w, (w'Uw) I), drawn without drawing M: [B, n, K] -> [B, n, C]. With
        `mean_memory`, R'w."""
        rows, cov = state.row_mean.squeeze(-3), state.row_cov.squeeze(-3)
        means = weights @ rows
        if self.config.mean_memory:
            return means
        spread = ((weights @ cov) * weights).sum(-1, keepdim=True).clamp_min(0).sqrt()
        return means + spread * noise_like(means, *means.shape, generator=generator)
