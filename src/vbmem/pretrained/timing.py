"""How long writing an episode takes."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from vbmem.memory.starting import Start
from vbmem.memory.written import WrittenMemory
from vbmem.pretrained.model import Model


@dataclass(frozen=True)
class WriteTimes:
    """Milliseconds that a write took."""

    encode: float
    write: float

    def __str__(self) -> str:
        return f"{self.encode:.0f} ms to encode, {self.write:.0f} ms to write"


def timed_write(
    model: Model, frames: Tensor, generator: torch.Generator | None = None, start: Start | None = None
) -> tuple[WrittenMemory, Tensor, WriteTimes]:
    """Write an episode: the memory, what of the codes went into it, [T, C - own_size], and how long that took."""
    model.write(frames[:1])  # the first call of all loads libraries; the times are those of the second
    started = time.perf_counter()
    codes = model.encode(frames).mean
    encoded = time.perf_counter()
    memory = model.write_codes(codes, start=start, generator=generator)
    written = time.perf_counter()
    return memory, model.network.content(codes), WriteTimes(1e3 * (encoded - started), 1e3 * (written - encoded))
