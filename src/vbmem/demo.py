"""The demonstration: a page in one file, to look at and to send to a friend, of what memories draw, recall and know."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2 import Template
from rich.console import Console
from torch import Tensor

import vbmem
from vbmem.data import examples, load_images
from vbmem.data.damage import hide_right
from vbmem.files import data_url, write_atomically
from vbmem.models.directory import CHECKPOINT
from vbmem.paper.metrics.neighbours import nearest
from vbmem.paper.presets import get_preset
from vbmem.pretrained.inputs import as_frames, to_unit
from vbmem.pretrained.timing import timed_write
from vbmem.sheets import CLEAR, gif, grid, jpeg, png, save_picture
from vbmem.tables import counted, file_size
from vbmem.train import Trainer, make_source

PAGE, MEMORY = "index.html", "demo.memory"
DIGITS = "digits-mixture"
MODEL, CHARACTERS = "cifar10-mixture", "omniglot-mixture"
WRITTEN, OTHER = "a temple", "a flower"  # photographs: crops of the one are written, the other is new
FRAMES, DRAWN = 64, 16
ROUNDS = 4  # new drawings of every character
STEPS, RECALL_STEPS = 6, 3
NOISE = 0.4
COLUMNS, SCALE = 8, 3  # of a strip of pictures; eight are large enough to look at on a telephone
THUMBNAIL = 480  # pixels, of a photograph


@dataclass(frozen=True)
class Row:
    """Pictures under one label, in strips of `COLUMNS`."""

    label: str
    frames: Tensor  # [n, channels, H, W]
    note: str = ""

    @property
    def strips(self) -> list[str]:
        """Addresses that hold the pictures themselves, so that the page is one file."""
        return [data_url("image/png", png(grid(part, COLUMNS, SCALE, CLEAR))) for part in self.frames.split(COLUMNS)]


@dataclass(frozen=True)
class Scores:
    """Pictures under one label, each a tick on a scale from 0 to 1000 that all rows share."""

    label: str
    ticks: list[int]
    note: str


def demo(out: Path, console: Console, images: Path | None = None, broken: list[Path] | None = None) -> Path:
    """Leave a page, index.html, and the memory it shows, demo.memory.

    Args:
        out: the folder for both.
        console: for what is happening.
        images: a folder of pictures to write; by default crops of a photograph that scikit-learn carries.
        broken: a list for the names of pictures in it that cannot be read and are left out; without one, such a picture
            is an error.

    Returns:
        The page.
    """
    generator = torch.Generator().manual_seed(0)
    model = vbmem.load(MODEL)
    episode = _crops(model, WRITTEN) if images is None else to_unit(as_frames(images, model.frame, broken), model.frame)
    memory, _, times = timed_write(model, episode, generator)
    size, raw_size = map(file_size, (memory.nbytes, episode.numel()))  # a byte a pixel
    count = counted(len(episode), "pictures")
    console.print(f"wrote {count} into a memory of {size}: {times}")
    facts = {
        "characters": draw_characters(generator),
        "folder": images and images.resolve().name,
        "count": count,
        "episode": Row("Written", episode),
        "size": size,
        "raw_size": raw_size,
        "times": times,
        "drawn": draw_beside_nearest(model, memory, episode, generator),
        "reading": animate_reading(model, memory, generator),
        "steps": STEPS,
        "recalled": recall(model, episode, generator),
        "novelty": judge(model, memory, episode, images is None, console),
    }
    memory.save(out / MEMORY)
    page, template = out / PAGE, Path(__file__).with_name("demo.html").read_text()
    write_atomically(page, Template(template, autoescape=True).render(facts).encode())
    console.print(f"look at {page}", soft_wrap=True)
    return page


def draw_characters(generator: torch.Generator) -> list[Row]:
    """Drawings of characters that no model was trained on, a column each, and what a memory of each draws."""
    model, given = vbmem.load(CHARACTERS), examples.characters()  # [characters, drawings, 1, H, W]
    memories = [model.write(drawings, generator=generator) for drawings in given]
    drawn = torch.stack([model.generate(memory, ROUNDS, generator=generator) for memory in memories])
    rows = {f"Given: {given.shape[1]} drawings of each": to_unit(given, model.frame), "Drawn from memory": drawn}
    return [Row(label, 1 - pictures.transpose(0, 1).flatten(0, 1)) for label, pictures in rows.items()]  # ink is black


def draw_beside_nearest(
    model: vbmem.Model, memory: vbmem.WrittenMemory, episode: Tensor, generator: torch.Generator
) -> list[Row]:
    """New pictures, and under each the written one that is nearest to it, a strip of both after the other."""
    drawn = model.generate(memory, DRAWN, generator=generator)
    pairs = zip(drawn.split(COLUMNS), episode[nearest(drawn, episode)].split(COLUMNS), strict=True)
    return [row for new, old in pairs for row in (Row("New, from memory", new), Row("Nearest written", old))]


def animate_reading(model: vbmem.Model, memory: vbmem.WrittenMemory, generator: torch.Generator) -> str:
    """Draws as they are, then read from memory again and again."""
    drawn = model.generate(memory, COLUMNS, reads=0, generator=generator)
    steps = torch.cat([drawn.unsqueeze(0), model.read(memory, drawn, STEPS, sample=False)])
    frames = [grid(step, COLUMNS, SCALE, "grey") for step in steps]
    return data_url("image/gif", gif(frames, [900, *(350 for _ in steps[2:]), 2000]))


def recall(model: vbmem.Model, episode: Tensor, generator: torch.Generator) -> dict[str, list[Row]]:
    """Damaged pictures, what the networks alone and what a memory with a cluster for every picture makes of them, and
    how far off each is: mean pictures, since painted ones make things of the noise that is left."""
    model, shown = model.resize(clusters=min(len(episode), FRAMES)), episode[:COLUMNS]
    memory = model.write(episode, start="data", generator=generator)
    noisy = (shown + NOISE * torch.randn(shown.shape, generator=generator)).clamp(0, 1)
    exhibits = {}
    for kind, (damaged, known) in {"noise": (noisy, None), "hidden": hide_right(shown)}.items():
        alone = model.decode(model.encode(damaged).mean, crisp=False)
        recalled = model.read(memory, damaged, RECALL_STEPS, known=known, sample=False, every_step=False, crisp=False)
        ways = {"Damaged": damaged, "Without memory": alone, "Recalled": recalled}
        missing = torch.ones(shown.shape[-1], dtype=torch.bool) if known is None else ~known
        rows = [
            Row(name, pictures.where(missing, shown), _error((pictures - shown)[..., missing]))
            for name, pictures in ways.items()
        ]
        exhibits[kind] = [*rows, Row("As it was", shown)]
    return exhibits


def judge(
    model: vbmem.Model, memory: vbmem.WrittenMemory, episode: Tensor, crops: bool, console: Console
) -> dict[str, Any]:
    """How well the memory knows the written pictures, others like them where there are some, and strange ones."""
    groups = {"Written": episode, "Never written": _crops(model, OTHER)}
    if crops:
        groups = {"Written": episode, "Other crops": _crops(model, WRITTEN, seed=1), **groups}
    scores = {name: model.score(memory, pictures) for name, pictures in groups.items()}
    threshold = model.threshold(memory)
    everything = torch.cat([*scores.values(), torch.tensor([] if threshold is None else [threshold])])
    lowest, highest = float(everything.min()), float(everything.max())

    def places(values: Tensor) -> list[int]:
        return [round(place) for place in ((values - lowest) / (highest - lowest) * 1000).tolist()]

    first, last = (float(scores[name].mean()) for name in ("Written", "Never written"))
    console.print(f"mean score: {first:.0f} nats for what was written, {last:.0f} for crops of another photograph")
    notes = dict.fromkeys(scores, "")
    if threshold is not None:
        known = {name: int((values >= threshold).sum()) for name, values in scores.items()}
        notes = {name: f"{known[name]} of {len(values)} known" for name, values in scores.items()}
        strange = len(scores["Never written"]) - known["Never written"]
        console.print(f"{strange} of {len(scores['Never written'])} of those are new to the memory")
    return {
        "rows": [Scores(name, places(values), notes[name]) for name, values in scores.items()],
        "threshold": None if threshold is None else places(torch.tensor([threshold]))[0],
        "photographs": [_photograph(name) for name in ((WRITTEN, OTHER) if crops else (OTHER,))],
    }


def train_digits(out: Path, console: Console) -> None:
    """Train the small digits model from scratch, and generate from one of its memories."""
    config, digits, run_dir = get_preset(DIGITS), load_images("digits"), out / "run"
    console.print(f"training {DIGITS} on 8 x 8 digits")
    resume = (run_dir / CHECKPOINT).exists()
    Trainer(config, digits, run_dir, torch.device("cpu"), resume=resume, console=console).run()
    model = vbmem.load(run_dir)
    episode = next(make_source(config.data, digits, "test", 0, torch.device("cpu")).epoch(0))[0]
    generator = torch.Generator().manual_seed(0)
    memory = model.write(episode, generator=generator)
    pictures = {
        "digits-episode.png": episode,
        "digits-recalled.png": model.read(memory, episode, 1, sample=False)[0],
        "digits-generated.png": model.generate(memory, 32, generator=generator),
    }
    for name, frames in pictures.items():
        save_picture(grid(frames, columns=16, scale=5), out / name)
    console.print("pictures: " + ", ".join(str(out / name) for name in pictures), soft_wrap=True)


def _crops(model: vbmem.Model, photograph: str, seed: int = 0) -> Tensor:
    return to_unit(examples.draw(photograph, FRAMES, model.frame, seed), model.frame)


def _error(difference: Tensor) -> str:
    """Root mean square, in percent of the range from black to white."""
    return f"error {100 * float(difference.square().mean().sqrt()):.0f} %"


def _photograph(name: str) -> str:
    image = examples.photograph(examples.PHOTOGRAPHS[name])
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    return data_url("image/jpeg", jpeg(image))
