"""The demonstration: write an episode into memory, generate, recall and judge novelty; a page to look at."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import vbmem
from vbmem.data import examples, load_images
from vbmem.data.damage import hide_right
from vbmem.files import write_atomically
from vbmem.paper.presets import get_preset
from vbmem.pretrained.inputs import as_frames, to_unit
from vbmem.pretrained.model import timed_write
from vbmem.sheets import figure_png, grid, save_animation, save_picture
from vbmem.train import Trainer, make_source

DIGITS = "digits-mixture"
MODEL = "cifar10-mixture"
FRAMES = 64
STEPS, RECALL_STEPS = 12, 3
NOISE = 0.4
COLUMNS, SCALE = 16, 2


@dataclass(frozen=True)
class Exhibit:
    """A picture on the page."""

    file: str
    title: str
    caption: str


def demo(out: Path, console: Console, images: Path | None = None) -> Path:
    """Leaves index.html and its pictures in `out`; the page's path."""
    model = vbmem.load(MODEL)
    generator = torch.Generator().manual_seed(0)
    episode, source = _episode(model, images)
    others = _crops(model, "a flower")
    memory, _, times = timed_write(model, episode, generator)
    console.print(f"wrote {len(episode)} pictures into a memory of {memory.nbytes / 1024:.0f} kB: {times}")

    exhibits: list[Exhibit] = []

    def show(file: str, title: str, caption: str, *frames: Tensor) -> None:
        save_picture(grid(torch.cat(frames), COLUMNS, SCALE), out / file)
        exhibits.append(Exhibit(file, title, caption))

    kept = f"All that is kept of them is {memory.nbytes / 1024:.0f} kB ({times})."
    show("episode.png", "The episode", f"{len(episode)} pictures: {source}. {kept}", episode)

    samples = model.generate(memory, FRAMES, generator=generator)
    show("generated.png", "Generated", "New pictures drawn from the memory alone.", samples)
    chains = model.read(memory, samples, STEPS, generator=generator)
    steps = [grid(step, COLUMNS, SCALE) for step in (samples, *chains)]
    save_animation(steps, [900, *(250 for _ in steps[2:]), 2000], out / "reading.gif")
    caption = f"Each of them read from memory {STEPS} times in a row: they settle on what was written."
    exhibits.append(Exhibit("reading.gif", "Iterative reading", caption))

    shown = episode[:COLUMNS]
    noisy = (shown + NOISE * torch.randn(shown.shape, generator=generator)).clamp(0, 1)
    masked, known = hide_right(shown)
    damaged = {"noisy": (noisy, "Strong noise", None), "masked": (masked, "Half of the picture missing", known)}
    for name, (broken, what, pixels) in damaged.items():
        alone = model.decode(model.encode(broken).mean)
        recalled = model.read(memory, broken, RECALL_STEPS, known=pixels, sample=False)[-1]
        caption = f"{what}; encoder and decoder alone; recalled from memory; the picture as it was."
        show(f"{name}.png", f"Recalled: {name}", caption, broken, alone, recalled, shown)

    scores = {"written": model.score(memory, episode), "another photograph": model.score(memory, others)}
    _save_histogram(scores, out / "novelty.png")
    first, second = (float(values.mean()) for values in scores.values())
    console.print(f"mean score: {first:.0f} nats for what was written, {second:.0f} for crops of another photograph")
    caption = "Lower bound on log p(picture | memory): what the memory knows, and what is new to it."
    exhibits.append(Exhibit("novelty.png", "Novelty", caption))

    memory.save(out / "demo.memory")
    page = out / "index.html"
    write_atomically(page, _page(model.card, exhibits).encode())
    console.print(f"look at {page}", soft_wrap=True)
    return page


def train_digits(out: Path, console: Console) -> None:
    """Train the small digits model from scratch, and generate from one of its memories."""
    config, digits, run_dir = get_preset(DIGITS), load_images("digits"), out / "run"
    console.print(f"training {DIGITS} on 8 x 8 digits")
    resume = (run_dir / "last.safetensors").exists()
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
        save_picture(grid(frames, COLUMNS, scale=5), out / name)
    console.print("pictures: " + ", ".join(str(out / name) for name in pictures), soft_wrap=True)


def _episode(model: vbmem.Model, images: Path | None) -> tuple[Tensor, str]:
    if images is None:
        return _crops(model, "a temple"), "crops of a photograph that scikit-learn carries"
    return to_unit(as_frames(images, model.frame, progress=True), model.frame), f"the folder {images}"


def _crops(model: vbmem.Model, photograph: str) -> Tensor:
    frame = model.frame
    return to_unit(examples.draw(photograph, FRAMES, frame.size, frame.channels, seed=0), frame)


def _save_histogram(scores: dict[str, Tensor], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 2.6), layout="constrained")
    axes = figure.add_subplot()
    everything = torch.cat(list(scores.values()))
    edges = torch.linspace(float(everything.min()), float(everything.max()), 40).tolist()
    for name, values in scores.items():
        axes.hist(values.tolist(), edges, alpha=0.7, label=name)
    axes.set_xlabel("nats a picture")
    axes.set_ylabel("pictures")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    write_atomically(path, figure_png(figure, dpi=150))


def _page(card: dict[str, Any], exhibits: list[Exhibit]) -> str:
    sections = [
        f'<section><h2>{html.escape(e.title)}</h2><p>{html.escape(e.caption)}</p><img src="{e.file}" '
        f'alt="{html.escape(e.title)}"></section>'
        for e in exhibits
    ]
    origin = "; ".join(f"{name}: {value}" for name, value in card.items())
    page = Template(Path(__file__).with_name("demo.html").read_text())
    return page.substitute(model=MODEL, exhibits="\n".join(sections), origin=html.escape(origin))
