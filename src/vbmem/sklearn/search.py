"""Fits of a mixture memory to codes of mean 0 and variance 1: from several starts, in several sizes, batch by batch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vbmem.memory import engine, fitting
from vbmem.memory.choice import UNIFORM, DirichletChoice
from vbmem.memory.fitting import SHAPE, Fit
from vbmem.memory.memories import MixtureMemory
from vbmem.memory.sized import Noise
from vbmem.memory.starting import Start
from vbmem.memory.state import MemoryState, Prior, Statistics
from vbmem.memory.writing import VariationalMemory

CHUNK = 2048  # samples addressed at a time: what they need of memory stays in the cache
SIZE_STARTS = 2  # of each size, at least, where sizes are compared
SPLIT_ITERATIONS = 30  # at most, of two halves among themselves
WARD_SAMPLES = 1024  # up to which a start is a Ward clustering, which needs all distances
LOC_SPREAD = 2.0  # variance of the mean of all locations in units of the noise, as `fitting.first_prior` has it
START_SAMPLES = 8192  # among which a start is sought


@dataclass(frozen=True)
class Past:
    """All that is kept of samples written before: statistics, and the part of their bound that no update changes."""

    sums: Statistics
    constant: Tensor  # entropies of the addresses

    @classmethod
    def of(cls, fit: Fit) -> Past:
        """Of all samples a fit has seen."""
        local = fit.bound + fit.memory.divergence(fit.state) - fitting.log_noise_prior(fit.memory)
        return cls(fit.sums, local - _explained(fit.sums, fit.state, fit.memory.prior(fit.state.row_mean)))

    def turned(self, change: Tensor) -> Past:
        """After a change of the weights, w~ <- D w~, D [H, J, J]."""
        outer, code = self.sums.weight_outer, self.sums.weight_code
        sums = replace(self.sums, weight_outer=change @ outer @ change.mT, weight_code=change @ code)
        rows = change.shape[-1] - 1
        return Past(sums, self.constant + (sums.count * change[..., :rows, :rows].slogdet().logabsdet).sum(-1))


def _explained(sums: Statistics, state: MemoryState, prior: Prior) -> Tensor:
    """The part of the bound of samples that changes with state and prior while their addresses stay:

    E log p(z | y, M) + E log p(s) - E |w|^2 / 2,  [..]
    """
    traces = sums.weight_outer.diagonal(dim1=-2, dim2=-1)[..., : state.rows].sum((-1, -2))
    chosen = (sums.count * prior.choice.log_prior(sums.count.shape[-1], sums.count)).sum(-1)
    return engine.log_likelihood(sums, state, prior) + chosen - 0.5 * traces


class Samples:
    """Codes [.., T, C], how much each counts [.., T], and the past, whose sums join every global step and refit."""

    def __init__(self, codes: Tensor, weight: Tensor | None = None, past: Past | None = None) -> None:
        self.codes, self.weight, self.past = codes, weight, past

    def local_pass(self, memory: VariationalMemory, state: MemoryState) -> tuple[Statistics, Tensor]:
        """A local step over all samples, as `fitting.climb` wants it."""
        sums, local = fitting.local_pass(memory, state, [(self.codes, self.weight)])
        if self.past is None:
            return sums, local
        past = self.past.constant + _explained(self.past.sums, state, memory.prior(state.row_mean))
        return self.past.sums + sums, local + past

    def follow(self, change: Tensor) -> None:
        if self.past is not None:
            self.past = self.past.turned(change)

    def typical(self, generator: torch.Generator) -> Tensor:
        """Samples [.., n, C] among which a start is sought. A few are all taken, each as often as it counts, sorted:
        then no start depends on the order they came in, or on whether copies were counted before."""
        codes, weight = self.codes, self.weight
        if codes.ndim > 2:
            return codes
        whole = weight is None or bool((weight == weight.round()).all())
        if whole and (len(codes) if weight is None else weight.sum()) <= START_SAMPLES:
            codes = codes if weight is None else codes.repeat_interleave(weight.long(), 0)
        elif weight is None:
            codes = codes[torch.randperm(len(codes), generator=generator)[:START_SAMPLES]]
        else:
            codes = codes[torch.multinomial(weight.double(), START_SAMPLES, replacement=True, generator=generator)]
        return codes[np.lexsort(codes.numpy().T)]


@dataclass(frozen=True)
class Search:
    """How a fit is sought.

    Args:
        clusters: H; ignored by `best_size`.
        rows: K.
        noise: as in `MemoryMixture`, as the rest.
    """

    clusters: int
    rows: int
    noise: Noise
    iterations: int
    tol: float
    relevance: bool
    start: Start | None
    starts: int

    def fit(self, samples: Samples, generator: torch.Generator) -> Fit:
        """The best of several starts, then moves of clusters while they pay: these leave most local optima."""
        best: Fit | None = None
        for number in range(self.starts):
            fit = self.climb(samples, *self.first(samples, generator, number))
            best = fit if best is None or fit.bound > best.bound else best
        assert best is not None
        return self.moved(samples, best, generator)

    def first(
        self, samples: Samples, generator: torch.Generator, number: int = 0, *, weights: bool = True
    ) -> tuple[VariationalMemory, MemoryState]:
        """A prior for codes of variance 1, and a state from one of several starts."""
        seeds = samples.typical(generator)
        start = self.start
        if start is None:
            start = "ward" if number == 0 and seeds.shape[-2] <= WARD_SAMPLES else "kmeans"
        choice = DirichletChoice(1.0) if weights else UNIFORM
        empty = MixtureMemory(seeds.shape[-1], self.rows, self.clusters, choice=choice)
        memory = fitting.first_prior(empty, self.noise, seeds)
        return memory, memory.first_state(seeds, start, None, generator)

    def climb(self, samples: Samples, memory: VariationalMemory, state: MemoryState) -> Fit:
        """From a prior and a state to the nearest optimum of the bound."""
        return fitting.climb(
            memory,
            state,
            samples.local_pass,
            iterations=self.iterations,
            tol=self.tol,
            relevance=self.relevance,
            follow=samples.follow,
        )

    def moved(self, samples: Samples, best: Fit, generator: torch.Generator) -> Fit:
        """The cluster least needed is moved to where samples are explained worst, as long as the bound gains."""
        while len(best.sums.count) > 1:
            spare, worst, members = _spare_and_worst(samples, best)
            moved = self.split(samples, best, spare, worst, members, generator)
            if moved is None or float(moved.bound - best.bound) <= self.tol * float(best.sums.count.sum()):
                break
            best = moved
        return best

    def split(
        self, samples: Samples, fit: Fit, spare: Tensor, worst: Tensor, members: Tensor, generator: torch.Generator
    ) -> Fit | None:
        """With the members of the worst cluster, if it has two, written into two of their own: it, and the spare."""
        if members.sum() < 2:
            return None
        weight = None if samples.weight is None else samples.weight[members]
        theirs = Samples(samples.codes[members], weight)
        search = replace(self, clusters=2, start="data", iterations=SPLIT_ITERATIONS)
        halves = search.climb(theirs, *search.first(theirs, generator))
        pair, memory, noise_var = torch.stack([spare, worst]), fit.memory, fit.memory.noise_var
        if isinstance(noise_var, Tensor) and noise_var.ndim == 2 and isinstance(halves.memory.noise_var, Tensor):
            memory = memory.with_scales(noise_var=noise_var.index_copy(0, pair, halves.memory.noise_var))
        row_mean = fit.state.row_mean.index_copy(0, pair, halves.state.row_mean)
        row_cov = fit.state.row_cov.index_copy(0, pair, halves.state.row_cov)
        return self.climb(samples, memory, MemoryState(row_mean, row_cov))

    def best_size(self, samples: Samples, generator: torch.Generator, most: int) -> Fit:
        """The size with the highest evidence: doubled while that rises, then neighbours in ever smaller steps."""

        @functools.cache
        def sized(size: int) -> Fit:
            return replace(self, clusters=size, starts=max(self.starts, SIZE_STARTS)).fit(samples, generator)

        def worth(size: int) -> float:
            return log_evidence(sized(size))

        best = 1
        while 2 * best <= most and worth(2 * best) > worth(best):
            best *= 2
        step = best // 2
        while step:
            near = [size for size in (best - step, best, best + step) if size <= most]
            best, step = max(near, key=worth), step // 2
        return sized(best)


def log_evidence(fit: Fit) -> float:
    """The bound as far as sizes can be compared by it: with the H! orders of the clusters, and integrated over what it
    holds the best of only (Laplace): the noise of every cluster and feature, and the mean of all locations, which a
    single cluster pays for as its own. Noise is taken in logarithms, so that units do not matter."""
    count, prior = fit.sums.count, fit.memory.prior(fit.state.row_mean)
    clusters, size = len(count), fit.memory.code_size
    evidence = float(fit.bound) + math.lgamma(clusters + 1)
    if clusters > 1:
        spread = 1 / (prior.row_precision[..., -1, -1] * prior.noise_scale) + 1 / count.clamp_min(1)
        evidence -= 0.5 * size * math.log1p(LOC_SPREAD * float((1 / spread).sum()))
    if prior.noise_var.shape[-2] > 1:
        width = 2 * math.pi / (count / 2 + SHAPE)
        evidence += float(prior.noise_var.log().sum() + 0.5 * size * width.log().sum())
    return evidence


def of_log_joint(function: Callable[[Tensor, int], Tensor], codes: Tensor, fit: Fit, weights: Tensor) -> Tensor:
    """A function of log weight + log density of every cluster, [n, H], and of the dimension of the clusters: of all
    samples [T, C], a chunk of them at a time, so that no more is kept than it gives."""
    chunks = codes.split(CHUNK)
    return torch.cat([function(fit.memory.log_densities(fit.state, chunk) + weights.log(), -1) for chunk in chunks])


def _spare_and_worst(samples: Samples, fit: Fit) -> tuple[Tensor, Tensor, Tensor]:
    """The cluster whose loss costs the density least, the one whose samples are explained worst, and which samples,
    bool [T], are the latter's."""
    prior, labels = fit.memory.prior(samples.codes), []
    log_prior = prior.choice.log_prior(len(fit.sums.count), samples.codes)
    loss, surprise, size = torch.zeros_like(log_prior), torch.zeros_like(log_prior), torch.ones_like(log_prior)
    weights = torch.ones_like(samples.codes[:, 0]) if samples.weight is None else samples.weight
    for codes, weight in zip(samples.codes.split(CHUNK), weights.split(CHUNK), strict=True):
        log_joint = engine.local_bounds(codes, fit.state, prior).mT + log_prior  # a quick lower bound of it, [n, H]
        proba, counts = log_joint.softmax(-1), weight.unsqueeze(-1)
        loss += (counts * (1 - proba).clamp_min(1e-6).log()).sum(0)
        surprise -= (counts * proba).mT @ log_joint.logsumexp(-1)
        size += (counts * proba).sum(0)
        labels.append(proba.argmax(-1))
    spare = loss.argmax()
    worst = (surprise / size).index_fill(0, spare, -math.inf).argmax()
    return spare, worst, torch.cat(labels) == worst
