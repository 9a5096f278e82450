"""Pictures in a memory file: write them, generate from it, read it, score with it."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

import vbmem
from vbmem import pretrained
from vbmem.commands import command
from vbmem.commands.given_pictures import GivenPictures, SkipBroken, given_alone, given_frames
from vbmem.commands.output import (
    check_npy,
    check_outputs,
    check_png,
    print_json,
    save_csv,
    save_numbers,
    say,
    show,
    warn,
)
from vbmem.errors import NumericalError
from vbmem.models.settings import PAINT_STEPS, READS, Start
from vbmem.tables import counted, file_size

if TYPE_CHECKING:
    import torch

MemoryFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MEMORY")]
Out = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
Count = Annotated[int, tyro.conf.arg(aliases=["-n"])]

DEFAULT_MODEL = "cifar10-mixture"
SHOWN = 64  # pixels, to which smaller pictures are enlarged
TABLES = (".csv", ".tsv", ".txt", ".json", ".npz", ".xlsx")  # of numbers, that are not read as codes
WHILE_WRITTEN = 15  # how many times as much a memory takes as its float32 rows: copies in float64, of folds, of parts
HELD = 0.5  # pictures in a cluster from which on it holds any
LARGEST_SHEET = 2**27  # pixels; viewers refuse pictures that are much larger


@command("Your data")
def write(
    images: GivenPictures,
    out: Out,
    model: str = DEFAULT_MODEL,
    clusters: int | None = None,
    start: Start | None = None,
    skip_broken: SkipBroken = False,
    json: bool = False,
    seed: int = 0,
) -> None:
    """Write a folder of pictures, or codes, into a memory file.

    Codes may be written by several processes, `torchrun --nproc-per-node 2 -m vbmem write CODES -o FILE`. How far a
    write of codes has come is kept beside the memory file: if it is cut short, the same command goes on from there.

    Args:
        images: the folder, or pictures one by one; or codes, embeddings of any kind: an .npy, .safetensors or .parquet
            file with a code in every row, or a directory of such files.
        out: the memory file to leave.
        model: what encodes the pictures: a name that `vbmem models` lists, the directory of a model or a training run,
            or hf://USER/NAME.
        clusters: how many clusters the memory has; by default as many as the model was trained with, and 10 for codes.
        start: where the write starts: at the prior, random, at random pictures, at k-means++ seeds, at the means of
            k-means or of a Ward clustering; by default what suits the memory.
        json: print JSON instead of sentences.
        seed: seed of the random start of the write.
    """
    from vbmem.data.code_files import OPENERS, code_files, holds_codes
    from vbmem.pretrained.timing import timed_write

    check_outputs(out, inputs=images)
    if source := given_alone(images):
        if holds_codes(source):
            from vbmem.commands.code_files import write_codes

            if model != DEFAULT_MODEL:
                raise ValueError(f"{source} holds codes, which no model encodes; leave out --model")
            return write_codes(source, out, clusters, start, json, seed)
        if source.suffix.lower() in TABLES and source.is_file():
            raise ValueError(
                f"{source} is no picture, and codes are read from {', '.join(OPENERS)}; save it as one of these"
            )
        if source.is_dir() and (codes := code_files(source)):
            its = f"{counted(len(codes), 'files')} of codes, which are not"
            warn(f"{source} holds pictures, which are written, and {its}")
    generator, loaded = seeded(seed), vbmem.load(model)
    if clusters is not None:
        _check_room(loaded, clusters)
        loaded = loaded.resize(clusters=clusters)
    frames, _ = given_frames(images, loaded, skip_broken)
    memory, _, times = timed_write(loaded, frames, generator, start)
    memory.save(out)
    if json:
        return print_json(written_facts(memory, out))
    say(f"wrote {counted(memory.frames, 'pictures')} into {out}, {file_size(memory.nbytes)}: {times}")
    for usage in memory.usage.reshape(-1, memory.usage.shape[-1]):  # a tree has several partitions
        held = [f"{count:.0f}" for count in usage if count >= HELD]
        others = f", none in {len(usage) - len(held)} others" if len(held) < len(usage) else ""
        say(f"pictures in each cluster: {' '.join(held)}{others}")


def written_facts(memory: vbmem.WrittenMemory, out: Path) -> dict[str, Any]:
    """What `vbmem write` left, for programs: of a tree, the use of the clusters of every partition."""
    return {"memory": str(out), "frames": memory.frames, "bytes": memory.nbytes, "usage": memory.usage.tolist()}


@command("Your data")
def generate(
    memory: MemoryFile,
    out: Out = Path("generated.png"),
    count: Count = 64,
    reads: int = READS,
    by_cluster: bool = False,
    own: Path | None = None,
    choice: Literal["usage", "prior", "network"] = "usage",
    means: bool = False,
    sample_pixels: bool = False,
    mean_pictures: bool = False,
    paint_steps: int = PAINT_STEPS,
    model: str | None = None,
    seed: int = 0,
) -> None:
    """Draw new pictures from a memory file alone.

    Args:
        memory: the file that `vbmem write` left.
        out: a PNG of all pictures.
        count: how many pictures to draw.
        reads: how often what was drawn is read from the memory, which leads to what it holds; 0 for draws as they are.
        by_cluster: draw so many from every cluster, each cluster a row.
        own: a picture, or a folder of as many as are drawn, whose own part of the code new pictures have, such as a
            pose or a hand, for a model that has one; otherwise that is drawn, too.
        choice: which clusters pictures come from, and where in them: as the pictures written use them, all alike as in
            the paper (the parts of a tree each for itself), or, of a tree, as networks fitted to that use predict.
        means: show the mean memory and codes instead of samples.
        sample_pixels: draw the pixels too, as in the paper, instead of showing their means.
        mean_pictures: show mean, blurred pictures, far faster, also where the model can paint crisp ones.
        paint_steps: steps in which a crisp picture is painted.
        model: the model that wrote the memory, if it did not come with vbmem: a directory, or hf://USER/NAME.
        seed: seed of the random draws.
    """
    import torch

    check_outputs(out, inputs=(memory, own))
    check_png(out)
    generator, (loaded, written) = seeded(seed), _open(memory, model)
    rows = written.empty.layout[0] if by_cluster else 1
    _check_sheet(count * rows, loaded.frame.size, "--count")
    clusters = range(written.empty.layout[0]) if by_cluster else [None]
    draw = partial(
        loaded.generate,
        written,
        count,
        reads=reads,
        own=own,
        choice=choice,
        **_shown(means, sample_pixels, mean_pictures, paint_steps),
        generator=generator,
    )
    pictures = torch.cat([draw(cluster=cluster) for cluster in clusters])
    if by_cluster:  # of a tree, those of its first partition
        used = written.usage.reshape(-1, rows)[0].tolist()
        labels = [f"cluster {number}: {frames:.0f} written" for number, frames in enumerate(used)]
        return _save_sheet(pictures, count, out, rows=labels)
    _save_sheet(pictures, math.isqrt(count - 1) + 1, out, title=f"{count} new, from {memory.name}")


@command("Your data")
def read(
    memory: MemoryFile,
    images: GivenPictures,
    out: Out = Path("read.png"),
    steps: int = 2,
    skip_broken: SkipBroken = False,
    means: bool = False,
    trust: float = 1.0,
    sample_pixels: bool = False,
    mean_pictures: bool = False,
    paint_steps: int = PAINT_STEPS,
    model: str | None = None,
    seed: int = 0,
) -> None:
    """Recall pictures from a memory file, step by step.

    Args:
        memory: the file that `vbmem write` left.
        images: a folder of pictures, or pictures one by one.
        out: a PNG with a row for every picture, under its name: as it was, then every step.
        steps: how many times in a row each picture is read.
        means: take the means of memory and codes instead of samples, which recalls damaged pictures best.
        trust: the share of what the memory reads in a code, 0 to 1; the rest is the picture's own code.
        sample_pixels: draw the pixels of every step too, as in the paper, instead of going on from their means.
        mean_pictures: show mean, blurred pictures, far faster, also where the model can paint crisp ones.
        paint_steps: steps in which a crisp picture is painted.
        model: the model that wrote the memory, if it did not come with vbmem: a directory, or hf://USER/NAME.
        seed: seed of the random draws.
    """
    import torch

    from vbmem.pretrained.inputs import to_unit

    check_outputs(out, inputs=(memory, *images))
    check_png(out)
    generator, (loaded, written) = seeded(seed), _open(memory, model)
    found, names = given_frames(images, loaded, skip_broken)
    frames = to_unit(found, loaded.frame)
    _check_sheet(len(frames) * (1 + steps), loaded.frame.size, "--steps")
    shown = _shown(means, sample_pixels, mean_pictures, paint_steps)
    chain = loaded.read(written, frames, steps, trust=trust, **shown, generator=generator)
    rows = torch.cat([frames.unsqueeze(0), chain]).transpose(0, 1)  # [T, 1 + steps, channels, H, W]
    heads = ["as given", *(f"read {step}" for step in range(1, steps + 1))]
    _save_sheet(rows.flatten(0, 1), 1 + steps, out, rows=names, heads=heads)


@command("Your data")
def score(
    memory: MemoryFile,
    images: GivenPictures,
    csv: Path | None = None,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    json: bool = False,
    skip_broken: SkipBroken = False,
    model: str | None = None,
) -> None:
    """Has a memory seen such pictures, or codes?

    Least familiar first: a score in nats, and whether that makes a picture known or new. Of pictures like the written
    ones, about 9 in 10 are known. Memories of fewer than four pictures, and those of codes, only have scores.

    Args:
        memory: the file that `vbmem write` left.
        images: a folder of pictures, or pictures one by one; codes, as `vbmem write` takes them, for a memory of codes.
        csv: also write file names, scores and verdicts here.
        out: also write the scores here, an .npy file, in the order of the pictures' names or of the codes' rows.
        json: print JSON instead of a table.
        model: the model that wrote the memory, if it did not come with vbmem: a directory, or hf://USER/NAME.
    """
    from vbmem.commands.code_files import score_codes

    check_outputs(csv, out, inputs=(memory, *images))
    check_npy(out)
    written = vbmem.WrittenMemory.load(memory)
    if not written.model:
        source = given_alone(images)
        if source is None:
            raise ValueError(f"{memory} is a memory of codes; give a file or a directory of them")
        return score_codes(written, source, csv, out, json)
    loaded = _writer_of(written, memory, model)
    frames, names = given_frames(images, loaded, skip_broken)
    found, threshold = loaded.score(written, frames), loaded.threshold(written)
    scores = found.tolist()
    if not all(map(math.isfinite, scores)):
        raise NumericalError(f"some scores under {memory} are not numbers; the memory or its model is unusable")
    if out is not None:
        save_numbers(found.cpu(), out)
    rows = [
        {"file": name, "score": round(score, 2), "verdict": _verdict(score, threshold)}
        for score, name in sorted(zip(scores, names, strict=True))
    ]
    if csv is not None:
        save_csv(rows, csv)
    show(rows, json)


def _verdict(score: float, threshold: float | None) -> str:
    if threshold is None:
        return ""
    return "known" if score >= threshold else "new"


def _open(path: Path, model: str | None) -> tuple[vbmem.Model, vbmem.WrittenMemory]:
    """A memory file of pictures and the model that wrote it."""
    memory = vbmem.WrittenMemory.load(path)
    return _writer_of(memory, path, model), memory


def _writer_of(memory: vbmem.WrittenMemory, path: Path, model: str | None) -> vbmem.Model:
    """The model that wrote the memory in a file, or the one that is said to have."""
    from vbmem.models.card import HUB

    if not memory.model:
        raise ValueError(f"{path} holds codes that no model made pictures of; `vbmem sample` draws codes from it")
    if model is None and memory.model not in pretrained.shipped():
        its = memory.model if memory.model.startswith(HUB) else "DIRECTORY"
        raise ValueError(f"{path} was written by {memory.model!r}, which vbmem does not have; give --model {its}")
    return vbmem.load(model or memory.model)


def _check_room(loaded: vbmem.Model, clusters: int) -> None:
    """Raise ValueError if a memory of so many clusters cannot fit this machine, before anything is written."""
    has = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    rows = loaded.memory.rows + 1
    needed = WHILE_WRITTEN * 4 * clusters * rows * (loaded.memory.code_size + rows)
    if needed > has:
        raise ValueError(
            f"to write a memory of {clusters} clusters takes {needed / 1e9:.0f} GB, and this machine has "
            f"{has / 1e9:.0f} GB; give fewer --clusters"
        )


def _check_sheet(count: int, size: int, option: str) -> None:
    """Raise ValueError if so many pictures cannot be shown on one sheet, before any is made."""
    from vbmem.sheets import MARGIN

    most = LARGEST_SHEET // (max(1, SHOWN // size) * (size + MARGIN)) ** 2
    if count > most:
        raise ValueError(f"{count} pictures are too many for one sheet, which holds {most}; give a smaller {option}")


def _shown(means: bool, sample_pixels: bool, mean_pictures: bool, paint_steps: int) -> dict[str, Any]:
    """The model's own words for how pictures are drawn and shown."""
    crisp = False if mean_pictures else None
    return {"sample": not means, "sample_pixels": sample_pixels, "crisp": crisp, "paint_steps": paint_steps}


def seeded(seed: int) -> torch.Generator:
    """A generator of random draws, from the seed that a person gave."""
    import torch

    if not 0 <= seed < 2**63:
        raise ValueError(f"--seed must be a number of at least 0 and less than 2^63, got {seed}")
    return torch.Generator().manual_seed(seed)


def _save_sheet(
    frames: torch.Tensor,
    columns: int,
    path: Path,
    title: str = "",
    rows: list[str] | None = None,
    heads: list[str] | None = None,
) -> None:
    """Leave a PNG of pictures, with a title, or words before its rows and over its columns."""
    from vbmem.sheets import grid, labelled, save_picture, titled

    sheet = labelled(grid(frames, columns, scale=max(1, SHOWN // frames.shape[-1])), rows or [], heads or [])
    save_picture(titled(sheet, title) if title else sheet, path)
    say(f"{counted(len(frames), 'pictures')} in {path}")
