"""What a written memory predicts: joint clusters of all partitions, p(s^(1), .., s^(G)) = prod_g p(s^(g) | s^(1..g-1)).

A tree addresses each partition on its own, but the parts of one code belong together. How, is learned here from the
written frames' q(s_t^(g) = h) = theta_gth, [G, T, H]. A mixture is the case G = 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vbmem.memory.checks import check_clusters, check_size
from vbmem.memory.choice import draw_clusters, smoothed_usage


@dataclass(frozen=True)
class Prefixes(ABC):
    """Clusters chosen one partition after the other, each given the prefix before it."""

    prefixes: tuple[Tensor, ...]  # of every partition int64 [P_g, g], no two rows alike; P_0 = 1
    counts: tuple[Tensor, ...]  # [P_g, H], the sum of theta_gth over the frames with that prefix
    base: tuple[Tensor, ...]  # [H], the prior p(s) of every partition

    @abstractmethod
    def _conditional(self, prefix: Tensor) -> Tensor:
        """p(s^(g+1) = . | prefix), int64 [n, g] -> [n, H]."""

    @property
    def usage(self) -> Tensor:
        """How many frames each cluster holds, [G, H]."""
        return torch.stack([counts.sum(0) for counts in self.counts])

    def probabilities(self, prefix: Tensor) -> Tensor:
        """p(s^(g+1) = h | s^(1..g) = prefix): int64 [n, g], g < G -> [n, H]."""
        if prefix.ndim != 2 or prefix.shape[1] >= len(self.counts):
            raise ValueError(f"prefix must be [n, g] with g < {len(self.counts)} partitions, got {list(prefix.shape)}")
        check_clusters(prefix, tuple(prefix.shape), self.counts[0].shape[-1])
        return self._conditional(prefix)

    def sample(self, n: int, generator: torch.Generator | None = None, *, first: Tensor | None = None) -> Tensor:
        """`n` joint choices, one partition after the other: int64 [G, n]; the `first` can be given, int64 [n]."""
        drawn = self.prefixes[0].new_empty(check_size("n", n), 0)
        if first is not None:
            check_clusters(first, (n,), self.counts[0].shape[-1])
            drawn = first.unsqueeze(-1)
        while drawn.shape[1] < len(self.counts):
            drawn = torch.cat([drawn, draw_clusters(self._conditional(drawn), generator).unsqueeze(-1)], dim=-1)
        return drawn.mT

    def tensors(self) -> dict[str, Tensor]:
        """By name, for a file: "prefixes.0", "prefixes.1", .., "counts.0", .."""
        return {f"{f.name}.{g}": tensor for f in fields(self) for g, tensor in enumerate(getattr(self, f.name))}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Inverse of `tensors`; other names are passed over."""
        names = [[f"{f.name}.{g}" for g in range(len(tensors))] for f in fields(cls)]
        loaded = cls(*(tuple(tensors[name] for name in level if name in tensors) for level in names))
        shapes = [tuple(prefix.shape) for prefix in loaded.prefixes]
        matching = shapes == [(len(counts), g) for g, counts in enumerate(loaded.counts)]
        if not shapes or not matching or min(map(len, vars(loaded).values())) < len(shapes) - 1:
            raise ValueError(f"{cls.__name__} needs all parts of every partition, got prefixes of the shapes {shapes}")
        return loaded


