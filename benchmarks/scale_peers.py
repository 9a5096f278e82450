"""What `benchmarks/scale.py` measures against: what others learn of the part of the codes that they can hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from report import peak_megabytes
from scale_codes import CLUSTERS, SIZE, Source, passes, quantisation_error

BATCH = 8192  # codes of a step of MiniBatchKMeans


class Fitted(NamedTuple):
    """What a peer has found."""

    centres: np.ndarray  # [H, C]
    iterations: int
    log_likelihood: Callable[[np.ndarray], float] | None = None
    """Of codes [n, C], in nats a code, where it has a density."""


def faiss_kmeans(path: Path, frames: int, threads: int) -> Fitted:
    """All codes in memory, and its default number of iterations; by default it would use 256 codes a cluster."""
    import faiss

    faiss.omp_set_num_threads(threads)
    codes = np.array(np.load(path, mmap_mode="r")[:frames])
    kmeans = faiss.Kmeans(SIZE, CLUSTERS, max_points_per_centroid=frames, seed=1)
    kmeans.train(codes)
    return Fitted(kmeans.centroids, kmeans.cp.niter)


def minibatch_kmeans(path: Path, frames: int, threads: int) -> Fitted:
    """One pass from disk."""
    kmeans = MiniBatchKMeans(CLUSTERS, random_state=0)
    for batch in passes(path, frames, BATCH):
        if len(batch) >= CLUSTERS:
            kmeans.partial_fit(batch)
    return Fitted(kmeans.cluster_centers_, 1)


def diagonal_mixture(path: Path, frames: int, threads: int) -> Fitted:
    """EM with diagonal covariances from its own k-means, until it stops by itself: [T, H] shares are in memory."""
    codes = np.array(np.load(path, mmap_mode="r")[:frames])
    mixture = GaussianMixture(CLUSTERS, covariance_type="diag", random_state=0).fit(codes)
    return Fitted(mixture.means_, mixture.n_iter_, mixture.score)


PEERS: dict[str, Callable[[Path, int, int], Fitted]] = {
    "faiss k-means": faiss_kmeans,
    "MiniBatchKMeans": minibatch_kmeans,
    "GaussianMixture, diagonal": diagonal_mixture,
}


def learned(name: str, path: Path, frames: int, threads: int, held_out: int) -> dict[str, Any]:
    """Time, memory and what is known of held-out codes, of one peer, in a process of its own."""
    torch.set_num_threads(threads)
    codes = Source.planted().held_out(held_out)
    with threadpool_limits(threads):
        clock = time.perf_counter()
        fitted = PEERS[name](path, frames, threads)
        seconds, peak = time.perf_counter() - clock, peak_megabytes()
    found = {
        "codes": frames,
        "iterations": fitted.iterations,
        "seconds": round(seconds, 2),
        "us_a_code_and_iteration": round(1e6 * seconds / frames / fitted.iterations, 3),
        "peak_mb": peak,
        "quantisation_error": round(quantisation_error(codes, torch.from_numpy(fitted.centres).float()), 3),
    }
    if fitted.log_likelihood is not None:
        found["log_likelihood"] = round(float(fitted.log_likelihood(codes.numpy())), 3)
    return found
