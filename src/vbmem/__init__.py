"""vbmem: fast-adapting generative memory, after "Meta-Learning with Variational Bayes" (Lingle 2020)."""

from vbmem.memory import (
    CategoricalMemory,
    GaussianMemory,
    KanervaMemory,
    MemoryState,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
)
from vbmem.memory.storage import load_memory, save_memory
from vbmem.pretrained import Model, WrittenMemory, load

__version__ = "0.1.0"

__all__ = [
    "CategoricalMemory",
    "GaussianMemory",
    "KanervaMemory",
    "MemoryState",
    "MixtureMemory",
    "Model",
    "ShiftedGaussianMemory",
    "TreeMemory",
    "WrittenMemory",
    "load",
    "load_memory",
    "save_memory",
]
