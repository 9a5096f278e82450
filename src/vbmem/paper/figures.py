"""Figures 3 to 6: what the shipped models generate and read from memory, beside the episode they wrote.

Every function returns the files it leaves in `out`. Without a data directory the episodes are crops of scikit-learn's
photographs, so that all figures can be drawn anywhere.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from torch import Tensor

from vbmem.data import EpisodeSource, load_images
from vbmem.data.image_set import Images
from vbmem.data.known import KNOWN_SETS, cifar10
from vbmem.data.photographs import PHOTOGRAPHS, photograph_crops
from vbmem.errors import DataError
from vbmem.models import FrameFormat
from vbmem.paper.metrics import nearest
from vbmem.pretrained import Model, WrittenMemory, load
from vbmem.sheets import grid, save_animation, save_picture

MIXTURE = "cifar10-mixture"
BOTH = (MIXTURE, "cifar10-tree")
STEPS = 12  # of iterative reading
SCALE = 2  # screen pixels to a pixel of a frame
GAP = 24  # screen pixels between panels
TITLE, FONT_SIZE = 26, 15  # height of the line over a panel, and of its text
COLOURS, LEVELS = 192, 26  # in a frame of the animation; of a channel in a picture. Hardly seen, and half the bytes
STEP_MS, LAST_MS = 250, 2500  # how long the animation shows a step, and the last one


class Size(NamedTuple):
    """Pictures written, pictures (or chains) shown, columns to show them in, clusters if other than in training."""

    frames: int
    shown: int
    columns: int
    clusters: int | None = None


FIGURE3, FIGURE4 = Size(64, 64, 8), Size(64, 16, 16)
FIGURE5, FIGURE6 = Size(640, 100, 10, 100), Size(1280, 100, 20, 150)


@dataclass(frozen=True)
class Scene:
    """An episode, uint8 [T, channels, H, W], written into a model's memory; all chance comes from one generator."""

    model: Model
    episode: Tensor
    memory: WrittenMemory
    generator: torch.Generator
    origin: str  # what the pictures are, in words

    def samples(self, count: int) -> Tensor:
        """Memory and codes drawn, mean pixels (paper, G.1): [count, channels, H, W]."""
        return self.model.generate(self.memory, count, generator=self.generator)

    def reads(self, start: Tensor) -> Tensor:
        """Chains that draw memory, addresses and codes at every step (paper, G.2): [STEPS, N, channels, H, W]."""
        return self.model.read(
            self.memory, start, STEPS, sample_memory=True, sample_codes=True, generator=self.generator
        )

    def nearest(self, pictures: Tensor) -> Tensor:
        """The frame of the episode nearest to each picture [N, ..], by pixels."""
        frames = self.episode / 255
        return frames[nearest(pictures.flatten(1), frames.flatten(1))]

    def reference(self, columns: int, scale: int = SCALE) -> Image.Image:
        return _titled(grid(self.episode / 255, columns, scale), f"Reference episode: {self.origin}")


def figure3(
    out: Path, models: Sequence[str] = BOTH, data_dir: Path | None = None, seed: int = 0, console: Console | None = None
) -> list[Path]:
    """Figure 3: samples from memory, and below them the episode. One figure3-MODEL.png for each model."""
    console = _announced(console, data_dir)
    files = []
    for name in models:
        with console.status(f"{name} writes {FIGURE3.frames} pictures and samples"):
            scene = _scene(name, FIGURE3, data_dir, seed)
            samples = grid(scene.samples(FIGURE3.shown), FIGURE3.columns, SCALE)
        panels = _titled(samples, f"Samples from memory ({scene.model.name})"), scene.reference(FIGURE3.columns)
        files.append(_save(_together(*panels, down=True), out / f"figure3-{scene.model.name}.png"))
    return _listed(files, console)


