"""The variational autoencoder (Kingma & Welling 2013): the baseline that knows no episodes."""

import torch
from torch import Tensor

from vbmem.models.base import CodedModel, Evidence, normal_kl, repeat_episodes, repeat_posterior
from vbmem.models.baseline import BaselineModel, noise_like


class VAE(CodedModel, BaselineModel):
    """q(z_t) from the encoder, p(z_t) = N(0, I)."""

    refines = True

    def forward(self, frames: Tensor, copies: int = 1) -> Evidence:
        posterior = repeat_posterior(self.infer(self.seen(frames)), copies)
        posterior = self.refined(posterior, torch.zeros_like(posterior.mean))
        return Evidence(
            log_likelihood=self.score(posterior.rsample(), repeat_episodes(frames, copies)),
            divergences={"kl_codes": normal_kl(posterior).sum(-1)},
            episode_length=frames.shape[1],
        )

    def new_codes(self, embeddings: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """z ~ N(0, I), whatever the episode."""
        return noise_like(embeddings, len(embeddings), count, self.config.code_size, generator=generator)

    def same_codes(
        self, embeddings: Tensor, generator: torch.Generator | None = None, *, sample: bool = False
    ) -> Tensor:
        """Of q(z | x)."""
        posterior = self.head(embeddings)
        return posterior.rsample(generator) if sample else posterior.mean
