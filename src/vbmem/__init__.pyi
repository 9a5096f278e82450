from .errors import VbmemError
from .memory import (
    CategoricalMemory,
    GaussianMemory,
    KanervaMemory,
    MemoryState,
    MixtureMemory,
    ShiftedGaussianMemory,
    TreeMemory,
    WrittenMemory,
)
from .memory.storage import load_memory, save_memory
from .pretrained import Baseline, Model, load, load_baseline

__version__: str

__all__ = [
    "Baseline",
    "CategoricalMemory",
    "GaussianMemory",
    "KanervaMemory",
    "MemoryState",
    "MixtureMemory",
    "Model",
    "ShiftedGaussianMemory",
    "TreeMemory",
    "VbmemError",
    "WrittenMemory",
    "load",
    "load_baseline",
    "load_memory",
    "save_memory",
]
