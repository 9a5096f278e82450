"""The Neural Statistician (Edwards & Storkey 2017), with the paper's extra nonlinearity in the pooling layer."""

import torch
from torch import Tensor, nn

from vbmem.models.base import EpisodicModel, Evidence, FrameFormat, normal_kl, repeat_episodes, repeat_posterior
from vbmem.models.settings import StatisticianConfig
from vbmem.nets import CodeHead, CodePosterior
from vbmem.nets.layers import dense


class NeuralStatistician(EpisodicModel):
    def __init__(self, config: StatisticianConfig, frame: FrameFormat) -> None:
        size, context = config.code_size, config.context_size
        super().__init__(config, frame, 2 * size)
        self.before_pooling = nn.Sequential(dense(2 * size, 2 * size, bias=True), nn.ReLU())
        self.context_head = _gaussian_head(2 * size, context)
        self.code_head = CodeHead(2 * size + context, size, self.head_activation)
        self.code_prior = _gaussian_head(context, size)

    def infer_context(self, embeddings: Tensor) -> CodePosterior:
        """q(c | X) from the mean of the frames' features over the episode: [B, T, E] -> [B, context]."""
        return CodePosterior.from_network(self.context_head(self.before_pooling(embeddings).mean(-2)))

    def forward(self, frames: Tensor, copies: int = 1) -> Evidence:
        embeddings = self.embed(frames)
        context = repeat_posterior(self.infer_context(embeddings), copies)
        embeddings, frames = repeat_episodes(embeddings, copies), repeat_episodes(frames, copies)
        # A context of its own for every frame: the bound's expectation is the same, its variance smaller.
        shape = (*frames.shape[:2], context.mean.shape[-1])
        noise = torch.randn(shape, dtype=context.mean.dtype, device=frames.device)
        contexts = context.mean.unsqueeze(1) + context.var.sqrt().unsqueeze(1) * noise
        with self._networks(frames):
            posterior = self.code_head(torch.cat([embeddings, contexts], dim=-1))
            prior = CodePosterior.from_network(self.code_prior(contexts))
        return Evidence(
            log_likelihood=self.score(posterior.rsample(), frames),
            divergences={"kl_codes": normal_kl(posterior, prior).sum(-1), "kl_context": normal_kl(context)},
            episode_length=frames.shape[1],
        )


def _gaussian_head(inputs: int, outputs: int) -> nn.Sequential:
    """Two layers, the hidden one as wide as the output: means and log standard deviations."""
    return nn.Sequential(dense(inputs, 2 * outputs, bias=True), nn.ReLU(), dense(2 * outputs, 2 * outputs, bias=True))
