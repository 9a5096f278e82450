"""The two steps of a write, for those who repeat them in their own way, and their repetition over a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from vbmem.memory import engine, expansion
from vbmem.memory.blocks import LocalPass
from vbmem.memory.checks import check_codes, check_size, check_state
from vbmem.memory.precision import LOOKED_AT, full_precision, full_precision_as_given, strain_float32
from vbmem.memory.shards import open_stream
from vbmem.memory.starting import Start, StartingMemory
from vbmem.memory.state import MemoryState, Statistics
from vbmem.memory.streams import SEED_FRAMES, Chunks, Stream
from vbmem.memory.threads import block_threads
from vbmem.memory.truncated import Candidates, first_start
from vbmem.progress import track

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class SteppingMemory(StartingMemory):
    """A memory whose local and global step can be taken one at a time."""

    default_iterations: ClassVar[int]

    @block_threads
    @full_precision_as_given
    def local_step(self, state: MemoryState, codes: Tensor, mask: Tensor | None = None) -> tuple[Statistics, Tensor]:
        """One pass over codes [.., T, C] with the best addresses for the state: all that is to be known of them.

        Returns:
            The sums over frames that `global_step` needs, and the bound but for `divergence`, [..]; both add up over
            parts of the data.
        """
        check_codes(codes, self.code_size, mask)
        parts, prior = self.split(codes), self.prior(codes)
        check_state(state, parts, *self.layout, self.located)
        if mask is not None:
            mask = self.lift(mask, -2)
            parts = parts.where((mask > 0).unsqueeze(-1), 0)
        local = LocalPass(state, prior, bounded=True)
        local.add(parts, mask)
        sums = local.statistics()
        bound = local.bound(sums, state)
        paid_once = bound.kl_rows + bound.kl_locations + prior.choice.divergence(self.layout[0], sums.count)
        return sums, self.reduce(bound.total + paid_once, -1)

    @full_precision
    def global_step(self, state: MemoryState, sums: Statistics) -> MemoryState:
        """The best memory for the sums of a local step; of the state, the rows with which they were made."""
        return engine.global_step(sums, state, self.prior(state.row_mean))

    @full_precision
    def divergence(self, state: MemoryState) -> Tensor:
        """What a memory costs however many frames use it: KL of the state, and of what p(s) learned, [..]."""
        prior = self.prior(state.row_mean)
        kl_rows, kl_locations = engine.kl_memory(state, prior)
        paid = prior.choice.divergence(self.layout[0], state.row_mean)
        return self.reduce(kl_rows + kl_locations + paid, -1)

    @torch.no_grad()
    @block_threads
    @full_precision
    def write_stream(
        self,
        chunks: Chunks,
        iterations: int | None = None,
        start: Start | MemoryState | None = None,
        generator: torch.Generator | None = None,
        *,
        progress: bool = False,
        group: ProcessGroup | None = None,
        follow: Callable[[int, MemoryState], None] | None = None,
        candidates: int | None = None,
    ) -> MemoryState:
        """Write one episode that is too long to hold, chunk by chunk, once through for every iteration.

        From the same start it equals `write` of all chunks together, to rounding, because a global step needs only
        sums over frames.

        Args:
            chunks: anything that can be gone through again and again: a list of [T_i, C] tensors or arrays, one
                (memory-mapped) array [T, C], a `DataLoader`, or a function that returns a fresh iterator.
            iterations: local-and-global steps; default as in the paper.
            start: as in `write`; from a random sample of the frames.
            generator: randomness of the start.
            progress: show a progress bar.
            group: processes that write together, each with chunks of its own, or none: those of one episode, in the
                order of the ranks. All get the same state, that which one process would write, to rounding; the start
                and the generator of the first process count. Every iteration adds up sums once.
            follow: told after every iteration how many are done, and of the state: `write_stream(chunks, iterations -
                done, state)` goes on from there, to the same end; with candidates, to much the same.
            candidates: as in `write`; they take four bytes each, for every frame. Chunks must then come in the same
                order every time.

        Returns:
            The state.

        Raises:
            GroupError: another process of the group failed or was lost.
        """
        steps = check_size("iterations", self.default_iterations if iterations is None else iterations)
        stream = open_stream(chunks, self.code_size, group)
        dtype = stream.first.dtype
        if self._strained_by(stream, start):
            stream.widen()
            start = start.to(torch.float64) if isinstance(start, MemoryState) else start
        _, _, prior, centre = self._enter(stream.first, start=start)
        few = self.truncation(candidates, stream.before)
        if isinstance(start, MemoryState):
            state = start
        else:
            size = SEED_FRAMES if few is None else max(SEED_FRAMES, self.layout[0])
            parts = self.split(stream.sample(size, generator)) - centre
            state = self.start_state(parts, prior, centre, first_start(start, self.layout[0], few), None, generator)
            state = state.translate(centre)
        state = stream.agreed(state)
        for step in track(range(steps), "writing", progress):
            # Moved there and back every time, so that a write that goes on from here ends the same to the last bit.
            state = state.to(centre.dtype).translate(-centre)
            local = LocalPass(state, prior) if few is None else few.local_pass(state, prior)
            sums = self._sums_of(stream, local, centre)
            state = engine.global_step(sums, state, prior)
            if prior.joint and step < steps - 1:  # as in `write`, whose last addresses are those of its last rows
                state = expansion.expand(sums, state, prior)
            state = state.translate(centre).to(dtype)
            if follow is not None:
                follow(step + 1, state)
        return state

    def _strained_by(self, stream: Stream, start: object) -> bool:
        """Whether the first chunk of any process strains float32, so that all compute in float64; on the CPU, as in
        `full_precision`."""

        def here() -> tuple[Tensor, ...]:
            looks = stream.mine is not None and stream.mine.device.type in LOOKED_AT
            return (none.new_tensor(float(looks and strain_float32(self, stream.mine, start))),)

        none = stream.first.new_zeros(())
        return bool(stream.total(here, (none,))[0])

    def truncation(self, candidates: int | None, first: int = 0) -> Candidates | None:
        """For a write with so many candidates a frame, of frames numbered from `first` on; none where that is all."""
        few = candidates is not None and check_size("candidates", candidates) < self.layout[0]
        return Candidates(candidates, first) if candidates is not None and few else None

    def _sums_of(self, stream: Stream, local: LocalPass, centre: Tensor) -> Statistics:
        """A local step over a stream."""

        def here() -> tuple[Tensor, ...]:
            for chunk in stream:
                local.add(self.split(chunk) - centre)
            return tuple(local.statistics().tensors().values())

        none = Statistics.none(local.state, local.prior)
        return Statistics(*stream.total(here, tuple(none.tensors().values())))
