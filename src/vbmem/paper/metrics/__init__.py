"""Numbers for what the paper shows as pictures: samples, iterative reading, recall, sizes of the memory, write time.

A metric is a function from a `Trial` to a table, rows of columns of numbers, or to several tables by name. A new one is
such a function and an entry in `measures.METRICS`.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from rich.console import Console
from torch import Generator, Tensor

from vbmem.data.examples import draw_sets
from vbmem.errors import DataError, ModelError
from vbmem.memory.checks import check_size
from vbmem.models.base import CodedModel, FrameFormat
from vbmem.paper.metrics.measures import LENGTHS, METRICS, Trial, size_table, write_time
from vbmem.paper.metrics.neighbours import features, judge_pictures
from vbmem.pretrained.directory import load, load_network
from vbmem.pretrained.inputs import to_unit
from vbmem.progress import track
from vbmem.tables import table

OTHERS = 2000  # pictures from which those of the episode must be told apart
MOST_PICTURES = 10_000  # as many as CIFAR-10 has for tests
WIDE = 5  # columns of a table that has no room for standard errors; they are in the result

Json: TypeAlias = dict[str, Any]


def metrics(
    model: str,
    *,
    data_dir: Path | None,
    episodes: int = 5,
    frames: int = 64,
    sizes: bool = True,
    seed: int = 0,
    console: Console,
    judge: str = "cifar10-vae",
    names: Collection[str] = tuple(METRICS),
) -> Json:
    """Measure a model on pictures it was not trained on, show the tables and return all numbers, ready for JSON.

    Args:
        model: the name of one that comes with the package, or a directory.
        data_dir: where CIFAR-10 is kept; None for crops of photographs.
        episodes: over which to average.
        frames: of an episode.
        sizes: also try memories of other sizes and longer episodes, one each.
        seed: of episodes and draws.
        console: for the tables.
        judge: the model in whose code space pictures are compared.
        names: of the metrics to take.

    Returns:
        The summary of every metric by its name, the size table, the write time, and where all these come from.

    Raises:
        DataError: if the directory does not hold CIFAR-10, or CIFAR-10 too few pictures.
        ModelError: if a model is missing or damaged, or the judge is for other pictures.
    """
    if (pictures := check_size("frames", frames) * check_size("episodes", episodes)) > MOST_PICTURES:
        raise DataError(
            f"{episodes} episodes of {frames} frames are {pictures} pictures; expected {MOST_PICTURES} or less"
        )
    lengths = [frames] * (episodes + 1)  # the last only for chance
    loaded, eye = load(model), load_network(judge)
    subject = replace(loaded, painter=None)  # pixels are means, but for crisp samples
    painting = None if loaded.painter is None else loaded
    network = eye.network
    if not isinstance(network, CodedModel) or network.frame != subject.frame:
        raise ModelError(f"{judge} cannot judge {model}; choose a model with codes, for {subject.frame}")
    source = "cifar10, test pictures" if data_dir else "crops of photographs, not comparable with CIFAR-10"
    console.print(f"measuring {subject.name} on {source}")
    if sizes := sizes and "clusters" in subject.memory.sizes:
        lengths.append(max(LENGTHS))
    generator = Generator().manual_seed(seed)
    with console.status("preparing pictures"):
        others, *drawn = draw_pictures(subject.frame, lengths, data_dir, seed)
        view = functools.partial(judge_pictures, network, features(network, others))
        written = [(x, subject.write(x, generator=generator)) for x in drawn[: episodes + 1]]
        neighbours = itertools.pairwise(written)  # the other memory of every trial is that of the next
        trials = [Trial(subject, x, memory, other, view, generator, painting) for (x, memory), (_, other) in neighbours]
    chosen = {name: metric for name, metric in METRICS.items() if name in names}
    measured = [{name: metric(x) for name, metric in chosen.items()} for x in track(trials, "sampling, recalling")]
    summary = summarise(measured)
    cells = size_table(subject, view, drawn[-1], len(others), generator) if sizes else []
    times = write_time(subject, drawn[0], generator)
    tables = metric_tables(summary) | size_tables(cells) | {"write": {subject.name: times}}
    for title, rows in tables.items():
        if rows:
            console.print(table([{"": name} | _texts(columns) for name, columns in rows.items()], title))
    return {
        "model": subject.name,
        "fingerprint": subject.fingerprint,
        "judge": {"model": eye.name, "fingerprint": eye.fingerprint},
        "source": source,
        "settings": {"episodes": episodes, "frames": frames, "others": len(others), "seed": seed},
        "machine": {"threads": torch.get_num_threads(), "torch": str(torch.__version__)},
        **summary,
        "sizes": cells,
        "write": times,
    }


def draw_pictures(frame: FrameFormat, lengths: list[int], data_dir: Path | None, seed: int) -> list[Tensor]:
    """`OTHERS` pictures, if of photographs then of both, and then episodes of these lengths: [n, ..] in [0, 1]."""
    counts = [OTHERS // 2, OTHERS - OTHERS // 2, *lengths]
    first, second, *episodes = draw_sets(counts, frame, data_dir, seed)
    return [to_unit(pictures, frame) for pictures in (torch.cat([first, second]), *episodes)]


def summarise(episodes: Sequence[Any]) -> Json:
    """Of every number in nested dictionaries the mean over episodes, and its standard error, which one has not."""
    if isinstance(episodes[0], dict):
        return {name: summarise([episode[name] for episode in episodes]) for name in episodes[0]}
    error = statistics.stdev(episodes) / math.sqrt(len(episodes)) if len(episodes) > 1 else None
    return {"mean": statistics.fmean(episodes), "error": error}


def metric_tables(summary: Json) -> Json:
    """Title -> table of summarised metrics, each of which is a table or has several by name."""
    tables: Json = {}
    for title, content in summary.items():
        first_row: Json = next(iter(content.values()), {})
        if all("mean" in value for value in first_row.values()):
            tables[title] = content
        else:
            tables |= {f"{title}, {name}": _upright(rows) for name, rows in content.items()}
    return tables


def _upright(rows: Json) -> Json:
    """A table that is no wider than it is long: what would head too many columns heads its rows."""
    first_row: Json = next(iter(rows.values()))
    if len(first_row) <= len(rows):
        return rows
    return {column: {name: row[column] for name, row in rows.items()} for column in first_row}


def size_tables(cells: Sequence[Json]) -> Json:
    """The cells of `size_table`, those of the samples and those of the reads by themselves."""
    rows = {f"{cell['frames']} frames, {cell['clusters']} clusters": cell for cell in cells}
    common = ("bound per frame", "base rate")
    return {
        f"sizes, {made}": {name: {key: cell[key] for key in common} | cell[made] for name, cell in rows.items()}
        for made in ("samples", "reads")
    }


def _texts(columns: Json) -> dict[str, str]:
    """The numbers of a row, or what `summarise` made of several."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            error = f" ± {value['error']:.4f}" if len(columns) < WIDE and value["error"] is not None else ""
            return f"{value['mean']:.4f}{error}"
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

    return {name: text(value) for name, value in columns.items()}
