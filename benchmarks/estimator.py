"""The scikit-learn estimator against scikit-learn's density models: held-out log-likelihood, labels, time.

    python benchmarks/estimator.py [--out FILE.json] [--quick] [--data-dir DIR] [--splits N]

Two parts, both on one thread.

- Real tables: wine, breast cancer, digits (integers, made continuous by uniform noise of width 1) and, where DIR holds
  mnist.npz (arrays x_train, y_train), 10,000 digits of MNIST in 50 principal components. Each split is 60 % to fit,
  20 % on which every estimator chooses its sizes and regularisation, and 20 % for the numbers: nats a sample in the
  units of the table, mutual information with the labels, processor seconds of the one fit that was chosen. All get the
  same standardised features.
- Clusters of low rank, the true number of clusters for everyone; each stops by its own default.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import normalized_mutual_info_score
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from threadpoolctl import threadpool_limits

from report import emit
from vbmem.sklearn import MemoryMixture

CLUSTERS, RANK, NOISE, HELD_OUT = 10, 6, 0.5, 5_000
MNIST_SAMPLES, MNIST_COMPONENTS = 10_000, 50
console = Console(width=130)


class Grid(NamedTuple):
    """What estimators may choose from."""

    clusters: tuple[int, ...]
    ours: tuple[tuple[int, int], ...]  # clusters and rows
    factors: tuple[int, ...]
    regularisation: tuple[float, ...] = (1e-3, 1e-2, 3e-2, 0.1, 0.2, 0.4)


GRIDS = {
    "wine": Grid((1, 2, 3, 5), tuple(itertools.product((1, 2, 3, 5), (1, 2, 4))), (1, 2, 4, 8)),
    "breast cancer": Grid((1, 2, 3, 5, 10), tuple(itertools.product((2, 4, 6, 8), (4, 8, 12))), (4, 8, 16)),
    "digits": Grid((2, 5, 10, 20, 30), tuple(itertools.product((10, 20, 30), (4, 8, 12))), (8, 16, 32)),
    "MNIST, 50 components": Grid((10, 30), ((20, 24), (30, 30)), (16, 32), (1e-2, 3e-2)),
}


def tables(data_dir: Path | None) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
    yield "wine", *load_wine(return_X_y=True)
    yield "breast cancer", *load_breast_cancer(return_X_y=True)
    X, y = load_digits(return_X_y=True)
    yield "digits", X + np.random.RandomState(0).uniform(size=X.shape), y
    file = None if data_dir is None else data_dir / "mnist.npz"
    if file is not None and file.exists():
        mnist = np.load(file)
        X = mnist["x_train"][:MNIST_SAMPLES].reshape(MNIST_SAMPLES, -1) / 255.0
        X = PCA(MNIST_COMPONENTS, random_state=0).fit_transform(X).astype(np.float32)
        yield "MNIST, 50 components", X, mnist["y_train"][:MNIST_SAMPLES]


def contestants(grid: Grid) -> dict[str, list[Any]]:
    """All settings of every estimator."""

    def gaussian(kind: str, reg: Iterable[float]) -> list[Any]:
        sizes = itertools.product(grid.clusters, reg)
        return [GaussianMixture(n, covariance_type=kind, reg_covar=r, random_state=0) for n, r in sizes]

    return {
        "MemoryMixture": [MemoryMixture(n, rows, random_state=0) for n, rows in grid.ours],
        "GaussianMixture, full": gaussian("full", [1e-6]),
        "GaussianMixture, regularised": gaussian("full", grid.regularisation),
        "GaussianMixture, diagonal": gaussian("diag", [1e-6, 1e-2]),
        "GaussianMixture, tied": gaussian("tied", [1e-6, 1e-2]),
        "BayesianGaussianMixture": [BayesianGaussianMixture(n_components=n, random_state=0) for n in grid.clusters],
        "FactorAnalysis": [FactorAnalysis(rows, random_state=0) for rows in grid.factors],
        "PCA": [PCA(rows, random_state=0) for rows in grid.factors],
    }


def compete(X: np.ndarray, y: np.ndarray, grid: Grid, splits: int) -> dict[str, Any]:
    """For every estimator: nats a sample, mutual information and seconds of each split, and what it chose."""
    results: dict[str, Any] = {}
    for seed in range(splits):
        parts = np.split(np.random.RandomState(seed).permutation(len(X)), [int(0.6 * len(X)), int(0.8 * len(X))])
        centre, scale = X[parts[0]].mean(0), X[parts[0]].std(0)
        fit, choose, test = ((X[part] - centre) / scale for part in parts)
        for name, settings in contestants(grid).items():
            best: tuple[float, Any, float] = (-np.inf, None, 0.0)
            for estimator in settings:
                start = time.process_time()
                estimator.fit(fit)
                seconds = time.process_time() - start
                best = max(best, (float(estimator.score(choose)), estimator, seconds), key=lambda entry: entry[0])
            _, estimator, seconds = best
            row = results.setdefault(name, {"nats": [], "nmi": [], "seconds": [], "chosen": []})
            row["nats"].append(float(estimator.score(test) - np.log(scale).sum()))
            if hasattr(estimator, "predict"):
                row["nmi"].append(float(normalized_mutual_info_score(y[parts[2]], estimator.predict(test))))
            row["seconds"].append(seconds)
            row["chosen"].append(repr(estimator))
    return results


def low_rank_clusters(samples: int, size: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Samples, held-out samples, and the mean log density of the latter under the truth, which none can beat."""
    rng = np.random.RandomState(0)
    locations, factors = rng.randn(CLUSTERS, size), rng.randn(CLUSTERS, RANK, size)
    shares = rng.dirichlet(np.full(CLUSTERS, 5.0))
    labels = rng.choice(CLUSTERS, samples + HELD_OUT, p=shares)
    X = locations[labels] + NOISE * rng.randn(samples + HELD_OUT, size)
    for cluster, rows in enumerate(factors):
        X[labels == cluster] += rng.randn(int((labels == cluster).sum()), RANK) @ rows
    held_out = torch.from_numpy(X[samples:])
    covariances = torch.from_numpy(factors.transpose(0, 2, 1) @ factors + NOISE**2 * np.eye(size))
    truth = torch.distributions.MultivariateNormal(torch.from_numpy(locations), covariances)
    density = truth.log_prob(held_out[:, None]) + torch.from_numpy(np.log(shares))
    return X[:samples], X[samples:], float(density.logsumexp(-1).mean())