@dataclass(frozen=True)
class PrefixCounts(Prefixes):
    """Smoothed usage. With n_ph frames of the prefix p in cluster h, and m_g the usage of partition g after any prefix,

        p(s^(g) = h | p) = (n_ph + H^-g m_gh) / (n_p + H^-g),   m_gh = (n_gh + p(s = h)) / (T + 1)

    counting partitions from 0: one more frame, spread over all joint choices. Nothing is impossible; a prefix that
    never occurred is followed by m_g.
    """

    @staticmethod
    def of(assignment: Tensor, base: Tensor | None = None) -> PrefixCounts:
        """Count the frames of one episode.

        Args:
            assignment: theta [G, T, H], 0 where a frame is masked.
            base: the prior p(s), [H] or [G, H]; by default uniform.
        """
        if assignment.ndim != 3 or not assignment.is_floating_point() or not bool(assignment.any()):
            got = f"{assignment.dtype} {list(assignment.shape)}"
            raise ValueError(f"assignment must be floats [G, T, H] with a frame that is not masked, got {got}")
        theta = assignment.detach()[:, assignment.any(-1).any(0)]
        if not bool((theta >= 0).all() & ((theta.sum(-1) - 1).abs() < 1e-3).all()):
            raise ValueError("assignment must hold probabilities, which sum to 1 over the clusters of every frame")
        hard = theta.argmax(-1).mT  # [T, G]
        partitions, _, clusters = theta.shape
        prior = theta.new_full((clusters,), 1 / clusters) if base is None else base.to(theta)
        priors = tuple(row.clone() for row in prior.expand(partitions, clusters))
        return PrefixCounts(*_table([hard[:, :g] for g in range(partitions)], list(theta)), priors)

    @staticmethod
    def none(base: Tensor) -> PrefixCounts:
        """Of no frames; base [G, H], the prior p(s)."""
        shapes = [(0, g) for g in range(len(base))]
        prefixes = tuple(torch.empty(shape, dtype=torch.int64, device=base.device) for shape in shapes)
        return PrefixCounts(prefixes, tuple(torch.zeros_like(base[:0]) for _ in base), tuple(base.clone()))

    def gathered(self, gather: Callable[[Tensor], Tensor]) -> PrefixCounts:
        """With the counts of other processes, whose rows `gather` puts to those of this one, [P, n] -> [N, n]."""
        prefixes, counts = ([gather(tensor) for tensor in tensors] for tensors in (self.prefixes, self.counts))
        return PrefixCounts(*_table(prefixes, counts), self.base)

    def to(self, dtype: torch.dtype) -> PrefixCounts:
        """With counts of another type."""
        counts, base = (tuple(tensor.to(dtype) for tensor in tensors) for tensors in (self.counts, self.base))
        return PrefixCounts(self.prefixes, counts, base)

    def combined(self, other: PrefixCounts, mine: float = 1.0, theirs: float = 1.0) -> PrefixCounts:
        """The counts of both, each times a factor; with a factor of -1 frames are taken out, but never below none."""
        prefixes = [torch.cat(pair) for pair in zip(self.prefixes, other.prefixes, strict=True)]
        counts = [torch.cat([mine * a, theirs * b]) for a, b in zip(self.counts, other.counts, strict=True)]
        return PrefixCounts(*_table(prefixes, counts), self.base)

    def renamed(self, names: Tensor, clusters: int) -> PrefixCounts:
        """With cluster h of partition g called names[g, h], int64 [G, H], of so many; -1 for one that is gone."""
        prefixes, counts, base = [], [], []
        for g, (prefix, count) in enumerate(zip(self.prefixes, self.counts, strict=True)):
            kept = (names[torch.arange(g), prefix] >= 0).all(-1)
            prefixes.append(names[torch.arange(g), prefix][kept])
            there = names[g] >= 0
            counts.append(
                count.new_zeros(int(kept.sum()), clusters).index_add(1, names[g][there], count[kept][:, there])
            )
            base.append(count.new_full((clusters,), 1 / clusters))
        return PrefixCounts(*_table(prefixes, counts), tuple(base))

    def log_evidence(self, log_likelihood: Tensor) -> Tensor:
        """log sum_s p(s) exp(sum_g l_g(s_g)) over all H^G joint choices: [.., G, H, T] -> [.., T].

        Only prefixes that occurred are told apart. All others go on alike, with m_g, so that their sum is one number.
        """
        scores = log_likelihood.movedim(-1, -2).unbind(-3)  # of every partition [.., T, H]
        inside = torch.zeros_like(scores[0][..., :1])  # log of what has come together at each prefix, [.., T, P_g]
        outside = torch.full_like(inside, -torch.inf)  # and at all that never occurred, [.., T, 1]
        for g, score in enumerate(scores):
            conditional = self._conditional(self.prefixes[g])  # [P_g, H]
            outside = outside + _log_mix(score, self._marginal(g).unsqueeze(0))
            if g + 1 == len(scores):
                return torch.cat([outside, inside + _log_mix(score, conditional)], dim=-1).logsumexp(-1)
            parents, last = self._find(self.prefixes[g + 1][:, :-1]), self.prefixes[g + 1][:, -1]
            leaving = conditional.index_put((parents, last), conditional.new_zeros(()))
            outside = torch.cat([outside, inside + _log_mix(score, leaving)], dim=-1).logsumexp(-1, keepdim=True)
            inside = inside[..., parents] + score[..., last] + conditional[parents, last].log()
        raise AssertionError("a memory has at least one partition")

    def _conditional(self, prefix: Tensor) -> Tensor:
        g, counts = prefix.shape[1], self.counts[prefix.shape[1]]
        if g == 0:
            return self._marginal(0).expand(len(prefix), -1)
        rows = self._find(prefix)
        found = torch.cat([counts, counts.new_zeros(1, counts.shape[-1])])[rows]  # -1 is the last, of no frames
        weight = max(counts.shape[-1] ** -g, torch.finfo(counts.dtype).tiny)
        return (found + weight * self._marginal(g)) / (found.sum(-1, keepdim=True) + weight)

    def _marginal(self, g: int) -> Tensor:
        """m_g, [H]."""
        return smoothed_usage(self.counts[g].sum(0), self.base[g])

    def _find(self, prefix: Tensor) -> Tensor:
        """The rows of `prefixes` that hold the prefixes [n, g], -1 for one that never occurred: [n]."""
        known = self.prefixes[prefix.shape[1]]
        numbers = _number(torch.cat([known, prefix]), self.counts[0].shape[-1])
        rows = torch.full_like(numbers, -1)
        rows[numbers[: len(known)]] = torch.arange(len(known), device=rows.device)
        return rows[numbers[len(known) :]]


