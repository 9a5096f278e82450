"""Processes that train one model together, each on its share of the episodes of every batch.

All have the same weights and make the same steps: what a step depends on is the mean over the processes of what each of
them found. Only the first one writes and prints.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vbmem.data.episodes import mixed
from vbmem.errors import DataError, GroupError


class Processes:
    """Those of a group; this one alone where there is no other.

    All call the same methods in the same order, and each of these may raise GroupError, where another process is lost.

    Args:
        group: of `torch.distributed`. Messages of the host are tensors on the CPU, those of a step are where it runs.

    Raises:
        ValueError: this process does not belong to the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.count = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        if self.rank < 0:
            raise ValueError("this process is not one of the group; let only those train that are")

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    def check_batch(self, episodes: int) -> None:
        """Raise DataError unless a batch of that many episodes has an equal share for every process."""
        if episodes % self.count:
            raise DataError(
                f"a batch of {episodes} episodes has no equal shares for {self.count} processes; choose a batch_size "
                f"that is a multiple of {self.count}, or start another number of processes"
            )

    def share(self, batches: Tensor) -> Tensor:
        """The episodes of this process: [.., B, T] -> [.., B / count, T]."""
        return batches.tensor_split(self.count, dim=-2)[self.rank]

    def seed(self, *key: int) -> None:
        """Let this process draw what follows from the key and its own number alone, so that a resumed run draws the
        same; a process on its own draws on as it is."""
        if self.count > 1:
            torch.manual_seed(mixed(*key, self.rank))

    def average(self, tensors: list[Tensor]) -> int:
        """Put into the tensors, of one type, their means over the processes; the length of the one message it takes."""
        message = torch.cat([tensor.flatten() for tensor in tensors])
        self._add(message)
        message /= self.count
        for tensor, mean in zip(tensors, message.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(mean.view_as(tensor))
        return len(message)

    def spoil(self, length: int, like: Tensor) -> None:
        """Take part in an `average` of that length with nothing that counts, so that no process gets a finite mean."""
        self._add(like.new_full((length,), torch.nan))

    def gather(self, tensor: Tensor) -> Tensor:
        """What every process has: [..] -> [count, ..], differentiable in all of them."""
        mine = [tensor if rank == self.rank else torch.zeros_like(tensor) for rank in range(self.count)]
        gathered: Tensor = _Sum.apply(torch.stack(mine), self)  # type: ignore[no-untyped-call]
        return gathered

    def any(self, flag: bool) -> bool:
        """Whether one of them says so. The host waits for all others, so that none is more than a step ahead."""
        return flag if self.count == 1 else bool(self._add(torch.tensor([float(flag)])))

    def meet(self) -> None:
        """Wait for all others."""
        self.any(False)

    def of_first(self, value: float) -> float:
        """What the first process has."""
        if self.count == 1:
            return value
        return float(self._add(torch.tensor([value if self.is_first else 0.0], dtype=torch.float64)))

    def _add(self, message: Tensor) -> Tensor:
        """Put the sum over all processes into a message."""
        try:
            dist.all_reduce(message, group=self.group)
        except RuntimeError as error:
            raise GroupError(
                "another process of the group failed or was lost, so training cannot go on; mend what that one says, "
                "and start all of them again to resume from the last checkpoint"
            ) from error
        return message


class _Sum(torch.autograd.Function):
    """Of a tensor over all processes; its gradient is that of the sum of what they minimise."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return processes._add(tensor.clone())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.processes._add(gradient.clone()), None
