"""Memories over codes: plain tensors in, closed-form variational Bayes, nothing of networks or images."""

from vbmem.memory.choice import Choice, UniformChoice, WeightedChoice
from vbmem.memory.kanerva import KanervaMemory
from vbmem.memory.memories import (
    CategoricalMemory,
    GaussianMemory,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
)
from vbmem.memory.reading import Memory
from vbmem.memory.state import Addresses, Bound, MemoryState
from vbmem.memory.written import WrittenMemory

__all__ = [
    "Addresses",
    "Bound",
    "CategoricalMemory",
    "Choice",
    "GaussianMemory",
    "KanervaMemory",
    "Memory",
    "MemoryState",
    "MixtureMemory",
    "ShiftedGaussianMemory",
    "TreeMemory",
    "UniformChoice",
    "WeightedChoice",
    "WrittenMemory",
]
