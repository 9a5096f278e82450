"""What a metric is given, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Generator, Tensor

from vbmem.memory.written import WrittenMemory
from vbmem.pretrained.model import Model

STEPS = (1, 2, 12)  # of reading; samples are read the last number of times

Pictures: TypeAlias = dict[str, Tensor]  # sets of pictures by how they were made
Rows: TypeAlias = dict[str, dict[str, float]]  # row -> column -> number
Judge: TypeAlias = Callable[[Pictures, Tensor], Rows]  # of pictures, for an episode
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """An episode in the memory of the model that is measured."""

    model: Model
    frames: Tensor  # the episode, [T, channels, H, W] in [0, 1]
    memory: WrittenMemory
    other: WrittenMemory  # of another episode
    judge: Judge
    generator: Generator  # shared by all trials
