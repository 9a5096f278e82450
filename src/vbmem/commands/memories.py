"""Trained models on the command line: write pictures into a memory file, generate from it, read it, score with it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from csv import writer
from dataclasses import replace
from json import loads
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from torch import Tensor

from vbmem.commands.listing import show
from vbmem.data.decoding import picture_names
from vbmem.files import write_atomically
from vbmem.pretrained import Model, WrittenMemory, load, load_network, save_network, shipped
from vbmem.pretrained.card import HUB
from vbmem.pretrained.hub import upload
from vbmem.pretrained.inputs import as_frames, to_unit
from vbmem.pretrained.model import timed_write

console = Console()
Images = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
MemoryFile = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MEMORY")]
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Out = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
Count = Annotated[int, tyro.conf.arg(aliases=["-n"])]

SHOWN = 64  # pixels, to which smaller pictures are enlarged


def write(images: Images, out: Out, model: str = "cifar10-mixture", clusters: int | None = None, seed: int = 0) -> None:
    """Write a folder of pictures into a memory file.

    Args:
        images: the folder, or a single picture.
        out: the memory file.
        model: a name that `vbmem models` lists, the directory of a model or a training run, or hf://USER/NAME.
        clusters: of the memory; by default as many as the model was trained with.
        seed: of the start of the write.
    """
    generator, loaded = _generator(seed), load(model)
    if clusters is not None:
        loaded = loaded.resize(clusters=clusters)
    frames = as_frames(images, loaded.frame, progress=True)
    memory, _, times = timed_write(loaded, frames, generator)
    memory.save(out)
    _say(f"wrote {memory.frames} frames into {out}, {memory.nbytes / 1024:.0f} kB: {times}")
    for usage in memory.usage.reshape(-1, memory.usage.shape[-1]):  # a tree has several partitions
        _say("frames in each cluster: " + " ".join(f"{frames:.0f}" for frames in usage))


def generate(
    memory: MemoryFile,
    out: Out = Path("generated.png"),
    count: Count = 64,
    by_cluster: bool = False,
    means: bool = False,
    model: str | None = None,
    seed: int = 0,
) -> None:
    """Draw new pictures from a memory file alone.

    Args:
        memory: the file that `vbmem write` left.
        out: a PNG of all pictures.
        count: how many.
        by_cluster: so many from every cluster, each cluster a row.
        means: the mean memory and codes instead of samples.
        model: the model that wrote the memory, if it did not come with vbmem: a directory, or hf://USER/NAME.
        seed: of the draws.
    """
    generator, (loaded, written) = _generator(seed), _open(memory, model)
    draws = {"by_cluster": by_cluster, "sample_memory": not means, "sample_codes": not means}
    pictures = loaded.generate(written, count, **draws, generator=generator)
    if by_cluster:
        pictures = pictures.flatten(0, 1)
    _save_sheet(pictures, count if by_cluster else math.isqrt(count - 1) + 1, out)


def read(
    memory: MemoryFile,
    images: Images,
    out: Out = Path("read.png"),
    steps: int = 12,
    samples: bool = False,
    model: str | None = None,
    seed: int = 0,
) -> None:
    """Recall pictures from a memory file, step by step.

    Args:
        memory: the file that `vbmem write` left.
        images: a folder of pictures, or a single one.
        out: a PNG with a row for every picture: as it was, then every step.
        steps: how often each is read.
        samples: draw memory and codes, as the paper does, instead of their means.
        model: the model that wrote the memory, if it did not come with vbmem: a directory, or hf://USER/NAME.
        seed: of the draws.
    """
    generator, (loaded, written) = _generator(seed), _open(memory, model)
    frames = to_unit(as_frames(images, loaded.frame, progress=True), loaded.frame)
    chain = loaded.read(written, frames, steps, sample_memory=samples, sample_codes=samples, generator=generator)
    rows = torch.cat([frames.unsqueeze(0), chain]).transpose(0, 1)  # [T, 1 + steps, channels, H, W]
    _save_sheet(rows.flatten(0, 1), 1 + steps, out)


def score(
    memory: MemoryFile,
    images: Images,
    csv: Path | None = None,
    json: bool = False,
    model: str | None = None,
    seed: int = 0,
) -> None:
    """How well a memory file knows pictures, in nats.

    A lower bound on log p(picture | memory), the newest first.

    Args:
        memory: the file that `vbmem write` left.
        images: a folder of pictures, or a single one.
        csv: also write file names and nats here.
        json: print JSON instead of a table.
        model: the model that wrote the memory, if it did not come with vbmem: a directory, or hf://USER/NAME.
        seed: of the codes' draws.
    """
    generator, (loaded, written) = _generator(seed), _open(memory, model)
    scores = loaded.score(written, images, generator=generator).tolist()
    names = list(map(str, picture_names(images))) if images.is_dir() else [images.name]
    ranked = sorted(zip(scores, names, strict=True))
    if csv is not None:
        lines = io.StringIO(newline="")
        writer(lines).writerows([("file", "nats"), *((name, f"{nats:.2f}") for nats, name in ranked)])
        write_atomically(csv, lines.getvalue().encode())
    show([{"file": name, "nats": round(nats, 2)} for nats, name in ranked], json)


def models(json: bool = False) -> None:
    """List the models that come with vbmem.

    Args:
        json: print JSON instead of a table.
    """
    bound, rows = "test bound, nats a frame", []
    for name in shipped():
        saved = load_network(name)
        network = saved.network
        rows.append(
            {
                "model": name,
                "kind": getattr(network.config, "memory", type(network).__name__.lower()),
                "frame": f"{network.frame.size} x {network.frame.size} x {network.frame.channels}",
                "parameters": sum(parameter.numel() for parameter in network.parameters()),
                bound: saved.card.get(bound, ""),
            }
        )
    show(rows, json)


def export(
    run: Run,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    push: Annotated[str | None, tyro.conf.arg(metavar="USER/NAME")] = None,
    private: bool = False,
    half: bool = False,
    name: str | None = None,
    evaluation: Path | None = None,
    metrics: Path | None = None,
    facts: list[str] = [],  # noqa: B006, shown as the default
) -> None:
    """Save the best model of a run, to keep or to give away.

    Args:
        run: what `vbmem train` left, or any model.
        out: the model directory.
        push: save it on the Hugging Face Hub, where hf://USER/NAME is then its name.
        private: there for you alone.
        half: weights in half precision, half the size.
        name: of the model; by default that of the run's directory.
        evaluation: what `vbmem evaluate` printed, for the model's card.
        metrics: what `vbmem metrics` wrote, for the card.
        facts: more for the card, each NAME=VALUE, for example commit=1a2b3c hardware="one GPU".
    """
    if out is None and push is None:
        raise ValueError("give --out DIRECTORY, --push USER/NAME, or both: where the model is to be saved")
    saved = load_network(run)
    card = saved.card
    if out is not None and (out / "last.safetensors").exists():
        raise ValueError(f"{out} is the directory of a run, whose config.json would be lost; choose another")
    if evaluation is not None:
        card |= _facts(
            evaluation,
            lambda x: {f"{x['split']} bound, nats a frame": f"{x['elbo_per_frame']:.1f} +- {x['standard_error']:.1f}"},
        )
    if metrics is not None:
        card |= _facts(
            metrics,
            lambda x: {
                f"precision and coverage, {way}": ", ".join(f"{value['mean']:.2f} ({k})" for k, value in row.items())
                for way, row in x["samples"].items()
            },
        )
    for fact in facts:
        key, separator, value = fact.partition("=")
        if not separator:
            raise ValueError(f"a fact must be NAME=VALUE, got {fact!r}")
        card[key] = value
    dtype = torch.float16 if half else torch.float32
    name = HUB + push if push is not None else name or saved.name
    with TemporaryDirectory() as unnamed:
        directory = out or Path(unnamed)
        save_network(replace(saved, name=name, card=card), directory, dtype=dtype)
        if out is not None:
            _say(f"exported {name} to {out}")
        if push is not None:
            _say(f"pushed {name} to {upload(directory, push, private)}")


def _facts(path: Path, of: Callable[[Any], dict[str, str]]) -> dict[str, str]:
    """Facts for a card from a JSON file that another command wrote."""
    try:
        return of(loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not what `vbmem evaluate` or `vbmem metrics` writes ({error!r})") from error


def _open(path: Path, model: str | None) -> tuple[Model, WrittenMemory]:
    """A memory file and the model that wrote it."""
    memory = WrittenMemory.load(path)
    if model is None and memory.model not in shipped():
        its = memory.model if memory.model.startswith(HUB) else "DIRECTORY"
        raise ValueError(f"{path} was written by {memory.model!r}, which vbmem does not have; give --model {its}")
    return load(model or memory.model), memory


def _generator(seed: int) -> torch.Generator:
    if not 0 <= seed < 2**63:
        raise ValueError(f"--seed must be a number of at least 0 and less than 2^63, got {seed}")
    return torch.Generator().manual_seed(seed)


def _save_sheet(frames: Tensor, columns: int, path: Path) -> None:
    from vbmem.sheets import grid, save_picture

    save_picture(grid(frames, columns, scale=max(1, SHOWN // frames.shape[-1])), path)
    _say(f"{len(frames)} pictures in {path}")


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)
