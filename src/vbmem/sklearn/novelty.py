"""Outliers and novelties: what a memory of the normal finds improbable."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
from sklearn import base
from sklearn.model_selection import KFold
from sklearn.utils import check_scalar
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from vbmem.memory.sized import Noise
from vbmem.sklearn.mixture import MemoryMixture

FOLDS = 5
FALSE_ALARMS = 0.01  # share of new normal samples below the threshold that "auto" aims at
RECENT = 2048  # samples of a stream from which the threshold is taken


class MemoryNovelty(base.OutlierMixin, base.BaseEstimator):  # type: ignore[misc]
    """Outliers are samples of low density under a `MemoryMixture` of all others.

    Signs and labels as everywhere in scikit-learn: scores are high for what is normal, labels 1 for it and -1 for
    outliers.

    Args:
        n_clusters: of the mixture.
        n_rows: of the mixture.
        n_init: of the mixture.
        max_iter: of the mixture.
        tol: of the mixture.
        random_state: of the mixture.
        noise: of the mixture. One for all features tells outliers best where they share a unit, as embeddings do; else
            scale them, or take "cluster".
        contamination: the share of outliers among the samples written; or "auto", a threshold that one in a hundred new
            samples of the same kind would fall below, from the scores that each fifth of the samples gets from a memory
            of the others.

    Attributes:
        mixture_: the `MemoryMixture`.
        offset_: the threshold, a log density in nats.
        n_iter_: of the mixture.
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 5,
        n_rows: int = 4,
        *,
        contamination: float | Literal["auto"] = "auto",
        noise: Noise = "global",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters, self.n_rows, self.contamination = n_clusters, n_rows, contamination
        self.noise, self.n_init, self.max_iter, self.tol = noise, n_init, max_iter, tol
        self.random_state = random_state

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Write X [T, C], normal samples or nearly all of them."""
        X = self._checked(X)
        weights = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        X, weights = X[weights > 0], weights[weights > 0]
        self.mixture_ = self._mixture().fit(X, sample_weight=weights)
        scores = self._held_out(X, weights) if self.contamination == "auto" else self.mixture_.score_samples(X)
        return self._set(X, scores, weights)

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Write one more batch [T, C]. The threshold is that of the last 2,048 samples; with "auto", of the scores they
        had before they were written."""
        if not hasattr(self, "mixture_"):
            return self.fit(X, sample_weight=sample_weight)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        fresh = self.mixture_.score_samples(X)
        self.mixture_.partial_fit(X, sample_weight=sample_weight)
        recent = np.concatenate([self._recent, X])[-RECENT:]
        if self.contamination == "auto":
            scores = np.concatenate([self._scores, fresh])[-RECENT:]
        else:
            scores = self.mixture_.score_samples(recent)
        return self._set(recent, scores, np.ones_like(scores))

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of every sample, in nats: [T]."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return self.mixture_.score_samples(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """Log density above the threshold, in nats: negative for outliers, [T]."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """1 for normal samples, -1 for outliers: [T]."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    def _checked(self, X: Any) -> np.ndarray:
        if self.contamination != "auto":
            check_scalar(self.contamination, "contamination", Real, min_val=0, max_val=0.5, include_boundaries="right")
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        return np.asarray(X)

    def _mixture(self, **changes: Any) -> MemoryMixture:
        names = ("n_clusters", "n_rows", "noise", "n_init", "max_iter", "tol", "random_state")
        return MemoryMixture(**{name: getattr(self, name) for name in names} | changes)

    def _held_out(self, X: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The score of every sample from a memory of the other folds."""
        scores = np.empty(len(X), X.dtype)
        for written, others in KFold(min(FOLDS, len(X)), shuffle=True, random_state=0).split(X):
            clusters = min(self.mixture_.n_clusters_, len(written))
            fold = self._mixture(n_clusters=clusters, n_init=1)
            fold.fit(X[written], sample_weight=weights[written])
            scores[others] = fold.score_samples(X[others])
        return scores

    def _set(self, recent: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> Self:
        """The threshold, from scores [T] and how much they count."""
        share = FALSE_ALARMS if self.contamination == "auto" else self.contamination
        self._recent, self._scores = recent[-RECENT:], scores[-RECENT:]
        self.offset_, self.n_iter_ = quantile(scores, share, weights), self.mixture_.n_iter_
        return self


def quantile(scores: np.ndarray, share: float, weights: np.ndarray) -> float:
    """As `np.quantile`, where a score of weight n counts as n of them."""
    order = np.argsort(scores)
    reached = np.cumsum(weights[order], dtype=np.float64)
    place = share * max(reached[-1] - 1, 0)
    beside = np.searchsorted(reached, [math.floor(place), math.floor(place) + 1], side="right")
    low, high = scores[order][beside.clip(max=len(scores) - 1)]
    return float(low + (place - math.floor(place)) * (high - low))


class MemoryOutliers(MemoryNovelty):
    """`MemoryNovelty` with the manners of PyOD, which need not be installed: scores are high for outliers, labels 1 for
    them and 0 for all else.

    Args:
        n_clusters: of the mixture.
        n_rows: of the mixture.
        noise: of the mixture.
        n_init: of the mixture.
        max_iter: of the mixture.
        tol: of the mixture.
        random_state: of the mixture.
        contamination: the share of outliers among the samples written, or "auto", as there.

    Attributes:
        decision_scores_: [T] of the samples written, minus their log density in nats.
        threshold_: of the scores.
        labels_: [T] 0 or 1, of the samples written.
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 5,
        n_rows: int = 4,
        *,
        contamination: float | Literal["auto"] = 0.1,
        noise: Noise = "global",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        super().__init__(
            n_clusters,
            n_rows,
            contamination=contamination,
            noise=noise,
            n_init=n_init,
            max_iter=max_iter,
            tol=tol,
            random_state=random_state,
        )

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        return super().fit(X, y, sample_weight)._judge(X)

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        return super().partial_fit(X, y, sample_weight)._judge(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """Minus the log density of every sample, in nats: [T]."""
        return -self.score_samples(X)

    def predict(self, X: Any) -> np.ndarray:
        """1 for outliers, 0 for all else: [T]."""
        return (self.decision_function(X) > self.threshold_).astype(int)

    def fit_predict(self, X: Any, y: None = None) -> np.ndarray:
        return self.fit(X).labels_

    def predict_proba(self, X: Any, method: Literal["linear", "unify"] = "linear") -> np.ndarray:
        """Probabilities of being normal and of being an outlier, [T, 2]: by the place between the least and the
        greatest of `decision_scores_`, or as their normal distribution has it ("unify")."""
        scores, own = self.decision_function(X), self.decision_scores_
        if method == "linear":
            outlier = (scores - own.min()) / max(float(np.ptp(own)), np.finfo(own.dtype).tiny)
        elif method == "unify":
            place = (scores - own.mean()) / max(float(own.std()) * math.sqrt(2), np.finfo(own.dtype).tiny)
            outlier = np.array([math.erf(value) for value in place])
        else:
            raise ValueError(f"method must be one of linear, unify, got {method!r}")
        outlier = outlier.clip(0, 1)
        return np.stack([1 - outlier, outlier], axis=1)

    def _judge(self, X: Any) -> Self:
        self.threshold_ = -self.offset_
        self.decision_scores_ = self.decision_function(X)
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)
        return self
