"""A mixture of factor analysers over embeddings, with the manners of `sklearn.mixture`."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn import base
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state, check_scalar
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from vbmem.memory.choice import smoothed_usage
from vbmem.memory.memories import MixtureMemory
from vbmem.memory.state import MemoryState, Statistics

CHUNK = 2048  # samples addressed at a time: what they need of memory stays in the cache
FLOOR = 1e-6  # least variance, as a share of the data's: a cluster of copies must not have infinite density
CHOICES = {"init": ("kmeans++", "random"), "scale": ("global", "feature"), "output": ("clusters", "reconstruction")}


class MemoryMixture(base.ClusterMixin, base.TransformerMixin, base.BaseEstimator):  # type: ignore[misc]
    """Clusters z = M_h'w + b_h + noise, w ~ N(0, I_K): correlated features at the price of K + 1 vectors a cluster.

    Written by closed-form mean-field variational Bayes. X is scaled, and at every iteration the variances of noise,
    rows and locations are set to what maximises the bound: the fit does not depend on the units of X; scores are in
    them. Then the cluster least needed is moved to where samples are explained worst, as long as the bound gains.

    Args:
        n_clusters: H, or "auto": the size with the highest bound, doubled while it rises, then refined.
        n_rows: K, or 0 for round clusters.
        max_iter: iterations at most, from the start and after each move.
        tol: converged when an iteration raises the bound by less than this many nats for every number in X.
        init: locations start at "kmeans++" seeds or at "random" samples.
        scale: "global", the same noise in all features (embeddings), or "feature", noise in their proportions (tables).
        output: what `transform` gives: probabilities of the "clusters", or the "reconstruction", X without its noise.

    Attributes:
        weights_: [H] shares of samples, for density, `predict` and `sample`; a fit's own prior holds clusters equal.
        means_: [H, C].
        factors_: [H, K, C].
        noise_variance_: [H, C]. Cluster h's predictive covariance, with the posterior's uncertainty, is
            factors_[h].T @ factors_[h] + diag(noise_variance_[h]).
        lower_bound_: of log p(X), in nats; after `partial_fit`, each batch counts as it stood when it was written.
        labels_: most probable clusters, [T], of the last fit or batch.
        n_iter_: iterations of it.
        converged_: whether it settled before `max_iter`.
        n_clusters_: H.
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 10,
        n_rows: int = 6,
        *,
        max_iter: int = 100,
        tol: float = 1e-4,
        init: str = "kmeans++",
        scale: str = "global",
        output: str = "clusters",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters, self.n_rows, self.max_iter, self.tol = n_clusters, n_rows, max_iter, tol
        self.init, self.scale, self.output, self.random_state = init, scale, output, random_state

    def fit(self, X: Any, y: None = None) -> Self:
        """Write X [T, C] into a fresh memory."""
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        self._check_parameters(len(X))
        self._measure(X)
        codes = self._codes(X)
        search = functools.partial(self._search, codes, check_random_state(self.random_state))
        fit = _best_size(search, len(X)) if self.n_clusters == "auto" else search(self.n_clusters)
        return self._keep(fit, codes)

    def fit_episodes(self, X: Any) -> list[Self]:
        """Write episodes [B, T, C] all at once, each into a memory of its own: a fitted estimator for each.

        They share the scale, and the variances of noise, rows and locations. Clusters are not moved afterwards.
        """
        X = check_array(X, allow_nd=True, dtype=[np.float64, np.float32], estimator=self)
        if X.ndim != 3 or self.n_clusters == "auto":
            got = f"n_clusters={self.n_clusters!r} and X of shape {list(X.shape)}"
            raise ValueError(f"episodes need a number of clusters and an array [B, T, C], got {got}")
        self._check_parameters(X.shape[1])
        common = base.clone(self)
        common._measure(validate_data(common, X.reshape(-1, X.shape[-1]), dtype=X.dtype))
        codes, rng = common._codes(X.reshape(-1, X.shape[-1])).reshape(X.shape), check_random_state(self.random_state)
        starts = [self._start(episode, rng, self.n_clusters) for episode in codes]
        start = MemoryState(*map(torch.stack, zip(*(vars(each).values() for each in starts), strict=True)))
        fit = self._climb(codes, start, _memory_for(start, 0.2))
        return [copy.copy(common)._keep(fit.episode(b), episode) for b, episode in enumerate(codes)]

    def partial_fit(self, X: Any, y: None = None) -> Self:
        """Write one more batch [T, C]; of those before, only sums are kept. The first batch sets the scale."""
        if not hasattr(self, "_fit"):
            return self.fit(X)
        codes = self._codes(X)
        return self._keep(self._climb(codes, self._fit.state, self._fit.memory, self._fit), codes)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of every sample, in nats: [T]."""
        return np.asarray(_log_joint(self._codes(X), self._fit).logsumexp(-1) - float(np.log(self._scale).sum()))

    def score(self, X: Any, y: None = None) -> float:
        """Mean log density of the samples."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of every cluster given the sample: [T, H]."""
        return np.asarray(_log_joint(self._codes(X), self._fit).softmax(-1))

    def predict(self, X: Any) -> np.ndarray:
        """Most probable cluster of every sample: [T]."""
        return np.asarray(_log_joint(self._codes(X), self._fit).argmax(-1))

    def transform(self, X: Any) -> np.ndarray:
        """What `output` names: probabilities [T, H], or expected samples without noise [T, C]."""
        if self.output == "clusters":
            return self.predict_proba(X)
        recalled, fit = [], self._fit
        for chunk in self._codes(X).split(CHUNK):
            addresses = fit.memory.address(fit.state, chunk)
            likely = replace(addresses, assignment=_log_joint(chunk, fit).softmax(-1))
            recalled.append(fit.memory.recall(fit.state, likely))
        return self._leave(torch.cat(recalled))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of `transform`."""
        kind = base.ClassNamePrefixFeaturesOutMixin if self.output == "clusters" else base.OneToOneFeatureMixin
        return np.asarray(kind.get_feature_names_out(self, input_features))

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """New samples [n, C] and their clusters [n], in the order of the clusters."""
        check_is_fitted(self)
        check_scalar(n_samples, "n_samples", Integral, min_val=1)
        rng, fit = check_random_state(self.random_state), self._fit
        labels = np.repeat(np.arange(self.n_clusters_), rng.multinomial(n_samples, fit.weights.double()))
        generator = torch.Generator().manual_seed(int(rng.randint(2**31)))
        return self._leave(
            fit.memory.sample(fit.state, n_samples, generator, clusters=torch.from_numpy(labels))
        ), labels

    def _check_parameters(self, samples: int) -> None:
        clusters = 1 if self.n_clusters == "auto" else self.n_clusters
        check_scalar(clusters, "n_clusters", Integral, min_val=1)
        for name, kind, least in (("n_rows", Integral, 0), ("max_iter", Integral, 1), ("tol", Real, 0)):
            check_scalar(getattr(self, name), name, kind, min_val=least)
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if samples < clusters:
            raise ValueError(f"n_clusters={clusters} needs at least as many samples, got n_samples={samples}")

    def _measure(self, X: np.ndarray) -> None:
        """Centre and scale of the samples [T, C]."""
        self._centre = X.mean(0)
        var = (X - self._centre).var(0, dtype=np.float64)
        var = var if self.scale == "feature" else np.full_like(var, var.mean())
        rounding = np.square(8 * np.finfo(X.dtype).eps * self._centre)
        self._scale = np.sqrt(np.where(var > rounding, var, 1)).astype(X.dtype)

    def _codes(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=self._scale.dtype, reset=False)
        return torch.from_numpy((X - self._centre) / self._scale)

    def _leave(self, codes: Tensor) -> np.ndarray:
        return np.asarray(codes.numpy() * self._scale + self._centre)

    def _start(self, codes: Tensor, rng: np.random.RandomState, clusters: int) -> MemoryState:
        """Locations at samples, random rows."""
        seeds = rng.permutation(len(codes))[:clusters]
        if self.init == "kmeans++":
            seeds = kmeans_plusplus(codes.numpy(), clusters, random_state=rng)[1]
        loc = codes[seeds]
        rows = loc.new_tensor(rng.normal(0, 0.25, (clusters, self.n_rows, loc.shape[-1])))
        cov = torch.eye(self.n_rows, dtype=loc.dtype).expand(clusters, -1, -1) / loc.shape[-1]
        return MemoryState(rows, cov, loc, loc.new_full((clusters,), FLOOR))

    def _search(self, codes: Tensor, rng: np.random.RandomState, clusters: int) -> _Fit:
        """A climb from the start, then moves while they pay: these leave most local optima."""
        start = self._start(codes, rng, clusters)
        best = self._climb(codes, start, _memory_for(start, 0.2))
        while clusters > 1:
            log_joint = _log_joint(codes, best)
            proba = log_joint.softmax(-1)
            spare = (1 - proba).clamp_min(FLOOR).log().sum(0).argmax()  # its loss costs the density least
            surprise = -(proba.mT @ log_joint.logsumexp(-1)) / (1 + proba.sum(0))
            pair = torch.stack([spare, surprise.index_fill(0, spare, -math.inf).argmax()])
            members = codes[proba[:, pair[1]].topk(max(2, int(proba[:, pair[1]].sum()))).indices]
            both = zip(vars(best.state).values(), vars(self._start(members, rng, 2)).values(), strict=True)
            moved = self._climb(codes, MemoryState(*(old.index_copy(0, pair, new) for old, new in both)), best.memory)
            if moved.bound <= best.bound + self.tol * codes.numel():
                break
            best = moved
        return best

    def _climb(self, codes: Tensor, state: MemoryState, memory: MixtureMemory, past: _Fit | None = None) -> _Fit:
        """Local and global steps until the bound of the codes [.., T, C] settles; the past's sums join every global
        step."""
        previous = -math.inf
        for iteration in range(1, self.max_iter + 1):
            sums, totals, divergence = _pass(codes, state, memory)
            bound = float((totals[0] - divergence).sum())
            if past is not None:
                sums, totals = past.sums + sums, past.totals + totals
            memory = _memory_for(state, float(totals[1].sum() / totals[2].sum()))
            state = memory.global_step(state, sums)
            weights = smoothed_usage(sums.count, torch.full_like(sums.count, 1 / memory.clusters))
            converged, previous = abs(bound - previous) < self.tol * codes.numel(), bound
            fit = _Fit(state, memory, weights, sums, totals, totals[0] - divergence, iteration, converged)
            if converged:
                break
        return fit

    def _keep(self, fit: _Fit, codes: Tensor) -> Self:
        if not fit.converged:
            warnings.warn(f"not converged in max_iter={self.max_iter}; raise it or tol", ConvergenceWarning, 3)
        self._fit, state = fit, fit.state
        self.n_iter_, self.converged_ = fit.iterations, fit.converged
        self.n_clusters_ = self._n_features_out = len(state.loc_var)
        self.lower_bound_ = float(fit.bound) - float(fit.totals[2] * np.log(self._scale).mean())
        var = fit.memory.noise_var + state.loc_var + state.row_cov.diagonal(dim1=-2, dim2=-1).sum(-1)
        self.weights_, self.noise_variance_ = fit.weights.numpy(), var.numpy()[:, None] * self._scale**2
        self.means_, self.factors_ = self._leave(state.loc_mean), state.row_mean.numpy() * self._scale
        self.labels_ = _log_joint(codes, fit).argmax(-1).numpy()
        return self


@dataclass(frozen=True)
class _Fit:
    """Of one episode, or of several with the same prior."""

    state: MemoryState
    memory: MixtureMemory
    weights: Tensor  # [.., H]
    sums: Statistics
    totals: Tensor  # see `_pass`
    bound: Tensor  # [..]
    iterations: int
    converged: bool

    def episode(self, number: int) -> _Fit:
        state, sums = self.state.map(lambda tensor: tensor[number]), self.sums.map(lambda tensor: tensor[number])
        weights, totals, bound = self.weights[number], self.totals[:, number], self.bound[number]
        return replace(self, state=state, weights=weights, sums=sums, totals=totals, bound=bound)


def _memory_for(state: MemoryState, noise: float) -> MixtureMemory:
    """Rows and locations around 0, with the variances that give this state the highest bound."""
    clusters, rows, size = state.row_mean.shape[-3:]
    loc_var = (state.loc_mean.square().mean(-1) + state.loc_var).mean()
    spread = state.row_mean.square().mean(-1) + state.row_cov.diagonal(dim1=-2, dim2=-1)  # [.., H, K]
    row_var = spread.sum() / max(spread.numel(), 1)
    return MixtureMemory(
        size,
        rows,
        clusters,
        noise_var=max(noise, FLOOR),
        row_var=max(float(row_var), FLOOR),
        loc_var=max(float(loc_var), FLOOR),
    )


def _pass(codes: Tensor, state: MemoryState, memory: MixtureMemory) -> tuple[Statistics, Tensor, Tensor]:
    """A local step over all codes: statistics; bound, E sum |z - M'w - b|^2 and size, [3, ..]; the KL of the memory."""
    sums, totals = [], torch.zeros(3, *codes.shape[:-2], dtype=torch.float64)
    for chunk in codes.split(CHUNK, dim=-2):
        part, bound = memory.local_step(state, chunk)
        divergence = bound.kl_rows.double() + bound.kl_locations
        squares = memory.residual(state, part).double()
        size = torch.full_like(squares, chunk.shape[-2] * chunk.shape[-1])
        totals += torch.stack([bound.total + divergence, squares, size])
        sums.append(part)
    return functools.reduce(Statistics.__add__, sums), totals, divergence


def _log_joint(codes: Tensor, fit: _Fit) -> Tensor:
    """log weight + log density of every cluster, [T, H]."""
    log_densities = [fit.memory.log_densities(fit.state, chunk) for chunk in codes.split(CHUNK)]
    return torch.cat(log_densities) + fit.weights.log()


def _best_size(search: Callable[[int], _Fit], most: int) -> _Fit:
    """The size with the highest bound: doubled while that rises, then neighbours in ever smaller steps."""
    search, best = functools.cache(search), 1
    while 2 * best <= most and search(2 * best).bound > search(best).bound:
        best *= 2
    step = best // 2
    while step:
        near = [size for size in (best - step, best, best + step) if size <= most]
        best, step = max(near, key=lambda size: search(size).bound), step // 2
    return search(best)
