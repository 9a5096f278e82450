"""One episode whose frames lie in several processes of `torch.distributed`.

A write needs sums over frames and nothing else of them, so all that the processes tell each other is a sum too, in
float64 and as one message: the statistics of an iteration, and, since zeros add nothing, whatever one of them knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from vbmem.errors import GroupError
from vbmem.memory.state import Record
from vbmem.memory.streams import CHUNK, NO_CHUNKS, RE_ITERABLE, CheckedChunks, Chunks, Stream

KINDS = [(dtype, device) for device in ("cpu", "cuda") for dtype in (torch.float32, torch.float64)]  # of codes


def open_stream(chunks: Chunks, code_size: int, group: dist.ProcessGroup | None = None) -> Stream:
    """The chunks of this process, or of all of a group."""
    return Stream(chunks, code_size) if group is None else ShardedStream(chunks, code_size, group)


def shard(codes: Sequence[Tensor | np.ndarray], group: dist.ProcessGroup) -> list[Tensor | np.ndarray]:
    """This process's share of codes that all of a group can read, as chunks for `write_stream`.

    Shares are even and follow each other in the order of the ranks, so that the frames keep their numbers, and with
    them every random choice, for any number of processes. Nothing is read of (memory-mapped) arrays.

    Args:
        codes: arrays or tensors [T_i, C], one after the other.
        group: the processes.

    Returns:
        Slices of the arrays; none, where there are fewer frames than processes.
    """
    begin, end = share(sum(map(len, codes)), group)
    chunks, first = [], 0
    for array in codes:
        last = min(end - first, len(array))
        chunks += [array[i : min(i + CHUNK, last)] for i in range(max(begin - first, 0), last, CHUNK)]
        first += len(array)
    return chunks


def share(frames: int, group: dist.ProcessGroup) -> tuple[int, int]:
    """The first of this process's frames, by their numbers in the whole, and the one after its last."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return frames * rank // size, frames * (rank + 1) // size