def figure4(
    out: Path, models: Sequence[str] = BOTH, data_dir: Path | None = None, seed: int = 0, console: Console | None = None
) -> list[Path]:
    """Figure 4: iterative reading. For each model figure4-MODEL.png, and figure4-MODEL.gif to watch it.

    Below the episode, one chain a row: the sample it starts from, its steps, and the last one's nearest neighbour.
    """
    console = _announced(console, data_dir)
    files = []
    for name in models:
        with console.status(f"{name} writes {FIGURE4.frames} pictures, samples and reads"):
            scene = _scene(name, FIGURE4, data_dir, seed)
            start = scene.samples(FIGURE4.shown)
            steps = scene.reads(start)
        title = f"Iterative reading, steps 1 to {STEPS} ({scene.model.name})"
        rows = _together(
            _titled(grid(start, 1, SCALE), "Sample"),
            _titled(grid(steps.transpose(0, 1).flatten(0, 1), STEPS, SCALE), title),
            _titled(grid(scene.nearest(steps[-1]), 1, SCALE), "Nearest"),
            gap=SCALE * scene.model.frame.size,  # sample, gap, 12 steps, gap, nearest: the episode's 16 columns
        )
        path = out / f"figure4-{scene.model.name}.png"
        files += [_save(_together(scene.reference(FIGURE4.columns), rows, down=True), path), path.with_suffix(".gif")]
        _animate(steps, scene.model.name, files[-1])
    return _listed(files, console)


def figure5(
    out: Path, model: str = MIXTURE, data_dir: Path | None = None, seed: int = 0, console: Console | None = None
) -> list[Path]:
    """Figure 5: a ten times longer episode in a resized memory. Its state, samples from it, and reads of these."""
    console = _announced(console, data_dir)
    scene, samples, reads = _sampled_and_read(model, FIGURE5, data_dir, seed, console)
    sheet = _together(_memory_panel(scene.memory, samples.height - TITLE), samples, reads)
    sheets = {"figure5.png": sheet, "figure5-episode.png": scene.reference(32, 1)}
    return _listed([_save(sheet, out / file) for file, sheet in sheets.items()], console)


def figure6(
    out: Path, model: str = MIXTURE, data_dir: Path | None = None, seed: int = 0, console: Console | None = None
) -> list[Path]:
    """Figure 6: samples of a still longer episode in a memory that grew less, and below them reads of these."""
    console = _announced(console, data_dir)
    scene, samples, reads = _sampled_and_read(model, FIGURE6, data_dir, seed, console)
    sheets = {"figure6.png": _together(samples, reads, down=True), "figure6-episode.png": scene.reference(40, 1)}
    return _listed([_save(sheet, out / file) for file, sheet in sheets.items()], console)


def _announced(console: Console | None, data_dir: Path | None) -> Console:
    """The console, told if the pictures are not the paper's."""
    console = console or Console()
    if data_dir is None:
        console.print("no --data-dir given: using crops of scikit-learn's photographs")
    return console


def _listed(files: list[Path], console: Console) -> list[Path]:
    console.print("pictures: " + ", ".join(map(str, files)), soft_wrap=True)
    return files


