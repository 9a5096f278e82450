"""What can be done with a written memory: a tab each. A tab is drawn anew whenever it is opened."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import torch

from vbmem.app import show
from vbmem.app.events import CLICKED, LIVE, clicked, drop_zone, on_upload, shows_errors, uploaded_pictures, when
from vbmem.app.markup import render
from vbmem.app.session import MAX_SIZE, Session
from vbmem.data import examples

OTHERS = 12  # examples of each kind to judge the novelty of


def _tab(name: str) -> gr.Tab:
    """A tab that begins with a few words of what it is for."""
    with gr.Tab(name, id=name.lower()) as tab:
        gr.HTML(render("lead", name), elem_classes="lead")
    return tab


def generate(session: gr.State) -> None:
    """New pictures of all clusters, or of one that is clicked."""
    with _tab("Generate") as tab:
        clusters = gr.HTML(elem_id="clusters", js_on_load=CLICKED)
        with gr.Row(elem_classes="bottom"):
            kinds = [("varied samples", "samples"), ("smooth means", "means")]
            kind = gr.Radio(kinds, value="samples", label="Draw", elem_id="kind", scale=3)
            count = gr.Slider(1, 96, 32, step=1, label="How many", elem_id="count", scale=2)
            again = gr.Button("Generate", variant="primary", elem_id="generate", scale=1, min_width=120)
        pictures = gr.HTML(elem_id="generated")

    def draw(session: Session, kind: str, count: float) -> list[Any]:
        return [show.cluster_choice(session), show.generated(session, count, kind == "means")]

    def choose(session: Session, kind: str, count: float, event: gr.EventData) -> list[Any]:
        index = clicked(event)
        changed = replace(session, chosen=None if index < 0 else index)
        return [changed, *draw(changed, kind, count)]

    controls, shown = [session, kind, count], [clusters, pictures]
    when([tab.select, again.click, kind.input], draw, controls, shown)
    when(count.change, draw, controls, shown, LIVE)
    when(clusters.click, choose, controls, [session, *shown])


def recall(session: gr.State) -> dict[str, Any]:
    """A damaged picture, read from memory step by step; returns the event that draws it anew."""
    with _tab("Recall") as tab:
        with gr.Row():
            noise = gr.Slider(0, 1, 0.2, step=0.05, label="Noise", elem_id="noise")
            hidden = gr.Slider(0, 0.9, 0, step=0.05, label="Hidden", elem_id="hidden")
            blur = gr.Slider(0, 6, 0, step=0.5, label="Blur", elem_id="blur")
            steps = gr.Slider(1, 12, 5, step=1, label="Steps", elem_id="steps")
        pictures = gr.HTML(elem_id="recalled")
        other = drop_zone("Another picture", "other")

    def take(session: Session, files: list[Path]) -> Session:
        return replace(session, picked=uploaded_pictures(files, session).frames[0])

    sliders = [steps, noise, hidden, blur]
    redraw = {"fn": shows_errors(show.recalled), "inputs": [session, *sliders], "outputs": pictures} | LIVE
    gr.on([tab.select, *(slider.change for slider in sliders)], **redraw)
    on_upload(other, take, session, session).then(**redraw)
    return redraw


def novelty(session: gr.State) -> None:
    """Pictures ranked by how new they are to the memory."""
    with _tab("Novelty") as tab:
        others = drop_zone("Pictures to judge, or a zip of them", "others")
        pictures = gr.HTML(elem_id="ranked")

    def rank_examples(session: Session) -> str:
        frame = session.model.frame
        known, new = examples.FAMILIAR[frame.channels], examples.UNFAMILIAR[frame.channels]
        frames = [examples.draw(source, OTHERS, frame, seed=1) for source in (known, new)]
        return show.ranked(session, torch.cat(frames), [known] * OTHERS + [new] * OTHERS)

    def rank(session: Session, files: list[Path]) -> str:
        upload = uploaded_pictures(files, session)
        return show.ranked(session, upload.frames, upload.names)

    when(tab.select, rank_examples, session, pictures)
    on_upload(others, rank, session, pictures)


def resize(session: gr.State, memory: gr.HTML) -> None:
    """More or fewer clusters, and what the bound says of each number."""
    with _tab("Resize") as tab:
        with gr.Row(elem_classes="bottom"):
            size = gr.Slider(1, MAX_SIZE, 10, step=1, label="Clusters", elem_id="size", scale=3)
            again = gr.Button("Write again", variant="primary", elem_id="resize", scale=1)
        curve = gr.HTML(elem_id="curve")

    def look(session: Session) -> list[Any]:
        return [gr.Slider(value=session.size, label=session.size_name.capitalize()), show.bound_curve(session)]

    def rewrite(session: Session, size: float) -> list[Any]:
        changed = session.resized(int(size))
        return [changed, show.memory(changed), show.bound_curve(changed)]

    when(tab.select, look, session, [size, curve])
    when(again.click, rewrite, [session, size], [session, memory, curve])


def keep(session: gr.State) -> gr.File:
    """A memory to take home; returns where one that was brought back is dropped."""
    with _tab("Keep") as tab:
        link = gr.HTML(elem_id="keep")
        when(tab.select, show.save_link, session, link)
        return drop_zone("A memory file to use", "load", file_count="single", file_types=None)
