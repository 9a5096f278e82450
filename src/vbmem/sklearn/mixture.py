"""A mixture of factor analysers over embeddings, with the manners of `sklearn.mixture`."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from sklearn import base
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_array, check_random_state, check_scalar
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from vbmem.memory.choice import smoothed_usage
from vbmem.memory.fitting import Fit, measure
from vbmem.memory.sized import Noise
from vbmem.memory.starting import Start
from vbmem.sklearn.search import CHUNK, Past, Samples, Search, of_log_joint

STARTS: dict[str, Start | None] = {"auto": None, "ward": "ward", "kmeans": "kmeans", "random": "data"}
CHOICES = {"noise": get_args(Noise), "init": tuple(STARTS), "output": ("clusters", "reconstruction")}
SIZES = (("n_rows", Integral, 0), ("n_init", Integral, 1), ("max_iter", Integral, 1), ("tol", Real, 0))


class MemoryMixture(base.ClusterMixin, base.TransformerMixin, base.BaseEstimator):  # type: ignore[misc]
    """Clusters z = M_h'w + b_h + noise, w ~ N(0, I_K): correlated features at the price of K + 1 vectors a cluster.

    Written by closed-form mean-field variational Bayes. With the clusters, the prior is fitted: variances of noise,
    rows and locations, their mean, and the clusters' weights, each update raising the bound. So the fit does not depend
    on the units of X; scores are in them. Then the cluster least needed is moved to where samples are explained worst,
    as long as the bound gains.

    Args:
        n_clusters: H, or "auto": the size with the highest evidence, doubled while it rises, then refined.
        n_rows: K, or 0 for clusters without directions.
        noise: a variance for every "cluster" and feature; for every "feature"; or one for all ("global"), where
            features have the same unit and the same noise. Unless it is global, each may have a unit of its own. Global
            is safest for few samples, and for columns of few values, which have no density.
        relevance: a variance for every row, so that rows nobody needs vanish; see `relevance_`.
        init: clusters start at the means of a "ward" clustering, of a quick "kmeans", or at "random" samples. "auto" is
            Ward for up to 1,024 samples, else k-means; of several starts, the first.
        n_init: starts, of which the best is kept; two at least for "auto" clusters.
        max_iter: iterations at most, from each start and after each move.
        tol: converged when an iteration raises the bound by less than this many nats a sample.
        warm_start: `fit` continues from the fit before, where there is one of this size.
        output: what `transform` gives: probabilities of the "clusters", or the "reconstruction", X without its noise.
        random_state: seed or generator of the starts, the moves and what `sample` draws.

    Attributes:
        weights_: [H] shares of samples.
        means_: [H, C].
        factors_: [H, K, C].
        noise_variance_: [H, C]. Mean and covariance of cluster h, with the posterior's uncertainty, are means_[h] and
            factors_[h].T @ factors_[h] + diag(noise_variance_[h]).
        relevance_: [K] prior variances of the rows as a share of the noise; equal unless `relevance`.
        lower_bound_: of log p(X), in nats, of all that was written; with the log-density of the noise, where each
            cluster has its own.
        labels_: most probable clusters, [T], of the last fit or batch.
        n_iter_: iterations of the last climb.
        converged_: whether it settled before `max_iter`.
        n_clusters_: H.
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 10,
        n_rows: int = 6,
        *,
        noise: Noise = "cluster",
        relevance: bool = False,
        init: str = "auto",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
        warm_start: bool = False,
        output: str = "clusters",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters, self.n_rows, self.noise, self.relevance = n_clusters, n_rows, noise, relevance
        self.init, self.n_init, self.max_iter, self.tol = init, n_init, max_iter, tol
        self.warm_start, self.output, self.random_state = warm_start, output, random_state

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Write X [T, C] into a fresh memory; a sample of weight n counts as n copies."""
        X = validate_data(self, X, dtype=[np.float64, np.float32])
        weight = self._weights(X, sample_weight)
        self._check_parameters(len(X) if weight is None else int((weight > 0).sum()))
        search, continued = self._search(), self.warm_start and self._continues(X)
        if not continued:
            self._measure(X, weight)
        codes = self._codes(X)
        samples = Samples(codes, None if weight is None else weight.to(codes))
        generator = _generator(check_random_state(self.random_state))
        if continued:
            fit = search.moved(samples, search.climb(samples, self._fit.memory, self._fit.state), generator)
        elif self.n_clusters == "auto":
            fit = search.best_size(samples, generator, len(X))
        else:
            fit = search.fit(samples, generator)
        return self._keep(fit, samples.codes)

    def fit_episodes(self, X: Any) -> list[Self]:
        """Write episodes [B, T, C] all at once, each into a memory of its own: a fitted estimator for each.

        They share the prior: scales, and the noise, which is that of every feature where clusters would have their own.
        Clusters are not moved afterwards.
        """
        X = check_array(X, allow_nd=True, dtype=[np.float64, np.float32], estimator=self)
        if X.ndim != 3 or self.n_clusters == "auto":
            got = f"n_clusters={self.n_clusters!r} and X of shape {list(X.shape)}"
            raise ValueError(f"episodes need a number of clusters and an array [B, T, C], got {got}")
        self._check_parameters(X.shape[1])
        common = base.clone(self)
        common._measure(validate_data(common, X.reshape(-1, X.shape[-1]), dtype=X.dtype), None)
        samples = Samples(common._codes(X.reshape(-1, X.shape[-1])).reshape(X.shape))
        search = self._search()
        if search.noise == "cluster" and self.n_clusters > 1:
            search = replace(search, noise="feature")
        generator = _generator(check_random_state(self.random_state))
        fit = search.climb(samples, *search.first(samples, generator, weights=False))
        return [copy.copy(common)._keep(_episode(fit, b), codes) for b, codes in enumerate(samples.codes)]

    def partial_fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Write one more batch [T, C]; of those before, only sums are kept. The first sets where clusters start."""
        if not hasattr(self, "_fit"):
            return self.fit(X, sample_weight=sample_weight)
        codes = self._codes(X)
        samples = Samples(codes, self._weights(codes.numpy(), sample_weight), Past.of(self._fit))
        return self._keep(self._search().climb(samples, self._fit.memory, self._fit.state), codes)

    def score_samples(self, X: Any) -> np.ndarray:
        """Log density of every sample, in nats: [T]."""
        log_density = of_log_joint(torch.logsumexp, self._codes(X), self._fit, self._shares)
        return np.asarray(log_density - float(np.log(self._scale).sum()))

    def score(self, X: Any, y: None = None, sample_weight: Any = None) -> float:
        """Mean log density of the samples."""
        return float(np.average(self.score_samples(X), weights=sample_weight))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of every cluster given the sample: [T, H]."""
        return np.asarray(of_log_joint(torch.softmax, self._codes(X), self._fit, self._shares))

    def predict(self, X: Any) -> np.ndarray:
        """Most probable cluster of every sample: [T]."""
        return np.asarray(of_log_joint(torch.argmax, self._codes(X), self._fit, self._shares))

    def transform(self, X: Any) -> np.ndarray:
        """What `output` names: probabilities [T, H], or expected samples without noise [T, C]."""
        if self.output == "clusters":
            return self.predict_proba(X)
        recalled, fit = [], self._fit
        for chunk in self._codes(X).split(CHUNK):
            addresses = fit.memory.address(fit.state, chunk)
            likely = replace(addresses, assignment=of_log_joint(torch.softmax, chunk, fit, self._shares))
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
        shares = self._shares.double()
        labels = np.repeat(np.arange(self.n_clusters_), rng.multinomial(n_samples, shares / shares.sum()))
        drawn = fit.memory.sample(fit.state, n_samples, _generator(rng), clusters=torch.from_numpy(labels))
        return self._leave(drawn), labels

    def _check_parameters(self, samples: int) -> None:
        clusters = 1 if self.n_clusters == "auto" else self.n_clusters
        check_scalar(clusters, "n_clusters", Integral, min_val=1)
        for name, kind, least in SIZES:
            check_scalar(getattr(self, name), name, kind, min_val=least)
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if samples < clusters:
            raise ValueError(f"n_clusters={clusters} needs at least as many samples, got n_samples={samples}")

    def _search(self) -> Search:
        return Search(
            1 if self.n_clusters == "auto" else self.n_clusters,
            self.n_rows,
            self.noise,
            self.max_iter,
            self.tol,
            self.relevance,
            STARTS[self.init],
            self.n_init,
        )

    def _continues(self, X: np.ndarray) -> bool:
        """Whether there is a fit of these sizes, with such noise."""
        if not hasattr(self, "_fit") or len(self._scale) != X.shape[1]:
            return False
        memory = self._fit.memory
        clusters, rows = memory.layout
        same_noise = torch.as_tensor(memory.noise_var).shape == memory.noise_shape(self.noise)
        return same_noise and rows == self.n_rows and self.n_clusters in ("auto", clusters)

    @staticmethod
    def _weights(X: np.ndarray, sample_weight: Any) -> Tensor | None:
        if sample_weight is None:
            return None
        weight = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
        return torch.from_numpy(np.array(weight))

    def _measure(self, X: np.ndarray, weight: Tensor | None) -> None:
        """Centre and scale of the samples [T, C]."""
        centre, scale = measure(torch.from_numpy(np.array(X)), weight, self.noise)
        self._centre, self._scale = centre.numpy(), scale.expand_as(centre).numpy()

    def _codes(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=self._scale.dtype, reset=False)
        return torch.from_numpy((X - self._centre) / self._scale)

    def _leave(self, codes: Tensor) -> np.ndarray:
        return np.asarray(codes.numpy() * self._scale + self._centre)

    def _keep(self, fit: Fit, codes: Tensor) -> Self:
        if not fit.converged:
            warnings.warn(f"not converged in max_iter={self.max_iter}; raise it or tol", ConvergenceWarning, 3)
        self._fit, state, count = fit, fit.state, fit.sums.count
        self.n_iter_, self.converged_, self.n_clusters_ = fit.iterations, fit.converged, len(count)
        self._n_features_out = self.n_clusters_
        self._shares = smoothed_usage(count, torch.full_like(count, 1 / len(count)))
        self.lower_bound_ = float(fit.bound) - float(count.sum()) * float(np.log(self._scale).sum())
        prior = fit.memory.prior(state.row_mean)
        traces = state.row_cov.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        var = (1 + traces / prior.noise_scale) * prior.noise_var
        self.weights_, self.noise_variance_ = self._shares.numpy(), var.numpy() * self._scale**2
        self.means_, self.factors_ = self._leave(state.loc_mean), state.factor_mean.numpy() * self._scale
        row_var = torch.as_tensor(fit.memory.row_var).to(prior.noise_scale) / prior.noise_scale
        self.relevance_ = row_var.expand(state.rows).numpy()
        self.labels_ = of_log_joint(torch.argmax, codes, fit, self._shares).numpy()
        return self


def _generator(rng: np.random.RandomState) -> torch.Generator:
    return torch.Generator().manual_seed(int(rng.randint(2**31)))


def _episode(fit: Fit, number: int) -> Fit:
    """One of several episodes that share a prior."""

    def chosen(tensor: Tensor) -> Tensor:
        return tensor[number]

    return replace(fit, state=fit.state.map(chosen), sums=fit.sums.map(chosen), bound=chosen(fit.bound))
