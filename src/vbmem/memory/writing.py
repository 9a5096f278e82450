"""Writing by mean-field variational Bayes: all at once, or from a stream in bounded memory."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vbmem.memory import engine
from vbmem.memory.checks import check_codes, check_size, full_precision
from vbmem.memory.reading import Memory
from vbmem.memory.seeding import kmeans_plus_plus, next_seed, random_frames
from vbmem.memory.state import Addresses, Bound, MemoryState, Prior, Statistics
from vbmem.progress import track

Start = Literal["prior", "random", "data", "kmeans++"]
Chunks = Iterable[Tensor | np.ndarray] | Callable[[], Iterable[Tensor | np.ndarray]]

STREAM_CHUNK = 8192  # frames taken at a time from one big array
RE_ITERABLE = "every iteration needs them all; give a list, an array, or a function that returns a fresh iterator"
SEED_FRAMES = 4096  # frames of a stream among which its seeds are chosen


class VariationalMemory(Memory):
    """A memory written by alternating the engine's local and global steps."""

    default_start: ClassVar[Start]
    default_iterations: ClassVar[int]
    _advance = staticmethod(engine.advance)
    _sweep = staticmethod(engine.sweep)
    _next_seed = staticmethod(next_seed)

    def compile(self) -> None:
        """Compile what a write repeats, once for all iterations, instead of a graph as long as the whole write."""
        self._advance = torch.compile(engine.advance, fullgraph=True, dynamic=False)
        self._sweep = torch.compile(engine.sweep, fullgraph=True, dynamic=False)
        self._bound = torch.compile(engine.bound_of_codes, fullgraph=True, dynamic=False)
        self._next_seed = torch.compile(next_seed, fullgraph=True, dynamic=False)

    @full_precision
    def write(
        self,
        codes: Tensor,
        iterations: int | None = None,
        start: Start | MemoryState | None = None,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        *,
        tol: float | None = None,
    ) -> tuple[MemoryState, Addresses]:
        """Write episodes into memory, each on its own, in closed form; differentiable through all iterations.

        Args:
            codes: [.., T, C], one or many episodes.
            iterations: local-and-global steps; default as in the paper.
            start: "prior"; "random" rows (and locations); "data", locations at random frames; "kmeans++", locations
                at k-means++ seeds; or a `MemoryState`. A memory without locations puts the frames into its rows.
            mask: [.., T], True where a frame counts, for episodes of unequal length. An episode without frames
                leaves the prior.
            generator: randomness of the start.
            tol: stop early once every episode's bound gains less than this, relatively. Waits for the device
                at every step; not for compiled code.

        Returns:
            The state, and the addresses of the last local step.
        """
        steps = check_size("iterations", self.default_iterations if iterations is None else iterations)
        parts, mask, prior, centre = self._enter(codes, start, mask)
        state = self._start(parts, prior, centre, start, mask, generator)
        previous: Tensor | None = None
        for _ in range(steps - 1):
            if tol is None:
                state = self._advance(parts, state, prior, mask)
                continue
            addresses, sums = engine.local_step(parts, state, prior, mask)
            state = engine.global_step(sums, state, prior)
            total = engine.bound(sums, state, addresses, prior).total
            if previous is not None and bool((total - previous <= tol * previous.abs()).all()):
                return state.translate(centre), addresses
            previous = total
        state, addresses = self._sweep(parts, state, prior, mask)
        return state.translate(centre), addresses

    @full_precision
    def address(self, state: MemoryState, codes: Tensor, mask: Tensor | None = None) -> Addresses:
        """q(s_t) and q(w_t | s_t) of every frame given a written memory: one local step."""
        parts, mask, prior, centre = self._enter(codes, state, mask)
        return engine.address(parts, state.translate(-centre), prior, mask)

    @full_precision
    def write_online(
        self,
        codes: Tensor,
        start: Start | MemoryState | None = None,
        generator: torch.Generator | None = None,
    ) -> MemoryState:
        """Write in a single pass: each frame is addressed once, with the memory as it stands when its turn comes.

        Early frames keep their stale addresses, so the bound usually ends below that of `write`; differentiable.
        """
        parts, _, prior, centre = self._enter(codes, start)
        state = self._start(parts, prior, centre, start, None, generator)
        sums: Statistics | None = None
        for frame in parts.split(1, dim=-2):
            _, part = engine.local_step(frame, state, prior)
            sums = part if sums is None else sums + part
            state = engine.global_step(sums, state, prior)
        return state.translate(centre)

    @torch.no_grad()
    @full_precision
    def write_stream(
        self,
        chunks: Chunks,
        iterations: int | None = None,
        start: Start | MemoryState | None = None,
        generator: torch.Generator | None = None,
        *,
        progress: bool = False,
    ) -> MemoryState:
        """Write one episode that is too long to hold, chunk by chunk, once through for every iteration.

        From the same start it equals `write` of all chunks together, to rounding, because a global step needs only
        sums over frames.

        Args:
            chunks: anything that can be gone through again and again: a list of [T_i, C] tensors or arrays, one
                (memory-mapped) array [T, C], a `DataLoader`, or a function that returns a fresh iterator.
            start: as in `write`; "data" and "kmeans++" choose among a random sample of the frames.
            progress: show a progress bar.
        """
        steps = check_size("iterations", self.default_iterations if iterations is None else iterations)
        check = functools.partial(_as_codes, memory=self)
        first = check(next(_passes(chunks), None))
        check = functools.partial(check, like=first)
        _, _, prior, centre = self._enter(first, start)
        frames = first
        if not isinstance(start, MemoryState):
            frames = _frame_sample(map(check, _passes(chunks)), SEED_FRAMES, generator)
        state = self._start(self.split(frames) - centre, prior, centre, start, None, generator)
        for _ in track(range(steps), "writing", progress):
            sums: Statistics | None = None
            for chunk in map(check, _passes(chunks)):
                _, part = engine.local_step(self.split(chunk) - centre, state, prior)
                sums = part if sums is None else sums + part
            if sums is None:
                raise ValueError(f"a pass through the chunks was empty, but {RE_ITERABLE}")
            state = engine.global_step(sums, state, prior)
        return state.translate(centre)

    # The two steps of a write, for those who repeat them in their own way.

    @full_precision
    def local_step(self, state: MemoryState, codes: Tensor) -> tuple[Statistics, Bound]:
        """One pass over codes [.., T, C] with the best addresses for the state: all that is to be known of them.

        Returns:
            The sums over frames that `global_step` needs, which add up over parts of the data, and the bound.
        """
        parts, prior = self.split(codes), self.prior(codes)
        addresses, sums = engine.local_step(parts, state, prior)
        return sums, engine.bound(sums, state, addresses, prior).map(lambda term: self.reduce(term, -1))

    @full_precision
    def residual(self, state: MemoryState, sums: Statistics) -> Tensor:
        """E sum_t |z_t - M'w_t - b|^2 of the frames of a local step, [..]."""
        return self.reduce(engine.residual(sums, state), -1)

    @full_precision
    def global_step(self, state: MemoryState, sums: Statistics) -> MemoryState:
        """The best memory for the sums of a local step; of the state, the rows with which they were made."""
        return engine.global_step(sums, state, self.prior(state.row_mean))

    # How uncertain and how spread out a write starts, beside the prior: the reference implementation's constants.
    def _row_spread(self, part_size: int) -> float:
        return 0.05

    def _first_widths(self, empty: MemoryState) -> tuple[Tensor, Tensor]:
        return empty.row_cov, empty.loc_var

    def _start(
        self,
        codes: Tensor,
        prior: Prior,
        centre: Tensor,
        start: Start | MemoryState | None,
        mask: Tensor | None,
        generator: torch.Generator | None,
    ) -> MemoryState:
        if isinstance(start, MemoryState):
            return start.translate(-centre)
        start = self.default_start if start is None else start
        if start not in get_args(Start):
            raise ValueError(f"start must be one of {', '.join(get_args(Start))} or a MemoryState, got {start!r}")
        empty = self._state_of(prior, codes.shape[:-2])
        if start == "prior":
            return empty

        def noise(like: Tensor) -> Tensor:
            return torch.empty_like(like).normal_(generator=generator)

        row_mean = empty.row_mean + self._row_spread(codes.shape[-1]) * noise(empty.row_mean)
        loc_mean = empty.loc_mean
        row_cov, loc_var = self._first_widths(empty)
        if start == "random":
            if prior.has_location:
                loc_mean = loc_mean + empty.loc_var.sqrt().unsqueeze(-1) * noise(loc_mean)
        else:
            frames = codes.detach().expand(*loc_mean.shape[:-2], *codes.shape[-2:])
            choose = random_frames
            if start == "kmeans++":
                # A compiled function cannot take a generator.
                step = self._next_seed if generator is None else next_seed
                choose = functools.partial(kmeans_plus_plus, next_seed=step)
            if prior.has_location:
                loc_mean = choose(frames, loc_mean.shape[-2], mask, generator)
            else:
                row_mean = choose(frames, row_mean.shape[-2], mask, generator).unsqueeze(-3)
        return MemoryState(row_mean, row_cov, loc_mean, loc_var)


