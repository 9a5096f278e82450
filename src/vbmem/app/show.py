"""A session's pictures and numbers, as the page shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure
from torch import Tensor

from vbmem.app.markup import HUGE, LARGE, MEDIUM, SMALL, button, data, escape, figure, hint, notice, picture, pictures
from vbmem.app.portraits import Portrait, portraits
from vbmem.app.session import Session
from vbmem.memory.written import WrittenMemory
from vbmem.sheets import figure_png

NOTHING_WRITTEN = notice("Nothing is written yet. Press Write.")
MAX_FRAMES_SHOWN = 200
MAX_CLUSTERS_SHOWN = 24
MAX_FRAMES_PER_CLUSTER = 12
UNFAMILIAR_SHARE = 0.05  # of the written pictures: those with the fewest nats


def episode(session: Session) -> str:
    """The pictures, each to be clicked."""
    count = len(session.frames)
    shown = [
        button(index, picture(frame, MEDIUM, f"picture {index + 1}"), f"recall picture {index + 1}")
        for index, frame in enumerate(session.frames[:MAX_FRAMES_SHOWN])
    ]
    some = f", the first {MAX_FRAMES_SHOWN} shown" if count > MAX_FRAMES_SHOWN else ""
    text = f"<b>{_count(count, 'pictures')}</b>{some}. Click one to see it recalled."
    return hint(text) + f'<div class="scroll">{pictures(shown)}</div>'


def memory(session: Session) -> str:
    """The numbers of the write, and the clusters."""
    if session.memory is None:
        return NOTHING_WRITTEN
    facts = [(f"{session.memory.frames}", "pictures"), (_size(session.memory), "all that is kept")]
    if session.times is not None:
        facts += [(f"{session.times.encode:.0f} ms", "to encode"), (f"{session.times.write:.0f} ms", "to write")]
    cards = "".join(f'<div class="card"><b>{number}</b><span>{text}</span></div>' for number, text in facts)
    clusters = session.memory.usage.shape[-1]
    some = f" The {MAX_CLUSTERS_SHOWN} most used of {clusters} are shown." if clusters > MAX_CLUSTERS_SHOWN else ""
    about = (
        "The memory sorts the pictures into clusters. Of each it keeps a mean and how pictures vary around it, decoded "
        f"here. The pictures themselves are not in it.{some}"
    )
    if (parts := session.memory.empty.partitions) > 1:
        about += f" Codes are cut into {parts} parts with clusters of their own; these are those of the first."
    drawn = portraits(session, MAX_CLUSTERS_SHOWN)
    rows = "".join(_cluster_row(portrait, drawn[0].frame_count) for portrait in drawn)
    frames = "" if session.codes is None else "pictures that went into it"
    heads = "".join(f"<th>{text}</th>" for text in ("pictures held", "mean", "how it varies", frames))
    table = f'<table class="clusters"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="cards">{cards}</div>' + hint(about) + table


def cluster_choice(session: Session) -> str:
    """The clusters to click on, and all of them together."""
    everything = button(-1, '<span class="all">all</span>', "all clusters", session.chosen is None)
    shown = [figure(everything, f"{session.require_memory().frames}")]
    for portrait in portraits(session, MAX_CLUSTERS_SHOWN):
        number, mean = portrait.cluster, picture(portrait.mean, MEDIUM, "mean")
        chosen = button(number, mean, f"cluster {number + 1}", number == session.chosen)
        shown.append(figure(chosen, f"{portrait.frame_count:.0f}"))
    return pictures(shown)


def generated(frames: Tensor) -> str:
    return pictures(picture(frame, LARGE, f"generated {n}") for n, frame in enumerate(frames, start=1))


def recalled(given: dict[str, Tensor], steps: Tensor) -> str:
    """What was there before the reading, and every step of it."""
    read = {f"step {number}": frame for number, frame in enumerate(steps, start=1)}
    return "".join(
        pictures(figure(picture(frame, HUGE, caption), caption) for caption, frame in row.items())
        for row in (given, read)
    )


def ranked(session: Session, frames: Tensor, names: Sequence[str]) -> str:
    """Frames uint8 [N, channels, H, W], the least familiar first, each with its nats."""
    threshold, text = -math.inf, "The least familiar first: the fewer nats, the less the memory knows a picture."
    if session.codes is not None:
        threshold = float(session.rank(session.frames[:MAX_FRAMES_SHOWN])[0].quantile(UNFAMILIAR_SHARE))
        text += f" Of the written ones, 19 in 20 have more than {threshold:,.0f}; what has less is marked."
    nats, order = session.rank(frames)
    shown = [
        figure(
            picture(frames[index], LARGE, names[index]),
            f"<b>{value:,.0f} nats</b><br>{escape(names[index])}",
            kind="new" if value < threshold else "known",
        )
        for value, index in zip(nats.tolist(), order.tolist(), strict=True)
    ]
    return hint(text) + pictures(shown)


def bound_curve(session: Session) -> str:
    """The bound against the memory's size, with the size it has now."""
    bounds, size, name = session.curve(), session.size, session.size_name
    best = max(bounds, key=bounds.__getitem__)
    drawing = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = drawing.add_subplot()
    axes.plot(list(bounds), list(bounds.values()), color="#94a3b8", marker=".", markersize=7)
    axes.plot(size, bounds[size], "o", color="#0d9488", markersize=10, label=f"now: {size}")
    axes.plot(best, bounds[best], "o", color="none", markeredgecolor="#c2410c", markersize=15, label=f"best: {best}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks := [1, 2, 4, 8, 16, 32, 64], list(map(str, ticks)))
    axes.set_xlim(0.9, max(*bounds, 2) * 1.1)
    axes.set_xlabel(name)
    axes.set_ylabel("bound, nats a picture")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    now = f"<b>{_count(size, name)}</b>, {_size(session.require_memory())}, {bounds[size]:,.0f} nats a picture"
    image = f'<img class="curve" src="{data("image/png", figure_png(drawing, dpi=160))}" alt="bound against {name}">'
    return hint(f"Now: {now}. Best: {_count(best, name)}, {bounds[best]:,.0f} nats.") + image


def save_link(memory: WrittenMemory) -> str:
    """A link that holds the memory's file."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.memory"
        memory.save(path)
        source = data("application/octet-stream", path.read_bytes())
    facts = hint(escape(f"{_count(memory.frames, 'pictures')} in {_size(memory)}, written by {memory.model}."))
    return facts + f'<a id="save" class="save" download="pictures.memory" href="{source}">Save this memory</a>'


def _cluster_row(portrait: Portrait, largest: float) -> str:
    count = portrait.frame_count
    frames = [picture(frame, SMALL, "") for frame in portrait.frames[:MAX_FRAMES_PER_CLUSTER]]
    if (more := len(portrait.frames) - MAX_FRAMES_PER_CLUSTER) > 0:
        frames.append(f"<span>and {more} more</span>")
    bar = f'<div class="bar"><i style="width:{100 * count / largest:.0f}%"></i></div>{count:.0f}'
    rows = (picture(row, SMALL, "") for row in portrait.variations)
    cells = (bar, picture(portrait.mean, SMALL, "mean"), pictures(rows), pictures(frames))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _count(number: int, things: str) -> str:
    return f"{number} {things.removesuffix('s') if number == 1 else things}"


def _size(memory: WrittenMemory) -> str:
    return f"{memory.nbytes / 1024:.0f} kB"
