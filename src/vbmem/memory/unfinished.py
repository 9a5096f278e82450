"""A write that was cut short goes on: what it has reached is kept in a file until it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from vbmem.errors import MemoryFileError
from vbmem.files import parse_json
from vbmem.memory.state import MemoryState
from vbmem.memory.storage import read_memory, write_memory
from vbmem.memory.writing import VariationalMemory

BEGUN = "begun"  # names in the file's metadata what was begun, and how much of it is done


class Reached(NamedTuple):
    """How far a write has come."""

    memory: VariationalMemory
    """What is written into, with its prior."""
    state: MemoryState
    done: int
    """Iterations."""


class UnfinishedWrite:
    """The file that keeps how far a write has come: a memory file, whole after every iteration, with a checksum.

    Args:
        path: of the file.
        about: what makes it this very write, values of JSON by their names: its settings, and which codes.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about

    def load(self) -> Reached | None:
        """What was kept, or None where nothing was.

        Raises:
            MemoryFileError: the file is damaged, or holds another write.
        """
        if not self.path.exists():
            return None
        try:
            memory, state, _, metadata = read_memory(self.path, "cpu")
            begun = parse_json(metadata[BEGUN])
            about, done = dict(begun["about"]), int(begun["done"])
            if not isinstance(memory, VariationalMemory):
                raise ValueError(f"it holds a {memory}")
        except (LookupError, MemoryFileError, TypeError, ValueError) as error:
            raise MemoryFileError(
                f"{self.path} should keep an unfinished write, but cannot be read; delete it to begin anew"
            ) from error
        others = [name for name in self.about | about if self.about.get(name) != about.get(name)]
        if others:
            raise MemoryFileError(
                f"{self.path} keeps an unfinished write that differs in {', '.join(others)}; finish that one, or "
                "delete the file to begin anew"
            )
        return Reached(memory, state, done)

    def save(self, reached: Reached) -> None:
        begun = {"about": self.about, "done": reached.done}
        write_memory(self.path, reached.memory, reached.state, {}, {BEGUN: json.dumps(begun)})

    def remove(self) -> None:
        """Once the write has ended and what it left is safe."""
        self.path.unlink(missing_ok=True)
