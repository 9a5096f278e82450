"""How often `MemoryMixture("auto")` finds the number of clusters that was planted: 6, in 24 random problems.

    python benchmarks/planted.py [--noise global|feature|cluster] [--out FILE.json]

Each: 600 samples of 8 features from 6 clusters with random locations, two directions and noise, in unequal shares.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from report import emit
from vbmem.sklearn import MemoryMixture

PROBLEMS, CLUSTERS, SAMPLES, SIZE, RANK = 24, 6, 600, 8, 2


def problem(seed: int) -> np.ndarray:
    rng = np.random.RandomState(seed)
    labels = rng.choice(CLUSTERS, SAMPLES, p=rng.dirichlet(np.full(CLUSTERS, 5.0)))
    locations, factors = 3 * rng.randn(CLUSTERS, SIZE), rng.randn(CLUSTERS, RANK, SIZE)
    weights = rng.randn(SAMPLES, 1, RANK)
    return locations[labels] + (weights @ factors[labels])[:, 0] + 0.5 * rng.randn(SAMPLES, SIZE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", choices=["global", "feature", "cluster"], default="cluster")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        MemoryMixture("auto", RANK, noise=arguments.noise, random_state=seed).fit(problem(seed)).n_clusters_
        for seed in track(range(PROBLEMS), "fitting")
    ]
    sizes = {str(size): count for size, count in sorted(Counter(found).items())}
    emit({"planted": CLUSTERS, "problems": PROBLEMS, "noise": arguments.noise, "found": sizes}, arguments.out)


if __name__ == "__main__":
    main()
