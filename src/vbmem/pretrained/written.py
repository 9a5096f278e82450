"""An episode written into memory, and nothing else of it: what `Model.write` returns."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from vbmem.errors import MemoryFileError
from vbmem.memory.checks import check_shape, check_size
from vbmem.memory.prefixes import PrefixCounts
from vbmem.memory.state import MemoryState
from vbmem.memory.storage import read_memory, write_memory
from vbmem.memory.writing import VariationalMemory


@dataclass(frozen=True)
class WrittenMemory:
    """q(M) and q(b) of one episode, the distribution of its assignments, and which model wrote it."""

    memory: VariationalMemory
    state: MemoryState  # without batch dimensions
    assignments: PrefixCounts
    frames: int
    model: str
    fingerprint: str

    @property
    def usage(self) -> Tensor:
        """How many frames each cluster holds, [H]; of the tree, [G, H]."""
        return torch.stack([counts.sum(0) for counts in self.assignments.counts]).reshape(self.state.loc_var.shape)

    @property
    def mean_code(self) -> Tensor:
        """The mean location of the clusters, each as often as it is used: [1, C]."""
        usage = self.usage / self.frames
        return self.memory.join(usage.unsqueeze(-2) @ self.state.loc_mean)

    @property
    def nbytes(self) -> int:
        tensors = [getattr(self.state, f.name) for f in fields(self.state)] + list(self.assignments.tensors().values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def save(self, path: str | Path) -> None:
        """One safetensors file; an existing one is replaced only once the new one is complete."""
        written = {"model": self.model, "fingerprint": self.fingerprint, "frames": self.frames}
        tensors = {f"assignments.{name}": tensor for name, tensor in self.assignments.tensors().items()}
        write_memory(Path(path), self.memory, self.state, tensors, {"written": json.dumps(written)})

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Self:
        memory, state, tensors, metadata = read_memory(Path(path), device)
        if "written" not in metadata or not isinstance(memory, VariationalMemory):
            raise MemoryFileError(f"{path} holds a bare memory of codes, not one a model wrote; use vbmem.load_memory")
        start = "assignments."
        parts = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        try:
            written = cls(memory, state, PrefixCounts.from_tensors(parts), **json.loads(metadata["written"]))
            check_size("frames", written.frames)
            check_shape("the state's use", written.usage, *state.loc_var.shape)
        except (TypeError, ValueError, RuntimeError) as error:
            raise MemoryFileError(f"{path} lacks or misnames what a model wrote ({error}); write it again") from error
        return written
