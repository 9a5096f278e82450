"""What one visitor has: a model, pictures, and the memory they were written into. Knows nothing of the page."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from vbmem.data.damage import damaged
from vbmem.errors import MemoryFileError
from vbmem.memory.written import WrittenMemory
from vbmem.pretrained.directory import load
from vbmem.pretrained.inputs import to_unit
from vbmem.pretrained.model import Model
from vbmem.pretrained.timing import WriteTimes, timed_write

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96)
MAX_SIZE = SIZES[-1]


@lru_cache(maxsize=8)
def open_model(source: str) -> Model:
    """A model by name or directory. Visitors share it, and nobody changes it."""
    return load(Path(source.strip()).expanduser())


@dataclass(frozen=True, eq=False)
class Session:
    """Every change is a new session. `codes` and `times` are there when the memory holds the frames."""

    model: Model
    frames: Tensor  # the episode, uint8 [T, channels, H, W]
    memory: WrittenMemory | None = None
    codes: Tensor | None = None  # what of them was written, [T, C - own_size]
    times: WriteTimes | None = None
    picked: Tensor | None = None  # the picture to recall, uint8 [channels, H, W]
    chosen: int | None = None  # the cluster to generate from

    def written(self) -> Self:
        """The episode in a fresh memory."""
        memory, codes, times = timed_write(self.model, self.frames, seeded())
        return replace(self, memory=memory, codes=codes, times=times, chosen=None)

    def resized(self, size: int) -> Self:
        """The episode in a fresh memory of another size: so many clusters, or rows where there are no clusters."""
        return replace(self, model=self.model.resize(**{self.size_name: size})).written()

    def loaded(self, path: Path) -> Self:
        """The memory of a file in place of the one that is there."""
        try:
            memory = WrittenMemory.load(path)
            self.model.generate(memory, 1)  # refuses a memory of another model, and fails for one that is damaged
        except (ValueError, OSError) as error:
            raise MemoryFileError(str(error).replace(str(path), path.name)) from error
        # A file that only looks like a memory can fail anywhere.
        except Exception as error:
            raise MemoryFileError(f"{path.name} is damaged ({error!r}); save the memory again") from error
        return replace(self, memory=memory, codes=None, times=None, chosen=None)

    @property
    def size_name(self) -> str:
        """What can be made more or fewer in the model's memory."""
        return "clusters" if "clusters" in self.model.memory.sizes else "rows"

    @property
    def size(self) -> int:
        memory = self.model.memory if self.memory is None else self.memory.empty
        return getattr(memory, self.size_name)

    def assigned(self) -> Tensor:
        """The cluster of every frame, [T]; of a tree, in its first partition."""
        memory, codes = self.require_codes()
        return memory.address(codes).assignment.argmax(-1).reshape(-1, len(codes))[0]

    def generate(self, count: int, cluster: int | None = None, means: bool = False) -> Tensor:
        """New pictures [count, channels, H, W] of all clusters, or of one."""
        return self.model.generate(self.require_memory(), count, cluster=cluster, sample=not means)

    def recall(self, steps: int, noise: float, hidden: float, blur: float) -> tuple[dict[str, Tensor], Tensor]:
        """A picture before it is read, [channels, H, W] by caption, and every step of reading it from memory."""
        picture = self.frames[0] if self.picked is None else self.picked
        broken, known = damaged(to_unit(picture, self.model.frame), noise, hidden, blur)
        chain = self.model.read(self.require_memory(), broken, steps, known=known, sample=False)
        alone = self.model.decode(self.model.encode(broken).mean)
        return {"as it was": picture, "damaged": broken, "no memory": alone[0]}, chain[:, 0]

    def curve(self) -> dict[int, float]:
        """The bound per frame, in nats, of the episode in memories of several sizes."""
        memory, codes = self.require_codes()
        bounds = {}
        for size in sorted({*(size for size in SIZES if size <= len(codes)), self.size}):
            other = memory.empty.resize(**{self.size_name: size})
            state, addresses = other.write(codes, self.model.network.iterations, generator=seeded())
            bounds[size] = float(other.bound(codes, state, addresses).total) / len(codes)
        return bounds

    def rank(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        """How well the memory knows frames [N, ..]: nats, the least familiar first, and which frame each belongs to."""
        return self.model.score(self.require_memory(), frames).sort()

    @property
    def threshold(self) -> float | None:
        """The nats from which on a frame counts as known, where there is a memory that says so."""
        return self.model.threshold(self.require_memory())

    def require_memory(self) -> WrittenMemory:
        """The memory that was written; ValueError if there is none yet."""
        if self.memory is None:
            raise ValueError("nothing is written yet; press Write")
        return self.memory

    def require_codes(self) -> tuple[WrittenMemory, Tensor]:
        """The memory, and the codes that were written into it; ValueError if they are not here."""
        if self.codes is None:
            raise ValueError("the pictures in this memory are not here; press Write to write those on the left")
        return self.require_memory(), self.codes


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