def _scene(name: str, size: Size, data_dir: Path | None, seed: int) -> Scene:
    model = load(name)
    if size.clusters is not None:
        model = model.resize(clusters=size.clusters)
    if data_dir is None:
        each, frame = -(-size.frames // len(PHOTOGRAPHS)), model.frame
        crops = [photograph_crops(photograph, each, frame.size, seed, frame.channels) for photograph in PHOTOGRAPHS]
        pictures, origin = np.concatenate(crops), f"{size.frames} crops of two photographs"
    else:
        pictures, origin = _cifar10(model.frame, data_dir), f"{size.frames} test pictures of CIFAR-10"
    source = EpisodeSource(pictures, batch_size=1, episode_length=size.frames, seed=seed)
    episode = source.images[source.epoch_indices(0)[0, 0]]
    generator = torch.Generator().manual_seed(seed)
    return Scene(model, episode, model.write(episode, generator=generator), generator, origin)


def _cifar10(frame: FrameFormat, data_dir: Path) -> Images:
    """The test pictures; nothing is downloaded for a figure."""
    files = *KNOWN_SETS["cifar10"].stored_as, cifar10.ARCHIVE.file
    if not any((data_dir.expanduser() / file).is_file() for file in files):
        raise DataError(f"{data_dir} holds no {' or '.join(files)}; name CIFAR-10's directory, or leave out --data-dir")
    return load_images("cifar10", data_dir, frame.size, progress=False).split("test")[0]


def _sampled_and_read(
    name: str, size: Size, data_dir: Path | None, seed: int, console: Console
) -> tuple[Scene, Image.Image, Image.Image]:
    """A scene with panels of samples, and of the last step of the chains that start from them."""
    with console.status(f"{name} writes {size.frames} pictures into {size.clusters} clusters, and reads"):
        scene = _scene(name, size, data_dir, seed)
        start = scene.samples(size.shown)
        samples, reads = (grid(frames, size.columns, SCALE) for frames in (start, scene.reads(start)[-1]))
    title = f"Samples from memory (T = {size.frames}, H = {size.clusters})"
    return scene, _titled(samples, title), _titled(reads, f"Read {STEPS} times from memory")


def _memory_panel(written: WrittenMemory, height: int) -> Image.Image:
    """The row means R_h of all clusters, one under the other: [H K, C] as colours, `height` pixels high."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    memory = written.memory
    rows = memory.join(written.state.row_mean.flatten(-3, -2)).cpu().numpy()
    limit = float(np.quantile(np.abs(rows), 0.99))  # a few large entries would leave the others pale
    left, inside, right, below = 70, 400, 76, 44
    width, total = left + inside + right, TITLE + height + below
    figure = Figure(figsize=(width / 100, total / 100), dpi=100)  # laid out by pixels, level with the other panels
    axes = figure.add_axes((left / width, below / total, inside / width, height / total))
    colours = colormaps["RdBu_r"].resampled(7)  # few, for a small file; an odd number has one for zero
    image = axes.imshow(rows, cmap=colours, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axes.set(xlabel="code component", ylabel=f"row of memory (H = {memory.clusters} clusters, K = {memory.rows} each)")
    bar = figure.add_axes(((left + inside + 14) / width, below / total, 14 / width, height / total))
    figure.colorbar(image, cax=bar)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    panel = Image.open(buffer).convert("RGB")
    ImageDraw.Draw(panel).text((left, TITLE // 2), "Memory state: row means", "black", _font(), anchor="lm")
    return panel


def _titled(panel: Image.Image, title: str) -> Image.Image:
    """The panel with a line of text over it, wide enough for both."""
    font = _font()
    width = max(panel.width, SCALE + math.ceil(font.getlength(title)))
    sheet = Image.new("RGB", (width, panel.height + TITLE), "white")
    ImageDraw.Draw(sheet).text((SCALE, TITLE // 2), title, "black", font, anchor="lm")
    sheet.paste(panel, (0, TITLE))
    return sheet


def _font() -> ImageFont.FreeTypeFont:
    """The one matplotlib writes with, so that all labels look alike."""
    import matplotlib

    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", FONT_SIZE)


def _together(*panels: Image.Image, down: bool = False, gap: int = GAP) -> Image.Image:
    """Panels from left to right, or from top to bottom."""
    starts = [0, *itertools.accumulate((panel.height if down else panel.width) + gap for panel in panels)]
    length, breadth = starts.pop() - gap, max(panel.width if down else panel.height for panel in panels)
    sheet = Image.new("RGB", (breadth, length) if down else (length, breadth), "white")
    for panel, start in zip(panels, starts, strict=True):
        sheet.paste(panel, (0, start) if down else (start, 0))
    return sheet


def _animate(steps: Tensor, name: str, path: Path) -> None:
    """All chains as one grid, a step [STEPS, N, channels, H, W] a frame, over and over."""
    columns = math.isqrt(steps.shape[1])
    sheets = [_titled(grid(step, columns, SCALE), f"{name}, step {n}") for n, step in enumerate(steps, 1)]
    save_animation(sheets, [STEP_MS] * (len(sheets) - 1) + [LAST_MS], path, COLOURS)


def _save(sheet: Image.Image, path: Path) -> Path:
    top = LEVELS - 1
    save_picture(sheet.point([round(round(v * top / 255) * 255 / top) for v in range(256)] * 3), path)
    return path
