"""What every episodic model shares: an encoder, a decoder, and a bound reported term by term."""

import warnings
from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from vbmem.data.damage import randomly_damaged
from vbmem.models.settings import ModelConfig
from vbmem.models.trainable import Trainable
from vbmem.nets import CodeHead, CodePosterior, Pixels, build_networks
from vbmem.nets import FrameFormat as FrameFormat
from vbmem.nets.precision import at_least_float32


@dataclass(frozen=True)
class Evidence:
    """The evidence lower bound of each episode of a batch, in nats.

    elbo = log_likelihood - sum of divergences; every tensor has the shape [B].
    """

    log_likelihood: Tensor  # sum_t E log p(x_t | z_t)
    divergences: dict[str, Tensor]  # by name, summed over the episode
    episode_length: int  # T
    extra_objective: Tensor | None = None  # added to the bound in training only
    measures: dict[str, Tensor] = field(default_factory=dict)  # reported, not optimised

    @property
    def elbo(self) -> Tensor:
        return self.log_likelihood - sum(self.divergences.values())

    def objective(self, weight: Tensor | None = None) -> Tensor:
        """What training raises, [B]: the bound, every divergence counted `weight` times where that is given, and the
        extra objective."""
        bound = self.elbo if weight is None else self.log_likelihood - weight * sum(self.divergences.values())
        return bound if self.extra_objective is None else bound + self.extra_objective

    def per_frame(self) -> dict[str, Tensor]:
        """The headline `elbo_per_frame` and every term of it, per frame, and the other measures; all [B]."""
        terms = {"elbo_per_frame": self.elbo, "log_likelihood": self.log_likelihood, **self.divergences}
        return {name: value / self.episode_length for name, value in terms.items()} | self.measures


class EpisodicModel(Trainable):
    """An encoder and a decoder; a subclass says what lies between them.

    `network_dtype` may be set to bfloat16: networks then run under autocast, everything else in float32.

    Args:
        config: the settings it is built from.
        frame: what its frames look like.
        embedding_size: numbers that the encoder makes of a frame.
    """

    compiled: ClassVar[tuple[str, ...]] = ("embed", "score")
    """The methods that `compile_parts` compiles."""
    network_dtype: torch.dtype = torch.float32
    refines: ClassVar[bool] = False
    """Whether it has a q(z) whose mean can be moved; see `refined`."""
    refinement: float = 0.0
    """In evaluation, the share by which the mean of q(z) moves towards what its prior expects."""

    def __init__(self, config: ModelConfig, frame: FrameFormat, embedding_size: int) -> None:
        super().__init__()
        self.config, self.frame = config, frame
        networks = build_networks(config.style, frame, config.filters, embedding_size, config.code_size)
        self.encoder, self.decoder, self.head_activation = networks
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the quicker layout everywhere

    @abstractmethod
    def forward(self, frames: Tensor, copies: int = 1) -> Evidence:
        """Frames [B, T, channels, H, W] -> the bound of each episode, one sample of every random variable.

        With `copies`, every episode counts that many times, each with randomness of its own; the encoder, which has
        none, runs once.
        """

    def seen(self, frames: Tensor) -> Tensor:
        """What q sees of frames: in training, some of them damaged. q may be anything, so the bound stays one."""
        return randomly_damaged(frames, self.damage) if self.training else frames

    def embed(self, frames: Tensor) -> Tensor:
        """e(x) of every frame, float32: [B, T, channels, H, W] -> [B, T, E]."""
        flat = frames.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        with self._networks(frames):
            embeddings: Tensor = self.encoder(flat)
        return at_least_float32(embeddings).unflatten(0, frames.shape[:2])

    def decode(self, codes: Tensor) -> Pixels:
        """p(x | z) of codes [N, C]."""
        with self._networks(codes):
            return self.decoder(codes)

    def score(self, codes: Tensor, frames: Tensor) -> Tensor:
        """log p(x | z) summed over the frames of each episode: codes [B, T, C] -> [B]."""
        log_probs = self.decode(codes.flatten(0, 1)).log_prob(frames.flatten(0, 1))
        return log_probs.unflatten(0, frames.shape[:2]).sum(-1)

    def refined(self, posterior: CodePosterior, expected: Tensor) -> CodePosterior:
        """q(z) in evaluation, its mean moved towards an expected code by the share `refinement`.

        q(z) may be anything, so the bound stays one; the expected code must be a mean, never a sample of z.
        """
        if self.training or not self.refinement:
            return posterior
        return CodePosterior(torch.lerp(posterior.mean, expected, self.refinement), posterior.var)

    def place_on(self, device: torch.device) -> Self:
        """Move to a device, as it is trained and used there: on CUDA networks in their own precision."""
        self.to(device)
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True  # shapes never change
            if self.config.precision == "bfloat16":
                self.network_dtype = torch.bfloat16
        return self

    def compile_parts(self) -> None:
        """Compile what repeats: the networks with their likelihood. Called once, before the first step."""
        # The advice to use TensorFloat32: networks have the precision they were given, and memory algebra must not.
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
        for name in self.compiled:
            setattr(self, name, torch.compile(getattr(self, name), fullgraph=True, dynamic=False))

    def _networks(self, like: Tensor) -> AbstractContextManager[None]:
        return torch.autocast(like.device.type, self.network_dtype, enabled=self.network_dtype != torch.float32)


class CodedModel(EpisodicModel):
    """A model in which every frame has a code of its own, inferred from that frame alone."""

    compiled: ClassVar[tuple[str, ...]] = ("embed", "score", "look")

    def __init__(self, config: ModelConfig, frame: FrameFormat, fixed_var: float | None = None) -> None:
        super().__init__(config, frame, 2 * config.code_size)
        self.head = CodeHead(2 * config.code_size, config.code_size, self.head_activation, fixed_var)

    def look(self, frames: Tensor) -> tuple[Tensor, CodePosterior]:
        """e(x) [B, T, E] and q(z | x) [B, T, C] of every frame: [B, T, channels, H, W]."""
        embeddings = self.embed(frames)
        return embeddings, self.head(embeddings)

    def infer(self, frames: Tensor) -> CodePosterior:
        """q(z | x) of every frame: [B, T, channels, H, W] -> [B, T, C]."""
        return self.look(frames)[1]


def repeat_episodes(tensor: Tensor, copies: int) -> Tensor:
    """[B, ..] -> [copies * B, ..]."""
    return tensor if copies == 1 else tensor.repeat(copies, *(1 for _ in tensor.shape[1:]))


def repeat_posterior(posterior: CodePosterior, copies: int) -> CodePosterior:
    return CodePosterior(repeat_episodes(posterior.mean, copies), repeat_episodes(posterior.var, copies))


def normal_kl(q: CodePosterior, p: CodePosterior | None = None) -> Tensor:
    """KL(q || p) of diagonal Gaussians summed over the last dimension; p is N(0, I) when not given."""
    mean, var = (0, 1) if p is None else (p.mean, p.var)
    ratio = q.var / var
    return 0.5 * (ratio + (q.mean - mean).square() / var - 1 - ratio.log()).sum(-1)
