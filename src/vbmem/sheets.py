"""Frames as pictures people can look at."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageOps
from torch import Tensor

from vbmem.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 1  # pixels between frames


def grid(frames: Tensor, columns: int, scale: int = 1) -> Image.Image:
    """Frames [N, channels, H, W] in [0, 1] row by row on white, each enlarged `scale` times."""
    height, width = (side + MARGIN for side in frames.shape[-2:])
    rows = -(-len(frames) // columns)
    sheet = Image.new("RGB", (columns * width + MARGIN, rows * height + MARGIN), "white")
    for index, frame in enumerate(frames.cpu()):
        row, column = divmod(index, columns)
        sheet.paste(as_image(frame), (MARGIN + column * width, MARGIN + row * height))
    return ImageOps.scale(sheet, scale, Image.Resampling.NEAREST)


def as_image(frame: Tensor) -> Image.Image:
    """A frame [channels, H, W], uint8 or in [0, 1]; what is outside is cut off."""
    pixels = (frame.clamp(0, 1) * 255).round().byte() if frame.is_floating_point() else frame
    return Image.fromarray(pixels.movedim(0, -1).squeeze(-1).cpu().numpy())


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
