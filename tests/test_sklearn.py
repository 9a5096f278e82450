"""The scikit-learn estimator: its manners, its density, and what it finds."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from vbmem.sklearn import MemoryMixture

ESTIMATORS = [
    MemoryMixture(n_clusters=3, n_rows=2),
    MemoryMixture(n_clusters=2, n_rows=0, scale="feature", output="reconstruction"),
]


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
    mixture = MemoryMixture(n_clusters=5, n_rows=2, random_state=0).fit(X)
    assert adjusted_rand_score(labels, mixture.predict(X)) == 1
    assert adjusted_rand_score(labels, clone(mixture).fit_predict(X)) == 1
    assert mixture.converged_
    assert np.allclose(mixture.predict_proba(X).sum(1), 1)
    assert np.allclose(mixture.weights_.sum(), 1)


def test_clusters_that_overlap_in_space_are_told_apart_by_their_subspaces():
    X, labels = low_rank(2000)
    X_new = X[1500:]
    found = [MemoryMixture(4, 3, max_iter=500, random_state=seed).fit(X[:1500]).predict(X_new) for seed in range(3)]
    assert min(adjusted_rand_score(labels[1500:], labels_found) for labels_found in found) > 0.98


@pytest.mark.parametrize("scale", ["global", "feature"])
@pytest.mark.parametrize("rows", [0, 1])
def test_the_density_integrates_to_one(scale, rows):
    rng = np.random.RandomState(0)
    X = np.concatenate([rng.randn(40, 2) * [1, 30], rng.randn(80, 2) * [2, 20] + [12, 50]])
    mixture = MemoryMixture(2, rows, scale=scale, random_state=0).fit(X)
    axes = [np.linspace(centre - 40 * width, centre + 40 * width, 801) for centre, width in ((6, 3), (25, 25))]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.exp(mixture.score_samples(grid)).sum() * cell == pytest.approx(1, abs=1e-3)


def test_the_density_is_the_mixture_its_attributes_describe():
    X, _ = low_rank(300)
    mixture = MemoryMixture(4, 3, random_state=0).fit(X)
    density = 0
    for weight, mean, rows, noise in zip(
        mixture.weights_, mixture.means_, mixture.factors_, mixture.noise_variance_, strict=True
    ):
        covariance = rows.T @ rows + np.diag(noise)
        quadratic = np.einsum("ti,ij,tj->t", X - mean, np.linalg.inv(covariance), X - mean)
        density += weight * np.exp(-0.5 * (quadratic + np.linalg.slogdet(2 * np.pi * covariance)[1]))
    assert np.allclose(mixture.score_samples(X), np.log(density))


def test_units_change_the_score_as_they_change_a_density():
    X, _ = low_rank(400)
    mixture = MemoryMixture(4, 3, random_state=0)
    one, other = clone(mixture).fit(X), clone(mixture).fit(250 * X - 7000)
    change = np.log(250) * X.shape[1]
    assert other.score(250 * X - 7000) == pytest.approx(one.score(X) - change, abs=1e-6)
    assert other.lower_bound_ == pytest.approx(one.lower_bound_ - len(X) * change, abs=1e-3)
    assert (other.labels_ == one.labels_).all()

    factors = np.geomspace(0.01, 100, X.shape[1])
    mixture.set_params(scale="feature")
    one, other = clone(mixture).fit(X), clone(mixture).fit(factors * X)
    assert other.score(factors * X) == pytest.approx(one.score(X) - np.log(factors).sum(), abs=1e-6)


def test_every_iteration_raises_the_bound():
    X, _ = low_rank(300)
    bounds = []
    for iterations in range(1, 12):
        mixture = MemoryMixture(1, 3, max_iter=iterations, tol=0, random_state=0)
        with pytest.warns(match="not converged"):
            bounds.append(mixture.fit(X).lower_bound_)
    assert (np.diff(bounds) > 0).all()


def test_batches_come_close_to_one_fit():
    X, labels = low_rank(4000)
    train, held_out = X[:3000], X[3000:]
    whole = MemoryMixture(4, 3, random_state=0).fit(train)
    streamed = MemoryMixture(4, 3, random_state=0)
    scores = [streamed.partial_fit(batch).score(held_out) for batch in np.array_split(train, 10)]
    assert scores[-1] > scores[0]
    assert whole.score(held_out) - scores[-1] < 0.2
    assert adjusted_rand_score(labels[3000:], streamed.predict(held_out)) > 0.98
    assert streamed.lower_bound_ < whole.lower_bound_
    assert np.allclose(np.sort(streamed.weights_), np.sort(whole.weights_), atol=0.01)


def test_the_number_of_clusters_can_be_left_open():
    X, labels = blobs(400)
    mixture = MemoryMixture("auto", 1, random_state=0).fit(X)
    assert mixture.n_clusters_ == 5
    assert adjusted_rand_score(labels, mixture.labels_) == 1
    assert MemoryMixture("auto", 0, random_state=0).fit(np.random.RandomState(0).randn(200, 3)).n_clusters_ == 1


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
    pipeline = clone(make_pipeline(StandardScaler(), MemoryMixture(5, 1, random_state=0)))
    assert adjusted_rand_score(labels, pipeline.fit(X).predict(X)) == 1
    names = pipeline.get_feature_names_out()
    assert list(names) == [f"memorymixture{i}" for i in range(5)]
    few, enough = (cross_val_score(MemoryMixture(size, 1, random_state=0), X, cv=3).mean() for size in (2, 5))
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
        ({"init": "luck"}, r"init must be one of kmeans\+\+, random, got 'luck'"),
        ({"scale": 2}, "scale must be one of global, feature, got 2"),
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
    mixture = MemoryMixture(1, 2, tol=1e-9, max_iter=2000, random_state=0)
    alone = clone(mixture).fit(X)  # a single cluster is never moved
    (lone,) = mixture.fit_episodes(X[None])
    assert lone.n_iter_ == alone.n_iter_
    assert lone.lower_bound_ == pytest.approx(alone.lower_bound_)
    for copy in mixture.fit_episodes(np.stack([X, X, X])):
        assert copy.lower_bound_ == pytest.approx(alone.lower_bound_, rel=1e-4)
        np.testing.assert_allclose(copy.score_samples(X), alone.score_samples(X), atol=0.01)


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
