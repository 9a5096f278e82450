"""Numbers for what the paper shows as pictures: samples, iterative reading, recall, sizes of the memory, write time."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Generator, Tensor
from torch.nn import functional as F

from vbmem.data import load_images
from vbmem.data.damage import blur
from vbmem.data.photographs import PHOTOGRAPHS, photograph_crops
from vbmem.errors import DataError, ModelError
from vbmem.memory.checks import check_size
from vbmem.memory.prefixes import PrefixNetworks
from vbmem.models.base import CodedModel
from vbmem.models.directory import fingerprint
from vbmem.nets import FrameFormat
from vbmem.pretrained import Model, WrittenMemory, load, load_network
from vbmem.pretrained.inputs import to_unit

OTHERS = 2000  # pictures from which those of the episode must be told apart
STEPS = (1, 2, 12)  # of reading; samples are read the last number of times
HALF = "right half grey"
CLUSTERS, LENGTHS = (5, 10, 20, 50, 100, 150), (64, 640, 1280)  # of the size table
CELL_SAMPLES = 128  # at most so many in a cell of it: reading them is what takes long
CHUNK = 256  # pictures at a time

Ways: TypeAlias = dict[str, Tensor]  # sets of pictures by how they were made
Rows: TypeAlias = dict[str, dict[str, float]]  # row -> column -> number
Judge: TypeAlias = Callable[[Ways, Tensor], Rows]
Json: TypeAlias = dict[str, Any]


def nearest(queries: Tensor, references: Tensor) -> Tensor:
    """Which of the references [m, D] is nearest to each query [n, D], by squared Euclidean distance: int64 [n]."""
    references = references.double()  # what decides is a small difference of large products
    squares = references.square().sum(-1)  # |q|^2 is the same for all of them
    return torch.cat([(squares - 2 * part.double() @ references.mT).argmin(-1) for part in queries.split(CHUNK)])


def precision(queries: Tensor, episode: Tensor, others: Tensor) -> float:
    """The share of queries [n, D] whose nearest picture among episode [T, D] and others [m, D] is of the episode."""
    return float((nearest(queries, torch.cat([episode, others])) < len(episode)).double().mean())


def coverage(queries: Tensor, episode: Tensor) -> float:
    """The share of the episode's frames [T, D] that are nearest to some query [n, D]; T random frames reach 1 - 1/e."""
    return len(nearest(queries, episode).unique()) / len(episode)


def hit_rate(recalled: Tensor, episode: Tensor) -> float:
    """The share of recalled frames [T, D] that are nearest to the frame of the episode [T, D] which they recall."""
    return float((nearest(recalled, episode) == torch.arange(len(episode))).double().mean())


def right_half(frames: Tensor) -> Tensor:
    return torch.arange(frames.shape[-1]) >= frames.shape[-1] // 2


def damage(frames: Tensor, generator: Generator) -> Ways:
    """Frames [T, channels, H, W] in [0, 1] as they are, with clipped noise, half covered, and blurred."""
    noise = torch.empty_like(frames).normal_(generator=generator)
    return {
        "none": frames,
        **{f"noise {std}": (frames + std * noise).clamp(0, 1) for std in (0.1, 0.2, 0.3, 0.5)},
        HALF: frames.masked_fill(right_half(frames), 0.5),
        **{f"blur {sigma}": blur(frames, sigma) for sigma in (1.0, 2.0)},
    }


