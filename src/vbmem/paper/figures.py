"""Figures 3 to 6: what the shipped models generate and read from memory, beside the episode they wrote.

Figure 3 is also there of the models that the paper compares them with. As in the paper, pixels are drawn and clusters
of a mixture all alike; by default pixels are means, and clusters come as often as the episode used them. Of a model
that paints crisp pictures there are both, the paper's own mean ones in files of their own.

A new figure is one function from a `Scene` to the files it leaves. Without a data directory the episodes are crops of
scikit-learn's photographs, so that all figures can be drawn anywhere.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure as Drawing
from PIL import Image, ImageDraw
from rich.console import Console
from torch import Tensor

from vbmem.data.examples import draw_episode
from vbmem.errors import ModelError
from vbmem.memory.written import WrittenMemory
from vbmem.paper.metrics.neighbours import nearest
from vbmem.pretrained.baseline import Baseline
from vbmem.pretrained.directory import load_any
from vbmem.pretrained.model import Model
from vbmem.sheets import GAP, TITLE, figure_png, grid, label_font, save_animation, save_picture, titled, together

STEPS = 12  # of iterative reading
PAIRS = 32  # of a new picture and the nearest written one
SCALE = 2  # screen pixels to a pixel of a frame
COLOURS = 192  # in a frame of the animation
STEP_MS, LAST_MS = 250, 2500  # how long the animation shows a step, and the last one

Sheet: TypeAlias = Image.Image | list[Image.Image]  # a picture, or the frames of an animation
Sheets: TypeAlias = dict[str, Sheet]  # by the names of their files


class Size(NamedTuple):
    """Pictures written, pictures (or chains) shown, columns to show them in, clusters if other than in training."""

    frames: int
    shown: int
    columns: int
    clusters: int | None = None


class Episode:
    """An episode, uint8 [T, channels, H, W], drawn for a model; all chance comes from one generator."""

    def __init__(
        self, size: Size, model: Model | Baseline, data_dir: Path | None, seed: int, as_in_paper: bool = False
    ) -> None:
        self.size, self.name, self.as_in_paper = size, model.name, as_in_paper
        self.pictures = draw_episode(size.frames, model.frame, data_dir, seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.source = "crops of two photographs" if data_dir is None else "test pictures of CIFAR-10"

    def title(self, text: str, detail: str) -> str:
        """Of a panel of samples or reads: what it shows, and how it came about."""
        return f"{text} ({detail}, as in the paper)" if self.as_in_paper else f"{text} ({detail})"

    def reference(self, columns: int, scale: int = SCALE) -> Image.Image:
        """The panel of the episode."""
        title = f"Reference episode: {self.size.frames} {self.source}"
        return titled(grid(self.pictures / 255, columns, scale), title)


class BaselineScene(Episode):
    """An episode, and a model that has no memory to write it into."""

    def __init__(
        self, size: Size, model: Baseline, data_dir: Path | None, seed: int, as_in_paper: bool = False
    ) -> None:
        super().__init__(size, model, data_dir, seed, as_in_paper)
        self.model = model

    def samples(self) -> Tensor:
        """Codes drawn, and mean pixels or drawn ones: [size.shown, channels, H, W]."""
        return self.model.generate(
            self.pictures, self.size.shown, sample_pixels=self.as_in_paper, generator=self.generator
        )

    def reconstructions(self) -> Tensor:
        """Means throughout: [T, channels, H, W]."""
        return self.model.reconstruct(self.pictures)


class Scene(Episode):
    """An episode written into the memory of a model."""

    def __init__(self, size: Size, model: Model, data_dir: Path | None, seed: int, as_in_paper: bool = False) -> None:
        super().__init__(size, model, data_dir, seed, as_in_paper)
        self.model = model if size.clusters is None else model.resize(clusters=size.clusters)
        self.memory = self.model.write(self.pictures, generator=self.generator)

    def samples(self) -> Tensor:
        """Memory and codes drawn, and mean pixels or drawn ones (paper, G.1): [size.shown, channels, H, W].

        As in the paper, the clusters of a mixture come from the prior, those of a tree from pseudocounts.
        """
        return self.model.generate(
            self.memory,
            self.size.shown,
            reads=0,
            choice="prior" if self.as_in_paper and not self.model.memory.partitioned else "usage",
            sample_pixels=self.as_in_paper,
            generator=self.generator,
        )

    def reads(self, start: Tensor) -> Tensor:
        """Chains that draw memory, addresses and codes at every step, as in the paper (G.2) pixels too:
        [STEPS, N, channels, H, W]."""
        return self.model.read(self.memory, start, STEPS, sample_pixels=self.as_in_paper, generator=self.generator)


@dataclass(frozen=True)
class Figure:
    """A figure that can be drawn of any model."""

    size: Size
    draw: Callable[[Scene], Sheets]
    draw_baseline: Callable[[BaselineScene], Sheets] | None = None
    """Of a model without a memory, where there is something to see of it."""

    def __call__(
        self,
        out: Path,
        models: str | Sequence[str],
        data_dir: Path | None,
        seed: int,
        console: Console,
        *,
        as_in_paper: bool = False,
    ) -> list[Path]:
        """Draw the figure for a model, or for each of several.

        Args:
            out: the directory to leave the files in.
            models: names of models that come with the package, or directories of models and runs.
            data_dir: where CIFAR-10 is kept; None for crops of photographs.
            seed: of the episode and the draws.
            console: for what is happening, and the files there are in the end.
            as_in_paper: draw pixels too, also within chains, and the clusters of a mixture from the prior (appendix G);
                the files say so in their names.

        Returns:
            The files.

        Raises:
            DataError: if the directory does not hold CIFAR-10.
            ModelError: where there is no such model, or one without the memory that the figure is about.
        """
        if data_dir is None:
            console.print("without CIFAR-10: using crops of scikit-learn's photographs")
        files = []
        for name in [models] if isinstance(models, str) else models:
            with console.status(f"{name} sees {self.size.frames} pictures, samples and reads"):
                sheets = self._sheets(load_any(name), data_dir, seed, as_in_paper)
            files += [_save(sheet, out / file) for file, sheet in sheets.items()]
        console.print("pictures: " + ", ".join(map(str, files)), soft_wrap=True)
        return files

    def _sheets(self, model: Model | Baseline, data_dir: Path | None, seed: int, as_in_paper: bool) -> Sheets:
        if isinstance(model, Model):
            sheets = self.draw(Scene(self.size, model, data_dir, seed, as_in_paper))
            if model.painter is not None and not as_in_paper:  # beside crisp pictures the mean ones, which are scored
                plain = self.draw(Scene(self.size, replace(model, painter=None), data_dir, seed))
                sheets |= _renamed({name: sheet for name, sheet in plain.items() if sheet != sheets[name]}, "mean")
        elif self.draw_baseline is None:
            raise ModelError(f"{model.name} has no memory, which {self.draw.__name__} shows; choose a memory model")
        else:
            sheets = self.draw_baseline(BaselineScene(self.size, model, data_dir, seed, as_in_paper))
        return _renamed(sheets, "as-in-paper") if as_in_paper else sheets


def _renamed(sheets: Sheets, suffix: str) -> Sheets:
    """With names of files that say how they came about."""
    return {str(path.with_stem(f"{path.stem}-{suffix}")): sheets[str(path)] for path in map(Path, sheets)}


def _figure3_of_baseline(scene: BaselineScene) -> Sheets:
    """Samples, reconstructions and the episode, one under the other."""
    name, columns = scene.name, scene.size.columns
    panels = {scene.title("Samples", name): scene.samples(), f"Reconstructions ({name})": scene.reconstructions()}
    shown = [titled(grid(frames, columns, SCALE), title) for title, frames in panels.items()]
    return {f"figure3-{name}.png": together(*shown, scene.reference(columns), down=True)}


@partial(Figure, Size(frames=64, shown=64, columns=8), draw_baseline=_figure3_of_baseline)
def figure3(scene: Scene) -> Sheets:
    """Figure 3: samples from memory, and below them the episode."""
    name, columns = scene.name, scene.size.columns
    samples = titled(grid(scene.samples(), columns, SCALE), scene.title("Samples from memory", name))
    return {f"figure3-{name}.png": together(samples, scene.reference(columns), down=True)}


@partial(Figure, Size(frames=64, shown=16, columns=16))
def figure4(scene: Scene) -> Sheets:
    """Figure 4: iterative reading, an animation to watch it, and what is new in its results.

    Below the episode, one chain a row: the sample it starts from, its steps, and the last one's nearest neighbour. In a
    file of their own more new pictures, as `generate` draws and reads them, each over the written one nearest to it.
    """
    name, start = scene.name, scene.samples()
    steps, frames = scene.reads(start), scene.pictures / 255
    title = scene.title(f"Iterative reading, steps 1 to {STEPS}", name)
    rows = together(
        titled(grid(start, 1, SCALE), "Sample"),
        titled(grid(steps.transpose(0, 1).flatten(0, 1), STEPS, SCALE), title),
        titled(grid(frames[nearest(steps[-1], frames)], 1, SCALE), "Nearest"),
        gap=SCALE * scene.model.frame.size,  # sample, gap, 12 steps, gap, nearest: the episode's 16 columns
    )
    side = math.isqrt(scene.size.shown)
    animation = [titled(grid(step, side, SCALE), f"{name}, step {n}") for n, step in enumerate(steps, 1)]
    sheet = together(scene.reference(scene.size.columns), rows, down=True)
    sheets: Sheets = {f"figure4-{name}.png": sheet, f"figure4-{name}.gif": animation}
    return sheets if scene.as_in_paper else sheets | {f"figure4-{name}-nearest.png": _beside_nearest(scene)}


def _beside_nearest(scene: Scene) -> Image.Image:
    """New pictures by row, and under each row the written ones that are nearest to them."""
    columns, frames = scene.size.columns, scene.pictures / 255
    new = scene.model.generate(scene.memory, PAIRS, generator=scene.generator)
    pairs = zip(new.split(columns), frames[nearest(new, frames)].split(columns), strict=True)
    rows = [grid(torch.cat(pair), columns, SCALE) for pair in pairs]
    title = f"New pictures from memory, and below each the nearest written one ({scene.name})"
    return titled(together(*rows, down=True, gap=GAP // 2), title)


@partial(Figure, Size(frames=640, shown=100, columns=10, clusters=100))
def figure5(scene: Scene) -> Sheets:
    """Figure 5: a ten times longer episode in a resized memory. Its state, samples from it, and reads of these."""
    samples, reads = _samples_and_reads(scene)
    sheet = together(_memory_panel(scene.memory, samples.height - TITLE), samples, reads)
    return {"figure5.png": sheet, "figure5-episode.png": scene.reference(32, 1)}


@partial(Figure, Size(frames=1280, shown=100, columns=20, clusters=150))
def figure6(scene: Scene) -> Sheets:
    """Figure 6: samples of a still longer episode in a memory that grew less, and below them reads of these."""
    sheet = together(*_samples_and_reads(scene), down=True)
    return {"figure6.png": sheet, "figure6-episode.png": scene.reference(40, 1)}


def _samples_and_reads(scene: Scene) -> tuple[Image.Image, Image.Image]:
    """Panels of samples, and of the last step of the chains that start from them."""
    start, size = scene.samples(), scene.size
    samples, reads = (grid(frames, size.columns, SCALE) for frames in (start, scene.reads(start)[-1]))
    title = scene.title("Samples from memory", f"T = {size.frames}, H = {size.clusters}")
    return titled(samples, title), titled(reads, f"Read {STEPS} times from memory")


def _memory_panel(written: WrittenMemory, height: int) -> Image.Image:
    """The row means R_h of all clusters, one under the other: [H K, C] as colours, `height` pixels high."""
    memory = written.empty
    rows = memory.join(written.state.factor_mean.flatten(-3, -2)).cpu().numpy()
    limit = float(np.quantile(np.abs(rows), 0.99))  # a few large entries would leave the others pale
    left, inside, right, below = 70, 400, 76, 44
    width, total = left + inside + right, TITLE + height + below
    figure = Drawing(figsize=(width / 100, total / 100), dpi=100)  # laid out by pixels, level with the other panels
    axes = figure.add_axes((left / width, below / total, inside / width, height / total))
    colours = matplotlib.colormaps["RdBu_r"].resampled(7)  # few, for a small file; an odd number has one for zero
    image = axes.imshow(rows, cmap=colours, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    axes.set(xlabel="code component", ylabel=f"row of memory (H = {memory.clusters} clusters, K = {memory.rows} each)")
    bar = figure.add_axes(((left + inside + 14) / width, below / total, 14 / width, height / total))
    figure.colorbar(image, cax=bar)
    panel = Image.open(io.BytesIO(figure_png(figure, dpi=100))).convert("RGB")
    ImageDraw.Draw(panel).text((left, TITLE // 2), "Memory state: row means", "black", label_font(), anchor="lm")
    return panel


def _save(sheet: Sheet, path: Path) -> Path:
    if isinstance(sheet, list):
        save_animation(sheet, [STEP_MS] * (len(sheet) - 1) + [LAST_MS], path, COLOURS)
    else:
        save_picture(sheet, path)
    return path
