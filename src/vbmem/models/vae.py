"""The variational autoencoder (Kingma & Welling 2013): the baseline that knows no episodes."""

from torch import Tensor

from vbmem.models.base import CodedModel, Evidence, FrameFormat, normal_kl, repeat_episodes, repeat_posterior
from vbmem.models.settings import VAEConfig


class VAE(CodedModel):
    def __init__(self, config: VAEConfig, frame: FrameFormat) -> None:
        super().__init__(frame, config.code_size, config.filters, config.style, fixed_var=None)
        self.config = config

    def forward(self, frames: Tensor, copies: int = 1) -> Evidence:
        posterior = repeat_posterior(self.infer(frames), copies)
        return Evidence(
            log_likelihood=self.score(posterior.rsample(), repeat_episodes(frames, copies)),
            divergences={"kl_codes": normal_kl(posterior).sum(-1)},
            episode_length=frames.shape[1],
        )