def draw_pictures(frame: FrameFormat, lengths: list[int], data_dir: Path | None, seed: int) -> list[Tensor]:
    """`OTHERS` pictures and then episodes of these lengths, [n, channels, size, size] in [0, 1]: test pictures of
    CIFAR-10, none twice, or without `data_dir` crops, of one photograph in an episode and of both in the others."""
    needed = OTHERS + sum(lengths)
    if data_dir is None:
        parts = enumerate([OTHERS // 2, OTHERS - OTHERS // 2, *lengths])
        crops = (photograph_crops(PHOTOGRAPHS[i % 2], n, frame.size, 1000 * seed + i, frame.channels) for i, n in parts)
        images = np.concatenate([*crops])
    elif not data_dir.is_dir():
        raise DataError(f"there is no directory {data_dir}; give the one for data sets, or none for photographs")
    else:
        images, _ = load_images("cifar10", data_dir, frame.size).split("test")
        images = images[np.random.default_rng(seed).permutation(len(images))[:needed]]
    if images.shape[::3] != (needed, frame.channels):
        need = f"{needed} test pictures of {frame.channels} channels are needed, cifar10 in {data_dir} has"
        raise DataError(f"{need} {len(images)} of {images.shape[-1]}; choose fewer or shorter episodes")
    return list(to_unit(torch.from_numpy(images).movedim(-1, 1), frame).split([OTHERS, *lengths]))


def features(network: CodedModel, pictures: Tensor) -> dict[str, Tensor]:
    """Pictures [n, ..] in two spaces, each [n, D]: pixels, and means of q(z) of a network trained without memory."""
    with torch.no_grad():
        codes = [network.infer(part.unsqueeze(0)).mean[0] for part in pictures.split(CHUNK)]
    return {"pixels": pictures.flatten(1), "codes": torch.cat(codes)}


def judge_ways(network: CodedModel, others: dict[str, Tensor], ways: Ways, episode: Tensor) -> Rows:
    """Precision and coverage of sets of pictures [n, ..] for an episode [T, ..], against `others`, as `features`."""
    frames, rows = features(network, episode), Rows()
    for name, pictures in ways.items():
        rows[name] = {}
        for space, x in features(network, pictures).items():
            rows[name][f"{space} precision"] = precision(x, frames[space], others[space])
            rows[name][f"{space} coverage"] = coverage(x, frames[space])
    return rows


def samples(model: Model, frames: Tensor, memory: WrittenMemory, other: WrittenMemory, generator: Generator) -> Ways:
    """As many pictures as frames from an episode's memory, beside chance, the memory of another episode, and the best
    there can be, the frames encoded and decoded. Pixels are always means."""
    drawn, steps = model.generate(memory, len(frames), generator=generator), STEPS[-1]
    chain = model.read(memory, drawn, steps, sample_memory=True, sample_codes=True, generator=generator)
    return {
        "samples": drawn,
        f"{steps} reads, sampled": chain[-1],
        f"{steps} reads, means": model.read(memory, drawn, steps)[-1],
        "chance": model.generate(other, len(frames), generator=generator),
        "ceiling": model.decode(model.encode(frames).mean),
    }


def joint_samples(model: Model, frames: Tensor, memory: WrittenMemory, generator: Generator) -> Ways:
    """Samples of a tree, by how the joint assignment of its partitions is drawn."""
    n, theta = len(frames), memory.memory.address(memory.state, model.encode(frames).mean).assignment  # [G, T, H]
    joints = {
        "prefix counts": memory.assignments.sample(n, generator),
        "prefix networks": PrefixNetworks.fit(theta).sample(n, generator),
        "written frames": theta.argmax(-1)[:, torch.randint(n, (n,), generator=generator)],
        "independent": torch.randint(theta.shape[-1], (len(theta), n), generator=generator),
    }
    draw = functools.partial(memory.memory.sample, memory.state, n, generator)
    return {name: model.decode(draw(clusters=clusters)) for name, clusters in joints.items()}


def recall(model: Model, frames: Tensor, memories: Sequence[WrittenMemory], generator: Generator) -> dict[str, Rows]:
    """Squared error per pixel of damaged frames and of what is made of them, from the clean frame and from its
    reconstruction, the best these networks can do; and the hit rate. Only "nearest frame" has the frames to look at.
    Which pixels are missing is known to the reading."""
    best = model.decode(model.encode(frames).mean)
    measures: dict[str, Rows] = {"error": {}, "error from reconstruction": {}, "hit rate": {}}
    for name, damaged in damage(frames, generator).items():
        known = ~right_half(frames) if name == HALF else None
        reads = {m.memory.layout[0]: model.read(m, damaged, STEPS[-1], known=known) for m in memories}
        ways = {
            "damaged": damaged,
            "encoder-decoder": model.decode(model.encode(damaged).mean),
            **{f"H={h}, {steps} reads": read[steps - 1] for h, read in reads.items() for steps in STEPS},
            "nearest frame": frames[nearest(damaged.flatten(1), frames.flatten(1))],
        }
        measures["error"][name] = {way: float(F.mse_loss(x, frames)) for way, x in ways.items()}
        measures["error from reconstruction"][name] = {way: float(F.mse_loss(x, best)) for way, x in ways.items()}
        measures["hit rate"][name] = {way: hit_rate(x.flatten(1), frames.flatten(1)) for way, x in ways.items()}
    return measures


def size_table(model: Model, judge: Judge, frames: Tensor, generator: Generator, console: Console) -> list[Json]:
    """For every length and number of clusters: the memory's own bound, nats a frame, with the best addresses for what
    was written, and precision (base rate T / (T + OTHERS)) and coverage of samples before and after reading."""
    cells, codes = [], model.encode(frames).mean
    for n, clusters in track([*itertools.product(LENGTHS, CLUSTERS)], "sizes", console=console):
        sized, z = model.resize(clusters=clusters), codes[:n]
        memory = sized.write_codes(z, generator=generator)
        bound = sized.memory.bound(z, memory.state, sized.memory.address(memory.state, z)).total / n
        drawn = sized.generate(memory, min(n, CELL_SAMPLES), generator=generator)
        ways = {"samples": drawn, "reads": sized.read(memory, drawn, STEPS[-1])[-1]}
        cell = {"frames": n, "clusters": clusters, "pictures": len(drawn), "base rate": n / (n + OTHERS)}
        cells.append({**cell, "bound per frame": float(bound), **judge(ways, frames[:n])})
    return cells


def write_time(model: Model, frames: Tensor, generator: Generator, repeats: int = 10) -> dict[str, float]:
    """Median times in milliseconds, and the size of the memory."""
    codes = model.encode(frames).mean

    def median(action: Callable[[], object]) -> float:
        return 1e3 * statistics.median(timeit.repeat(action, number=1, repeat=repeats + 1)[1:])  # the first warms up

    return {
        "pictures": len(frames),
        "encoding ms": median(lambda: model.encode(frames)),
        "writing ms": median(lambda: model.write_codes(codes, generator=generator)),
        "memory bytes": model.write_codes(codes, generator=generator).nbytes,
    }


def summarise(episodes: Sequence[Rows]) -> Json:
    """Mean over episodes of every number, and its standard error, which one episode does not have."""

    def summary(values: list[float]) -> Json:
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return {"mean": statistics.fmean(values), "error": error}

    return {row: {x: summary([e[row][x] for e in episodes]) for x in columns} for row, columns in episodes[0].items()}


def show(result: Json, console: Console) -> None:
    """Every table that has rows."""

    def text(value: Any, errors: bool) -> str:
        if isinstance(value, dict):
            return f"{value['mean']:.4f}" + (
                f" ± {value['error']:.4f}" if errors and value["error"] is not None else ""
            )
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"

    tables = {name: result[name] for name in ("samples", "joint assignments")}
    tables |= {f"recall, {measure}": rows for measure, rows in result["recall"].items()}
    cells = {f"{cell['frames']} frames, {cell['clusters']} clusters": cell for cell in result["sizes"]}
    for way in ("samples", "reads"):
        common = ("bound per frame", "base rate")
        tables[f"sizes, {way}"] = {name: {k: x[k] for k in common} | x[way] for name, x in cells.items()}
    for title, rows in (tables | {"write": {result["model"]: result["write"]}}).items():
        if rows:
            table = Table("", *next(iter(rows.values())), title=title)
            for name, columns in rows.items():
                errors = len(columns) <= 4  # a wider table has no room for them; they are in the result
                table.add_row(name, *(text(value, errors) for value in columns.values()))
            console.print(table)


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
) -> Json:
    """Measure a model on pictures it was not trained on, show the tables and return all numbers, ready for JSON.

    Args:
        data_dir: where CIFAR-10 lies or is downloaded to; None for crops of photographs.
        sizes: also try memories of other sizes and longer episodes, one each.
        judge: the model in whose code space pictures are compared.
    """
    lengths = [check_size("frames", frames)] * (check_size("episodes", episodes) + 1)  # the last only for chance
    subject, eye = load(model), load_network(judge)
    if not isinstance(eye.network, CodedModel) or eye.network.frame != subject.frame:
        raise ModelError(f"{judge} cannot judge {model}; choose a model with codes, for {subject.frame}")
    source = "cifar10, test pictures" if data_dir else "crops of photographs, not comparable with CIFAR-10"
    console.print(f"measuring {subject.name} on {source}")
    resizable = "clusters" in subject.memory.sizes
    growing = sizes and resizable
    with console.status("preparing pictures"):
        others, *drawn = draw_pictures(subject.frame, lengths + [max(LENGTHS)] * growing, data_dir, seed)
        view = functools.partial(judge_ways, eye.network, features(eye.network, others))
        generator = Generator().manual_seed(seed)
        written = [(x, subject.write(x, generator=generator)) for x in drawn[: episodes + 1]]
    sampled, joint, recalled = [], [], []
    for (x, memory), (_, other) in track([*itertools.pairwise(written)], "sampling, recalling", console=console):
        sampled.append(view(samples(subject, x, memory, other, generator), x))
        joint.append(view(joint_samples(subject, x, memory, generator) if subject.memory.partitions > 1 else {}, x))
        roomy = [subject.resize(clusters=len(x)).write(x, generator=generator)] if resizable else []
        recalled.append(recall(subject, x, [memory, *roomy], generator))
    result: Json = {
        "model": subject.name,
        "fingerprint": subject.fingerprint,
        "judge": {"model": eye.name, "fingerprint": fingerprint(eye.network)},
        "source": source,
        "settings": {"episodes": episodes, "frames": frames, "others": len(others), "seed": seed},
        "machine": {"threads": torch.get_num_threads(), "torch": str(torch.__version__)},
        "samples": summarise(sampled),
        "joint assignments": summarise(joint),
        "recall": {measure: summarise([rows[measure] for rows in recalled]) for measure in recalled[0]},
        "sizes": size_table(subject, view, drawn[-1], generator, console) if growing else [],
        "write": write_time(subject, drawn[0], generator),
    }
    show(result, console)
    return result
