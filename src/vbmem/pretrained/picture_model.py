"""What trained models of every kind have in common in a person's hands: pictures in, pictures out."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vbmem.memory.checks import check_shape
from vbmem.models.directory import SavedModel
from vbmem.nets import FrameFormat
from vbmem.pretrained.inputs import to_unit
from vbmem.progress import track

CHUNK = 256  # frames that go through the networks at a time
LONG = 2048  # frames from which on a call shows how far it is


@dataclass(frozen=True)
class PictureModel(SavedModel):
    """Networks that take pictures, of which what comes back is float in [0, 1], on the model's device."""

    @property
    def frame(self) -> FrameFormat:
        return self.network.frame

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @torch.no_grad()
    def decode(self, codes: Tensor, *, sample: bool = False, generator: torch.Generator | None = None) -> Tensor:
        """Mean (or sampled) pictures of codes [.., C]: [.., channels, H, W]."""
        check_shape("codes", codes, self.network.config.code_size)
        parts = map(self.network.decode, codes.reshape(-1, codes.shape[-1]).split(CHUNK))
        decoded = torch.cat([pixels.sample(generator) if sample else pixels.mean for pixels in parts])
        return decoded.reshape(*codes.shape[:-1], *decoded.shape[1:])

    def _chunks(self, frames: Tensor, description: str = "") -> Iterator[Tensor]:
        """Float frames on the device, a chunk at a time; with a description, a bar shows how far they are."""
        for chunk in track(frames.split(CHUNK), description, show=bool(description) and len(frames) >= LONG):
            yield to_unit(chunk.to(self.device), self.frame)
