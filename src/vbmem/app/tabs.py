"""What can be done with a written memory: a tab each. A tab is drawn anew whenever it is opened."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import torch

from vbmem.app import show
from vbmem.app.events import (
    CLICKED,
    EACH,
    LIVE,
    clicked,
    drop_zone,
    on_upload,
    seen,
    uploaded_pictures,
    when,
)
from vbmem.app.markup import render
from vbmem.app.session import Session, Visit
from vbmem.app.sizes import MAX_SIZE
from vbmem.data import examples
from vbmem.models.settings import READS

OTHERS = 12  # examples of each kind to judge the novelty of
MOST_READS = 12
NARROW = 140  # pixels: two controls beside each other on a telephone


def begin_tab(name: str) -> gr.Tab:
    """A tab that begins with a few words of what it is for."""
    with gr.Tab(name, id=name.lower()) as tab:
        gr.HTML(render("lead", name), elem_classes="lead")
    return tab


def size_slider(elem_id: str, **options: Any) -> gr.Slider:
    return gr.Slider(1, MAX_SIZE, 10, step=1, label="Size", elem_id=elem_id, **options)


def shown_size(session: Session) -> gr.Slider:
    """A slider of sizes, as the session has it."""
    there = session.codes is not None
    return gr.Slider(value=session.size, label=session.size_name.capitalize(), interactive=there)


def generate(visit: gr.State, memory: gr.HTML) -> None:
    """New pictures of all clusters, or of one that is clicked."""
    with begin_tab("Generate") as tab:
        clusters = gr.HTML(elem_id="clusters", js_on_load=CLICKED)
        with gr.Row(elem_classes="controls"):
            kind = gr.Radio(["samples", "means"], value="samples", label="Draw", elem_id="kind", min_width=NARROW)
            count = gr.Slider(1, 96, 24, step=1, label="How many", elem_id="count", min_width=NARROW)
            reads = gr.Slider(0, MOST_READS, READS, step=1, label="Reading steps", elem_id="reads", min_width=NARROW)
            size = size_slider("generated-size", min_width=NARROW)
        again = gr.Button("Generate", variant="primary", elem_id="generate", size="md")
        pictures = gr.HTML(elem_id="generated")

    def draw(visit: Visit, kind: str, count: float, reads: float) -> list[Any]:
        session = visit.session
        return [show.cluster_choice(session), show.generated(session, int(count), int(reads), kind == "means")]

    def look(visit: Visit, *values: Any) -> list[Any]:
        return [shown_size(visit.session), *draw(visit, *values)]

    def choose(visit: Visit, kind: str, count: float, reads: float, event: gr.EventData) -> list[Any]:
        index = clicked(event)
        visit.session = replace(visit.session, chosen=None if index < 0 else index)
        return draw(visit, kind, count, reads)

    def rewrite(visit: Visit, kind: str, count: float, reads: float, size: float) -> list[Any]:
        visit.session = visit.session.resized(int(size))
        return [show.memory(visit.session), *draw(visit, kind, count, reads)]

    controls, shown = [visit, kind, count, reads], [clusters, pictures]
    when(tab.select, look, controls, [size, *shown])
    when([again.click, kind.input], draw, controls, shown)
    when([count.input, reads.input], draw, controls, shown, LIVE)
    when(size.input, rewrite, [*controls, size], [memory, *shown], LIVE)
    when(clusters.click, choose, controls, shown, EACH)


def recall(visit: gr.State, first_steps: int) -> tuple[list[gr.Slider], gr.HTML]:
    """A damaged picture, read from memory step by step; returns what `show.recalled` takes, and where it goes."""
    with begin_tab("Recall") as tab:
        with gr.Row(elem_classes="controls"):
            noise = gr.Slider(0, 1, 0.3, step=0.05, label="Noise", elem_id="noise", min_width=NARROW)
            hidden = gr.Slider(0, 0.9, 0, step=0.05, label="Hidden", elem_id="hidden", min_width=NARROW)
            blur = gr.Slider(0, 6, 0, step=0.5, label="Blur", elem_id="blur", min_width=NARROW)
            steps = gr.Slider(1, MOST_READS, first_steps, step=1, label="Steps", elem_id="steps", min_width=NARROW)
        pictures = gr.HTML(elem_id="recalled")
        other = drop_zone("Another picture", "other")

    def take(visit: Visit, files: list[Path], *values: float) -> str:
        visit.session = visit.session.picking(uploaded_pictures(files, visit.session).frames[0])
        return show.recalled(visit.session, *values)

    sliders = [steps, noise, hidden, blur]
    triggers = [tab.select, *(slider.input for slider in sliders)]
    when(triggers, seen(show.recalled), [visit, *sliders], pictures, LIVE)
    on_upload(other, take, [visit, *sliders], pictures)
    return sliders, pictures


def novelty(visit: gr.State) -> None:
    """Pictures ranked by how new they are to the memory."""
    with begin_tab("Novelty") as tab:
        others = drop_zone("Pictures to judge, or a zip of them", "others")
        pictures = gr.HTML(elem_id="ranked")

    def rank_examples(session: Session) -> str:
        frame = session.model.frame
        known, new = examples.FAMILIAR[frame.channels], examples.UNFAMILIAR[frame.channels]
        frames = [examples.draw(source, OTHERS, frame, seed=1) for source in (known, new)]
        return show.ranked(session, torch.cat(frames), [known] * OTHERS + [new] * OTHERS)

    def rank(visit: Visit, files: list[Path]) -> str:
        upload = uploaded_pictures(files, visit.session)
        return show.ranked(visit.session, upload.frames, upload.names)

    when(tab.select, seen(rank_examples), visit, pictures)
    on_upload(others, rank, [visit], pictures)


def resize(visit: gr.State, memory: gr.HTML) -> None:
    """More or fewer clusters, and what the bound and samples say of each number."""
    with begin_tab("Resize") as tab:
        with gr.Row(elem_classes="controls"):
            size = size_slider("size", scale=3)
            again = gr.Button("Write again", variant="primary", elem_id="resize", scale=1, min_width=NARROW)
        curves = gr.HTML(elem_id="curve", js_on_load=CLICKED)

    def look(visit: Visit) -> list[Any]:
        return [shown_size(visit.session), show.size_curves(visit.session)]

    def rewrite(visit: Visit, size: float) -> list[Any]:
        visit.session = visit.session.resized(int(size))
        return [show.memory(visit.session), *look(visit)]

    def take(visit: Visit, event: gr.EventData) -> list[Any]:
        return rewrite(visit, clicked(event))

    when(tab.select, look, visit, [size, curves])
    when(again.click, rewrite, [visit, size], [memory, size, curves])
    when(curves.click, take, visit, [memory, size, curves], EACH)


def keep(visit: gr.State) -> gr.File:
    """A memory to take home; returns where one that was brought back is dropped."""
    with begin_tab("Keep") as tab:
        link = gr.HTML(elem_id="keep")
        when(tab.select, seen(show.save_link), visit, link)
        return drop_zone("A memory file to use", "load", file_count="single", file_types=None)
