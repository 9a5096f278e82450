"""What trained models of every kind have in common in a person's hands: pictures in, pictures out."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vbmem.memory.checks import check_shape
from vbmem.models.directory import SavedModel
from vbmem.models.settings import PAINT_STEPS
from vbmem.nets import CrispDecoder, FrameFormat
from vbmem.pretrained.inputs import to_unit
from vbmem.progress import track

# Pixels of the frames that go through the networks at a time. A CPU takes more no faster, and a frame of 32 x 32 needs
# 5 MB while it is painted; a GPU would not be busy with fewer.
PIXELS, PIXELS_ON_GPU = 2**14, 2**18
LONG = 2048  # frames from which on a call shows how far it is
LONG_PAINTING = 128  # on a CPU, of which each step in which one is painted counts


@dataclass(frozen=True, repr=False)
class PictureModel(SavedModel):
    """Networks that take pictures, of which what comes back is float in [0, 1], on the model's device."""

    def __repr__(self) -> str:
        parameters = sum(weights.numel() for weights in self.network.parameters())
        return f"<{type(self).__name__} {self.name!r}: {self._kind!r}, {self.frame}, {parameters:,} parameters>"

    @property
    def _kind(self) -> object:
        """What says which kind of model it is, and of which sizes."""
        return self.network.config

    @property
    def frame(self) -> FrameFormat:
        return self.network.frame

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @torch.no_grad()
    def decode(
        self,
        codes: Tensor,
        *,
        sample: bool = False,
        crisp: bool | None = None,
        paint_steps: int = PAINT_STEPS,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Pictures of codes [.., C]: [.., channels, H, W].

        Args:
            codes: what is to be seen.
            sample: draw the pixels around their means, each by itself.
            crisp: paint crisp pictures, or else show mean ones, which are blurred. By default crisp ones where the
                model has a decoder for them, unless pixels are sampled.
            paint_steps: in which a crisp picture is painted: 1, 2, 4 and so on; more take longer.
            generator: of the draws, and of the noise that crisp pictures are painted from. Without one, that noise is
                the same at every call.

        Raises:
            ValueError: for crisp pictures of a model without a decoder for them, or with sampled pixels.
        """
        check_shape("codes", codes, self.network.config.code_size)
        flat = codes.reshape(-1, codes.shape[-1])
        if (painter := self._painter(crisp, sample)) is not None:
            decoded = self._paint(painter, flat, painter.noise(len(flat), generator), paint_steps)
        else:
            parts = map(self.network.decode, flat.split(self._chunk))
            decoded = torch.cat([pixels.sample(generator) if sample else pixels.mean for pixels in parts])
        return decoded.reshape(*codes.shape[:-1], *decoded.shape[1:])

    def _painter(self, crisp: bool | None, sample_pixels: bool) -> CrispDecoder | None:
        """What paints crisp pictures, if they are wanted."""
        if crisp and self.painter is None:
            raise ValueError(f"{self.name} has no decoder for crisp pictures; leave out crisp, or train one for it")
        if crisp and sample_pixels:
            raise ValueError("pixels are sampled around mean pictures, not crisp ones; ask for one or the other")
        return None if crisp is False or sample_pixels else self.painter

    def _paint(self, painter: CrispDecoder, codes: Tensor, noise: Tensor, steps: int) -> Tensor:
        """Crisp pictures of codes [N, C], each from its noise: [N, channels, H, W]."""
        painted = []
        parts = [*zip(codes.split(self._chunk), noise.split(self._chunk), strict=True)]
        enough = LONG_PAINTING if self.device.type == "cpu" else LONG
        for part, start in track(parts, "painting", show=len(codes) * steps >= enough):
            means = self.network.decode(part).mean if painter.sees_mean else None
            painted.append(painter.paint(part, steps, start, means))
        return torch.cat(painted)

    @property
    def _chunk(self) -> int:
        """How many frames go through the networks at a time."""
        pixels = PIXELS if self.device.type == "cpu" else PIXELS_ON_GPU
        return max(1, pixels // self.frame.size**2)

    def _chunks(self, frames: Tensor, description: str = "") -> Iterator[Tensor]:
        """Float frames on the device, a chunk at a time; with a description, a bar shows how far they are."""
        for chunk in track(frames.split(self._chunk), description, show=bool(description) and len(frames) >= LONG):
            yield to_unit(chunk.to(self.device), self.frame)
