"""The variational autoencoder (Kingma & Welling 2013): the baseline that knows no episodes."""

from torch import Tensor

from vbmem.models.base import CodedModel, Evidence, normal_kl, repeat_episodes, repeat_posterior


class VAE(CodedModel):
    """q(z_t) from the encoder, p(z_t) = N(0, I)."""

    def forward(self, frames: Tensor, copies: int = 1) -> Evidence:
        posterior = repeat_posterior(self.infer(frames), copies)
        return Evidence(
            log_likelihood=self.score(posterior.rsample(), repeat_episodes(frames, copies)),
            divergences={"kl_codes": normal_kl(posterior).sum(-1)},
            episode_length=frames.shape[1],
        )
