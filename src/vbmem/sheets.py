"""Frames as pictures people can look at."""

import io
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from vbmem.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN = 1  # pixels between frames
CLEAR = "#0000"  # a background that lets through what is behind the sheet
GAP = 24  # screen pixels between panels
TITLE, FONT_SIZE = 26, 15  # height of the line over a panel, and of its text
LABEL_SIZE, LABEL_WIDTH = 12, 180  # height of the words beside and over pictures, and width of those beside them


def grid(frames: Tensor, columns: int, scale: int = 1, background: str = "white") -> Image.Image:
    """Frames side by side, row by row.

    Args:
        frames: [N, channels, H, W] in [0, 1]; what is outside is cut off.
        columns: frames in a row.
        scale: screen pixels to a pixel of a frame.
        background: the colour between them, by name, or `CLEAR`.

    Returns:
        The sheet.
    """
    height, width = (side + MARGIN for side in frames.shape[-2:])
    rows = -(-len(frames) // columns)
    mode = "RGBA" if background == CLEAR else "RGB"
    sheet = Image.new(mode, (columns * width + MARGIN, rows * height + MARGIN), background)
    for index, frame in enumerate(frames.cpu()):
        row, column = divmod(index, columns)
        sheet.paste(as_image(frame), (MARGIN + column * width, MARGIN + row * height))
    return ImageOps.scale(sheet, scale, Image.Resampling.NEAREST)


def labelled(sheet: Image.Image, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> Image.Image:
    """A sheet of pictures with a word before each of its rows and over each of its columns, on white.

    Words are cut to the room there is: of long ones the end is left, which tells files apart.

    Args:
        sheet: what `grid` made.
        rows: a word for each row, or none at all.
        columns: a word for each column, or none at all.

    Returns:
        A larger sheet, with the pictures at the right and below.
    """
    font, rows, columns = label_font(LABEL_SIZE), [*map(_printable, rows)], [*map(_printable, columns)]
    left = min(LABEL_WIDTH, max((math.ceil(font.getlength(row)) for row in rows), default=-LABEL_SIZE) + LABEL_SIZE)
    top = TITLE if columns else 0
    whole = ImageOps.expand(sheet, (left, top, 0, 0), "white")
    draw = ImageDraw.Draw(whole)
    for number, row in enumerate(rows):
        middle = top + (number + 0.5) * sheet.height / len(rows)
        draw.text((MARGIN, middle), _cut(row, font, left - LABEL_SIZE), "black", font, anchor="lm")
    for number, column in enumerate(columns):
        width = sheet.width / len(columns)
        draw.text((left + (number + 0.5) * width, TITLE / 2), _cut(column, font, width), "black", font, anchor="mm")
    return whole


def titled(panel: Image.Image, title: str) -> Image.Image:
    """The panel with a line of text over it, wide enough for both."""
    font, title = label_font(), _printable(title)
    missing = max(0, 2 * MARGIN + math.ceil(font.getlength(title)) - panel.width)
    sheet = ImageOps.expand(panel, (0, TITLE, missing, 0), "white")
    ImageDraw.Draw(sheet).text((2 * MARGIN, TITLE // 2), title, "black", font, anchor="lm")
    return sheet


def together(*panels: Image.Image, down: bool = False, gap: int = GAP) -> Image.Image:
    """Panels from left to right, or from top to bottom."""
    starts = [0, *itertools.accumulate((panel.height if down else panel.width) + gap for panel in panels)]
    length, breadth = starts.pop() - gap, max(panel.width if down else panel.height for panel in panels)
    sheet = Image.new("RGB", (breadth, length) if down else (length, breadth), "white")
    for panel, start in zip(panels, starts, strict=True):
        sheet.paste(panel, (0, start) if down else (start, 0))
    return sheet


def label_font(size: int | None = None) -> ImageFont.FreeTypeFont:
    """The one matplotlib writes with, so that all labels look alike; by default in the size of titles."""
    import matplotlib

    return ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", size or FONT_SIZE)


def _printable(text: str) -> str:
    """Names of files may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _cut(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """The text if it fits, otherwise its end."""
    if font.getlength(text) <= width:
        return text
    ends = (f"..{text[start:]}" for start in range(1, len(text)))
    return next((end for end in ends if font.getlength(end) <= width), "")


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
    """Leave a PNG file.

    Args:
        image: a sheet, for example.
        path: the file, which is replaced only once the new one is complete.
    """
    write_atomically(path, png(image))


def gif(frames: list[Image.Image], durations: list[int], colours: int = 256) -> bytes:
    """An animation that repeats; each frame stays its number of milliseconds and has so many colours of its own."""
    first, *others = [frame.quantize(colours) for frame in frames]
    options = {"save_all": True, "append_images": others, "duration": durations, "loop": 0}
    return _saved(first.save, format="GIF", **options)


def save_animation(frames: list[Image.Image], durations: list[int], path: Path, colours: int = 256) -> None:
    """Leave a GIF file that repeats.

    Args:
        frames: one after the other.
        durations: of each, in milliseconds.
        path: the file, which is replaced only once the new one is complete.
        colours: that each frame has for itself.
    """
    write_atomically(path, gif(frames, durations, colours))


def animated_png(frames: list[Image.Image], durations: list[int], times: int) -> bytes:
    """An animation in full colour that is played so many times; each frame stays its number of milliseconds."""
    first, *others = frames
    return _saved(first.save, format="PNG", save_all=True, append_images=others, duration=durations, loop=times)


def jpeg(image: Image.Image) -> bytes:
    return _saved(image.save, format="JPEG", quality=80)


def _saved(save: Callable[..., object], **options: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **options)
    return buffer.getvalue()
