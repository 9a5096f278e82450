"""An episode in memory, and nothing else of it: what a model's `write` returns, with all that can be done with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, get_args

import torch
from torch import Tensor

from vbmem.errors import MemoryFileError
from vbmem.files import parse_json
from vbmem.memory import engine
from vbmem.memory.blocks import LocalPass
from vbmem.memory.checks import check_codes, check_finite, check_shape, check_size, check_state
from vbmem.memory.known import known_of, known_of_stream
from vbmem.memory.merging import same_for_all_clusters, unite
from vbmem.memory.prefixes import PrefixCounts, PrefixNetworks
from vbmem.memory.shards import open_stream
from vbmem.memory.starting import Start
from vbmem.memory.state import Addresses, MemoryState, Statistics
from vbmem.memory.storage import below, read_memory, write_memory
from vbmem.memory.streams import Chunks
from vbmem.memory.threads import one_thread
from vbmem.memory.usage import KeptWeights, draw_weights
from vbmem.memory.writing import VariationalMemory

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ChosenBy = Literal["usage", "prior", "network"]
"""What chooses the clusters of new codes; see `WrittenMemory.sample`."""

USAGE, SUMS, WEIGHTS = "usage: ", "sums: ", "weights: "  # begin the names of their tensors in a file


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
    sums: Statistics | None = None
    """What is known of the frames beside the state: those of a local step at it, without batch dimensions."""
    threshold: float | None = None
    """The model's score from which on a picture counts as known to this memory; lost when it is changed."""
    reference: str = ""
    """Of the reference memory that the threshold was found with."""
    weights: KeptWeights | None = None
    """Where in their clusters some of the frames lie, for new ones like them; not known of streams."""

    @classmethod
    def write(
        cls,
        memory: VariationalMemory,
        codes: Tensor,
        iterations: int | None = None,
        generator: torch.Generator | None = None,
        *,
        start: Start | None = None,
        model: str = "",
        fingerprint: str = "",
    ) -> Self:
        """Write the codes [T, C] of one episode into an empty memory; the arguments are those of its `write`."""
        _check_episode(codes, memory)
        state, _ = memory.write(codes.detach(), iterations, start, generator=generator)
        state = state.detach()
        sums, choice, weights = known_of(memory, state, codes)
        return cls(memory, state, choice, len(codes), model, fingerprint, sums.to(codes.dtype), weights=weights)

    @classmethod
    def write_stream(
        cls,
        memory: VariationalMemory,
        chunks: Chunks,
        iterations: int | None = None,
        generator: torch.Generator | None = None,
        *,
        start: Start | MemoryState | None = None,
        progress: bool = False,
        group: ProcessGroup | None = None,
        follow: Callable[[int, MemoryState], None] | None = None,
        model: str = "",
        fingerprint: str = "",
    ) -> Self:
        """Write one episode that is too long to hold; the arguments are those of the memory's `write_stream`."""
        state = memory.write_stream(chunks, iterations, start, generator, progress=progress, group=group, follow=follow)
        return cls.of_stream(memory, state, chunks, group=group, model=model, fingerprint=fingerprint)

    @classmethod
    @torch.no_grad()
    def of_stream(
        cls,
        memory: VariationalMemory,
        state: MemoryState,
        chunks: Chunks,
        *,
        group: ProcessGroup | None = None,
        model: str = "",
        fingerprint: str = "",
    ) -> Self:
        """The memory of a stream that was written into this state: one more pass counts its frames."""
        stream = open_stream(chunks, memory.code_size, group)
        check_state(state, memory.split(stream.first), *memory.layout, memory.located)
        sums, choice, frames = known_of_stream(memory, state, stream)
        return cls(memory, state, choice, frames, model, fingerprint, sums.to(state.row_mean.dtype))

    def __repr__(self) -> str:
        writer = f", written by {self.model!r}" if self.model else ""
        return f"<WrittenMemory of {self.frames} frames: {self.empty!r}, {self.nbytes:,} bytes{writer}>"

    @property
    def usage(self) -> Tensor:
        """How many frames each cluster holds, [H]; of the tree, [G, H]."""
        return self.choice.usage.reshape(self.state.loc_var.shape)

    @property
    def mean_code(self) -> Tensor:
        """The mean location of the clusters, each as often as it is used: [1, C]."""
        usage = self.usage / self.usage.sum(-1, keepdim=True)
        return self.empty.join(usage.unsqueeze(-2) @ self.state.loc_mean)

    @property
    def nbytes(self) -> int:
        tensors = [*self.state.tensors().values(), *self.choice.tensors().values()]
        for known in (self.sums, self.weights):
            tensors += () if known is None else known.tensors().values()
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def sample(
        self,
        count: int,
        generator: torch.Generator | None = None,
        *,
        cluster: int | None = None,
        choice: ChosenBy = "usage",
        sample: bool = True,
    ) -> Tensor:
        """New codes (paper, G.1): [count, C].

        Args:
            count: how many.
            generator: of all the draws.
            cluster: draw from this one only; of a tree, from this one of its first partition.
            choice: which clusters codes come from, and where in them. "usage": as often as the episode used them, and
                one more frame in all; those of a tree in the combinations it used, which are the paper's pseudocounts;
                and with weights near to those of a frame (see `draw_weights`). "prior": by p(s), uniform unless the
                memory was given another, as in the paper for a mixture; the partitions of a tree then choose apart, so
                that their parts seldom belong together. "network": of a tree, by the networks of appendix C.5, which
                are fitted to the pseudocounts when they are first needed. With both, weights are drawn from N(0, I).
            sample: draw memory and codes; otherwise their means.

        Raises:
            ValueError: the memory has no such cluster, or no networks because it is not a tree.
        """
        check_size("count", count)
        first = None
        if cluster is not None:
            if not 0 <= cluster < self.empty.layout[0]:
                raise ValueError(f"cluster must lie in 0 .. {self.empty.layout[0] - 1}, got {cluster}")
            first = torch.full((count,), cluster, device=self.state.loc_var.device)
        clusters = self._choose(choice, count, first, generator)
        clusters = clusters.reshape(*self.state.loc_var.shape[:-1], count)
        weights = None
        if choice == "usage" and self.sums is not None:
            weights = draw_weights(clusters, self.sums.to(torch.float64), self.state, self.weights, generator)
        return self.empty.sample(self.state, count, generator, clusters=clusters, weights=weights, sample=sample)

    @cached_property
    def networks(self) -> PrefixNetworks:
        """NN_g of a tree, fitted to its counts when they are first used (paper, C.5).

        Raises:
            ValueError: the memory is not a tree.
        """
        if not self.empty.partitioned:
            raise ValueError(f"a {self.empty} is not a tree, which alone has networks; choose 'usage' or 'prior'")
        return PrefixNetworks.fit(self.choice)

    def _choose(self, choice: ChosenBy, count: int, first: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Clusters of new codes, those of the first partition given or drawn: int64 [G, count]."""
        match choice:
            case "usage":
                return self.choice.sample(count, generator, first=first)
            case "network":
                return self.networks.sample(count, generator, first=first)
            case "prior":
                shape, clusters = (self.empty.partitions, count), self.empty.layout[0]
                drawn = self.empty.choice.sample(shape, clusters, self.state.loc_var, generator)
                return drawn if first is None else torch.cat([first.unsqueeze(0), drawn[1:]])
        raise ValueError(f"choice must be one of {', '.join(get_args(ChosenBy))}, got {choice!r}")

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

    @torch.no_grad()
    @one_thread()
    def update(self, codes: Tensor, iterations: int = 5, *, keep: float = 1.0) -> Self:
        """With more frames written into it, codes [T, C]; those before are not looked at again.

        Args:
            iterations: local steps over the new frames, each followed by a global step for all.
            keep: how much the frames before still count. Below 1 they fade with every update: a memory of an endless
                stream, which follows it.
        """
        self._check_frames(codes)
        if not 0 < keep <= 1:
            raise ValueError(f"keep must lie above 0 and not above 1, got {keep}")
        past = self._require_sums().map(lambda tensor: keep * tensor)
        state, parts = self.state.to(torch.float64), self.empty.split(codes.detach().double())
        prior = self.empty.prior(parts)
        for _ in range(check_size("iterations", iterations)):
            local = LocalPass(state, prior)
            local.add(parts)
            state = engine.global_step(past + local.statistics(), state, prior)
        state = state.to(codes.dtype)
        sums, choice, new = known_of(self.empty, state, codes)
        return replace(
            self,
            threshold=None,
            weights=self.weights and new and self.weights.updated(new, past.count, sums.count),
            state=state,
            choice=self.choice.combined(choice, mine=keep),
            frames=self.frames + len(codes),
            sums=(past + sums).to(codes.dtype),
        )

    @torch.no_grad()
    @one_thread()
    def forget(self, codes: Tensor) -> Self:
        """Without some of the frames that were written, codes [T, C], as if they never had been.

        They are addressed as they were when they were written, and what they added is taken out. That is exact for
        frames of the last write or update; those of an earlier one are addressed as they would be now, and no cluster
        gives away more than it holds. Which frames were written is not known here: given others, or the same ones
        again, something else is taken out, and what is left makes no sense. No guarantee of privacy: the frames had
        their part in where the clusters of all others lie.
        """
        self._check_frames(codes)
        if len(codes) >= self.frames:
            raise ValueError(f"this memory holds {self.frames} frames, of which {len(codes)} cannot be forgotten")
        sums, choice, gone = known_of(self.empty, self.state, codes)
        left = self._require_sums().without(sums)
        state = self.empty.global_step(self.state.to(torch.float64), left).to(codes.dtype)
        choice = self.choice.combined(choice, theirs=-1.0)
        weights = self.weights and gone and self.weights.without(gone, sums.count.shape[-1])
        frames, sums = self.frames - len(codes), left.to(codes.dtype)
        return replace(self, state=state, choice=choice, frames=frames, sums=sums, weights=weights, threshold=None)

    @torch.no_grad()
    @one_thread()
    def merge(self, other: WrittenMemory) -> Self:
        """One memory of two that were written apart, with all clusters of both that hold frames; see `merging`.

        Raises:
            ValueError: they have not the same prior, or different models wrote them, or they have a single cluster.
        """
        if self.fingerprint != other.fingerprint:
            raise ValueError(f"another model wrote the other memory, {other.model!r} instead of {self.model!r}")
        size = "clusters" if "clusters" in self.empty.sizes else "rows"
        priors = [memory.empty.prior(self.state.row_mean) for memory in (self, other)]
        if self.empty.kind not in ("categorical", "mixture", "tree") or not same_for_all_clusters(*priors):
            raise ValueError(
                f"a {self.empty} and a {other.empty} cannot be merged: both must have clusters, and one prior for all"
            )
        states = [memory.state.to(torch.float64) for memory in (self, other)]
        state, sums, kept = unite(states, [memory._require_sums() for memory in (self, other)])
        clusters = kept.shape[-1]
        names = torch.full_like(torch.cat([memory.usage for memory in (self, other)], -1), -1, dtype=torch.int64)
        names = names.scatter(-1, kept, torch.arange(clusters, device=kept.device).expand_as(kept))
        mine, theirs = names.split([memory.usage.shape[-1] for memory in (self, other)], -1)
        choices = [
            memory.choice.renamed(each.reshape(self.empty.partitions, -1), clusters)
            for memory, each in ((self, mine), (other, theirs))
        ]
        weights = self.weights and other.weights and self.weights.renamed(mine).joined(other.weights.renamed(theirs))
        dtype = self.state.row_mean.dtype
        return replace(
            self,
            threshold=None,
            empty=self.empty.resize(**{size: clusters}),
            state=state.to(dtype),
            choice=choices[0].combined(choices[1]),
            frames=self.frames + other.frames,
            sums=sums.to(dtype),
            weights=weights,
        )

    def _require_sums(self) -> Statistics:
        """In float64, in which sums over many frames and their differences lose nothing."""
        if self.sums is None:
            raise ValueError(
                "this memory was saved by vbmem 0.2 or earlier, without what changing it needs; write it again"
            )
        return self.sums.to(torch.float64)

    def save(self, path: str | Path, *, private: bool = True) -> None:
        """One safetensors file; an existing one is replaced only once the new one is complete, and keeps its mode.

        Args:
            path: of the file; folders above it are made.
            private: only its owner may read a new file, since pictures like those written can be drawn from it.
        """
        names = ("model", "fingerprint", "frames", "threshold", "reference")
        written = {name: getattr(self, name) for name in names}
        tensors = {USAGE + name: tensor for name, tensor in self.choice.tensors().items()}
        for prefix, known in ((SUMS, self.sums), (WEIGHTS, self.weights)):
            if known is not None:
                tensors |= {prefix + name: tensor for name, tensor in known.tensors().items()}
        write_memory(Path(path), self.empty, self.state, tensors, {"written": json.dumps(written)}, private=private)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> Self:
        """Read what `save` wrote.

        Raises:
            MemoryFileError: the file is damaged, or holds something else.
        """
        memory, state, tensors, metadata = read_memory(Path(path), device)
        if "written" not in metadata or not isinstance(memory, VariationalMemory):
            raise MemoryFileError(f"{path} holds a bare memory of codes, not a written one; use vbmem.load_memory")
        try:
            choice = PrefixCounts.from_tensors(below(USAGE, tensors))
            sums = Statistics(**parts) if (parts := below(SUMS, tensors)) else None
            weights = KeptWeights(**parts) if (parts := below(WEIGHTS, tensors)) else None
            written = cls(memory, state, choice, **parse_json(metadata["written"]), sums=sums, weights=weights)
            written._check()
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise MemoryFileError(f"{path} lacks or misnames what was written ({error}); write it again") from error
        return written

    def _check_frames(self, codes: Tensor) -> None:
        """Raise ValueError unless they are codes of one episode that go together with this memory."""
        _check_episode(codes, self.empty)
        check_state(self.state, self.empty.split(codes), *self.empty.layout, self.empty.located)

    def _check(self) -> None:
        """Raise ValueError unless all parts are what they should be, and go together."""
        check_size("frames", self.frames)
        if not (self.threshold is None or isinstance(self.threshold, float)):
            raise ValueError(f"its threshold is {self.threshold!r}, expected a number or none")
        for name in ("model", "fingerprint", "reference"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"its {name} is {getattr(self, name)!r}, expected a text")
        for name, tensor in self.choice.tensors().items():
            if not bool((check_finite(name, tensor) >= 0).all()):
                raise ValueError(f"{name} must not be negative, got {float(tensor.min()):g} in it")
        check_shape("the state's use", self.usage, *self.state.loc_var.shape)
        if self.sums is not None:
            shapes = {
                "count": self.state.loc_var,
                "weight_outer": self.state.row_cov,
                "weight_code": self.state.row_mean,
            }
            for name, tensor in self.sums.tensors().items():
                check_finite(f"sums.{name}", tensor)
                if name in shapes:
                    check_shape(f"sums.{name}", tensor, *shapes[name].shape)
            check_shape("sums.code_square", self.sums.code_square, self.state.row_mean.shape[-1])
        if self.weights is not None:
            self.weights.check(self.state)


def _check_episode(codes: Tensor, memory: VariationalMemory) -> None:
    """Codes of one episode, [T, C]."""
    check_codes(codes, memory.code_size)
    if codes.ndim != 2:
        raise ValueError(f"codes must be those of one episode, [T, C], got {list(codes.shape)}")
