"""Frames as pictures people can look at."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from torch import Tensor

from vbmem.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 1  # pixels between frames


def grid(frames: Tensor, columns: int, scale: int = 1) -> Image.Image:
    """Frames [N, channels, H, W] in [0, 1] row by row on white, each enlarged `scale` times."""
    count, _, height, width = frames.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + MARGIN) + MARGIN, columns * (width + MARGIN) + MARGIN, 3), 255, np.uint8)
    pixels = as_bytes(frames.detach()).cpu().permute(0, 2, 3, 1).numpy()
    for index, picture in enumerate(pixels):
        top = MARGIN + index // columns * (height + MARGIN)
        left = MARGIN + index % columns * (width + MARGIN)
        sheet[top : top + height, left : left + width] = picture  # one grey channel broadcasts to three
    image = Image.fromarray(sheet)
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)


def as_bytes(frames: Tensor) -> Tensor:
    """Values in [0, 1] as uint8; what is outside is cut off."""
    return (frames.clamp(0, 1) * 255).round().byte()


def png(image: Image.Image) -> bytes:
    return _saved(image.save, format="PNG")


def figure_png(figure: "Figure", dpi: int) -> bytes:
    """A figure of matplotlib as a PNG file."""
    return _saved(figure.savefig, format="png", dpi=dpi)


def save_picture(image: Image.Image, path: Path) -> None:
    write_atomically(path, png(image))


def save_animation(frames: list[Image.Image], durations: list[int], path: Path, colours: int = 256) -> None:
    """A GIF that repeats; each frame stays its number of milliseconds and has so many colours of its own."""
    first, *others = [frame.quantize(colours) for frame in frames]
    options = {"save_all": True, "append_images": others, "duration": durations, "loop": 0}
    write_atomically(path, _saved(first.save, format="GIF", **options))


def _saved(save: Callable[..., object], **options: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **options)
    return buffer.getvalue()
