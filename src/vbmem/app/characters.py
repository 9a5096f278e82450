"""A tab for letters of one's own: a few are drawn, and the memory of a model that knows characters draws more."""

from pathlib import Path

import gradio as gr
import numpy as np
import torch
from torch import Tensor

from vbmem.app.events import EACH, sent, when
from vbmem.app.markup import render
from vbmem.app.session import Visit
from vbmem.app.shared import open_model, seeded
from vbmem.app.show import sheet_url
from vbmem.app.tabs import begin_tab
from vbmem.pretrained.timing import timed_write

MODEL = "omniglot-mixture"
SQUARES = 4  # to draw in
MORE = 20  # that the memory draws
LEAST_INK = 8  # pixels, of what is more than a slip


def tab(visit: gr.State) -> None:
    """Squares to draw in, and below them what the memory makes of it."""
    with begin_tab("Characters"):
        pad = gr.HTML(
            render("drawing_pad", SQUARES), elem_id="pad", js_on_load=Path(__file__).with_name("drawing.js").read_text()
        )
        more = gr.HTML(render("notice", "Draw a letter of your own, or take an example."), elem_id="more")

    def draw(visit: Visit, event: gr.EventData) -> str:
        return drawn(read_drawings(sent(event, "drawings")))

    when(pad.input, draw, visit, more, EACH)


def read_drawings(squares: object) -> Tensor:
    """Those of the squares, each a list of numbers, that hold a letter: uint8 [n, 1, H, W].

    Raises:
        ValueError: they are not what the page sends.
    """
    side = open_model(MODEL).frame.size
    if not (
        isinstance(squares, list)
        and len(squares) == SQUARES
        and all(isinstance(square, list) and len(square) == side**2 for square in squares)
        and all(isinstance(ink, int) and 0 <= ink <= 255 for square in squares for ink in square)
    ):
        raise ValueError(f"drawings must be {SQUARES} squares of {side} x {side} bytes; reload the page")
    frames = torch.from_numpy(np.array(squares, np.uint8)).reshape(-1, 1, side, side)
    return frames[(frames > 127).sum((1, 2, 3)) >= LEAST_INK]


def drawn(letters: Tensor) -> str:
    """What the memory of letters uint8 [n, 1, H, W] draws."""
    if not len(letters):
        return render("notice", "Nothing is drawn yet.")
    model = open_model(MODEL)
    memory, _, times = timed_write(model, letters, seeded())
    more = model.generate(memory, MORE)
    return render("characters", len(letters), more, times, sheet_url(1 - more))