class ShardedStream(Stream):
    """Chunks [T_i, C] of which every process of a group has some, or none: one episode, in the order of the ranks.

    All processes call the same methods in the same order.

    Args:
        chunks: those of this process, as in `Stream`.
        code_size: C.
        group: the processes.

    Raises:
        GroupError: another process failed or was lost; here, and from all other methods.
    """

    def __init__(self, chunks: Chunks, code_size: int, group: dist.ProcessGroup) -> None:
        self.chunks, self.code_size, self.group = chunks, code_size, group
        self.rank, size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not one of the group; let only those write that are")
        self._device = _device("cuda" if dist.get_backend(group) == "nccl" else "cpu")
        counts, kinds = torch.zeros(size, dtype=torch.int64), torch.zeros(len(KINDS), dtype=torch.int64)
        none = counts, kinds, torch.zeros(size, code_size, dtype=torch.float64)
        counts, kinds, means = self.total(self._look, none)
        self.counts = counts.tolist()  # frames of every process
        self.before = sum(self.counts[: self.rank])
        if not any(self.counts):
            raise ValueError(NO_CHUNKS)
        found = [kind for kind, count in zip(KINDS, kinds, strict=True) if count]
        if len(found) > 1:
            names = " and ".join(f"{dtype} on {device}" for dtype, device in found)
            raise ValueError(f"all chunks must be alike, but processes of the group have {names}")
        [(dtype, device)] = found
        self.first = means[counts.nonzero()[0]].to(_device(device), dtype)

    def __iter__(self) -> Iterator[Tensor]:
        """One fresh pass over the chunks of this process."""
        seen, own = 0, self.counts[self.rank]
        for chunk in super().__iter__() if own else ():
            seen += len(chunk)
            if seen > own:
                break
            yield chunk
        if seen != own:
            raise ValueError(
                f"a pass through the chunks gave not the {own} frames of the first pass, but {RE_ITERABLE}"
            )

    def total(self, act: Callable[[], tuple[Tensor, ...]], none: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The sums over all processes of what `act` gives here; where it fails, `none` takes its place for long enough
        that no other process waits."""
        try:
            mine = act()
        except Exception:
            with suppress(GroupError):
                self._sum(none, failed=True)
            raise
        return self._sum(mine)

    def gathered(self, rows: Tensor) -> Tensor:
        counts = torch.zeros(len(self.counts), dtype=torch.int64)
        counts[self.rank] = len(rows)
        (counts,) = self._sum((counts,))
        begin = int(counts[: self.rank].sum())
        table = rows.new_zeros(int(counts.sum()), rows.shape[-1])
        table[begin : begin + len(rows)] = rows
        return self._sum((table,))[0]

    def agreed(self, record: Record) -> Record:
        """What the first process has."""
        shared = self._of_first(*record.tensors().values())
        changes: dict[str, Any] = dict(zip(record.tensors(), shared, strict=True))
        return replace(record, **changes)

    def sample(self, size: int, generator: torch.Generator | None) -> Tensor:
        """A uniform sample of at most `size` frames of all processes, [n, C]. The generator of the first one counts."""
        device, ranks, total = self.first.device, len(self.counts), sum(self.counts)
        kept = [min(size, count) for count in self.counts]
        draws = _Draws(total, device, self._same(generator))
        draws.skip(self.before)
        frames = self.first[:0]

        def largest() -> tuple[Tensor]:
            nonlocal frames
            frames, keys = self._largest(size, draws.take)
            table = none.clone()
            table[self.rank, : len(keys)] = keys
            return (table,)

        none = torch.zeros(ranks, size, dtype=torch.float64, device=device)
        (table,) = self.total(largest, (none,))
        draws.skip(sum(self.counts[self.rank + 1 :]))  # so that all go on from the same place
        absent = torch.arange(size, device=device) >= torch.tensor(kept, device=device).unsqueeze(-1)
        chosen = table.masked_fill(absent, -1).flatten().topk(min(size, total)).indices
        place = (chosen - self.rank * size).clamp(0, max(len(frames) - 1, 0))
        mine = (chosen // size == self.rank).unsqueeze(-1)
        own = frames[place] if len(frames) else frames.new_zeros(len(chosen), self.code_size)
        return self._sum((own.where(mine, 0),))[0]

    def _look(self) -> tuple[Tensor, Tensor, Tensor]:
        """Frames [ranks], kinds of codes and mean of the first chunk [ranks, C], in the place of this process."""
        ranks = dist.get_world_size(self.group)
        counts, kinds = torch.zeros(ranks, dtype=torch.int64), torch.zeros(len(KINDS), dtype=torch.int64)
        means = torch.zeros(ranks, self.code_size, dtype=torch.float64)
        first = next(self._pass(), None)
        if first is not None:
            self.mine = checked = self._checked(first)
            if isinstance(self.chunks, CheckedChunks):
                counts[self.rank] = self.chunks.frames
            else:
                counts[self.rank] = sum(len(chunk) for chunk in self._pass())
            kinds[KINDS.index((checked.dtype, checked.device.type))] = 1
            means[self.rank] = checked.mean(0)
        return counts, kinds, means

    def _same(self, generator: torch.Generator | None) -> torch.Generator:
        """The generator, or the default one, in the state that it has in the first process."""
        if generator is None:
            cuda = self.first.is_cuda
            generator = torch.cuda.default_generators[self.first.device.index] if cuda else torch.default_generator
        (state,) = self._of_first(generator.get_state())
        return generator.set_state(state)

    def _of_first(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._sum(tensors if self.rank == 0 else tuple(map(torch.zeros_like, tensors)))

    def _sum(self, tensors: tuple[Tensor, ...], failed: bool = False) -> tuple[Tensor, ...]:
        """Of all processes, in one message."""
        flat = [tensor.to(self._device, torch.float64).flatten() for tensor in tensors]
        message = torch.cat([*flat, torch.full((1,), float(failed), dtype=torch.float64, device=self._device)])
        try:
            dist.all_reduce(message, group=self.group)
            failures = int(message[-1])
        except RuntimeError as error:
            raise GroupError(
                "another process of the group was lost or did not answer in time, so the write cannot go on; start all "
                "of them again, from the last state that was saved"
            ) from error
        if failures and not failed:
            raise GroupError(
                "another process of the group failed, so the write cannot go on; mend what its own message says and "
                "start all of them again"
            )
        sums = message[:-1].split([tensor.numel() for tensor in tensors])
        return tuple(part.view(tensor.shape).to(tensor) for part, tensor in zip(sums, tensors, strict=True))


class _Draws:
    """Numbers in [0, 1), one for every frame of all processes: CHUNK at a time, however the frames are split."""

    def __init__(self, total: int, device: torch.device, generator: torch.Generator) -> None:
        self.left, self.generator = total, generator
        self.ready = torch.empty(0, dtype=torch.float64, device=device)

    def take(self, count: int) -> Tensor:
        """The next ones."""
        while len(self.ready) < count:
            fresh = torch.empty(min(CHUNK, self.left), dtype=torch.float64, device=self.ready.device)
            self.ready = torch.cat([self.ready, fresh.uniform_(generator=self.generator)])
            self.left -= len(fresh)
        taken, self.ready = self.ready.split([count, len(self.ready) - count])
        return taken

    def skip(self, count: int) -> None:
        """Leave out the next ones, which belong to other processes."""
        for begin in range(0, count, CHUNK):
            self.take(min(CHUNK, count - begin))


def _device(kind: str) -> torch.device:
    """Of this process."""
    return torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