def compare(samples: int, size: int) -> dict[str, Any]:
    X, held_out, truth = low_rank_clusters(samples, size)
    estimators: dict[str, Callable[[], Any]] = {
        "MemoryMixture": lambda: MemoryMixture(CLUSTERS, RANK, random_state=0),
        "MemoryMixture, float32": lambda: MemoryMixture(CLUSTERS, RANK, random_state=0),
        "sklearn full": lambda: BayesianGaussianMixture(n_components=CLUSTERS, random_state=0),
        "sklearn diag": lambda: BayesianGaussianMixture(n_components=CLUSTERS, covariance_type="diag", random_state=0),
    }
    rows = {}
    for name, make in estimators.items():
        data = X.astype(np.float32) if name.endswith("float32") else X
        start = time.process_time()
        estimator = make().fit(data)
        seconds = time.process_time() - start
        score = float(estimator.score(held_out))
        console.print(f"{samples:,} x {size}: {name}, {seconds:.1f} s, {score:.2f} nats")
        rows[name] = {"seconds": seconds, "iterations": int(estimator.n_iter_), "held_out_log_likelihood": score}
    return {"samples": samples, "features": size, "truth": truth, "estimators": rows}


def show(name: str, results: dict[str, Any]) -> None:
    table = Table(title=name)
    for heading in ("estimator", "nats a sample", "spread over splits", "mutual information", "seconds"):
        table.add_column(heading, justify="right")
    for estimator, row in results.items():
        information = f"{np.mean(row['nmi']):.2f}" if row["nmi"] else ""
        numbers = f"{np.mean(row['nats']):.2f}", f"{np.std(row['nats']):.2f}", information
        table.add_row(estimator, *numbers, f"{np.mean(row['seconds']):.2f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="wine and a small synthetic size only")
    parser.add_argument("--data-dir", type=Path, help="folder with mnist.npz")
    parser.add_argument("--splits", type=int, default=5, help="of each table; one of MNIST")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.set_num_threads(1)
    real = {}
    with threadpool_limits(1):
        for name, X, y in tables(options.data_dir):
            if options.quick and name != "wine":
                continue
            real[name] = compete(X, y, GRIDS[name], 1 if name.startswith("MNIST") else options.splits)
            show(f"{name}, {len(X):,} x {X.shape[1]}", real[name])
        synthetic = [compare(*size) for size in ([(2_000, 32)] if options.quick else [(10_000, 64)])]
    arguments = f"--splits {options.splits}" + " --data-dir DIR" * (options.data_dir is not None)
    arguments += f" --out {options.out}" * (options.out is not None)
    provenance = {"command": f"python benchmarks/estimator.py {arguments}", "hardware": "one CPU core"}
    versions = {"torch": torch.__version__, "sklearn": sklearn.__version__, "threads": 1}
    emit({"provenance": provenance, **versions, "real": real, "results": synthetic}, options.out)


if __name__ == "__main__":
    main()
