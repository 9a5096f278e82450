"""The page: what is on it, and what happens on a click. All of a visitor's things are in their own `Visit`."""

import random
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import gradio as gr

from vbmem.app import characters, codes, show, tabs
from vbmem.app.events import CLICKED, EACH, EVENT, LIVE, Page, clicked, drop_zone, on_upload, uploaded_pictures, when
from vbmem.app.session import Session, Visit, recall_steps
from vbmem.app.shared import open_model
from vbmem.app.uploads import MAX_PICTURES
from vbmem.app.visitors import in_thread
from vbmem.data import examples

FRAMES = 64
HEADER = """<h1>A memory that is written in milliseconds</h1><p>Give it pictures: it keeps what they have in common, and
from that it draws new ones, recalls damaged ones, and tells what it has never seen.</p>"""


def build(first: str, models: Sequence[str], data_dir: Path | None, typed_models: bool) -> gr.Blocks:
    """The page.

    Args:
        first: the model it starts with.
        models: those to choose from.
        data_dir: where CIFAR-10 is kept, for examples.
        typed_models: whether a directory of this computer may be typed in as a model.
    """
    with Page(title="vbmem", analytics_enabled=False, delete_cache=(600, 600)) as page:
        visit, opened = gr.State(), gr.State(first)
        gr.HTML(HEADER, elem_id="header")
        with gr.Row(elem_classes="columns"):
            with gr.Column(scale=4, min_width=330, elem_id="given"):
                model = gr.Dropdown(
                    list(models),
                    value=first,
                    allow_custom_value=typed_models,
                    label="Model",
                    info="or type the directory of a model or run of yours" if typed_models else None,
                    elem_id="model",
                    min_width=tabs.NARROW,
                )
                files = drop_zone("Your pictures, or a zip", "files", min_width=tabs.NARROW)
                source = gr.Dropdown(
                    examples.sources(data_dir),
                    value=examples.FAMILIAR[open_model(first).frame.channels],
                    label="Or examples",
                    elem_id="source",
                    min_width=tabs.NARROW,
                )
                count = gr.Number(FRAMES, label="How many", precision=0, elem_id="number", min_width=tabs.NARROW)
                draw = gr.Button("Draw examples", elem_id="draw", min_width=tabs.NARROW)
                episode = gr.HTML(elem_id="episode", js_on_load=CLICKED)
            with gr.Column(scale=9, min_width=320, elem_id="results"), gr.Tabs(elem_id="tabs") as selected:
                with gr.Tab("Write", id="write"):
                    memory = gr.HTML(elem_id="memory")
                tabs.generate(visit, memory)
                sliders, recalled = tabs.recall(visit, recall_steps(open_model(first)))
                tabs.novelty(visit)
                tabs.resize(visit, memory)
                memory_file = tabs.keep(visit)
                characters.tab(visit)
                codes.tab(visit)
        shown = [episode, memory, selected]

        page.load(partial(in_thread, lambda: _arrive(first)), None, [visit, *shown], **EVENT)
        when(model.input, _choose_model, [visit, model], [*shown, opened, source, sliders[0]]).then(
            lambda name: name, opened, model, **LIVE
        )
        on_upload(files, _take_files, [visit], shown)
        when(draw.click, partial(_draw_examples, data_dir=data_dir), [visit, source, count], shown)
        when(episode.click, _pick, [visit, *sliders], [selected, recalled], EACH)
        on_upload(memory_file, _load, [visit], shown)
    return page


def _view(visit: Visit) -> list[Any]:
    """All that is seen of a changed session."""
    return [show.episode(visit.session), show.memory(visit.session), gr.Tabs(selected="write")]


def _arrive(model: str) -> list[Any]:
    visit = Visit(_first_session(model))
    return [visit, *_view(visit)]


@lru_cache(maxsize=8)
def _first_session(name: str) -> Session:
    """Examples in a model's memory. Visitors begin with the same, and nobody changes it."""
    model = open_model(name)
    return Session.written(model, examples.draw(examples.FAMILIAR[model.frame.channels], FRAMES, model.frame, seed=0))


def _choose_model(visit: Visit, name: str) -> list[Any]:
    if not isinstance(name, str):
        raise ValueError("a model was named by something that is no text; reload the page")
    model, before = open_model(name), visit.session
    same_pictures = model.frame == before.model.frame and before.codes is not None
    visit.session = Session.written(model, before.frames) if same_pictures else _first_session(name)
    return [*_view(visit), name, examples.FAMILIAR[model.frame.channels], recall_steps(model)]


def _take_files(visit: Visit, files: list[Path]) -> list[Any]:
    visit.session = Session.written(visit.session.model, uploaded_pictures(files, visit.session).frames)
    return _view(visit)


def _draw_examples(visit: Visit, source: str, number: float | None, data_dir: Path | None) -> list[Any]:
    if not 1 <= (count := int(number or 0)) <= MAX_PICTURES:
        raise ValueError(f"{count} pictures cannot be drawn; choose from 1 to {MAX_PICTURES}")
    model = visit.session.model
    visit.session = Session.written(model, examples.draw(source, count, model.frame, random.randrange(2**32), data_dir))
    return _view(visit)


def _load(visit: Visit, files: list[Path]) -> list[Any]:
    visit.session = visit.session.loaded(files[0])
    return _view(visit)


def _pick(visit: Visit, steps: float, noise: float, hidden: float, blur: float, event: gr.EventData) -> list[Any]:
    frames = visit.session.frames
    visit.session = visit.session.picking(frames[clicked(event) % len(frames)])
    return [gr.Tabs(selected="recall"), show.recalled(visit.session, steps, noise, hidden, blur)]
