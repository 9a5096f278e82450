"""Files that are either whole or not there, and tensors read from them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor

from vbmem.errors import DataError


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


def read_tensors(path: Path, device: torch.device | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file; SafetensorError if it is damaged or something else."""
    with safe_open(path, framework="pt", device=str(device)) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118, no dict


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any failure to decode the file at `path` inside the block into a DataError that names it."""
    try:
        yield
    except DataError:
        raise
    # Damaged or foreign bytes make the decoders of tar, zip, gzip, pickle and npy raise almost anything.
    except Exception as error:
        raise DataError(
            f"{path} is damaged or not the expected file ({str(error) or type(error).__name__}); "
            "delete it to have it fetched again, or put an intact copy in its place"
        ) from error
