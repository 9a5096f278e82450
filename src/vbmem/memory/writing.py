"""Writing by mean-field variational Bayes: all at once, in a single pass, or with a prior that is fitted as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor

from vbmem.memory import engine, expansion, fitting, short
from vbmem.memory.blocks import LocalPass, address, groups_of_episodes, in_blocks, in_parts
from vbmem.memory.checks import check_codes, check_size, warn_of_scale
from vbmem.memory.choice import DirichletChoice
from vbmem.memory.compiling import compiled
from vbmem.memory.precision import full_precision, warn_of_strain
from vbmem.memory.seeding import greedy_seed, lloyd_step, next_seed
from vbmem.memory.sized import Noise
from vbmem.memory.starting import Start, is_training
from vbmem.memory.state import Addresses, MemoryState, Prior, Statistics, joined
from vbmem.memory.stepping import SteppingMemory
from vbmem.memory.streams import NO_CHUNKS, Chunks
from vbmem.memory.threads import block_threads, side_by_side
from vbmem.memory.truncated import Candidates, first_start

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

HELD = 0.5  # share of a frame from which on a cluster holds it


class VariationalMemory(SteppingMemory):
    """A memory written by alternating the engine's local and global steps."""

    warns: bool = True
    """Whether a write of codes far from what the prior expects says so; not where a network makes the codes."""
    _advance = staticmethod(engine.advance)
    _sweep = staticmethod(engine.sweep)

    def compile(self) -> None:
        """Compile what a write repeats, once for all iterations, instead of a graph as long as the whole write."""
        self._advance = compiled(engine.advance)
        self._sweep = compiled(engine.sweep)
        self._bound = compiled(engine.bound_of_codes)
        self._next_seed = compiled(next_seed)
        self._greedy_seed = compiled(greedy_seed)
        self._lloyd_step = compiled(lloyd_step)

    @block_threads
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
        starts: int = 1,
        expand: bool | None = None,
        gradient_iterations: int | None = None,
        candidates: int | None = None,
    ) -> tuple[MemoryState, Addresses]:
        """Write episodes into memory, each on its own, in closed form; differentiable.

        Args:
            codes: [.., T, C], one or many episodes. Those in float32 that are far larger than the noise are computed
                with in float64 on the CPU, which takes up to twice as long; elsewhere a warning asks for float64.
            iterations: local-and-global steps; default as in the paper.
            start: "prior"; "random" rows (and locations); "data", locations at random frames; "kmeans++", locations
                at k-means++ seeds; "kmeans", at the means of a few steps of k-means from the best of such seeds;
                "ward", at the means of a Ward clustering, the same every time; or a `MemoryState`. A memory without
                locations puts the frames into its rows. Where the prior tells the clusters apart, a location goes to
                the cluster that expects it most. By default, as in the paper for those and for a factorised memory;
                else "ward" for short episodes, and "kmeans" for long ones and in training.
            mask: [.., T], True where a frame counts, for episodes of unequal length; or weights, how much each counts.
                An episode without frames leaves the prior.
            generator: randomness of the start.
            tol: stop early once every episode's bound gains less than this, relatively. Waits for the device
                at every step; not for compiled code.
            starts: write this many times, all in one batch, and keep the best of each episode.
            expand: after every global step move and turn the weights for the best bound (see `expansion`): by default,
                where rows and location are joint, outside of training.
            gradient_iterations: differentiate through the last so many steps only; by default through all.
            candidates: compare each frame with so many clusters only, and look for better ones among their neighbours
                (see `truncated`), so that all but two early iterations take about as long for any number of
                clusters; without gradients. With as many as there are clusters, or by default, with all. More than a
                thousand clusters then start at random frames, unless another start is given.

        Returns:
            The state, and the addresses of the last local step: H (K + 1) numbers a frame, which `write_stream` does
            not keep. Beside them and the codes a long episode takes no memory that grows with it: on the CPU, and
            without gradients, its frames are walked in blocks that stay in the cache, on a GPU in fused kernels.
        """
        steps = check_size("iterations", self.default_iterations if iterations is None else iterations)
        if check_size("starts", starts) > 1:
            check_codes(codes, self.code_size, mask)
            codes, mask = codes.expand(starts, *codes.shape), None if mask is None else mask.expand(starts, *mask.shape)
        parts, weights, prior, centre = self._enter(codes, mask=mask, start=start)
        training = is_training(codes, prior)
        if self.warns and not training:
            warn_of_scale(parts, prior, weights)
            warn_of_strain(self, codes)
        few = self.truncation(candidates)
        if few is not None and training:
            raise ValueError("candidates are chosen without gradients; write with all clusters, or codes without them")
        start = first_start(start, self.layout[0], few)
        state = self.start_state(parts, prior, centre, start, weights, generator, starts)
        if expand is None:
            expand = prior.joint and not training
        constant = 0 if gradient_iterations is None else steps - check_size("gradient_iterations", gradient_iterations)
        state, addresses = self.iterate(parts, state, prior, weights, steps, tol, expand, constant, few)
        state = state.translate(centre)
        if starts == 1:
            return state, addresses
        best = self.bound(codes, state, addresses).total.argmax(0)  # [..]
        return state.map(lambda x: _take(x, best)), addresses.map(lambda x: _take(x, best))

    def iterate(
        self,
        parts: Tensor,
        state: MemoryState,
        prior: Prior,
        weights: Tensor | None,
        steps: int,
        tol: float | None,
        expand: bool,
        constant: int = 0,
        candidates: Candidates | None = None,
    ) -> tuple[MemoryState, Addresses]:
        """The iterations of a write, from a state, for codes in the engine's layout; see `write`. What the first
        `constant` of them give counts as constant where gradients are asked for."""
        begin = LocalPass if candidates is None else candidates.local_pass
        alone = candidates is None and tol is None  # else episodes stop together, or share their candidates
        plain = alone and self._advance is engine.advance  # else they are compiled for all
        if plain and short.pays(parts, state, prior):
            return short.write(parts, state, prior, weights, steps, expand)
        groups = groups_of_episodes(parts, state, prior) if plain else []
        if len(groups) > 1:

            def written(group: slice) -> tuple[MemoryState, Addresses]:
                episodes = parts[group], state.map(lambda x: x[group]), prior.of_episodes(group, parts.ndim - 2)
                counts = None if weights is None else weights.expand(parts.shape[:-1])[group]
                return self.iterate(*episodes, counts, steps, None, expand)

            states, addresses_of = zip(*side_by_side(written, groups), strict=True)
            return joined(states), joined(addresses_of)
        previous: Tensor | None = None
        for step in range(steps - 1):
            with torch.set_grad_enabled(torch.is_grad_enabled() and step >= constant):
                if alone and not expand and not in_parts(parts, state, prior):
                    state = self._advance(parts, state, prior, weights)
                    continue
                local, before = begin(state, prior, bounded=tol is not None), state
                local.add(parts, weights)
                sums = local.statistics()
                state = engine.global_step(sums, state, prior)
                if tol is not None:
                    total = local.bound(sums, state).total
                    if previous is not None and bool((total - previous <= tol * previous.abs()).all()):
                        if candidates is None:
                            return state, address(parts, before, prior, weights)
                        return state, begin(before, prior).address(parts, weights)
                    previous = total
                if expand:
                    state = expansion.expand(sums, state, prior)
        if candidates is None and not in_blocks(parts, state, prior):
            return self._sweep(parts, state, prior, weights)
        local = begin(state, prior)
        addresses = local.address(parts, weights)
        return engine.global_step(local.statistics(), state, prior), addresses

    @block_threads
    @full_precision
    def address(self, state: MemoryState, codes: Tensor, mask: Tensor | None = None) -> Addresses:
        """q(s_t) and q(w_t | s_t) of every frame given a written memory: one local step."""
        parts, mask, prior, centre = self._enter(codes, state, mask)
        return address(parts, state.translate(-centre), prior, mask)

    @block_threads
    @full_precision
    def write_online(
        self,
        codes: Tensor,
        start: Start | MemoryState | None = None,
        generator: torch.Generator | None = None,
    ) -> MemoryState:
        """Write in a single pass: each frame is addressed once, with the memory as it stands when its turn comes.

        Early frames keep their stale addresses, so the bound usually ends below that of `write`; differentiable. A
        cluster stays where it started until it holds a frame.
        """
        parts, _, prior, centre = self._enter(codes, start=start)
        first = state = self.start_state(parts, prior, centre, start, None, generator)
        sums: Statistics | None = None
        for frame in parts.split(1, dim=-2):
            _, part = engine.local_step(frame, state, prior)
            sums = part if sums is None else sums + part
            state = engine.global_step(sums, state, prior).where(sums.count >= HELD, first)
        return state.translate(centre)

    @classmethod
    def for_codes(
        cls,
        codes: Tensor | Chunks,
        *sizes: int,
        noise: Noise = "global",
        weights: bool = False,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
    ) -> Self:
        """A memory for codes of any scale: `MixtureMemory.for_codes(codes, rows, clusters)`, and so for the others.

        Args:
            codes: as in `fit_prior`, as the rest is.
            sizes: those of the memory after the size of a code, in the constructor's order.
        """
        first = codes if isinstance(codes, Tensor) else next(iter(codes() if callable(codes) else codes), None)
        if first is None:
            raise ValueError(NO_CHUNKS)
        memory = cls(first.shape[-1], *sizes)
        return memory.fit_prior(codes, noise=noise, weights=weights, mask=mask, generator=generator, progress=progress)

    @torch.no_grad()
    def fit_prior(
        self,
        codes: Tensor | Chunks,
        *,
        noise: Noise = "global",
        weights: bool = False,
        relevance: bool = False,
        iterations: int = 100,
        tol: float = 1e-2,
        start: Start | None = None,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        progress: bool = False,
        group: ProcessGroup | None = None,
    ) -> Self:
        """This memory with the prior that fits the codes, whatever their scale: noise, and means and variances of rows
        and locations, by closed-form updates that raise the bound, in turn with those of a write.

        What it was before does not matter. All clusters share it, but for their noise and weights where asked for, and
        so do several episodes [.., T, C].

        Args:
            codes: [.., T, C], or chunks as in `write_stream`.
            noise: the same everywhere ("global"), for every "feature", or for every "cluster" and feature.
            weights: clusters of unequal weights, with a Dirichlet prior.
            relevance: a variance for every factor row, so that rows nobody needs vanish.
            iterations: at most.
            tol: stop once an iteration gains less than this many nats a frame.
            start: of the write, as there.
            mask: [.., T], True where a frame counts, or how much it counts.
            generator: randomness of the start.
            progress: show a progress bar.
            group: processes that share one episode, as in `write_stream`; all get the same memory.
        """
        memory = self.with_prior(choice=DirichletChoice()) if weights else self
        how = {"tol": tol, "relevance": relevance, "progress": progress}
        steps = check_size("iterations", iterations)
        return cast(Self, fitting.fit(memory, codes, noise, start, mask, generator, group, iterations=steps, **how))


def _take(tensor: Tensor, best: Tensor) -> Tensor:
    """Of several writes, the best of each episode: [starts, .., *rest], [..] -> [.., *rest]."""
    index = best.reshape(1, *best.shape, *(1 for _ in range(tensor.ndim - best.ndim - 1)))
    return tensor.gather(0, index.expand(1, *tensor.shape[1:])).squeeze(0)
