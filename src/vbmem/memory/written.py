"""An episode in memory, and nothing else of it: what a model's `write` returns, with all that can be done with it."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from vbmem.errors import MemoryFileError
from vbmem.memory.checks import check_shape, check_size
from vbmem.memory.prefixes import PrefixCounts
from vbmem.memory.state import Addresses, MemoryState
from vbmem.memory.storage import read_memory, write_memory
from vbmem.memory.writing import VariationalMemory

CHOICE = "assignments."  # begins the names of its tensors in a file


@dataclass(frozen=True)
class WrittenMemory:
    """q(M) and q(b) of one episode, which clusters a new code comes from, and which model wrote it."""

    empty: VariationalMemory
    """What it was written into: kind, sizes and prior."""
    state: MemoryState  # without batch dimensions
    choice: PrefixCounts
    """Smoothed usage of the clusters: p(s) of a new code."""
    frames: int
    """How many were written."""
    model: str = ""
    """Name of the model that wrote it, if one did."""
    fingerprint: str = ""
    """Of that model's encoder and prior."""

    @classmethod
    def write(
        cls,
        memory: VariationalMemory,
        codes: Tensor,
        iterations: int | None = None,
        generator: torch.Generator | None = None,
        *,
        model: str = "",
        fingerprint: str = "",
    ) -> Self:
        """Write the codes [T, C] of one episode into an empty memory; the arguments are those of its `write`."""
        if codes.ndim != 2:
            raise ValueError(f"codes must be those of one episode, [T, C], got {list(codes.shape)}")
        state, addresses = memory.write(codes, iterations, generator=generator)
        theta = memory.with_partitions(addresses.assignment, -3)  # [G, T, H]
        choice = PrefixCounts.of(theta, memory.choice.log_prior(theta.shape[-1], theta).exp())
        return cls(memory, state.detach(), choice, len(codes), model, fingerprint)

    @property
    def usage(self) -> Tensor:
        """How many frames each cluster holds, [H]; of the tree, [G, H]."""
        return self.choice.usage.reshape(self.state.loc_var.shape)

    @property
    def mean_code(self) -> Tensor:
        """The mean location of the clusters, each as often as it is used: [1, C]."""
        usage = self.usage / self.frames
        return self.empty.join(usage.unsqueeze(-2) @ self.state.loc_mean)

    @property
    def nbytes(self) -> int:
        tensors = [getattr(self.state, f.name) for f in fields(self.state)] + list(self.choice.tensors().values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def sample(
        self,
        count: int,
        generator: torch.Generator | None = None,
        *,
        cluster: int | None = None,
        sample: bool = True,
    ) -> Tensor:
        """New codes (paper, G.1), clusters drawn as often as the episode used them: [count, C].

        Args:
            cluster: draw from this one only; of a tree, from this one of its first partition.
            sample: draw memory and codes; otherwise their means.
        """
        check_size("count", count)
        first = None
        if cluster is not None:
            if not 0 <= cluster < self.empty.layout[0]:
                raise ValueError(f"cluster must lie in 0 .. {self.empty.layout[0] - 1}, got {cluster}")
            first = torch.full((count,), cluster, device=self.state.loc_var.device)
        clusters = self.choice.sample(count, generator, first=first)
        clusters = clusters.reshape(*self.state.loc_var.shape[:-1], count)
        return self.empty.sample(self.state, count, generator, clusters=clusters, sample=sample)

    def read(self, codes: Tensor, generator: torch.Generator | None = None, *, sample: bool = True) -> Tensor:
        """Codes [.., T, C] read back once (paper, G.2); without `sample`, the means of their likeliest clusters."""
        return self.empty.read(self.state, codes, generator, sample=sample)

    def address(self, codes: Tensor) -> Addresses:
        """Where codes [.., T, C] lie in this memory, q(s) and q(w | s)."""
        return self.empty.address(self.state, codes)

    def score(self, codes: Tensor, code_var: Tensor | None = None) -> Tensor:
        """A lower bound on log p(z | memory) of every code [.., T, C], in nats, [.., T]; see `Memory.local_bound`."""
        return self.empty.local_bound(self.state, codes, code_var, self.choice)

    def log_predictive(self, codes: Tensor) -> Tensor:
        """Log density of every code [.., T, C], in nats, [.., T]; see `Memory.log_predictive`."""
        return self.empty.log_predictive(self.state, codes, self.choice)

    def save(self, path: str | Path) -> None:
        """One safetensors file; an existing one is replaced only once the new one is complete."""
        written = {"model": self.model, "fingerprint": self.fingerprint, "frames": self.frames}
        tensors = {CHOICE + name: tensor for name, tensor in self.choice.tensors().items()}
        write_memory(Path(path), self.empty, self.state, tensors, {"written": json.dumps(written)})

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Self:
        """Read what `save` wrote.

        Raises:
            MemoryFileError: the file is damaged, or holds something else.
        """
        memory, state, tensors, metadata = read_memory(Path(path), device)
        if "written" not in metadata or not isinstance(memory, VariationalMemory):
            raise MemoryFileError(f"{path} holds a bare memory of codes, not a written one; use vbmem.load_memory")
        parts = {name.removeprefix(CHOICE): tensor for name, tensor in tensors.items() if name.startswith(CHOICE)}
        try:
            written = cls(memory, state, PrefixCounts.from_tensors(parts), **json.loads(metadata["written"]))
            check_size("frames", written.frames)
            check_shape("the state's use", written.usage, *state.loc_var.shape)
        except (TypeError, ValueError, RuntimeError) as error:
            raise MemoryFileError(f"{path} lacks or misnames what was written ({error}); write it again") from error
        return written
