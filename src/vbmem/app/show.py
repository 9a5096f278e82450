"""A session's pictures and numbers, as the page shows them."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from vbmem.app.markup import render
from vbmem.app.plots import curve
from vbmem.app.portraits import portraits
from vbmem.app.session import Session
from vbmem.files import data_url
from vbmem.sheets import animated_png, as_image, grid, png

MAX_FRAMES_SHOWN = 200
MAX_CLUSTERS_SHOWN = 24
MAX_FRAMES_PER_CLUSTER = 12
SHEET_COLUMNS, SHEET_SIDE = 8, 96
STEP_MILLISECONDS, HOLD_MILLISECONDS, TIMES_PLAYED = 450, 1500, 5


def episode(session: Session) -> str:
    """The pictures, each to be clicked."""
    return render("episode", session, MAX_FRAMES_SHOWN)


def memory(session: Session) -> str:
    """The numbers of the write, and the clusters."""
    return render("memory", session, portraits(session, MAX_CLUSTERS_SHOWN), MAX_FRAMES_PER_CLUSTER)


def cluster_choice(session: Session) -> str:
    """The clusters to click on, and all of them together; nothing where there is but one."""
    if session.memory.usage.shape[-1] == 1:
        return ""
    return render("cluster_choice", session, portraits(session, MAX_CLUSTERS_SHOWN))


def generated(session: Session, count: int, reads: int, means: bool) -> str:
    """New pictures of the chosen cluster, or of all, each beside the written one it is nearest to."""
    pictures = session.generate(count, reads=reads, means=means)
    return render("generated", pictures, session.nearest_written(pictures), sheet_url(pictures))


def sheet_url(pictures: Tensor) -> str:
    """Pictures [n, channels, H, W] as one to keep."""
    scale = max(1, round(SHEET_SIDE / pictures.shape[-1]))
    return data_url("image/png", png(grid(pictures, min(len(pictures), SHEET_COLUMNS), scale)))


def recalled(session: Session, steps: float, noise: float, hidden: float, blur: float) -> str:
    """A damaged picture, what comes back without and with memory, and how it came back."""
    recall = session.recall(int(steps), noise, hidden, blur)
    animation, own_part = _animation_url([recall.damaged, *recall.steps]), bool(session.model.network.config.own_size)
    return render("recalled", recall, animation, bool(hidden), own_part)


def _animation_url(frames: Sequence[Tensor]) -> str:
    """Frames [channels, H, W] one after the other, a few times; the last one stays."""
    durations = [STEP_MILLISECONDS] * (len(frames) - 1) + [HOLD_MILLISECONDS]
    return data_url("image/png", animated_png([as_image(frame) for frame in frames], durations, TIMES_PLAYED))


def ranked(session: Session, frames: Tensor, names: Sequence[str]) -> str:
    """Frames uint8 [N, channels, H, W], the least familiar first, each with its nats."""
    nats, order = (values.tolist() for values in session.rank(frames))
    shown = [(frames[i], names[i], value) for i, value in zip(order, nats, strict=True)]
    return render("ranked", shown, session.threshold)


def size_curves(session: Session) -> str:
    """The bound and the quality of samples against the memory's size, with the size it has now and the best ones."""
    if session.codes is None:
        return render("notice", "The pictures in this memory are not here, so it cannot be written again.")
    trials = {trial.size: trial for trial in session.try_sizes()}
    bounds = {size: trial.bound for size, trial in trials.items()}
    distances = {size: trial.distance for size, trial in trials.items() if trial.distance is not None}
    highest, nearest = max(bounds, key=bounds.__getitem__), min(distances, key=distances.__getitem__, default=None)
    plots = {"bound": curve(list(bounds), list(bounds.values()), session.size, highest)}
    if nearest is not None:
        plots["distance"] = curve(list(distances), list(distances.values()), session.size, nearest)
    return render("size_curves", session, trials, highest, nearest, plots)


def save_link(session: Session) -> str:
    """A link that holds the memory's file, and how large it is beside the pictures."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pictures.memory"
        session.memory.save(path)
        return render("save_link", session, data_url("application/octet-stream", path.read_bytes()))