def _passes(chunks: Chunks) -> Iterator[Tensor | np.ndarray]:
    """One fresh pass through the chunks."""
    if isinstance(chunks, Tensor | np.ndarray):
        return (chunks[i : i + STREAM_CHUNK] for i in range(0, len(chunks), STREAM_CHUNK))
    passed = iter(chunks() if callable(chunks) else chunks)
    if passed is chunks:
        raise ValueError(f"chunks can be gone through only once, but {RE_ITERABLE}")
    return passed


def _as_codes(chunk: Tensor | np.ndarray | None, memory: Memory, like: Tensor | None = None) -> Tensor:
    """A checked chunk [T, C]; of the kind of the first, where that is known."""
    if chunk is None:
        raise ValueError("the stream holds no chunks; an episode needs at least one frame")
    if isinstance(chunk, np.ndarray):
        chunk = torch.from_numpy(np.array(chunk))  # copied: a memory map may be read-only
    check_codes(chunk, memory.code_size)
    if like is not None and (chunk.dtype, chunk.device) != (like.dtype, like.device):
        raise ValueError(
            f"all chunks must be alike: the first is {like.dtype} on {like.device}, "
            f"a later one {chunk.dtype} on {chunk.device}"
        )
    return chunk


def _frame_sample(chunks: Iterator[Tensor], size: int, generator: torch.Generator | None) -> Tensor:
    """A uniform sample of at most `size` frames of a stream, [n, C]: those with the largest random keys."""
    frames: Tensor | None = None
    keys: Tensor | None = None
    for chunk in chunks:
        fresh = torch.rand(len(chunk), dtype=torch.float64, device=chunk.device, generator=generator)
        frames = chunk if frames is None else torch.cat([frames, chunk])
        keys = fresh if keys is None else torch.cat([keys, fresh])
        keep = keys.topk(min(size, len(keys))).indices
        frames, keys = frames[keep], keys[keep]
    if frames is None:
        raise ValueError(f"a pass through the chunks was empty, but {RE_ITERABLE}")
    return frames
