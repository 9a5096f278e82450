"""What all visitors share: opened models, and draws that come out the same for everybody."""

from functools import lru_cache
from pathlib import Path

import torch

from vbmem.pretrained.directory import load
from vbmem.pretrained.model import Model


@lru_cache(maxsize=8)
def open_model(source: str) -> Model:
    """A model by name or directory, which nobody changes."""
    return load(Path(source.strip()).expanduser())


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
