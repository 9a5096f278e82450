"""What one visitor has: a model, pictures, and the memory they were written into. Knows nothing of the page."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from vbmem.app.code_uploads import Codes
from vbmem.app.shared import seeded
from vbmem.app.sizes import MAX_SIZE, SizeTrial, try_sizes
from vbmem.data.damage import damaged
from vbmem.errors import MemoryFileError
from vbmem.memory.written import WrittenMemory
from vbmem.models.settings import READS
from vbmem.paper.metrics.neighbours import nearest
from vbmem.pretrained.inputs import to_unit
from vbmem.pretrained.model import Model
from vbmem.pretrained.timing import WriteTimes, timed_write

DRAWN = 24  # pictures that stand for those of a memory which was brought along
# How a damaged picture is read: in so many steps, with so much trust in what the memory says of its content. An own
# part of its code is read off the damage, and fits what the memory says badly: for validation characters of Omniglot
# with noise, of 1 or 2 steps with trusts of 0.1, 0.25, 0.5 and 1, these leave the smallest error.
STEPS, TRUST = 2, 1.0
STEPS_WITH_OWN_PART, TRUST_WITH_OWN_PART = 1, 0.1


@dataclass(frozen=True)
class Recall:
    """A damaged picture, and what comes back: frames [channels, H, W] in [0, 1]."""

    original: Tensor
    damaged: Tensor
    alone: Tensor  # as the networks see it, without memory
    steps: Tensor  # every step of reading it from memory, [steps, channels, H, W]
    nearest: Tensor | None  # the written picture nearest to the last step, where those are here

    def error(self, frame: Tensor) -> float:
        """The mean squared error of a frame against the original."""
        return float((frame - self.original).square().mean())


@dataclass(frozen=True, eq=False)
class Session:
    """Every change is a new session. `codes` and `times` are there when the memory holds the frames; those of a memory
    that was brought along are drawn from it."""

    model: Model
    frames: Tensor  # the episode, uint8 [T, channels, H, W]
    memory: WrittenMemory
    codes: Tensor | None = None  # what of them was written, [T, C - own_size]
    times: WriteTimes | None = None
    picked: Tensor | None = None  # the picture to recall, uint8 [channels, H, W]
    chosen: int | None = None  # the cluster to generate from

    @classmethod
    def written(cls, model: Model, frames: Tensor) -> Self:
        """An episode in a fresh memory."""
        return cls(model, frames, *timed_write(model, frames, seeded()))

    def picking(self, picture: Tensor) -> Self:
        """The same, with another picture to recall; the others that it may come from are not kept for it."""
        return replace(self, picked=picture.clone())

    def resized(self, size: int) -> Self:
        """The episode in a fresh memory of another size: so many clusters, or rows where there are no clusters."""
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"{size} {self.size_name} cannot be written here; choose from 1 to {MAX_SIZE}")
        self.require_codes()
        written = self.written(self.model.resize(**{self.size_name: size}), self.frames)
        return replace(written, picked=self.picked)

    def loaded(self, path: Path) -> Self:
        """The memory of a file in place of the one that is there, and pictures drawn from it in place of those."""
        try:
            memory = WrittenMemory.load(path)
            # Refuses a memory of another model, and fails for one that is damaged.
            drawn = self.model.generate(memory, DRAWN, generator=seeded())
        except (ValueError, OSError) as error:
            raise MemoryFileError(str(error).replace(str(path), path.name)) from error
        # A file that only looks like a memory can fail anywhere.
        except Exception as error:
            raise MemoryFileError(f"{path.name} is damaged ({error!r}); save the memory again") from error
        return type(self)(self.model, drawn.mul(255).round().byte(), memory)

    @property
    def size_name(self) -> str:
        """What can be made more or fewer in the model's memory."""
        return "clusters" if "clusters" in self.model.memory.sizes else "rows"

    @property
    def size(self) -> int:
        return getattr(self.memory.empty, self.size_name)

    @property
    def raw_bytes(self) -> int:
        """Of the written pictures, a byte for every channel of a pixel."""
        return self.memory.frames * self.frames[0].numel()

    def assigned(self) -> Tensor:
        """The cluster of every frame, [T]; of a tree, in its first partition."""
        codes = self.require_codes()
        return self.memory.address(codes).assignment.argmax(-1).reshape(-1, len(codes))[0]

    def generate(self, count: int, *, reads: int = READS, means: bool = False) -> Tensor:
        """New pictures [count, channels, H, W] of all clusters, or of the chosen one."""
        return self.model.generate(self.memory, count, reads=reads, cluster=self.chosen, sample=not means)

    def nearest_written(self, pictures: Tensor) -> Tensor | None:
        """The written pictures [n, channels, H, W] nearest to others in [0, 1], where they are here."""
        return None if self.codes is None else self.frames[nearest(pictures, self.frames / 255)]

    def recall(self, steps: int, noise: float, hidden: float, blur: float) -> Recall:
        """A picture damaged and read from memory. Of one with a part hidden, but else as it was, that part alone is
        taken from what is read."""
        picture = to_unit(self.frames[0] if self.picked is None else self.picked, self.model.frame)
        broken, known = damaged(picture, noise, hidden, blur)
        trust = TRUST_WITH_OWN_PART if self.model.network.config.own_size else TRUST
        chain = self.model.read(self.memory, broken, steps, known=known, trust=trust, sample=False)[:, 0]
        alone = self.model.decode(self.model.encode(broken).mean)[0]
        if known is not None and not noise and not blur:
            chain, alone = (torch.where(known, broken, frames) for frames in (chain, alone))
        found = self.nearest_written(chain[-1:])
        return Recall(picture, broken, alone, chain, None if found is None else found[0])

    def try_sizes(self) -> list[SizeTrial]:
        """The episode in memories of several sizes, this one among them."""
        return try_sizes(self.model, self.require_codes(), self.size_name, self.size)

    def rank(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """How well the memory knows frames [N, ..]: nats, the least familiar first, and which frame each belongs to."""
        return self.model.score(self.memory, frames).sort()

    @property
    def threshold(self) -> float | None:
        """The nats from which on a frame counts as known, where there is a memory that says so."""
        return self.model.threshold(self.memory)

    def require_codes(self) -> Tensor:
        """The codes that were written; ValueError if they are not here."""
        if self.codes is None:
            raise ValueError("the pictures in this memory are not here; give pictures of yours, or draw examples")
        return self.codes


def recall_steps(model: Model) -> int:
    """In how many steps a damaged picture is read, unless the visitor says otherwise."""
    return STEPS_WITH_OWN_PART if model.network.config.own_size else STEPS


@dataclass
class Visit:
    """What the server keeps of a visitor. Only their turn may change it, so that nothing done meanwhile is lost."""

    session: Session
    codes: Codes | None = None  # of a file they gave, [T, C]
    codes_name: str = ""
