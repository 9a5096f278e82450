"""A tab for codes, embeddings of any kind: their clusters in two dimensions, and which are unlike all others."""

import csv
import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import gradio as gr
import numpy as np
import torch
from torch import Tensor

from vbmem.app.code_uploads import Codes, read_codes
from vbmem.app.events import LIVE, drop_zone, on_upload, when
from vbmem.app.markup import render
from vbmem.app.plots import cloud
from vbmem.app.session import Visit
from vbmem.app.shared import seeded
from vbmem.app.tabs import begin_tab
from vbmem.data import load_images
from vbmem.files import data_url
from vbmem.memory.memories import MixtureMemory
from vbmem.memory.written import WrittenMemory

CLUSTERS, MOST_CLUSTERS, ROWS = 10, 24, 4
TYPICAL = 2048  # codes that the prior is fitted to, at most
FOLD_ITERATIONS = 8  # of writes that only score: fewer than of one that is shown change little
POINTS_SHOWN, ROWS_SHOWN = 1500, 20
FILE_TYPES = [".npy", ".csv", ".tsv", ".txt"]
EXAMPLE_NAME = "An example, the handwritten digits of scikit-learn as their pixels:"


@dataclass(frozen=True)
class Analysis:
    """Codes in a memory, and what it says of each of the T."""

    memory: WrittenMemory
    clusters: Tensor  # int64 [T]
    shares: Tensor  # how sure these are, [T]
    scores: Tensor  # nats, each from a memory without the code; the lower, the less like the others, [T]
    points: Tensor  # the two directions in which codes differ most, [T, 2]

    @property
    def threshold(self) -> float:
        """The score below which a code is called new, Tukey's fence: as far below a quarter of the scores as one and a
        half times the distance between the quarters."""
        low, high = self.scores.quantile(torch.tensor([0.25, 0.75])).tolist()
        return low - 1.5 * (high - low)

    @property
    def new(self) -> Tensor:
        return self.scores < self.threshold


def analyse(codes: Codes, clusters: int) -> Analysis:
    """Write codes [T, C] into a memory with a prior that fits them, and parts of them into others to score the rest."""
    z, generator = torch.from_numpy(codes), seeded()
    typical = z[torch.randperm(len(z), generator=generator)[:TYPICAL]]
    folds = 4 if len(z) <= TYPICAL else 2
    sizes = min(ROWS, z.shape[1]), min(clusters, len(z) - -(-len(z) // folds), len(typical))
    empty = MixtureMemory.for_codes(typical, *sizes, generator=generator)
    memory = WrittenMemory.write(empty, z, generator=generator)
    scores, fold = torch.empty(len(z)), torch.randperm(len(z), generator=generator) % folds
    for number in range(folds):
        part = WrittenMemory.write(empty, z[fold != number], FOLD_ITERATIONS, generator)
        scores[fold == number] = part.score(z[fold == number])
    shares, found = memory.address(z).assignment.max(-1)
    return Analysis(memory, found, shares, scores, _projected(z))


def _projected(codes: Tensor) -> Tensor:
    """Codes [T, C] along their first two principal components, [T, 2]."""
    centred = (codes - codes.mean(0)).double()
    if len(codes) < codes.shape[1]:  # the smaller of the two matrices with the same eigenvalues
        values, vectors = torch.linalg.eigh(centred @ centred.mT)
        plane = vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()
    else:
        plane = centred @ torch.linalg.eigh(centred.mT @ centred).eigenvectors[:, -2:]
    return torch.nn.functional.pad(plane.flip(-1), (0, 2 - plane.shape[1])).float()


def tab(visit: gr.State) -> None:
    """Where codes are dropped, and what their memory says."""
    with begin_tab("Codes") as opened:
        with gr.Row(elem_classes="controls"):
            file = drop_zone("Embeddings, .npy or CSV", "codes-file", file_count="single", file_types=FILE_TYPES)
            clusters = gr.Slider(1, MOST_CLUSTERS, CLUSTERS, step=1, label="Clusters", elem_id="codes-clusters")
        result = gr.HTML(elem_id="codes")

    def look(visit: Visit, clusters: float) -> str:
        if visit.codes is None:
            return shown(_example(int(clusters)), EXAMPLE_NAME)
        return shown(analyse(visit.codes, int(clusters)), visit.codes_name)

    def take(visit: Visit, files: list[Path], clusters: float) -> str:
        visit.codes, visit.codes_name = read_codes(files[0]), f"{files[0].name}:"
        return look(visit, clusters)

    when([opened.select, clusters.input], look, [visit, clusters], result, LIVE)
    on_upload(file, take, [visit, clusters], result)


@lru_cache(maxsize=MOST_CLUSTERS)
def _example(clusters: int) -> Analysis:
    pictures, _ = load_images("digits").split("test")
    return analyse(pictures.reshape(len(pictures), -1).astype(np.float32), clusters)


def shown(analysis: Analysis, name: str) -> str:
    """The clusters, the codes least like the others, and a table of all to take home."""
    order = analysis.scores.argsort(stable=True)
    few = torch.arange(len(order)) if len(order) <= POINTS_SHOWN else order[:: -(-len(order) // POINTS_SHOWN)]
    points = list(zip(cloud(analysis.points[few]), analysis.clusters[few].tolist(), analysis.new[few], strict=True))
    columns = (order + 1, analysis.clusters[order] + 1, analysis.scores[order], analysis.new[order])
    least = list(zip(*(column[:ROWS_SHOWN].tolist() for column in columns), strict=True))
    return render("codes", analysis, name, points, least, data_url("text/csv", _table(analysis).encode()))


def _table(analysis: Analysis) -> str:
    """What is said of every code, a line each, in their order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "cluster", "probability", "score", "new"])
    columns = (analysis.clusters + 1, analysis.shares, analysis.scores, analysis.new.int())
    for row, (cluster, share, score, new) in enumerate(zip(*(c.tolist() for c in columns), strict=True), start=1):
        writer.writerow([row, cluster, f"{share:.4f}", f"{score:.2f}", new])
    return text.getvalue()
