"""The page: what is on it, and what happens on a click. All of a visitor's things are in their own `Session`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr

from vbmem.app import examples, show, tabs
from vbmem.app.events import CLICKED, EVENT, LIVE, drop_zone, told, uploaded_pictures
from vbmem.app.session import Session, open_model
from vbmem.app.uploads import MAX_PICTURES
from vbmem.pretrained import Model

FRAMES = 64
HEADER = """<h1>A memory that is written in milliseconds</h1><p>Give it pictures: of these it keeps a few kilobytes, and
from those it draws new ones, recalls damaged ones, and tells what it has never seen.</p>"""


def build(first: str, models: Sequence[str], data_dir: Path | None, typed_models: bool) -> gr.Blocks:
    """The page.

    Args:
        first: the model it starts with.
        models: those to choose from.
        data_dir: where CIFAR-10 lies, for examples.
        typed_models: whether a directory of this computer may be typed in as a model.
    """
    sources = examples.sources(data_dir)
    page = gr.Blocks(title="vbmem", analytics_enabled=False, delete_cache=(600, 600))
    with page:
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
                    source = gr.Dropdown(sources, label="Or examples", elem_id="source", min_width=120)
                    count = gr.Number(FRAMES, label="How many", precision=0, elem_id="number", min_width=120)
                with gr.Row():
                    draw = gr.Button("Draw examples", elem_id="draw", min_width=120)
                    write = gr.Button("Write", variant="primary", elem_id="write", min_width=120)
                episode = gr.HTML(elem_id="episode", js_on_load=CLICKED)
            with gr.Column(scale=9, min_width=320), gr.Tabs(elem_id="tabs") as chosen:
                with gr.Tab("Write", id="write"):
                    memory = gr.HTML(elem_id="memory")
                with gr.Tab("Generate", id="generate") as tab:
                    tabs.generate(session, tab)
                with gr.Tab("Recall", id="recall") as tab:
                    recall = tabs.recall(session, tab)
                with gr.Tab("Novelty", id="novelty") as tab:
                    tabs.novelty(session, tab)
                with gr.Tab("Resize", id="resize") as tab:
                    tabs.resize(session, tab, memory)
                with gr.Tab("Keep", id="keep") as tab:
                    brought = tabs.keep(session, tab)
        shown = [session, episode, memory, chosen]

        def view(changed: Session) -> list[Any]:
            return [changed, show.episode(changed), show.memory(changed), gr.Tabs(selected="write")]

        def fresh(model: Model) -> Session:
            return Session(model, examples.draw(examples.familiar_source(model.frame), FRAMES, model.frame, 0))

        @told
        def choose(session: Session, name: str) -> list[Any]:
            model = open_model(name)
            same = model.frame == session.model.frame
            changed = Session(model, session.frames) if same else fresh(model)
            return [*view(changed), name, examples.familiar_source(model.frame)]

        @told
        def drop(session: Session, paths: list[str]) -> list[Any]:
            return view(Session(session.model, uploaded_pictures(paths, session).frames))

        @told
        def draw_examples(session: Session, name: str, number: float | None) -> list[Any]:
            if not 1 <= (count := int(number or 0)) <= MAX_PICTURES:
                raise ValueError(f"{count} pictures cannot be drawn; choose from 1 to {MAX_PICTURES}")
            frames = examples.draw(name, count, session.model.frame, random.randrange(2**32), data_dir)
            return view(Session(session.model, frames))

        @told
        def pick(session: Session, event: gr.EventData) -> list[Any]:
            picked = session.frames[int(event.index) % len(session.frames)]
            return [replace(session, picked=picked), gr.Tabs(selected="recall")]

        page.load(lambda: view(fresh(open_model(first)).written()), None, shown, **EVENT)
        model.input(choose, [session, model], [*shown, opened, source], **EVENT).then(
            lambda name: name, opened, model, **LIVE
        )
        files.upload(drop, [session, files], shown, **EVENT).then(lambda: None, None, files, **LIVE)
        draw.click(draw_examples, [session, source, count], shown, **EVENT)
        write.click(told(lambda session: view(session.written())), session, shown, **EVENT)
        episode.click(pick, session, [session, chosen], **EVENT).then(**recall)
        brought.upload(
            told(lambda session, path: view(tabs.load_memory(session, path))), [session, brought], shown, **EVENT
        ).then(lambda: None, None, brought, **LIVE)
    return page
