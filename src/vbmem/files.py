"""Files that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


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
