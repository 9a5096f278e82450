"""The scikit-learn estimator against scikit-learn's variational mixtures: time and held-out log-likelihood.

    python benchmarks/estimator.py [--out FILE.json] [--quick] [--iterations N]

One run, 2 threads, clusters of low rank, the true number of clusters for everyone. Each stops by its own default, or
after N iterations; `MemoryMixture` spends up to N again after each of its moves, and its time includes them all.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from threadpoolctl import threadpool_limits

from report import emit
from vbmem.sklearn import MemoryMixture

SIZES = [(10_000, 64), (100_000, 128)]  # samples, features
CLUSTERS, RANK, NOISE, HELD_OUT = 10, 6, 0.5, 5_000
console = Console(width=110)


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


def compare(samples: int, size: int, iterations: int) -> dict[str, Any]:
    X, held_out, truth = low_rank_clusters(samples, size)
    common: dict[str, Any] = {"max_iter": iterations, "random_state": 0}
    estimators = {
        "MemoryMixture": MemoryMixture(CLUSTERS, RANK, **common),
        "MemoryMixture, float32": MemoryMixture(CLUSTERS, RANK, **common),
        "sklearn full": BayesianGaussianMixture(n_components=CLUSTERS, covariance_type="full", **common),
        "sklearn diag": BayesianGaussianMixture(n_components=CLUSTERS, covariance_type="diag", **common),
    }
    rows = {}
    for name, estimator in estimators.items():
        data = X.astype(np.float32) if name.endswith("float32") else X
        start = time.perf_counter()
        estimator.fit(data)
        seconds = time.perf_counter() - start
        score = float(estimator.score(held_out))
        console.print(f"{samples:,} x {size}: {name}, {seconds:.1f} s, {score:.2f} nats")  # the rest takes minutes
        rows[name] = {"seconds": seconds, "iterations": int(estimator.n_iter_), "held_out_log_likelihood": score}
    return {"samples": samples, "features": size, "truth": truth, "estimators": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true", help="a small size only")
    parser.add_argument("--iterations", type=int, default=100)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    torch.set_num_threads(2)
    table = Table(title=f"{CLUSTERS} clusters of rank {RANK}, at most {options.iterations} iterations, 2 threads")
    for heading in ("samples x features", "estimator", "seconds", "iterations", "held-out nats a sample", "truth"):
        table.add_column(heading, justify="right")
    results = []
    with threadpool_limits(2):
        for size in [(2_000, 32)] if options.quick else SIZES:
            results.append(compare(*size, options.iterations))
            for name, row in results[-1]["estimators"].items():
                numbers = f"{row['seconds']:.1f}", str(row["iterations"]), f"{row['held_out_log_likelihood']:.2f}"
                table.add_row(f"{size[0]:,} x {size[1]}", name, *numbers, f"{results[-1]['truth']:.2f}")
    console.print(table)
    emit({"torch": torch.__version__, "sklearn": sklearn.__version__, "threads": 2, "results": results}, options.out)


if __name__ == "__main__":
    main()
