"""The demonstration: write an episode into memory, generate, recall and judge novelty; a page to look at."""

from pathlib import Path

import torch
from jinja2 import Template
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

import vbmem
from vbmem.data import examples, load_images
from vbmem.data.damage import hide_right
from vbmem.files import write_atomically
from vbmem.paper.presets import get_preset
from vbmem.pretrained.inputs import as_frames, to_unit
from vbmem.pretrained.timing import timed_write
from vbmem.sheets import figure_png, grid, save_animation, save_picture
from vbmem.train import Trainer, make_source

DIGITS = "digits-mixture"
MODEL = "cifar10-mixture"
FRAMES = 64
STEPS, RECALL_STEPS = 6, 3
NOISE = 0.4
COLUMNS, SCALE = 16, 2


def demo(out: Path, console: Console, images: Path | None = None) -> Path:
    """Leaves index.html and its pictures in `out`; the page's path."""
    model = vbmem.load(MODEL)
    generator = torch.Generator().manual_seed(0)
    episode, source = _crops(model, "a temple"), "crops of a photograph that scikit-learn carries"
    if images is not None:
        episode, source = to_unit(as_frames(images, model.frame), model.frame), f"the folder {images}"
    memory, _, times = timed_write(model, episode, generator)
    size = f"{memory.nbytes / 1024:.0f} kB"
    console.print(f"wrote {len(episode)} pictures into a memory of {size}: {times}")

    drawn = model.generate(memory, COLUMNS, reads=0, generator=generator)
    steps = torch.cat([drawn.unsqueeze(0), model.read(memory, drawn, STEPS, sample=False)])
    durations = [900, *(250 for _ in steps[2:]), 2000]
    save_animation([grid(step, COLUMNS, SCALE) for step in steps], durations, out / "reading.gif")

    sheets = {"episode": episode, "generated": model.generate(memory, FRAMES, generator=generator)}
    shown = episode[:COLUMNS]
    noisy = (shown + NOISE * torch.randn(shown.shape, generator=generator)).clamp(0, 1)
    for name, (broken, known) in {"noisy": (noisy, None), "masked": hide_right(shown)}.items():
        alone = model.decode(model.encode(broken).mean)
        recalled = model.read(memory, broken, RECALL_STEPS, known=known, sample=False, every_step=False)
        sheets[name] = torch.cat([broken, alone, recalled, shown])
    for name, frames in sheets.items():
        save_picture(grid(frames, COLUMNS, SCALE), out / f"{name}.png")

    others = _crops(model, "a flower")
    scores = {"written": model.score(memory, episode), "another photograph": model.score(memory, others)}
    _save_histogram(scores, out / "novelty.png")
    first, second = (float(values.mean()) for values in scores.values())
    console.print(f"mean score: {first:.0f} nats for what was written, {second:.0f} for crops of another photograph")
    if memory.threshold is not None:
        new = (scores["another photograph"] < memory.threshold).sum()
        console.print(f"{new} of {len(others)} of those are new to the memory")

    memory.save(out / "demo.memory")
    page, template = out / "index.html", Path(__file__).with_name("demo.html").read_text()
    facts = {"model": model, "memory": memory, "source": source, "size": size, "times": times, "steps": STEPS}
    write_atomically(page, Template(template, autoescape=True).render(facts).encode())
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


def _crops(model: vbmem.Model, photograph: str) -> Tensor:
    return to_unit(examples.draw(photograph, FRAMES, model.frame, seed=0), model.frame)


def _save_histogram(scores: dict[str, Tensor], path: Path) -> None:
    figure = Figure(figsize=(6.5, 2.6), layout="constrained")
    axes = figure.add_subplot()
    everything = torch.cat(list(scores.values()))
    edges = torch.linspace(float(everything.min()), float(everything.max()), 40).tolist()
    for name, values in scores.items():
        axes.hist(values.tolist(), edges, alpha=0.7, label=name)
    axes.set(xlabel="nats a picture", ylabel="pictures")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    write_atomically(path, figure_png(figure, dpi=150))
