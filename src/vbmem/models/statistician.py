"""The Neural Statistician (Edwards & Storkey 2017), with the paper's extra nonlinearity in the pooling layer."""

import torch
from torch import Tensor, nn

from vbmem.models.base import Evidence, FrameFormat, normal_kl, repeat_episodes, repeat_posterior
from vbmem.models.baseline import BaselineModel, noise_like
from vbmem.models.settings import StatisticianConfig
from vbmem.nets import CodeHead, CodePosterior
from vbmem.nets.layers import dense


class NeuralStatistician(BaselineModel):
    refines = True

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
        embeddings = self.embed(self.seen(frames))
        context = repeat_posterior(self.infer_context(embeddings), copies)
        embeddings, frames = repeat_episodes(embeddings, copies), repeat_episodes(frames, copies)
        # A context of its own for every frame: the bound's expectation is the same, its variance smaller.
        contexts = _draw(context, frames.shape[1])
        with self._networks(frames):
            posterior = self.code_head(torch.cat([embeddings, contexts], dim=-1))
            prior = CodePosterior.from_network(self.code_prior(contexts))
        posterior = self.refined(posterior, prior.mean)
        return Evidence(
            log_likelihood=self.score(posterior.rsample(), frames),
            divergences={"kl_codes": normal_kl(posterior, prior).sum(-1), "kl_context": normal_kl(context)},
            episode_length=frames.shape[1],
        )

    def new_codes(self, embeddings: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """c ~ q(c | X), another for every code, and z ~ p(z | c)."""
        contexts = _draw(self.infer_context(embeddings), count, generator)
        with self._networks(embeddings):
            prior = CodePosterior.from_network(self.code_prior(contexts))
        return prior.rsample(generator)

    def same_codes(
        self, embeddings: Tensor, generator: torch.Generator | None = None, *, sample: bool = False
    ) -> Tensor:
        """Of q(z | x, c), with the mean of q(c | X) for c, or with draws of it, another for every frame."""
        context, frames = self.infer_context(embeddings), embeddings.shape[1]
        mean = context.mean.unsqueeze(1).expand(-1, frames, -1)
        contexts = _draw(context, frames, generator) if sample else mean
        with self._networks(embeddings):
            posterior = self.code_head(torch.cat([embeddings, contexts], dim=-1))
        return posterior.rsample(generator) if sample else posterior.mean


def _draw(context: CodePosterior, count: int, generator: torch.Generator | None = None) -> Tensor:
    """`count` contexts of every episode: [B, context] -> [B, count, context]."""
    episodes, size = context.mean.shape
    noise = noise_like(context.mean, episodes, count, size, generator=generator)
    return context.mean.unsqueeze(1) + context.var.sqrt().unsqueeze(1) * noise


def _gaussian_head(inputs: int, outputs: int) -> nn.Sequential:
    """Two layers, the hidden one as wide as the output: means and log standard deviations."""
    return nn.Sequential(dense(inputs, 2 * outputs, bias=True), nn.ReLU(), dense(2 * outputs, 2 * outputs, bias=True))
