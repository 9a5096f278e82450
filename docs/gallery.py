"""The pictures of the gallery, of which the guides show some again.

    python docs/gallery.py --data-dir DIR [NAME ..]

The directory holds CIFAR-10 and Omniglot; of both only test pictures are shown, small.
Photographs are those that scikit-learn carries, codes are drawn here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from figures import DENSITY, DOTS, INK, MARK, save, within
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits, load_sample_image
from torch import Tensor

import vbmem
from vbmem import MixtureMemory, WrittenMemory
from vbmem.data import load_images
from vbmem.data.examples import photograph_crops
from vbmem.sheets import as_image
from vbmem.sklearn import MemoryMixture, MemoryNovelty
from vbmem.tables import file_size

OUT = Path(__file__).parent / "gallery"
GOOD, BAD = "#2b8a3e", "#c92a2a"
SIDE, GAP = 48, 3  # pixels of a picture, and between two
LETTERS = 17  # pixels high, which can still be read on a telephone
PLACES = np.array([[-3.2, -2.0], [3.0, -2.2], [0.0, 3.0]])
WAYS = np.array([[0.9, 0.9], [0.9, -0.9], [1.4, 0.1]])


# Pictures in labelled rows.


def rows_of(
    rows: dict[str, Tensor], marks: dict[str, list[str]] | None = None
) -> Image.Image:
    """A label above every row of pictures [n, channels, H, W], marked by colours."""
    font, line = ImageFont.load_default(LETTERS), LETTERS + 9
    step, most = SIDE + GAP, max(map(len, rows.values()))
    sheet = Image.new("RGB", (most * step - GAP, len(rows) * (step + line)), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (label, frames) in enumerate(rows.items()):
        top = number * (step + line)
        pen.text((0, top + 3), label, fill=INK, font=font)
        for place, frame in enumerate(frames):
            shown = (
                as_image(frame)
                .convert("RGB")
                .resize((SIDE, SIDE), Image.Resampling.NEAREST)
            )
            sheet.paste(shown, (place * step, top + line))
            if marks and label in marks:
                box = (
                    place * step,
                    top + line,
                    place * step + SIDE - 1,
                    top + line + SIDE - 1,
                )
                pen.rectangle(box, outline=marks[label][place], width=3)
    return sheet


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cifar(data_dir: Path, count: int, seed: int = 0) -> Tensor:
    """Test pictures [count, 3, 32, 32] in [0, 1]."""
    images, _ = load_images("cifar10", data_dir).split("test")
    chosen = np.random.default_rng(seed).permutation(len(images))[:count]
    return torch.from_numpy(images[chosen]).permute(0, 3, 1, 2) / 255


def crops(name: str, count: int, seed: int = 0) -> Tensor:
    return (
        torch.from_numpy(photograph_crops(name, count, 32, seed)).permute(0, 3, 1, 2)
        / 255
    )


def characters(data_dir: Path) -> Image.Image:
    images, labels = load_images("omniglot", data_dir).split("test")
    assert labels is not None
    model, rows = vbmem.load("omniglot-mixture"), {}
    chosen = np.random.default_rng(3).permutation(np.unique(labels))[:4]
    for number, label in enumerate(chosen, 1):
        shown = torch.from_numpy(images[labels == label][:4]).permute(0, 3, 1, 2) / 255
        memory = model.write(shown, generator=seeded())
        new = model.generate(memory, 8, generator=seeded(1))
        rows[f"character {number}: 4 drawings, then 8 new ones"] = torch.cat(
            [shown, new]
        )
    return rows_of(rows)


def generate(data_dir: Path) -> Image.Image:
    model, pictures = vbmem.load("cifar10-mixture"), cifar(data_dir, 64)
    memory = model.write(pictures, generator=seeded())
    new = model.generate(memory, 12, generator=seeded(1))
    distances = (new.flatten(1).unsqueeze(1) - pictures.flatten(1)).square().sum(-1)
    nearest = pictures[distances.argmin(1)]
    written = "12 of 64 pictures written"
    return rows_of(
        {
            written: pictures[:12],
            "new": new,
            "the written picture nearest to each": nearest,
        }
    )


def clusters(data_dir: Path) -> Image.Image:
    model = vbmem.load("cifar10-mixture").resize(clusters=5)
    memory = model.write(cifar(data_dir, 64), generator=seeded())
    held = [
        f"cluster {h + 1}, which holds {n:.0f} pictures"
        for h, n in enumerate(memory.usage)
    ]
    draw = [
        model.generate(memory, 10, cluster=h, generator=seeded(h)) for h in range(5)
    ]
    return rows_of(dict(zip(held, draw, strict=True)))


def recall(data_dir: Path) -> Image.Image:
    model, pictures = (
        vbmem.load("cifar10-mixture").resize(clusters=64),
        cifar(data_dir, 64),
    )
    memory = model.write(pictures, start="data", generator=seeded())
    noise = 0.4 * torch.randn(pictures.shape, generator=seeded(1))
    noisy = (pictures + noise).clamp(0, 1)[:10]
    alone = model.decode(model.encode(noisy).mean, crisp=False)
    back = model.read(memory, noisy, 2, sample=False, crisp=False)[-1]
    return rows_of(
        {
            "written": pictures[:10],
            "damaged": noisy,
            "without a memory": alone,
            "from memory": back,
        }
    )


def missing(data_dir: Path) -> Image.Image:
    model, pictures = (
        vbmem.load("cifar10-mixture").resize(clusters=64),
        cifar(data_dir, 64),
    )
    memory = model.write(pictures, start="data", generator=seeded())
    known = torch.ones(1, 1, 32, 32, dtype=torch.bool)
    known[..., 16:] = False
    damaged = (pictures * known)[:10]
    filled = model.read(memory, damaged, 3, known=known, sample=False, crisp=False)[-1]
    filled = torch.where(known, damaged, filled)
    return rows_of(
        {"written": pictures[:10], "half of each": damaged, "filled in": filled}
    )


def novelty(data_dir: Path) -> Image.Image:
    model = vbmem.load("cifar10-mixture")
    memory = model.write(crops("china", 64), generator=seeded())
    assert memory.threshold is not None
    others = torch.cat([crops("china", 8, 1), crops("flower", 8, 1)])
    scores = model.score(memory, others)
    order = scores.argsort()
    colours = [
        GOOD if known else BAD for known in (scores[order] >= memory.threshold).tolist()
    ]
    first, second = order[:8], order[8:]
    labels = "least familiar (red: new to the memory)", "most familiar (green: known)"
    return rows_of(
        {
            "12 of 64 crops written": crops("china", 12),
            labels[0]: others[first],
            labels[1]: others[second],
        },
        {labels[0]: colours[:8], labels[1]: colours[8:]},
    )


def resize(data_dir: Path) -> Image.Image:
    model, pictures = vbmem.load("cifar10-mixture"), cifar(data_dir, 64)
    rows = {"written": pictures[:10]}
    for count in (4, 16, 64):
        memory = (bigger := model.resize(clusters=count)).write(
            pictures, start="data" if count == len(pictures) else None
        )
        back = bigger.read(memory, pictures[:10], 2, sample=False, crisp=False)[-1]
        rows[f"read back from {count} clusters, {file_size(memory.nbytes)}"] = back
    return rows_of(rows)


def photograph(data_dir: Path) -> Image.Image:
    """Patches of a noisy photograph are an episode; no other picture was ever seen."""
    clean = torch.from_numpy(
        load_sample_image("china.jpg")[100:292, 150:406].mean(-1) / 255
    )
    noisy = clean + 0.1 * torch.randn(
        clean.shape, generator=seeded(), dtype=clean.dtype
    )
    back = denoised(noisy, 0.1)
    shown = [noisy, back, clean]
    errors = [
        -10 * float((picture - clean).square().mean().log10()) for picture in shown[:2]
    ]
    labels = (
        f"noisy, {errors[0]:.1f} dB",
        f"its patches, {errors[1]:.1f} dB",
        "the photograph",
    )
    height, width = clean.shape
    sheet = Image.new("RGB", (3 * (width + GAP) - GAP, height + LETTERS + 9), "white")
    pen = ImageDraw.Draw(sheet)
    for place, (label, picture) in enumerate(zip(labels, shown, strict=True)):
        pen.text(
            (place * (width + GAP), 2),
            label,
            fill=INK,
            font=ImageFont.load_default(LETTERS),
        )
        sheet.paste(
            as_image(picture.float().unsqueeze(0)), (place * (width + GAP), LETTERS + 9)
        )
    return sheet


def denoised(noisy: Tensor, noise: float, size: int = 8) -> Tensor:
    """All patches written, each read back, and put where it was."""
    whole = noisy.float()[None, None]
    patches = torch.nn.functional.unfold(whole, size)[0].T  # [T, 64]
    levels = patches.mean(-1, keepdim=True)
    memory = MixtureMemory(
        size**2, 8, 48, noise_var=noise**2, row_var=0.05, loc_var=0.05
    )
    state = memory.write_stream(patches - levels, 10, generator=seeded())
    read = (
        torch.cat(
            [memory.reconstruct(state, part) for part in (patches - levels).split(4096)]
        )
        + levels
    )
    both = torch.stack([read.T, torch.ones_like(read.T)])
    total, count = torch.nn.functional.fold(both, whole.shape[-2:], size)[:, 0]
    return (total / count).double()


# Codes in the plane.


def long_clusters(count: int, seed: int = 0) -> Tensor:
    """Three of them, each along a direction of its own."""
    random, chosen = np.random.default_rng(seed), np.arange(count) % 3
    along = random.normal(size=(count, 1)) * WAYS[chosen]
    return torch.tensor(PLACES[chosen] + along + 0.3 * random.normal(size=(count, 2)))


def plane(title: str, axes: Axes, reach: float = 6.0) -> None:
    axes.set(
        xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[]
    )
    axes.set_title(title, fontsize=9, color=INK)
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


def panels(count: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(1.8 * count, 2.2), dpi=190, layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def shade(
    axes: Axes, log_density: Callable[[Tensor], Tensor], reach: float = 6.0
) -> None:
    """Where half, four fifths and nearly all of the density lies."""
    side = torch.linspace(-reach, reach, 121, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1).flatten(0, 1)
    density = log_density(points).exp().reshape(121, 121)
    levels = [
        *(within(density, mass) for mass in (0.95, 0.8, 0.5)),
        float(density.max()) * 1.01,
    ]
    axes.contourf(side, side, density, levels=levels, colors=[DENSITY] * 3, alpha=0.25)


def dots(
    axes: Axes, codes: Tensor | np.ndarray, colour: str = DOTS, size: float = 3
) -> None:
    axes.scatter(codes[:, 0], codes[:, 1], s=size, color=colour, linewidths=0)


def empty(clusters: int = 3) -> MixtureMemory:
    return MixtureMemory(2, 1, clusters, noise_var=0.15, row_var=2.0, loc_var=6.0)


def density(data_dir: Path) -> Figure:
    codes, memory = long_clusters(150), empty()
    state, _ = memory.write(codes, generator=seeded())
    figure, (left, middle, right) = panels(3)
    dots(left, codes)
    plane("150 codes", left)
    shade(middle, lambda points: memory.log_predictive(state, points))
    plane("the memory", middle)
    dots(right, memory.sample(state, 150, seeded(1)), MARK)
    plane("150 new codes", right)
    return figure


def denoise(data_dir: Path) -> Figure:
    codes = long_clusters(240)
    noisy = codes + 0.5 * torch.randn(
        codes.shape, generator=seeded(), dtype=codes.dtype
    )
    memory = MixtureMemory(2, 1, 3, noise_var=0.35, row_var=2.0, loc_var=6.0)
    state, _ = memory.write(noisy, generator=seeded())
    figure, (left, right) = panels(2)
    dots(left, noisy)
    plane("noisy codes", left)
    dots(right, memory.reconstruct(state, noisy), MARK)
    plane("read back from memory", right)
    return figure


def living(data_dir: Path) -> Figure:
    codes = long_clusters(150)
    first, more = codes[:18], codes[18:]
    written = WrittenMemory.write(empty(), first, generator=seeded())
    grown = written.update(more)
    steps = {"written": (written, first), "updated": (grown, codes)}
    steps["first forgotten"] = (grown.forget(first), more)
    figure, axes = panels(3)
    for place, (title, (memory, shown)) in zip(axes, steps.items(), strict=True):
        shade(place, memory.log_predictive)
        dots(place, shown)
        plane(f"{title}:\n{memory.frames} codes", place)
    return figure


def merge(data_dir: Path) -> Figure:
    codes, side = long_clusters(240), np.arange(240) % 3
    one = WrittenMemory.write(empty(2), codes[side < 2], generator=seeded())
    other = WrittenMemory.write(empty(2), codes[side == 2], generator=seeded())
    figure, axes = panels(3)
    for place, (title, memory) in zip(
        axes,
        {"here": one, "there": other, "merged": one.merge(other)}.items(),
        strict=True,
    ):
        shade(place, memory.log_predictive)
        plane(f"{title}:\n{memory.frames} codes", place)
    return figure


def outliers(data_dir: Path) -> Figure:
    normal = long_clusters(300).numpy()
    detector = MemoryNovelty(n_clusters=3, n_rows=1, random_state=0).fit(normal)
    random = np.random.default_rng(5)
    new = np.concatenate(
        [long_clusters(60, 7).numpy(), random.uniform(-6, 6, size=(40, 2))]
    )
    verdict = detector.predict(new)
    figure, (left, right) = panels(2)
    dots(left, normal)
    plane("300 normal samples", left)
    side = np.linspace(-6, 6, 121)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    level = detector.decision_function(grid).reshape(121, 121)
    right.contourf(
        side, side, level, levels=[0, level.max()], colors=[DENSITY], alpha=0.25
    )
    dots(right, new[verdict == 1], GOOD, 6)
    dots(right, new[verdict == -1], BAD, 6)
    plane("others: known or new", right)
    return figure


def episodes(data_dir: Path) -> Figure:
    """Twelve at once, each with its own memory."""
    places = 2.4 * torch.randn(12, 3, 1, 2, generator=seeded(4), dtype=torch.float64)
    ways = 0.9 * torch.randn(12, 3, 1, 2, generator=seeded(5), dtype=torch.float64)
    along = torch.randn(12, 3, 20, 1, generator=seeded(6), dtype=torch.float64)
    noise = 0.25 * torch.randn(12, 3, 20, 2, generator=seeded(7), dtype=torch.float64)
    codes = (places + along * ways + noise).flatten(1, 2)
    memory = empty()
    state, _ = memory.write(codes, 30, generator=seeded())
    figure = Figure(figsize=(5.4, 1.9), dpi=190, layout="constrained")
    for number, axes in enumerate(figure.subplots(2, 6).flat):
        one = state.map(lambda tensor, n=number: tensor[n])
        shade(axes, lambda points, s=one: memory.log_predictive(s, points), 7)
        dots(axes, codes[number], INK, 2)
        plane("", axes, 7)
    return figure


def auto(data_dir: Path) -> Figure:
    codes = long_clusters(300).numpy()
    sizes = [1, 2, 3, 4, 5, 6]
    fits = [
        MemoryMixture(size, 1, n_init=3, random_state=0).fit(codes) for size in sizes
    ]
    chosen = MemoryMixture("auto", 1, random_state=0).fit(codes)
    figure, (left, right) = panels(2)
    colours = np.array([MARK, "#1971c2", GOOD, "#862e9c", "#e8590c", "#0b7285"])
    for label in range(chosen.n_clusters_):
        dots(left, codes[chosen.labels_ == label], colours[label % 6])
    plane(f"{chosen.n_clusters_} clusters were found", left)
    right.plot(
        sizes,
        [fit.lower_bound_ / len(codes) for fit in fits],
        "o-",
        color=DENSITY,
        markersize=3,
    )
    right.set_title("nats, by clusters", fontsize=9, color=INK)
    right.tick_params(labelsize=8)
    return figure


def digits(data_dir: Path) -> Image.Image:
    """Clusters of a table of 64 columns, which happens to be pictures."""
    samples, _ = load_digits(return_X_y=True)
    samples = samples + np.random.default_rng(0).uniform(size=samples.shape)
    mixture = MemoryMixture(n_clusters=10, n_rows=6, random_state=0).fit(samples)
    new, _ = mixture.sample(10)

    def shown(table: np.ndarray) -> Tensor:
        return torch.tensor(table / 16).reshape(-1, 1, 8, 8)

    along = mixture.means_ + 1.5 * mixture.factors_[:, 0]
    against = mixture.means_ - 1.5 * mixture.factors_[:, 0]
    return rows_of(
        {
            "the means of ten clusters": shown(mixture.means_),
            "moved along the first row of each": shown(along),
            "and against it": shown(against),
            "new samples": shown(new),
        }
    )


FIGURES: dict[str, Callable[[Path], Image.Image | Figure]] = {
    figure.__name__: figure
    for figure in (
        characters, generate, clusters, recall, missing, novelty, resize, photograph,
        density, denoise, living, merge, outliers, episodes, auto, digits,
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--data-dir", type=Path, required=True)
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    for name in options.names or FIGURES:
        drawn, path = FIGURES[name](options.data_dir), OUT / f"{name}.png"
        if isinstance(drawn, Figure):
            save(drawn, path)
        else:
            drawn.quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main()