@dataclass(frozen=True)
class PrefixNetworks(Prefixes):
    """NN_g (paper, C.5): p(s^(g) = . | prefix) = softmax(tanh(x A) B), x the one-hot prefix; for the first partition
    smoothed usage."""

    inner: tuple[Tensor, ...]  # A of the second, third, .. partition, [g H, hidden]; no bias, as x sums to a constant
    outer: tuple[Tensor, ...]  # B, [hidden, H]

    @classmethod
    @torch.inference_mode(mode=False)
    @torch.enable_grad()
    def fit(cls, written: PrefixCounts | Tensor, hidden: int = 32, steps: int = 200, seed: int = 0) -> PrefixNetworks:
        """Adam on the cross-entropy to the frames' theta. A starts at random, B at 0.

        Args:
            written: the counts of the frames, which are all it needs, or theta [G, T, H] itself.
            hidden: units between A and B.
            steps: of Adam.
            seed: of A.
        """
        table = PrefixCounts.of(written) if isinstance(written, Tensor) else written
        inner, outer, random = [], [], torch.Generator().manual_seed(seed)
        for g, (prefixes, counts) in enumerate(zip(table.prefixes[1:], table.counts[1:], strict=True), start=1):
            prefixes, counts = prefixes.clone(), counts.clone()  # those of inference mode cannot be learned from
            A = torch.randn(g * counts.shape[-1], check_size("hidden", hidden), generator=random).to(counts) / g**0.5
            B = counts.new_zeros(hidden, counts.shape[-1])
            optimiser = torch.optim.Adam([A.requires_grad_(), B.requires_grad_()], lr=0.02)
            for _ in range(check_size("steps", steps)):
                optimiser.zero_grad()
                (-(counts * _logits(prefixes, A, B).log_softmax(-1)).sum() / counts.sum()).backward()
                optimiser.step()
            inner.append(A.detach())
            outer.append(B.detach())
        return cls(table.prefixes, table.counts, table.base, tuple(inner), tuple(outer))

    def _conditional(self, prefix: Tensor) -> Tensor:
        g = prefix.shape[1]
        if g == 0:
            return smoothed_usage(self.counts[0], self.base[0]).expand(len(prefix), -1)
        return _logits(prefix, self.inner[g - 1], self.outer[g - 1]).softmax(-1)


def _table(prefixes: list[Tensor], counts: list[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Equal prefixes [N, g] made one, their counts [N, H] added, for every partition."""
    unique, summed = [], []
    for prefix, count in zip(prefixes, counts, strict=True):
        numbers = _number(prefix, count.shape[-1])
        size = int(numbers.max()) + 1 if len(numbers) else 0
        unique.append(prefix.new_zeros(size, prefix.shape[1]).index_put((numbers,), prefix))
        summed.append(count.new_zeros(size, count.shape[-1]).index_add(0, numbers, count).clamp_min(0))
    return tuple(unique), tuple(summed)


def _log_mix(scores: Tensor, weights: Tensor) -> Tensor:
    """log sum_h w_ph exp(l_h) for every row of weights: [.., T, H], [P, H] -> [.., T, P]."""
    largest = scores.amax(-1, keepdim=True)
    mixed = (scores - largest).exp() @ weights.mT.to(scores)
    return largest + mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log()


def _logits(prefix: Tensor, A: Tensor, B: Tensor) -> Tensor:
    return (one_hot(prefix, B.shape[-1]).flatten(1).to(A) @ A).tanh() @ B


def _number(rows: Tensor, clusters: int) -> Tensor:
    """Numbers 0, 1, .. for the different rows of [N, g]; column by column, as clusters^g would overflow."""
    numbers = rows.new_zeros(len(rows))
    for column in rows.mT:
        numbers = (numbers * clusters + column).unique(return_inverse=True)[1]
    return numbers
