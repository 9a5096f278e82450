"""The page: what is on it, and what happens on a click. All of a visitor's things are in their own `Session`."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from vbmem.app import show, tabs
from vbmem.app.events import CLICKED, EVENT, LIVE, Page, clicked, drop_zone, on_upload, uploaded_pictures, when
from vbmem.app.session import Session, open_model
from vbmem.app.uploads import MAX_PICTURES
from vbmem.app.visitors import in_turn
from vbmem.data import examples
from vbmem.pretrained.model import Model

FRAMES = 64
HEADER = """<h1>A memory that is written in milliseconds</h1><p>Give it pictures: of these it keeps a few kilobytes, and
from those it draws new ones, recalls damaged ones, and tells what it has never seen.</p>"""


def build(first: str, models: Sequence[str], data_dir: Path | None, typed_models: bool) -> gr.Blocks:
    """The page.

    Args:
        first: the model it starts with.
        models: those to choose from.
        data_dir: where CIFAR-10 is kept, for examples.
        typed_models: whether a directory of this computer may be typed in as a model.
    """
    with Page(title="vbmem", analytics_enabled=False, delete_cache=(600, 600)) as page:
        session, opened = gr.State(), gr.State(first)
        gr.HTML(HEADER, elem_id="header")
        with gr.Row(elem_classes="columns"):
            with gr.Column(scale=4, min_width=330):
                model = gr.Dropdown(
                    list(models),
                    value=first,
                    allow_custom_value=typed_models,
                    label="Model",
                    info="or type the directory of a model or run of yours" if typed_models else None,
                    elem_id="model",
                )
                files = drop_zone("Pictures of yours, or a zip of them", "files")
                with gr.Row():
                    sources = examples.sources(data_dir)
                    source = gr.Dropdown(sources, label="Or examples", elem_id="source", min_width=120)
                    count = gr.Number(FRAMES, label="How many", precision=0, elem_id="number", min_width=120)
                with gr.Row():
                    draw = gr.Button("Draw examples", elem_id="draw", min_width=120)
                    write = gr.Button("Write", variant="primary", elem_id="write", min_width=120)
                episode = gr.HTML(elem_id="episode", js_on_load=CLICKED)
            with gr.Column(scale=9, min_width=320), gr.Tabs(elem_id="tabs") as selected:
                with gr.Tab("Write", id="write"):
                    memory = gr.HTML(elem_id="memory")
                tabs.generate(session)
                redraw_recalled = tabs.recall(session)
                tabs.novelty(session)
                tabs.resize(session, memory)
                memory_file = tabs.keep(session)
        shown = [session, episode, memory, selected]

        page.load(partial(in_turn, lambda: _view(_first_session(open_model(first)).written())), None, shown, **EVENT)
        when(model.input, _choose_model, [session, model], [*shown, opened, source]).then(
            lambda name: name, opened, model, **LIVE
        )
        on_upload(files, _take_files, session, shown)
        when(draw.click, partial(_draw_examples, data_dir=data_dir), [session, source, count], shown)
        when(write.click, lambda session: _view(session.written()), session, shown)
        when(episode.click, _pick, session, [session, selected]).then(**redraw_recalled)
        on_upload(memory_file, lambda session, files: _view(session.loaded(files[0])), session, shown)
    return page


def _view(session: Session) -> list[Any]:
    """A changed session, and all that is seen of it."""
    return [session, show.episode(session), show.memory(session), gr.Tabs(selected="write")]


def _first_session(model: Model) -> Session:
    source = examples.FAMILIAR[model.frame.channels]
    return Session(model, examples.draw(source, FRAMES, model.frame, seed=0))


def _choose_model(session: Session, name: str) -> list[Any]:
    if not isinstance(name, str):
        raise ValueError("a model was named by something that is no text; reload the page")
    model = open_model(name)
    same_format = model.frame == session.model.frame
    changed = Session(model, session.frames) if same_format else _first_session(model)
    return [*_view(changed), name, examples.FAMILIAR[model.frame.channels]]


def _take_files(session: Session, files: list[Path]) -> list[Any]:
    return _view(Session(session.model, uploaded_pictures(files, session).frames))


def _draw_examples(session: Session, source: str, number: float | None, data_dir: Path | None) -> list[Any]:
    if not 1 <= (count := int(number or 0)) <= MAX_PICTURES:
        raise ValueError(f"{count} pictures cannot be drawn; choose from 1 to {MAX_PICTURES}")
    frames = examples.draw(source, count, session.model.frame, random.randrange(2**32), data_dir)
    return _view(Session(session.model, frames))


def _pick(session: Session, event: gr.EventData) -> list[Any]:
    picked = session.frames[clicked(event) % len(session.frames)]
    return [replace(session, picked=picked), gr.Tabs(selected="recall")]
