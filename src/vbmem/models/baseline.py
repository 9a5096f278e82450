"""What the models that the paper compares memories with have in common: they can be shown (section 4.4.1)."""

from abc import abstractmethod

import torch
from torch import Tensor

from vbmem.models.base import EpisodicModel


class BaselineModel(EpisodicModel):
    """A model that can draw codes like those of an episode, and find those of the episode again.

    Both start from what `embed` gives, so that a long episode may be embedded piece by piece.
    """

    @abstractmethod
    def new_codes(self, embeddings: Tensor, count: int, generator: torch.Generator | None = None) -> Tensor:
        """Codes of new pictures like those of each episode, all drawn: [B, T, E] -> [B, count, C]."""

    @abstractmethod
    def same_codes(
        self, embeddings: Tensor, generator: torch.Generator | None = None, *, sample: bool = False
    ) -> Tensor:
        """Codes of the same pictures as the model sees them: [B, T, E] -> [B, T, C].

        Args:
            embeddings: of each episode.
            generator: of the draws.
            sample: draw everything, as the bound does; otherwise the means.
        """


def noise_like(like: Tensor, *shape: int, generator: torch.Generator | None = None) -> Tensor:
    """N(0, I) of a shape, with the dtype and device of `like`."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
