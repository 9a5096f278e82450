"""An episode too long to hold: chunks of codes that can be gone through again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from vbmem.memory.checks import check_codes
from vbmem.memory.state import Record

Chunks = Iterable[Tensor | np.ndarray] | Callable[[], Iterable[Tensor | np.ndarray]]

CHUNK = 16384  # frames taken at a time from one big array
CHUNK_ON_GPU = 2**17  # on which fewer would not keep it busy
SEED_FRAMES = 4096  # frames of a stream among which its seeds are chosen
NO_CHUNKS = "the stream holds no chunks; an episode needs at least one frame"
RE_ITERABLE = "every iteration needs them all; give a list, an array, or a function that returns a fresh iterator"


class CheckedChunks(ABC):
    """Chunks [n, C] that are known to be finite and alike, and how many frames they hold: nobody need look again."""

    frames: int

    @abstractmethod
    def __iter__(self) -> Iterator[Tensor]:
        """One fresh pass."""


class Stream:
    """Checked chunks [T_i, C], all like the first.

    Args:
        chunks: a list of tensors or arrays, one (memory-mapped) array [T, C], a `DataLoader`, or a function that
            returns a fresh iterator.
        code_size: C.
    """

    first: Tensor
    mine: Tensor | None = None
    """The first chunk of this process, if it has one."""
    before = 0
    """Frames of other processes that come before those of this one."""

    def __init__(self, chunks: Chunks, code_size: int) -> None:
        self.chunks, self.code_size = chunks, code_size
        first = next(self._pass(), None)
        if first is None:
            raise ValueError(NO_CHUNKS)
        self.mine = self.first = self._checked(first)

    def __iter__(self) -> Iterator[Tensor]:
        """One fresh pass."""
        return (chunk.to(self.first.dtype) for chunk in self._chunks())

    def widen(self) -> None:
        """From now on give float64."""
        self.first = self.first.double()

    def _chunks(self) -> Iterator[Tensor]:
        """One fresh pass, as they come."""
        if isinstance(self.chunks, CheckedChunks):
            yield from self.chunks
            return
        assert self.mine is not None  # a process without chunks makes no pass
        empty = True
        for chunk in map(self._checked, self._pass()):
            if (chunk.dtype, chunk.device) != (self.mine.dtype, self.mine.device):
                raise ValueError(
                    f"all chunks must be alike: the first is {self.mine.dtype} on {self.mine.device}, "
                    f"a later one {chunk.dtype} on {chunk.device}"
                )
            empty = False
            yield chunk
        if empty:
            raise ValueError(f"a pass through the chunks was empty, but {RE_ITERABLE}")

    def sample(self, size: int, generator: torch.Generator | None) -> Tensor:
        """A uniform sample of at most `size` frames, [n, C]: those with the largest random keys."""
        device = self.first.device
        return self._largest(
            size, lambda count: torch.rand(count, dtype=torch.float64, device=device, generator=generator)
        )[0]

    def total(self, act: Callable[[], tuple[Tensor, ...]], none: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Sums over all frames, of which `act` makes those of this process, and `none` are those of no frames."""
        return act()

    def gathered(self, rows: Tensor) -> Tensor:
        """The rows [n, m] of all processes, one after the other."""
        return rows

    def agreed(self, record: Record) -> Record:
        """What all processes are to have alike."""
        return record

    def _largest(self, size: int, draw: Callable[[int], Tensor]) -> tuple[Tensor, Tensor]:
        """The frames with the largest keys, [n, C], and these, [n], the largest first; `draw` gives so many keys."""
        frames, keys = self.first[:0], torch.empty(0, dtype=torch.float64, device=self.first.device)
        for chunk in self:
            frames, keys = torch.cat([frames, chunk]), torch.cat([keys, draw(len(chunk))])
            keep = keys.topk(min(size, len(keys))).indices
            frames, keys = frames[keep], keys[keep]
        return frames, keys

    def _pass(self) -> Iterator[Tensor | np.ndarray]:
        if isinstance(self.chunks, Tensor | np.ndarray):
            on_gpu = isinstance(self.chunks, Tensor) and self.chunks.is_cuda
            size = CHUNK_ON_GPU if on_gpu else CHUNK
            return (self.chunks[i : i + size] for i in range(0, len(self.chunks), size))
        passed = iter(self.chunks() if callable(self.chunks) else self.chunks)
        if passed is self.chunks:
            raise ValueError(f"chunks can be gone through only once, but {RE_ITERABLE}")
        return passed

    def _checked(self, chunk: Tensor | np.ndarray) -> Tensor:
        if isinstance(chunk, np.ndarray):
            chunk = torch.from_numpy(np.array(chunk))  # copied: a memory map may be read-only
        check_codes(chunk, self.code_size)
        if chunk.ndim != 2:
            raise ValueError(f"a chunk must hold frames of one episode, [n, {self.code_size}], got {list(chunk.shape)}")
        return chunk
