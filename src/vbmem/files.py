"""Files that are either whole or not there, and tensors read from them."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or nothing: to a neighbour first, then renamed over the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_tensors(path: Path, device: torch.device | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; SafetensorError if it is damaged or something else."""
    with safe_open(path, framework="pt", device=str(device)) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118, no dict
