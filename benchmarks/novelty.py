"""Has a memory seen such a picture? Area under the curve of our scores and of other detectors on the same codes.

    python benchmarks/novelty.py --data-dir DIRECTORY [--split valid] [--out FILE.json] [--models NAME ..]

The directory holds CIFAR-10. What there was to choose was chosen on its validation pictures; the report is on test
pictures. Our score compares a memory with one of training pictures of all kinds; so that this is no advantage over
distances, there are those less the distance to as many training pictures. PyOD's detectors are its own where it is
installed (`pip install pyod`), otherwise the same in a few lines; the report says which.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.svm import OneClassSVM
from torch import Tensor

import vbmem
from report import emit
from vbmem.data import load_images
from vbmem.data.examples import PHOTOGRAPHS, photograph_crops

Array = npt.NDArray[np.float64]
Detector = Callable[[Array, Array], Array]  # written codes, others -> scores, high for what is known

FRAMES = 64
POOL = 4000  # pictures that are encoded, and crops of each photograph a tenth as many
REFERENCE = 800  # training pictures, as many as stand behind our score
COLOURS = torch.cartesian_prod(*3 * [torch.linspace(0, 1, 5)])
OURS = ("score", "code term", "bound")
console = Console(width=110)


@dataclass(frozen=True)
class Pictures:
    """All that is to be known of some pictures, encoded once."""

    codes: Tensor  # [N, C]
    var: Tensor  # [N, C]
    pixels: Tensor  # [N], log p(x | z) at a draw of z: the part of the bound in which there is no memory

    @classmethod
    def of(cls, model: vbmem.Model, frames: Tensor) -> Pictures:
        nothing = model.write(frames[:4])
        q = model.encode(frames)
        bound = model.bound(nothing, frames, generator=torch.Generator().manual_seed(0))
        return cls(q.mean, q.var, bound - nothing.score(q.mean, q.var))

    def __getitem__(self, index: Any) -> Pictures:
        return Pictures(self.codes[index], self.var[index], self.pixels[index])


@dataclass(frozen=True)
class Trial:
    """Write some, tell those that should be known from those that should be new."""

    question: str
    group: int
    """Trials of one group are not independent: they are about the same class."""
    written: Pictures
    known: Pictures
    new: Pictures


def trials(pool: Pictures, labels: Array, crops: list[Pictures], episodes: int) -> Iterator[Trial]:
    random = np.random.default_rng(0)
    for episode in range(episodes):
        order = random.permutation(len(labels))
        written = pool[order[:FRAMES]]
        yield Trial("written", episode, written, written, pool[order[FRAMES : FRAMES + 200]])
    for episode in range(2 * episodes):
        order = random.permutation(len(labels))
        kind = episode % 10
        mine, others = order[labels[order] == kind], order[labels[order] != kind]
        held_out = pool[mine[FRAMES : FRAMES + 100]]
        yield Trial("held-out class", kind, pool[mine[:FRAMES]], held_out, pool[others[:200]])
    for episode in range(episodes):
        order = random.permutation(len(crops[0].codes))
        mine, others = crops if episode % 2 else crops[::-1]
        yield Trial("crops", episode, mine[order[:FRAMES]], mine[order[FRAMES : FRAMES + 100]], others[order[:100]])


def of_sklearn(make: Callable[[], Any]) -> Detector:
    return lambda written, others: make().fit(written).score_samples(others)


def of_pyod(make: Callable[[], Any]) -> Detector:
    return lambda written, others: -make().fit(written).decision_function(others)


def distance_to(neighbours: int) -> Detector:
    """PyOD's KNN: the distance to the k-th nearest of the written."""
    return lambda written, others: -NearestNeighbors(n_neighbors=neighbours).fit(written).kneighbors(others)[0][:, -1]


def compared(judge: Detector, reference: Array) -> Detector:
    """As our score does: how much better others go with the written than with pictures of all kinds."""
    return lambda written, others: judge(written, others) - judge(reference, others)


def ecod(written: Array, others: Array) -> Array:
    """PyOD's ECOD: improbable in the empirical distributions of single features, on the side they are skewed to."""
    everything = np.concatenate([written, others])  # as there, the others count too
    ordered = np.sort(everything, axis=0)
    count = len(everything)
    left = -np.log([np.searchsorted(ordered[:, c], others[:, c], "right") / count for c in range(others.shape[1])])
    right = -np.log([1 - np.searchsorted(ordered[:, c], others[:, c], "left") / count for c in range(others.shape[1])])
    centred = everything - everything.mean(0)
    skew = np.sign((centred**3).mean(0) / (centred**2).mean(0) ** 1.5)[:, None]
    tail = -(left * np.sign(skew - 1) + right * np.sign(skew + 1))
    sides = np.abs(np.stack([left, right, np.where(skew < 0, left, np.where(skew > 0, right, tail))]))
    return -np.maximum.reduce(sides).sum(0)


def detectors(reference: Array) -> dict[str, Detector]:
    found: dict[str, Detector] = {
        "KNN less KNN to reference": compared(distance_to(5), reference),
        "KNN, k = 1, less that to reference": compared(distance_to(1), reference),
        "IsolationForest": of_sklearn(lambda: IsolationForest(random_state=0)),
        "LocalOutlierFactor": of_sklearn(lambda: LocalOutlierFactor(novelty=True)),
        "OneClassSVM": of_sklearn(OneClassSVM),
    }
    try:
        from pyod.models.ecod import ECOD
        from pyod.models.knn import KNN
    except ImportError:
        return found | {"ECOD (ours)": ecod, "KNN (ours)": distance_to(5), "KNN, k = 1 (ours)": distance_to(1)}
    return found | {
        "ECOD": of_pyod(ECOD),
        "KNN": of_pyod(KNN),
        "KNN, k = 1": of_pyod(lambda: KNN(n_neighbors=1)),
    }


