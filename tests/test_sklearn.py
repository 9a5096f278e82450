"""The scikit-learn estimators: their manners, the mixture's density, what it finds, and what is an outlier."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from sklearn.mixture import BayesianGaussianMixture
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from vbmem.sklearn import MemoryMixture, MemoryNovelty, MemoryOutliers
from vbmem.sklearn.novelty import quantile
from vbmem.sklearn.search import Past, Samples, Search

ESTIMATORS = [
    MemoryMixture(n_clusters=3, n_rows=2, tol=0.5),
    MemoryMixture(n_clusters=2, n_rows=0, noise="global", tol=0.5, output="reconstruction"),
    MemoryNovelty(n_clusters=2, n_rows=1, tol=0.5, contamination=0.1),
]
NOISES = ["global", "feature", "cluster"]


@parametrize_with_checks(ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_it_has_the_manners_of_scikit_learn(estimator, check):
    check(estimator)


def low_rank(samples, size=20, clusters=4, rank=3, seed=0):
    rng = np.random.RandomState(seed)
    labels = rng.randint(clusters, size=samples)
    locations, factors = 2 * rng.randn(clusters, size), rng.randn(clusters, rank, size)
    weights = rng.randn(samples, 1, rank)
    return locations[labels] + (weights @ factors[labels])[:, 0] + 0.3 * rng.randn(samples, size), labels


def blobs(samples=600, clusters=5, seed=0):
    return make_blobs(samples, n_features=8, centers=clusters, center_box=(-30, 30), random_state=seed)


def test_separate_clusters_are_found():
    X, labels = blobs()
    mixture = MemoryMixture(n_clusters=5, n_rows=2, tol=0.01, random_state=0).fit(X)
    assert adjusted_rand_score(labels, mixture.predict(X)) == 1
    assert adjusted_rand_score(labels, clone(mixture).fit_predict(X)) == 1
    assert mixture.converged_
    assert np.allclose(mixture.predict_proba(X).sum(1), 1)
    assert np.allclose(mixture.weights_.sum(), 1)


def test_samples_in_chunks_give_what_all_at_once_give(monkeypatch):
    X, _ = low_rank(300)

    def everything():
        mixture = MemoryMixture(4, 2, random_state=0).fit(X)
        found = mixture.predict(X), mixture.labels_, mixture.predict_proba(X), mixture.score_samples(X)
        return [*found, mixture.transform(X), mixture.means_]

    expected = everything()
    monkeypatch.setattr("vbmem.sklearn.search.CHUNK", 70)
    for found, wanted in zip(everything(), expected, strict=True):
        assert np.allclose(found, wanted, rtol=1e-7, atol=1e-7)


def test_clusters_that_overlap_in_space_are_told_apart_by_their_subspaces():
    X, labels = low_rank(1300)
    X_new = X[800:]
    found = [MemoryMixture(4, 3, random_state=seed).fit(X[:800]).predict(X_new) for seed in range(2)]
    assert min(adjusted_rand_score(labels[800:], labels_found) for labels_found in found) > 0.98


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("rows", [0, 1])
def test_the_density_integrates_to_one(noise, rows):
    rng = np.random.RandomState(0)
    X = np.concatenate([rng.randn(40, 2) * [1, 30], rng.randn(80, 2) * [2, 20] + [12, 50]])
    mixture = MemoryMixture(2, rows, noise=noise, tol=0.01, random_state=0).fit(X)
    widths = ((6, 15 if noise == "global" else 3), (25, 25))
    axes = [np.linspace(centre - 12 * width, centre + 12 * width, 201) for centre, width in widths]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.exp(mixture.score_samples(grid)).sum() * cell == pytest.approx(1, abs=0.01)


def test_the_density_is_nearly_the_mixture_its_attributes_describe():
    X, _ = low_rank(1000)
    mixture = MemoryMixture(4, 3, random_state=0).fit(X)
    density = 0
    for weight, mean, rows, noise in zip(
        mixture.weights_, mixture.means_, mixture.factors_, mixture.noise_variance_, strict=True
    ):
        covariance = rows.T @ rows + np.diag(noise)
        quadratic = np.einsum("ti,ij,tj->t", X - mean, np.linalg.inv(covariance), X - mean)
        density += weight * np.exp(-0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1]))
    assert np.allclose(mixture.score_samples(X), np.log(density), atol=0.5)
    assert mixture.score(X) == pytest.approx(np.log(density).mean(), abs=0.05)


@pytest.mark.parametrize("noise", NOISES)
def test_units_change_the_score_as_they_change_a_density(noise):
    X, _ = low_rank(400)
    units = np.full(X.shape[1], 250.0) if noise == "global" else np.geomspace(0.01, 100, X.shape[1])
    other_X, change = units * X - 7000, np.log(units).sum()
    mixture = MemoryMixture(4, 3, noise=noise, random_state=0)
    one, other = clone(mixture).fit(X), clone(mixture).fit(other_X)
    assert other.score(other_X) == pytest.approx(one.score(X) - change, abs=1e-5)
    assert other.lower_bound_ == pytest.approx(one.lower_bound_ - len(X) * change, abs=1e-2)
    assert (other.labels_ == one.labels_).all()


@pytest.mark.parametrize("relevance", [False, True])
@pytest.mark.parametrize("noise", NOISES)
def test_every_iteration_raises_the_bound(noise, relevance):
    codes = torch.from_numpy(low_rank(150, size=8)[0]) / 2
    search = Search(3, 2, noise, 2, 0.0, relevance, "ward", 1)
    samples = Samples(codes[:50])
    memory, state = search.first(samples, torch.Generator().manual_seed(0))
    for batch in codes.split(50):  # the statistics of batches before stay, and turn with the rows
        samples = Samples(batch, past=samples.past)
        bounds = []
        for _ in range(10):
            fit = search.climb(samples, memory, state)
            memory, state = fit.memory, fit.state
            bounds.append(float(fit.bound))
        assert (np.diff(bounds) > -1e-9).all()
        assert bounds[-1] > bounds[0] + 0.1
        samples.past = Past.of(fit)


@pytest.mark.parametrize("noise", NOISES)
def test_the_past_keeps_the_bound_it_had(noise):
    codes = torch.from_numpy(low_rank(100, size=8)[0]) / 2
    search = Search(3, 2, noise, 9, 0.0, False, "ward", 1)
    samples = Samples(codes)
    fit = search.climb(samples, *search.first(samples, torch.Generator().manual_seed(0)))
    _, whole = samples.local_pass(fit.memory, fit.state)
    _, half = Samples(codes[50:]).local_pass(fit.memory, fit.state)
    sums, first = Samples(codes[:50]).local_pass(fit.memory, fit.state)
    past = Past.of(replace(fit, sums=sums, bound=fit.bound - half))
    _, both = Samples(codes[50:], past=past).local_pass(fit.memory, fit.state)
    assert float(both) == pytest.approx(float(whole))
    assert float(whole) == pytest.approx(float(first + half))


def test_batches_come_close_to_one_fit():
    X, labels = low_rank(4000)
    train, held_out = X[:3000], X[3000:]
    whole = MemoryMixture(4, 3, random_state=0).fit(train)
    streamed = MemoryMixture(4, 3, random_state=0)
    scores = [streamed.partial_fit(batch).score(held_out) for batch in np.array_split(train, 10)]
    assert scores[-1] > scores[0]
    assert whole.score(held_out) - scores[-1] < 0.2
    assert adjusted_rand_score(labels[3000:], streamed.predict(held_out)) > 0.98
    assert streamed.lower_bound_ == pytest.approx(whole.lower_bound_, rel=0.02)
    assert np.allclose(np.sort(streamed.weights_), np.sort(whole.weights_), atol=0.01)


@pytest.mark.parametrize("noise", NOISES)
def test_the_noise_of_batches_follows_a_change(noise):
    rng = np.random.RandomState(0)
    mixture = MemoryMixture(1, 0, noise=noise, random_state=0).partial_fit(rng.randn(200, 3))
    assert np.allclose(mixture.noise_variance_, 1, atol=0.25)
    for _ in range(9):
        mixture.partial_fit(3 * rng.randn(200, 3))
    assert np.allclose(mixture.noise_variance_, (1 + 9 * 9) / 10, rtol=0.1)
    assert np.allclose(mixture.means_, 0, atol=0.3)


def test_batches_of_a_single_cluster_end_like_one_fit():
    X, _ = low_rank(600, clusters=1)
    whole = MemoryMixture(1, 3, tol=1e-6, random_state=0).fit(X)
    streamed = MemoryMixture(1, 3, tol=1e-6, random_state=0)
    for batch in np.array_split(X, 4):
        streamed.partial_fit(batch)
    assert streamed.lower_bound_ <= whole.lower_bound_
    assert streamed.score(X) == pytest.approx(whole.score(X), abs=0.05)


@pytest.mark.parametrize("noise", NOISES)
def test_weights_count_as_copies(noise):
    X, _ = low_rank(120, size=6)
    counts = np.random.RandomState(0).randint(0, 4, len(X))
    weighted, repeated = (MemoryMixture(3, 2, noise=noise, tol=0.01, random_state=0) for _ in range(2))
    weighted.fit(X, sample_weight=counts)
    repeated.fit(np.repeat(X, counts, axis=0))
    assert np.allclose(weighted.score_samples(X), repeated.score_samples(X))
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_)
    more, _ = low_rank(60, size=6)
    weighted.partial_fit(more, sample_weight=np.full(60, 2))
    repeated.partial_fit(np.concatenate([more, more]))
    assert np.allclose(weighted.score_samples(X), repeated.score_samples(X))
    assert weighted.score(X, sample_weight=counts) == pytest.approx(repeated.score(np.repeat(X, counts, axis=0)))


def test_fractions_of_a_sample_are_counted():
    X, labels = blobs(300)
    weights = np.random.RandomState(0).uniform(0.1, 0.9, len(X))
    mixture = MemoryMixture(5, 1, random_state=0).fit(X, sample_weight=weights)
    assert adjusted_rand_score(labels, mixture.labels_) == 1
    shares = np.bincount(labels, weights) / weights.sum()
    assert np.allclose(np.sort(mixture.weights_), np.sort(shares), atol=0.01)


def test_the_order_of_samples_does_not_matter():
    X, _ = low_rank(200)
    order = np.random.RandomState(1).permutation(len(X))
    one, other = (MemoryMixture(4, 3, random_state=0).fit(x) for x in (X, X[order]))
    assert np.allclose(one.score_samples(X), other.score_samples(X))


def test_more_starts_are_never_worse():
    X, _ = low_rank(200, size=8, clusters=6, rank=1)
    search = Search(6, 1, "cluster", 30, 0.01, False, "data", 4)
    samples, generator = Samples(torch.from_numpy(X) / 2), torch.Generator().manual_seed(0)
    bounds = [float(search.climb(samples, *search.first(samples, generator, n)).bound) for n in range(4)]
    best = search.fit(samples, torch.Generator().manual_seed(0))
    assert float(best.bound) >= max(bounds) > min(bounds)


def test_a_warm_start_continues():
    X, _ = low_rank(300)
    mixture = MemoryMixture(4, 3, max_iter=4, warm_start=True, random_state=0)
    with pytest.warns(match="not converged"):
        bounds = [mixture.fit(X).lower_bound_ for _ in range(4)]
    assert (np.diff(bounds) > 0).all()
    settled = MemoryMixture(4, 3, warm_start=True, tol=0.01, random_state=0).fit(X)
    assert settled.fit(X).n_iter_ < 4
    assert settled.set_params(n_clusters=3).fit(X).n_clusters_ == 3


def test_rows_nobody_needs_vanish():
    X, _ = low_rank(500, clusters=1, rank=2)
    mixture = MemoryMixture(1, 5, relevance=True, random_state=0).fit(X)
    relevance = np.sort(mixture.relevance_)
    assert relevance[:3].max() < 0.02 * relevance[3:].min()
    plain = MemoryMixture(1, 5, random_state=0).fit(X)
    assert np.ptp(plain.relevance_) == 0
    assert mixture.lower_bound_ > plain.lower_bound_


def test_the_number_of_clusters_can_be_left_open():
    X, labels = blobs(400)
    mixture = MemoryMixture("auto", 1, tol=0.05, random_state=0).fit(X)
    assert mixture.n_clusters_ == 5
    assert adjusted_rand_score(labels, mixture.labels_) == 1
    assert (
        MemoryMixture("auto", 0, tol=0.01, random_state=0).fit(np.random.RandomState(0).randn(200, 3)).n_clusters_ == 1
    )


def test_planted_clusters_are_counted():
    X, _ = low_rank(300, size=8, clusters=6, rank=1)
    assert MemoryMixture("auto", 1, tol=0.05, random_state=0).fit(X).n_clusters_ == 6


def test_samples_have_the_moments_of_the_mixture():
    X, _ = low_rank(800, size=6)
    mixture = MemoryMixture(4, 3, random_state=0).fit(X)
    drawn, labels = mixture.sample(40_000)
    assert drawn.shape == (40_000, 6)
    assert np.allclose(np.bincount(labels) / len(labels), mixture.weights_, atol=0.01)
    for cluster in range(4):
        own = drawn[labels == cluster]
        covariance = mixture.factors_[cluster].T @ mixture.factors_[cluster]
        covariance += np.diag(mixture.noise_variance_[cluster])
        assert np.allclose(own.mean(0), mixture.means_[cluster], atol=0.1)
        assert np.allclose(np.cov(own.T), covariance, atol=0.1 * covariance.max())
    assert np.allclose(drawn.mean(0), X.mean(0), atol=0.2)


def test_the_same_seed_gives_the_same_fit():
    X, _ = low_rank(300)
    one, other = (MemoryMixture(4, 3, random_state=5).fit(X) for _ in range(2))
    assert (one.means_ == other.means_).all()
    assert (one.sample(7)[0] == other.sample(7)[0]).all()
    assert not np.allclose(one.means_, MemoryMixture(4, 3, random_state=6, init="random").fit(X).means_)


def test_it_fits_into_pipelines_and_searches():
    X, labels = blobs()
    pipeline = clone(make_pipeline(StandardScaler(), MemoryMixture(5, 1, tol=0.01, random_state=0)))
    assert adjusted_rand_score(labels, pipeline.fit(X).predict(X)) == 1
    names = pipeline.get_feature_names_out()
    assert list(names) == [f"memorymixture{i}" for i in range(5)]
    few, enough = (cross_val_score(MemoryMixture(size, 1, tol=0.01, random_state=0), X, cv=3).mean() for size in (2, 5))
    assert enough > few


def test_reconstruction_takes_noise_away():
    X, _ = low_rank(1000)
    mixture = MemoryMixture(4, 3, output="reconstruction", random_state=0).fit(X)
    removed = X - mixture.transform(X)
    # Of 20 directions, 17 hold nothing but noise of variance 0.09.
    assert np.square(removed).mean() == pytest.approx(0.09 * 17 / 20, rel=0.05)
    assert list(mixture.get_feature_names_out()) == [f"x{i}" for i in range(X.shape[1])]


def test_single_precision_finds_the_same():
    X, _ = low_rank(500)
    double, single = (MemoryMixture(4, 3, random_state=0).fit(X.astype(dtype)) for dtype in (np.float64, np.float32))
    assert single.means_.dtype == single.score_samples(X).dtype == single.sample()[0].dtype == np.float32
    assert single.score(X) == pytest.approx(double.score(X), abs=0.1)
    assert adjusted_rand_score(single.labels_, double.labels_) == 1


def test_few_samples_of_low_rank_are_modelled_better_than_by_full_covariances():
    X, _ = low_rank(1200)
    train, held_out = X[:200], X[200:]
    full = BayesianGaussianMixture(n_components=4, covariance_type="full", max_iter=500, random_state=0).fit(train)
    assert MemoryMixture(4, 3, random_state=0).fit(train).score(held_out) > full.score(held_out) + 1


def test_copies_and_constants_keep_the_density_finite():
    for X in (np.ones((20, 3)), np.repeat([[0.0, 0.0], [1.0, 5.0]], 10, axis=0)):
        mixture = MemoryMixture(2, 1, random_state=0).fit(X)
        assert np.isfinite(mixture.score_samples(X)).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_clusters": 0}, "n_clusters == 0, must be >= 1"),
        ({"n_clusters": 30}, "n_clusters=30 needs at least as many samples, got n_samples=20"),
        ({"n_rows": -1}, "n_rows == -1, must be >= 0"),
        ({"max_iter": 0}, "max_iter == 0, must be >= 1"),
        ({"tol": -1.0}, "tol == -1.0, must be >= 0"),
        ({"n_init": 0}, "n_init == 0, must be >= 1"),
        ({"init": "luck"}, "init must be one of auto, ward, kmeans, random, got 'luck'"),
        ({"noise": 2}, "noise must be one of global, feature, cluster, got 2"),
        ({"output": "all"}, "output must be one of clusters, reconstruction, got 'all'"),
    ],
)
def test_a_wrong_parameter_is_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        MemoryMixture(**({"n_clusters": 2} | parameters)).fit(np.random.RandomState(0).randn(20, 2))


def episodes(count=4, samples=60):
    return np.stack([low_rank(samples, size=8, clusters=2, rank=1, seed=seed)[0] for seed in range(count)])


def test_every_episode_gets_a_memory_of_its_own():
    X = episodes()
    fitted = MemoryMixture(2, 1, random_state=0).fit_episodes(X)
    scores = np.array([[mixture.score(x) for x in X] for mixture in fitted])
    assert (scores.argmax(1) == np.arange(len(X))).all()
    for mixture, x in zip(fitted, X, strict=True):
        assert mixture.predict(x).tolist() == mixture.labels_.tolist()
        assert mixture.sample(5)[0].shape == (5, 8)
        assert clone(mixture).get_params() == mixture.get_params()


def test_episodes_that_are_copies_are_each_fitted_like_one():
    X, _ = low_rank(200, size=8, clusters=1, rank=2)
    mixture = MemoryMixture(1, 2, tol=1e-5, noise="feature", random_state=0)
    alone = clone(mixture).fit(X)  # a single cluster is never moved
    (lone,) = mixture.fit_episodes(X[None])
    assert lone.n_iter_ == alone.n_iter_
    assert lone.lower_bound_ == pytest.approx(alone.lower_bound_)
    for copy in mixture.fit_episodes(np.stack([X, X, X])):
        assert copy.lower_bound_ > alone.lower_bound_  # the mean they share is that of the prior
        np.testing.assert_allclose(copy.score_samples(X), alone.score_samples(X), atol=0.1)


def test_more_can_be_written_into_the_memory_of_an_episode():
    first, *_ = MemoryMixture(2, 1, random_state=0).fit_episodes(episodes())
    more, _ = low_rank(300, size=8, clusters=2, rank=1, seed=0)
    before = first.score(more)
    assert first.partial_fit(more).score(more) > before


@pytest.mark.parametrize(
    ("settings", "shape"), [({}, (5, 3)), ({"n_clusters": "auto"}, (2, 5, 3)), ({}, (2, 2, 5, 3))], ids=str
)
def test_what_is_no_batch_of_episodes_is_refused(settings, shape):
    mixture = MemoryMixture(**{"n_clusters": 2} | settings)
    with pytest.raises(ValueError, match=r"episodes need a number of clusters and an array \[B, T, C\], got"):
        mixture.fit_episodes(np.zeros(shape))


def strange(samples=400, share=0.05, seed=0):
    """Normal samples, some of them far off, and which."""
    X, _ = low_rank(samples, size=8, clusters=2, rank=2, seed=seed)
    rng = np.random.RandomState(seed)
    outlier = rng.permutation(samples) < share * samples
    X[outlier] += 15 * rng.randn(int(outlier.sum()), 8)
    return X, outlier


def test_outliers_have_low_scores_and_the_label_minus_one():
    X, outlier = strange()
    detector = MemoryNovelty(2, 2, contamination=0.05, random_state=0)
    labels = detector.fit_predict(X)
    assert set(labels) == {-1, 1}
    assert (labels == -1).sum() == pytest.approx(outlier.sum(), abs=1)
    assert roc_auc_score(outlier, -detector.score_samples(X)) > 0.97
    assert ((detector.decision_function(X) < 0) == (labels == -1)).all()
    assert np.allclose(detector.score_samples(X), detector.mixture_.score_samples(X))


def test_one_in_a_hundred_new_samples_raises_an_alarm_by_default():
    X, _ = strange(4000, share=0)
    detector = MemoryNovelty(2, 2, tol=0.01, random_state=0).fit(X[:400])
    assert (detector.predict(X[400:]) == -1).mean() == pytest.approx(0.01, abs=0.01)
    assert (detector.predict(X[400:] + 15) == -1).mean() > 0.95


@pytest.mark.parametrize("contamination", ["auto", 0.05])
def test_the_threshold_follows_a_stream(contamination):
    X, _ = strange(2000, share=0)
    detector = MemoryNovelty(2, 2, contamination=contamination, tol=0.01, random_state=0)
    first, *others = np.array_split(X[:1500], 6)
    before = detector.partial_fit(first).mixture_.score(X[1500:])
    for batch in others:
        detector.partial_fit(batch)
    alarms = (detector.predict(X[1500:]) == -1).mean()
    assert alarms == pytest.approx(0.01 if contamination == "auto" else 0.05, abs=0.03)
    assert detector.mixture_.score(X[1500:]) > before


@pytest.mark.parametrize("contamination", [0, 0.6, -1])
def test_a_wrong_share_of_outliers_is_named(contamination):
    with pytest.raises(ValueError, match="contamination"):
        MemoryNovelty(2, 1, contamination=contamination).fit(strange(40)[0])


def test_the_manners_of_pyod():
    X, outlier = strange()
    detector = MemoryOutliers(2, 2, contamination=0.05, random_state=0).fit(X)
    assert (detector.decision_scores_ == detector.decision_function(X)).all()
    assert (detector.labels_ == (detector.decision_scores_ > detector.threshold_)).all()
    assert (detector.predict(X) == detector.labels_).all()
    assert (clone(detector).fit_predict(X) == detector.labels_).all()
    assert set(detector.labels_) == {0, 1}
    assert detector.labels_.sum() == pytest.approx(outlier.sum(), abs=1)
    assert roc_auc_score(outlier, detector.decision_scores_) > 0.97
    for method in ("linear", "unify"):
        proba = detector.predict_proba(X, method)
        assert proba.shape == (len(X), 2)
        assert np.allclose(proba.sum(1), 1)
        assert proba[outlier, 1].mean() > proba[~outlier, 1].mean()
    with pytest.raises(ValueError, match="method must be one of linear, unify, got 'guess'"):
        detector.predict_proba(X, "guess")  # type: ignore[arg-type]
    assert detector.get_params()["contamination"] == 0.05
    assert MemoryOutliers().contamination == 0.1
    assert len(detector.partial_fit(X[:50]).decision_scores_) == 50


def test_a_long_episode_is_written_to_its_end():
    X = np.random.RandomState(0).randn(1, 5000, 2)
    X[0, 3000:] += 9
    (mixture,) = MemoryMixture(2, 0, noise="global", random_state=0).fit_episodes(X)
    assert sorted(mixture.weights_) == pytest.approx([0.4, 0.6], abs=0.01)
    assert float(mixture._fit.sums.count.sum()) == pytest.approx(5000)


@pytest.mark.parametrize("samples", [300, 3000])
def test_a_constant_column_has_the_scale_1(samples):
    X = np.stack([np.random.RandomState(0).randn(samples), np.full(samples, 0.1)], 1)
    mixture = MemoryMixture(1, 0, random_state=0).fit(X)
    assert mixture.score([[0.0, 0.101]]) == pytest.approx(mixture.score([[0.0, 0.1]]), abs=1)


def test_sizes_may_be_those_of_a_numpy_range():
    X, _ = low_rank(60, size=4)
    found = GridSearchCV(
        MemoryMixture(2, tol=0.5, random_state=0), {"n_rows": np.arange(2)}, cv=2, error_score="raise"
    ).fit(X)
    assert found.best_params_["n_rows"] in (0, 1)


def test_a_warm_start_takes_other_noise_and_another_type():
    X, _ = low_rank(60, size=4)
    mixture = MemoryMixture(2, 1, warm_start=True, tol=0.5, random_state=0).fit(X.astype(np.float32))
    mixture.fit(X, sample_weight=np.ones(60))
    assert torch.as_tensor(mixture.set_params(noise="global").fit(X)._fit.memory.noise_var).ndim == 0


def test_quantiles_count_a_score_as_often_as_its_weight():
    scores, weights = np.random.RandomState(0).randn(30), np.random.RandomState(1).randint(0, 4, 30)
    for share in (0.0, 0.01, 0.37, 1.0):
        assert quantile(scores, share, weights) == pytest.approx(np.quantile(np.repeat(scores, weights), share))


def test_novelties_are_told_by_what_weighs_something():
    rng = np.random.RandomState(0)
    normal, strange = rng.randn(80, 2), rng.randn(20, 2) + 8
    X, weights = np.concatenate([normal, strange]), np.repeat([1.0, 0.0], [80, 20])
    novelty = MemoryNovelty(2, 1, contamination=0.1, tol=0.5, random_state=0)
    alone = clone(novelty).fit(normal).offset_
    assert clone(novelty).fit(X, sample_weight=weights).offset_ == pytest.approx(alone)
    assert clone(novelty).fit(X, sample_weight=1e10 * weights + 1e7).predict(strange).max() == -1
    few = np.repeat([1.0, 0.0], [6, 94])
    assert np.isfinite(MemoryNovelty(5, 0, tol=0.5, random_state=0).fit(X, sample_weight=few).offset_)
