"""The models that the paper compares memories with, as a person would use them: see what they make of pictures."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vbmem.memory.checks import check_size
from vbmem.models.baseline import BaselineModel
from vbmem.models.settings import PAINT_STEPS
from vbmem.pretrained.inputs import Pictures, as_frames
from vbmem.pretrained.picture_model import PictureModel


@dataclass(frozen=True, repr=False)
class Baseline(PictureModel):
    """A trained VAE, Neural Statistician or Dynamic Kanerva Machine. They keep no memory, so that an episode is given
    with every call. Nothing here needs or keeps gradients.

    Pictures are tensors or arrays [T, channels, H, W] (uint8, or float in [0, 1]), a folder, or a list of files or
    PIL images. What comes back is float in [0, 1], on the model's device.
    """

    network: BaselineModel

    @torch.no_grad()
    def generate(
        self,
        images: Pictures,
        count: int,
        *,
        sample_pixels: bool = False,
        crisp: bool | None = None,
        paint_steps: int = PAINT_STEPS,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """New pictures like those of an episode: [count, channels, H, W].

        The Neural Statistician draws from its context, the Dynamic Kanerva Machine from the memory it writes. A VAE
        knows no episodes: its pictures are like those it was trained on, whatever is given.

        Args:
            images: the episode.
            count: how many.
            sample_pixels: draw the pixels around what the decoder says; otherwise their mean.
            crisp: paint crisp pictures, or else show mean ones; see `decode`.
            paint_steps: in which a crisp picture is painted.
            generator: of all the draws, on the model's device.
        """
        codes = self.network.new_codes(self._embed(images), check_size("count", count), generator)[0]
        return self.decode(codes, sample=sample_pixels, crisp=crisp, paint_steps=paint_steps, generator=generator)

    @torch.no_grad()
    def reconstruct(
        self,
        images: Pictures,
        *,
        sample: bool = False,
        crisp: bool | None = None,
        paint_steps: int = PAINT_STEPS,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The pictures of an episode as the model sees them, crisp or in mean pixels: [T, channels, H, W].

        The order of the pictures matters to the Dynamic Kanerva Machine, which writes one after the other.

        Args:
            images: the episode.
            sample: draw the codes and what they depend on; otherwise their means.
            crisp: paint crisp pictures, or else show mean ones; see `decode`.
            paint_steps: in which a crisp picture is painted.
            generator: of all the draws, on the model's device.
        """
        codes = self.network.same_codes(self._embed(images), generator, sample=sample)[0]
        return self.decode(codes, crisp=crisp, paint_steps=paint_steps, generator=generator)

    def _embed(self, images: Pictures) -> Tensor:
        """e(x) of every picture, as one episode: [1, T, E]."""
        frames = self._chunks(as_frames(images, self.frame), "encoding")
        return torch.cat([self.network.embed(x.unsqueeze(0)) for x in frames], dim=1)
