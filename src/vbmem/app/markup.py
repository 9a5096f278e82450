"""Pieces of HTML. Pictures are inside it as data, so that none is on the server's disk."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterable

from PIL import Image
from torch import Tensor

from vbmem.sheets import as_bytes, png

SMALL, MEDIUM, LARGE, HUGE = 32, 64, 96, 128  # pixels a side on the screen, about


def escape(text: str) -> str:
    """Text that is only text, to browsers and to gradio's templates."""
    return html.escape(text).replace("$", "&#36;").replace("{", "&#123;")


def hint(content: str) -> str:
    return f'<p class="hint">{content}</p>'


def notice(text: str) -> str:
    """Instead of pictures, why there are none."""
    return f'<p class="notice">{escape(text)}</p>'


def picture(frame: Tensor, side: int, alt: str) -> str:
    """A frame [channels, H, W], in [0, 1] or uint8, enlarged a whole number of times."""
    if frame.is_floating_point():
        frame = as_bytes(frame)
    image = Image.fromarray(frame.movedim(0, -1).squeeze(-1).cpu().numpy())
    shown = max(1, round(side / frame.shape[-1])) * frame.shape[-1]
    source = data("image/png", png(image))
    return f'<img class="frame" src="{source}" width="{shown}" height="{shown}" alt="{escape(alt)}">'


def pictures(items: Iterable[str]) -> str:
    return f'<div class="pictures">{"".join(items)}</div>'


def figure(content: str, caption: str, kind: str = "") -> str:
    return f'<figure class="{kind}">{content}<figcaption>{caption}</figcaption></figure>'


def button(index: int, content: str, label: str, chosen: bool = False) -> str:
    """Something to click; a click hands its number to the page."""
    return (
        f'<button type="button" data-index="{index}" class="{"chosen" if chosen else ""}" '
        f'aria-label="{escape(label)}" title="{escape(label)}">{content}</button>'
    )


def data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{b64encode(content).decode()}"
