"""What can be done with a written memory: a tab each. A tab is drawn anew whenever it is opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import torch

from vbmem.app import show
from vbmem.app.events import CLICKED, EVENT, LIVE, discard, drop_zone, on_upload, shows_errors, uploaded_pictures
from vbmem.app.markup import notice
from vbmem.app.session import MAX_SIZE, Session
from vbmem.data import examples

OTHERS = 12  # examples of each kind to judge the novelty of


def generate(session: gr.State, tab: gr.Tab) -> None:
    """New pictures of all clusters, or of one that is clicked."""
    gr.HTML("New pictures, drawn from the memory alone. Click a cluster to draw from it only.", elem_classes="lead")
    clusters = gr.HTML(elem_id="clusters", js_on_load=CLICKED)
    with gr.Row(elem_classes="bottom"):
        kinds = [("varied samples", "samples"), ("smooth means", "means")]
        kind = gr.Radio(kinds, value="samples", label="Draw", elem_id="kind", scale=3)
        count = gr.Slider(1, 96, 32, step=1, label="How many", elem_id="count", scale=2)
        again = gr.Button("Generate", variant="primary", elem_id="generate", scale=1, min_width=120)
    pictures = gr.HTML(elem_id="generated")

    def draw(session: Session, kind: str, count: float) -> list[Any]:
        if session.memory is None:
            return ["", show.NOTHING_WRITTEN]
        frames = session.generate(int(count), session.chosen, kind == "means")
        return [show.cluster_choice(session), show.generated(frames)]

    @shows_errors
    def choose(session: Session, kind: str, count: float, event: gr.EventData) -> list[Any]:
        index = int(event.index)
        changed = replace(session, chosen=None if index < 0 else index)
        return [changed, *draw(changed, kind, count)]

    controls, shown = [session, kind, count], [clusters, pictures]
    gr.on([tab.select, again.click, kind.input], shows_errors(draw), controls, shown, **EVENT)
    count.change(shows_errors(draw), controls, shown, **LIVE)
    clusters.click(choose, controls, [session, *shown], **EVENT)


def recall(session: gr.State, tab: gr.Tab) -> dict[str, Any]:
    """A damaged picture, read from memory step by step; returns the event that draws it anew."""
    gr.HTML(
        "Damage a picture and watch it being recalled, each step from the last. Click one on the left to take another.",
        elem_classes="lead",
    )
    with gr.Row():
        noise = gr.Slider(0, 1, 0.2, step=0.05, label="Noise", elem_id="noise")
        hidden = gr.Slider(0, 0.9, 0, step=0.05, label="Hidden", elem_id="hidden")
        blur = gr.Slider(0, 6, 0, step=0.5, label="Blur", elem_id="blur")
        steps = gr.Slider(1, 12, 5, step=1, label="Steps", elem_id="steps")
    pictures = gr.HTML(elem_id="recalled")
    other = drop_zone("Another picture", "other")

    @shows_errors
    def read(session: Session, steps: float, noise: float, hidden: float, blur: float) -> str:
        if session.memory is None:
            return show.NOTHING_WRITTEN
        return show.recalled(*session.recall(int(steps), noise, hidden, blur))

    @shows_errors
    def take(session: Session, paths: list[str]) -> Session:
        return replace(session, picked=uploaded_pictures(paths, session).frames[0])

    sliders = [steps, noise, hidden, blur]
    redraw = {"fn": read, "inputs": [session, *sliders], "outputs": pictures} | LIVE
    gr.on([tab.select, *(slider.change for slider in sliders)], **redraw)
    on_upload(other, take, session, session).then(**redraw)
    return redraw


def novelty(session: gr.State, tab: gr.Tab) -> None:
    """Pictures ranked by how new they are to the memory."""
    gr.HTML(
        "What is new to the memory? These are examples; drop pictures of yours to have them judged.",
        elem_classes="lead",
    )
    others = drop_zone("Pictures to judge, or a zip of them", "others")
    pictures = gr.HTML(elem_id="ranked")

    @shows_errors
    def rank_examples(session: Session) -> str:
        if session.memory is None:
            return show.NOTHING_WRITTEN
        frame = session.model.frame
        known, new = examples.familiar_source(frame.channels), examples.unfamiliar_source(frame.channels)
        frames = [examples.draw(source, OTHERS, frame.size, frame.channels, seed=1) for source in (known, new)]
        return show.ranked(session, torch.cat(frames), [known] * OTHERS + [new] * OTHERS)

    @shows_errors
    def rank(session: Session, paths: list[str]) -> str:
        if session.memory is None:
            discard(paths)
            return show.NOTHING_WRITTEN
        upload = uploaded_pictures(paths, session)
        return show.ranked(session, upload.frames, upload.names)

    tab.select(rank_examples, session, pictures, **EVENT)
    on_upload(others, rank, session, pictures)


def resize(session: gr.State, tab: gr.Tab, memory: gr.HTML) -> None:
    """More or fewer clusters, and what the bound says of each number."""
    gr.HTML(
        "How many clusters do these pictures need? The bound weighs how well a memory explains them against its size; "
        "the highest point is the best choice. Nothing is trained for another size.",
        elem_classes="lead",
    )
    with gr.Row(elem_classes="bottom"):
        size = gr.Slider(1, MAX_SIZE, 10, step=1, label="Clusters", elem_id="size", scale=3)
        again = gr.Button("Write again", variant="primary", elem_id="resize", scale=1)
    curve = gr.HTML(elem_id="curve")

    def drawn(session: Session) -> str:
        if session.memory is None:
            return show.NOTHING_WRITTEN
        if session.codes is None:
            return notice("The pictures in this memory are not here. Press Write to write those on the left.")
        return show.bound_curve(session)

    @shows_errors
    def look(session: Session) -> list[Any]:
        return [gr.Slider(value=session.size, label=session.size_name.capitalize()), drawn(session)]

    @shows_errors
    def rewrite(session: Session, size: float) -> list[Any]:
        changed = session.resized(int(size))
        return [changed, show.memory(changed), drawn(changed)]

    tab.select(look, session, [size, curve], **EVENT)
    again.click(rewrite, [session, size], [session, memory, curve], **EVENT)


def keep(session: gr.State, tab: gr.Tab) -> gr.File:
    """A memory to take home; returns where one that was brought back is dropped."""
    gr.HTML(
        "The file holds what the memory keeps, and no pictures. <code>vbmem generate pictures.memory</code> and the "
        "other commands read it too.",
        elem_classes="lead",
    )
    link = gr.HTML(elem_id="keep")

    @shows_errors
    def offer(session: Session) -> str:
        return show.NOTHING_WRITTEN if session.memory is None else show.save_link(session.memory)

    tab.select(offer, session, link, **EVENT)
    return gr.File(label="A memory file to use", file_count="single", height=72, elem_id="load", elem_classes="drop")


def load_memory(session: Session, path: str) -> Session:
    try:
        return session.loaded(Path(path))
    finally:
        discard([path])
