"""Codes, embeddings of any kind, in a memory file: write them, score with it, where others belong, and new ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import vbmem
from vbmem.commands import command
from vbmem.commands.memory_files import Count, MemoryFile, Out, seeded, written_facts
from vbmem.commands.output import check_npy, check_outputs, print_json, save_csv, save_numbers, say, show, warn
from vbmem.commands.processes import is_first, torchrun_group
from vbmem.models.settings import Start
from vbmem.tables import file_size

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from vbmem.data.code_files import CodeFiles
    from vbmem.memory.state import MemoryState
    from vbmem.memory.streams import Stream
    from vbmem.memory.unfinished import Reached, UnfinishedWrite
    from vbmem.memory.writing import VariationalMemory

Codes = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CODES")]

CLUSTERS, ROWS = 10, 6  # of a memory, as the estimator for embeddings has them
PRIOR_NUMBERS, PRIOR_ROWS = 2**20, 32  # the prior is fitted to so many numbers, and so many rows for every cluster
ADDRESSES = 2**22  # numbers of the addresses that are held at a time
SHOWN = 20  # rows of a table


@command("Your data")
def assign(
    memory: MemoryFile,
    codes: Codes,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    json: bool = False,
) -> None:
    """The cluster of a memory that each code belongs to.

    Args:
        memory: the file that `vbmem write` left of codes.
        codes: an .npy, .safetensors or .parquet file with a code in every row, or a directory of such files.
        out: also write the clusters of all rows here, an .npy file of whole numbers.
        json: print JSON, of all rows, instead of a table of the first.
    """
    import torch

    check_outputs(out, inputs=(memory, codes))
    check_npy(out)
    written = vbmem.WrittenMemory.load(memory)
    if written.model:
        raise ValueError(f"{memory} holds pictures, written by {written.model!r}; `vbmem assign` is for codes")
    given = _open(codes, written)
    clusters, numbers = written.empty.layout
    few = max(1, ADDRESSES // (clusters * (numbers + 1)))
    # Filled in place: many small results between large temporaries would leave the heap full of holes.
    chosen = torch.empty(given.frames, written.empty.partitions, dtype=torch.int64)
    shares, row = torch.empty(given.frames), 0
    for chunk in _chunks(given, written, "assigning"):
        for part in chunk.split(few):
            best = written.empty.with_partitions(written.address(part).assignment, -3).max(-1)  # [G, n]
            chosen[row : row + len(part)], shares[row : row + len(part)] = best.indices.mT, best.values.prod(0)
            row += len(part)
    if not written.empty.partitioned:
        chosen = chosen.squeeze(-1)
    if out is not None:
        save_numbers(chosen, out)
    shown = range(given.frames if json else min(given.frames, SHOWN))
    found = zip(map(given.place, shown), chosen.tolist(), shares.tolist(), strict=False)
    _show(
        [
            {"file": file, "row": row, "cluster": cluster, "probability": round(share, 4)}
            for (file, row), cluster, share in found
        ],
        given.frames,
        json,
    )


@command("Your data")
def sample(memory: MemoryFile, out: Out, count: Count = 64, seed: int = 0) -> None:
    """Draw new codes from a memory file alone.

    Args:
        memory: the file that `vbmem write` left.
        out: the .npy file to leave, with a code in every row.
        count: how many codes to draw, from clusters as often as what was written used them.
        seed: seed of the random draws.
    """
    check_outputs(out, inputs=(memory,))
    check_npy(out)
    drawn = vbmem.WrittenMemory.load(memory).sample(count, seeded(seed))
    save_numbers(drawn, out)
    say(f"{count} codes of {drawn.shape[-1]} numbers in {out}")


def write_codes(path: Path, out: Path, clusters: int | None, start: Start | None, json: bool, seed: int) -> None:
    """Write codes on disk into a memory file that belongs to no model; see `vbmem write`.

    Several processes of torchrun take a part of the codes each. How far the write has come is kept beside the memory
    file until that is there, so that the same command, with as many processes or others, goes on from there.
    """
    from vbmem.data.code_files import open_codes
    from vbmem.memory.checks import check_size
    from vbmem.memory.unfinished import UnfinishedWrite

    codes, clusters = open_codes(path), check_size("clusters", CLUSTERS if clusters is None else clusters)
    if codes.frames < clusters:
        raise ValueError(f"{clusters} clusters need at least as many codes, and {path} holds {codes.frames}")
    about = {"clusters": clusters, "start": start, "seed": seed, "codes": codes.fingerprint()}
    unfinished = UnfinishedWrite(out.with_name(f"{out.name}.unfinished"), about)
    generator = seeded(seed)
    with torchrun_group() as group:
        try:
            memory = _write(codes, clusters, start, generator, unfinished, group)
        except KeyboardInterrupt:
            if is_first(group) and unfinished.path.exists():
                warn(f"{unfinished.path} keeps how far the write came; the same command goes on from there")
            raise
        if not is_first(group):
            return
        memory.save(out)
        unfinished.remove()
    if json:
        return print_json(written_facts(memory, out))
    say(f"wrote {memory.frames:,} codes of {codes.code_size} numbers into {out}, {file_size(memory.nbytes)}")
    held = memory.usage.sort(descending=True).values
    say(f"codes in the fullest of {clusters} clusters: {held[0]:,.0f}, in the median one: {held[clusters // 2]:,.0f}")


def _write(
    codes: CodeFiles,
    clusters: int,
    start: Start | None,
    generator: torch.Generator,
    unfinished: UnfinishedWrite,
    group: ProcessGroup | None,
) -> vbmem.WrittenMemory:
    """The memory of all codes, from the start or from where an earlier write was cut short."""
    from vbmem.memory.shards import open_stream, share
    from vbmem.memory.unfinished import Reached

    mine = codes if group is None else codes.part(*share(codes.frames, group))
    stream, first, reached = open_stream(mine, codes.code_size, group), is_first(group), unfinished.load()
    _check_same(stream, reached)
    empty = _fitted(stream, clusters, generator, progress=first) if reached is None else reached.memory
    begin, done = (start, 0) if reached is None else (reached.state, reached.done)
    iterations = empty.default_iterations
    if done and first:
        warn(f"going on from {unfinished.path}, after {done} of {iterations} iterations")

    def keep(steps: int, state: MemoryState) -> None:
        if first and done + steps < iterations:
            unfinished.save(Reached(empty, state, done + steps))

    left = iterations - done
    return vbmem.WrittenMemory.write_stream(
        empty, mine, left, generator, start=begin, progress=first, group=group, follow=keep
    )


def _fitted(stream: Stream, clusters: int, generator: torch.Generator, progress: bool) -> VariationalMemory:
    """An empty memory with a prior that fits the codes, or many of them.

    Noise is that of every feature, so that units do not matter. A noise or a weight for every cluster would belong to
    those found in the sample that the prior is fitted to, not to those that are then written.
    """
    few, rows = max(PRIOR_NUMBERS // stream.code_size, PRIOR_ROWS * clusters), min(ROWS, stream.code_size)
    typical = stream.sample(few, generator)
    return vbmem.MixtureMemory.for_codes(
        typical, rows, clusters, noise="feature", generator=generator, progress=progress
    )


def _check_same(stream: Stream, reached: Reached | None) -> None:
    """Raise ValueError unless all processes go on from the same iteration."""
    import torch

    done = torch.tensor([[0.0 if reached is None else reached.done]])
    if bool((stream.gathered(done) != done).any()):
        raise ValueError(
            "not all processes see the same unfinished write; let all machines share the folder of the output"
        )


def score_codes(written: vbmem.WrittenMemory, path: Path, csv: Path | None, out: Path | None, json: bool) -> None:
    """A lower bound on log p(z | memory) of codes on disk, in nats, least familiar first; see `WrittenMemory.score`."""
    import torch

    codes = _open(path, written)
    scores = torch.cat([written.score(chunk) for chunk in _chunks(codes, written, "scoring")])
    if out is not None:
        save_numbers(scores, out)
    order = scores.argsort(stable=True)[: None if json or csv else SHOWN].tolist()
    found = zip(map(codes.place, order), scores[order].tolist(), strict=True)
    rows = [{"file": file, "row": row, "score": round(score, 2)} for (file, row), score in found]
    if csv is not None:
        save_csv(rows, csv)
    _show(rows, codes.frames, json)


def _open(path: Path, written: vbmem.WrittenMemory) -> CodeFiles:
    """Codes as large as those that were written."""
    from vbmem.data.code_files import open_codes

    codes, expected = open_codes(path), written.empty.code_size
    if codes.code_size != expected:
        raise ValueError(f"{path} has codes of {codes.code_size} numbers, expected {expected} as in the memory")
    return codes


def _chunks(codes: CodeFiles, written: vbmem.WrittenMemory, doing: str) -> Iterator[torch.Tensor]:
    """The codes as the memory takes them, with a progress bar."""
    from vbmem.progress import track

    dtype = written.state.row_mean.dtype
    return (chunk.to(dtype) for chunk in track(codes, doing))


def _show(rows: list[dict[str, Any]], total: int, json: bool) -> None:
    """Rows as JSON, or the first of them as a table."""
    show(rows if json else rows[:SHOWN], json)
    if not json and total > SHOWN:
        say(f"{SHOWN} of {total:,} rows; --json shows all, and -o FILE.npy keeps them")
