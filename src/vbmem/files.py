"""Files that are either whole or not there, and how they are read."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from vbmem.errors import DataError, VbmemError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, whole or not at all: a neighbour, renamed over the old one once it is complete."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; name a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file or nothing."""
    with whole_file(path) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Write a whole JSON file or nothing."""
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a whole safetensors file or nothing."""
    # Cloned: two tensors of a file may not share their memory.
    stored = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    write_atomically(path, save(stored, metadata))


def read_tensors(path: Path, device: torch.device | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file."""
    with safe_open(path, framework="pt", device=str(device)) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118, no dict


@contextmanager
def reading(
    path: Path,
    failure: type[VbmemError] = DataError,
    expected: str = "the expected file",
    advice: str = "delete it to have it fetched again, or put an intact copy in its place",
) -> Iterator[None]:
    """Turn any failure to decode the file at `path` inside the block into one sentence that names it."""
    try:
        yield
    except (VbmemError, FileNotFoundError):
        raise
    # Damaged or foreign bytes make the decoders of tar, zip, gzip, pickle, npy and JSON raise almost anything.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise failure(f"{path} is damaged or not {expected} ({reason}); {advice}") from error
