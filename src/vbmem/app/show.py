"""A session's pictures and numbers, as the page shows them."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Concatenate, ParamSpec

from matplotlib.figure import Figure
from torch import Tensor

from vbmem.app.markup import data_url, render
from vbmem.app.portraits import portraits
from vbmem.app.session import Session
from vbmem.sheets import figure_png

P = ParamSpec("P")

MAX_FRAMES_SHOWN = 200
MAX_CLUSTERS_SHOWN = 24
MAX_FRAMES_PER_CLUSTER = 12


def of_memory(view: Callable[Concatenate[Session, P], str]) -> Callable[Concatenate[Session, P], str]:
    """The view, but where nothing is written yet a sentence that says so."""

    @wraps(view)
    def checked(session: Session, /, *args: P.args, **kwargs: P.kwargs) -> str:
        if session.memory is None:
            return render("notice", "Nothing is written yet. Press Write.")
        return view(session, *args, **kwargs)

    return checked


def episode(session: Session) -> str:
    """The pictures, each to be clicked."""
    return render("episode", session.frames, MAX_FRAMES_SHOWN)


@of_memory
def memory(session: Session) -> str:
    """The numbers of the write, and the clusters."""
    return render("memory", session, portraits(session, MAX_CLUSTERS_SHOWN), MAX_FRAMES_PER_CLUSTER)


def cluster_choice(session: Session) -> str:
    """The clusters to click on, and all of them together; nothing where nothing is written yet."""
    if session.memory is None:
        return ""
    return render("cluster_choice", session, portraits(session, MAX_CLUSTERS_SHOWN))


@of_memory
def generated(session: Session, count: float, means: bool) -> str:
    """New pictures of the chosen cluster, or of all."""
    return render("generated", session.generate(int(count), session.chosen, means))


@of_memory
def recalled(session: Session, steps: float, noise: float, hidden: float, blur: float) -> str:
    """What was there before the reading, and every step of it."""
    given, read = session.recall(int(steps), noise, hidden, blur)
    return render("recalled", [given, {f"step {number}": frame for number, frame in enumerate(read, start=1)}])


@of_memory
def ranked(session: Session, frames: Tensor, names: Sequence[str]) -> str:
    """Frames uint8 [N, channels, H, W], the least familiar first, each with its nats."""
    nats, order = (values.tolist() for values in session.rank(frames))
    shown = [(frames[i], names[i], value) for i, value in zip(order, nats, strict=True)]
    return render("ranked", shown, session.threshold)


@of_memory
def bound_curve(session: Session) -> str:
    """The bound against the memory's size, with the size it has now."""
    if session.codes is None:
        return render("notice", "The pictures in this memory are not here. Press Write to write those on the left.")
    bounds, size = session.curve(), session.size
    best = max(bounds, key=bounds.__getitem__)
    drawing = Figure(figsize=(7.5, 3.2), layout="constrained")
    axes = drawing.add_subplot()
    axes.plot(list(bounds), list(bounds.values()), color="#94a3b8", marker=".", markersize=7)
    axes.plot(size, bounds[size], "o", color="#0d9488", markersize=10, label=f"now: {size}")
    axes.plot(best, bounds[best], "o", color="none", markeredgecolor="#c2410c", markersize=15, label=f"best: {best}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks := [1, 2, 4, 8, 16, 32, 64], list(map(str, ticks)))
    axes.set(xlim=(0.9, max(*bounds, 2) * 1.1), xlabel=session.size_name, ylabel="bound, nats a picture")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return render("bound_curve", session, bounds, best, data_url("image/png", figure_png(drawing, dpi=160)))


@of_memory
def save_link(session: Session) -> str:
    """A link that holds the memory's file."""
    memory = session.require_memory()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.memory"
        memory.save(path)
        return render("save_link", memory, data_url("application/octet-stream", path.read_bytes()))
