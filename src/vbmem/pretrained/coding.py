"""Pictures to codes, and what a memory knows of codes to whole ones."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vbmem.memory.checks import check_shape
from vbmem.memory.written import WrittenMemory
from vbmem.models.landed import landed_fingerprint
from vbmem.models.memory_model import MemoryModel
from vbmem.nets import CodePosterior
from vbmem.pretrained.inputs import Pictures, as_frames
from vbmem.pretrained.picture_model import PictureModel


@dataclass(frozen=True, repr=False)
class CodingModel(PictureModel):
    """Networks whose codes, [.., C], have a content, which can be written into memory, and maybe a part of their own:
    the last `own_size` numbers."""

    network: MemoryModel

    @torch.no_grad()
    def encode(self, images: Pictures, memory: WrittenMemory | None = None) -> CodePosterior:
        """q(z | x) of every picture, [T, C]: its content, which can be written, and then what is its own, if anything.

        Args:
            images: to be encoded.
            memory: what a model that sees recall shall recall them from; to others it makes no difference.
        """
        if memory is not None:
            self._check(memory)
        frames = self._chunks(as_frames(images, self.frame), "encoding")
        return self._joined([self._infer(x, memory) for x in frames])

    @torch.no_grad()
    def complete(self, content: Tensor, *, sample: bool = True, generator: torch.Generator | None = None) -> Tensor:
        """Whole codes [.., C], which `decode` takes, of contents [.., C - own_size] as `memory.sample` gives them.

        Args:
            content: that of the codes; all of them where a model has codes without an own part.
            sample: draw the own part from its prior; otherwise its mean.
            generator: of the draws.
        """
        return self.network.complete(content, generator, sample=sample)

    def _infer(self, frames: Tensor, memory: WrittenMemory | None) -> CodePosterior:
        """q(z | x) of frames [n, channels, H, W], which may see what a memory recalls of them: [n, C]."""
        embeddings, q = self.network.look(frames.unsqueeze(0))
        if memory is not None and self.network.config.sees_recall:
            recalled = memory.empty.reconstruct(memory.state, self.network.content(q.mean))
            q = self.network.revise(embeddings, q, recalled)
        return CodePosterior(q.mean[0], q.var[0])

    @staticmethod
    def _joined(chunks: list[CodePosterior]) -> CodePosterior:
        return CodePosterior(torch.cat([q.mean for q in chunks]), torch.cat([q.var for q in chunks]))

    def _own_part(self, own: Tensor | Pictures, count: int, memory: WrittenMemory) -> Tensor:
        """That of `count` codes, [count, own_size]."""
        if not (size := self.network.config.own_size):
            raise ValueError(f"the codes of {self.name} have no part of their own that could be given; leave out own")
        codes = own if isinstance(own, Tensor) and own.ndim <= 2 else self.encode(own, memory).mean
        check_shape("own", codes, self.network.config.code_size)
        part = codes.to(self.device).reshape(-1, codes.shape[-1])[:, -size:]
        if len(part) not in (1, count):
            raise ValueError(f"own must be of one picture, or of one for each of the {count}, got {len(part)}")
        return part.expand(count, -1)

    def _check(self, memory: WrittenMemory) -> None:
        if not memory.model:
            raise ValueError("this memory holds codes that no model made; its own sample, read and score take codes")
        if memory.fingerprint != self.fingerprint and memory.fingerprint != landed_fingerprint(self.network):
            raise ValueError(
                f"this memory was written by the model {memory.model!r} ({memory.fingerprint}), not by "
                f"{self.name!r} ({self.fingerprint}); load that model, or write the pictures again with this one"
            )
        if (device := memory.state.row_mean.device) != self.device:
            raise ValueError(
                f"this memory is on {device}, the model on {self.device}; load one of them with device={str(device)!r}"
            )