def measure(
    name: str, pixels: npt.NDArray[np.uint8], labels: Array, reference: npt.NDArray[np.uint8], episodes: int
) -> dict[str, Any]:
    model = vbmem.load(name)
    others = detectors(model.encode(torch.from_numpy(reference).movedim(-1, 1)).mean.double().numpy())
    pool = Pictures.of(model, torch.from_numpy(pixels).movedim(-1, 1))
    size = model.frame.size
    crops = [
        Pictures.of(model, torch.from_numpy(photograph_crops(photograph, POOL // 10, size)).movedim(-1, 1))
        for photograph in PHOTOGRAPHS.values()
    ]
    plain = model.encode(COLOURS[:, :, None, None].expand(-1, -1, size, size)).mean
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    judged: dict[str, dict[str, list[float]]] = {}
    for trial in trials(pool, labels, crops, episodes):
        memory = model.write_codes(trial.written.codes, generator=torch.Generator().manual_seed(0))
        both = [trial.known, trial.new]
        scores: dict[str, list[Any]] = {
            "score": [model.score_codes(memory, part.codes) for part in both],
            "code term": [memory.score(part.codes, part.var) for part in both],
            "bound": [part.pixels + memory.score(part.codes, part.var) for part in both],
        }
        for detector, judge in others.items():
            merged = judge(trial.written.codes.double().numpy(), torch.cat([p.codes for p in both]).double().numpy())
            scores[detector] = [merged[: len(trial.known.codes)], merged[len(trial.known.codes) :]]
        for detector, (known, new) in scores.items():
            truth = np.r_[np.ones(len(known)), np.zeros(len(new))]
            curve = roc_auc_score(truth, np.concatenate([known, new]))
            groups = found.setdefault(detector, {}).setdefault(trial.question, {})
            groups.setdefault(trial.group, []).append(float(curve))
        assert memory.threshold is not None
        shares = {"known": scores["score"][0], "new": scores["score"][1], "plain": model.score_codes(memory, plain)}
        for kind, values in shares.items():
            called = float((values >= memory.threshold).float().mean())
            judged.setdefault(trial.question, {}).setdefault(kind, []).append(called)
    curves = {
        detector: {question: [*map(statistics.mean, groups.values())] for question, groups in row.items()}
        for detector, row in found.items()
    }
    return {
        "area_under_curve": {
            detector: {question: summary(values) for question, values in row.items()}
            for detector, row in curves.items()
        },
        "against_best": {question: against_best(curves, question) for question in curves["score"]},
        "called_known": {q: {kind: summary(v) for kind, v in row.items()} for q, row in judged.items()},
    }


def summary(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "standard_error": statistics.stdev(values) / len(values) ** 0.5}


def against_best(curves: dict[str, dict[str, list[float]]], question: str) -> dict[str, Any]:
    """Our score minus that of the best other detector, group by group."""
    others = {name: row[question] for name, row in curves.items() if name not in OURS}
    best = max(others, key=lambda name: statistics.mean(others[name]))
    gains = [ours - theirs for ours, theirs in zip(curves["score"][question], others[best], strict=True)]
    return {"best": best, **summary(gains)}


def write_times(name: str, pixels: npt.NDArray[np.uint8]) -> dict[str, float]:
    """Milliseconds of a write of 64 pictures, with the folds of the threshold and without."""
    model = vbmem.load(name)
    frames = torch.from_numpy(pixels[:FRAMES]).movedim(-1, 1)
    calls = {
        "encode": lambda: model.encode(frames),
        "write without threshold": lambda: vbmem.WrittenMemory.write(model.memory, codes, model.network.iterations),
        "write": lambda: model.write_codes(codes),
    }
    codes = model.encode(frames).mean
    times = {}
    for label, call in calls.items():
        call()
        each = []
        for _ in range(20):
            started = time.perf_counter()
            call()
            each.append(1e3 * (time.perf_counter() - started))
        times[label] = statistics.median(each)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--split", choices=("valid", "test"), default="test")
    parser.add_argument("--models", nargs="+", default=["cifar10-mixture", "cifar10-tree"])
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    images = load_images("cifar10", options.data_dir, progress=False)
    pixels, labels = images.split(options.split)
    assert labels is not None
    reference = images.split("train")[0][:REFERENCE]
    pixels, labels = pixels[:POOL], labels[:POOL]
    report: dict[str, Any] = {"torch": torch.__version__, "split": options.split, "frames": FRAMES}
    report |= {"episodes": options.episodes, "models": {}}
    for name in options.models:
        found = measure(name, pixels, labels, reference, options.episodes)
        report["models"][name] = found | {"milliseconds": write_times(name, pixels)}
        table = Table(title=f"{name}: area under the curve, mean and standard error over episodes, or classes")
        for heading in ("", *found["against_best"]):
            table.add_column(heading, justify="right")
        for detector, row in found["area_under_curve"].items():
            table.add_row(detector, *(f"{v['mean']:.4f} ± {v['standard_error']:.4f}" for v in row.values()))
        console.print(table)
    emit(report, options.out)


if __name__ == "__main__":
    main()
