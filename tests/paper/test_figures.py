"""Figures 3 to 6 from tiny untrained models: the files, their panels, and that the seed decides everything."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from tiny import noise, tiny_model, tiny_network
from vbmem.data import ImageSet
from vbmem.errors import DataError, ModelError
from vbmem.paper import figures
from vbmem.paper.figures import SCALE, Figure, Scene, Size
from vbmem.pretrained import Baseline, Model
from vbmem.sheets import GAP, TITLE

FRAME, STEPS = 16, 3
FALLBACK = "without CIFAR-10: using crops of scikit-learn's photographs"
MIXTURE, TREE = "cifar10-mixture", "cifar10-tree"
# The paper's figures of fewer pictures.
figure3 = replace(figures.figure3, size=Size(16, 16, 4))
figure4 = replace(figures.figure4, size=Size(14, 4, STEPS + 4))
figure5 = replace(figures.figure5, size=Size(48, 36, 6, 5))
figure6 = replace(figures.figure6, size=Size(80, 32, 16, 7))
FILES: dict[Figure, list[str]] = {
    figure3: ["figure3-tiny-mixture.png", "figure3-tiny-tree.png"],
    figure4: [
        f"figure4-tiny-{kind}{ending}" for kind in ("mixture", "tree") for ending in (".png", ".gif", "-nearest.png")
    ],
    figure5: ["figure5.png", "figure5-episode.png"],
    figure6: ["figure6.png", "figure6-episode.png"],
}
every_figure = pytest.mark.parametrize("figure", FILES, ids=lambda figure: figure.draw.__name__)


def draw(
    figure: Figure,
    out: Path,
    models: str | list[str] | None = None,
    data_dir: Path | None = None,
    seed: int = 0,
    console: Console | None = None,
) -> list[Path]:
    """Of both models where the figure's files name the model, as in the paper."""
    if models is None:
        models = [MIXTURE, TREE] if figure in (figure3, figure4) else MIXTURE
    return figure(out, models, data_dir, seed, console or silent())


def tiny(name: str) -> Model | Baseline:
    if name in ("vae", "statistician", "dkm"):
        return Baseline(tiny_network(name, size=FRAME, spread=0.1), name=name)
    return tiny_model(name.removeprefix("cifar10-"), size=FRAME, called=name.replace("cifar10", "tiny"))


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(figures, "load_any", tiny)
    monkeypatch.setattr(figures, "STEPS", STEPS)
    monkeypatch.setattr("vbmem.sheets.FONT_SIZE", 3)  # so that no title is wider than its panel


@pytest.fixture
def held_out():
    return noise(100, FRAME)


@pytest.fixture
def data_dir(tmp_path, held_out):
    ImageSet("cifar10", 255 - held_out[:10], x_test=held_out).save(tmp_path / "data" / "cifar10.npz")
    return tmp_path / "data"


def silent() -> Console:
    return Console(record=True, file=io.StringIO(), width=200)


def side(frames: int, scale: int = SCALE) -> int:
    """Of a row or column of so many frames, in screen pixels."""
    return (frames * (FRAME + 1) + 1) * scale


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def cells(sheet: np.ndarray, left: int, top: int, columns: int, rows: int, scale: int = SCALE) -> np.ndarray:
    """The frames of a grid, at their own size: [rows * columns, FRAME, FRAME, 3]."""
    corners = [(left + side(c, scale), top + side(r, scale)) for r in range(rows) for c in range(columns)]
    reach = scale * FRAME
    return np.stack([sheet[y : y + reach : scale, x : x + reach : scale] for x, y in corners])


def which(shown: np.ndarray, pictures: np.ndarray) -> list[int]:
    """Where the shown frames stand among the pictures, from which they do not differ."""
    distance = np.abs(shown[:, None] - pictures[None].astype(int)).max((-3, -2, -1))
    assert distance.min(1).max() == 0
    return distance.argmin(1).tolist()


@every_figure
def test_leaves_the_promised_files_and_nothing_else(figure: Figure, tmp_path: Path) -> None:
    out, console = tmp_path / "new" / "out", silent()
    files = draw(figure, out, console=console)
    assert files == [out / name for name in FILES[figure]]
    assert sorted(out.iterdir()) == sorted(files)
    assert all(str(file) in console.export_text(clear=False) for file in files)


@every_figure
@pytest.mark.parametrize("source", ["photographs", "cifar10"])
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    figure: Figure, source: str, tmp_path: Path, data_dir: Path
) -> None:
    chosen = data_dir if source == "cifar10" else None
    first, again, other = (
        [file.read_bytes() for file in draw(figure, tmp_path / str(run), data_dir=chosen, seed=seed)]
        for run, seed in enumerate((5, 5, 6))
    )
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


@every_figure
def test_says_once_that_it_falls_back_on_photographs(figure: Figure, tmp_path: Path, data_dir: Path) -> None:
    with_photographs, with_data = silent(), silent()
    draw(figure, tmp_path / "out", console=with_photographs)
    draw(figure, tmp_path / "out", data_dir=data_dir, console=with_data)
    assert with_photographs.export_text().count(FALLBACK) == 1
    assert FALLBACK not in with_data.export_text()


@every_figure
def test_a_directory_without_cifar10_is_one_clear_error(figure: Figure, tmp_path: Path, data_dir: Path) -> None:
    (data_dir / "cifar10.npz").rename(data_dir / "celeba.npz")  # another set must never take its place
    with pytest.raises(DataError, match=r"data holds no cifar10\.npz or cifar-10-python\.tar\.gz; name"):
        draw(figure, tmp_path / "out", data_dir=data_dir)
    assert not (tmp_path / "out").exists()


def test_figure3_shows_samples_above_an_episode_of_different_held_out(
    tmp_path: Path, data_dir: Path, held_out: np.ndarray
) -> None:
    mixture, tree = (pixels(file) for file in draw(figure3, tmp_path, data_dir=data_dir))
    top = TITLE + side(4) + GAP + TITLE
    assert mixture.shape == tree.shape == (top + side(4), side(4), 3)
    episodes = [which(cells(sheet, 0, top, 4, 4), held_out) for sheet in (mixture, tree)]
    assert len(set(episodes[0])) == 16
    assert episodes[0] == episodes[1]
    assert len(np.unique(cells(mixture, 0, TITLE, 4, 4), axis=0)) == 16


@pytest.mark.parametrize("kind", ["vae", "statistician", "dkm"])
def test_figure3_shows_what_a_model_without_memory_makes_of_the_episode(
    kind: str, tmp_path: Path, data_dir: Path, held_out: np.ndarray
) -> None:
    (file,) = draw(figure3, tmp_path, kind, data_dir=data_dir)
    assert file.name == f"figure3-{kind}.png"
    sheet, panel = pixels(file), TITLE + side(4) + GAP
    assert sheet.shape == (3 * panel - GAP, side(4), 3)
    samples, reconstructions, episode = (cells(sheet, 0, n * panel + TITLE, 4, 4) for n in range(3))
    assert len(np.unique(samples, axis=0)) == 16
    frames = held_out[which(episode, held_out)]
    same = Baseline(tiny_network(kind, size=FRAME, spread=0.1), kind).reconstruct(frames.transpose(0, 3, 1, 2))
    assert which(reconstructions, (255 * same).round().numpy().transpose(0, 2, 3, 1)) == list(range(16))


@pytest.mark.parametrize("figure", [figure4, figure5, figure6], ids=lambda figure: figure.draw.__name__)
def test_figures_of_reading_need_a_memory(figure: Figure, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"^vae has no memory, which figure\d shows; choose a memory model$"):
        draw(figure, tmp_path, "vae")


def test_figure4_ends_every_chain_with_its_nearest_neighbour(
    tmp_path: Path, data_dir: Path, held_out: np.ndarray
) -> None:
    sheet = pixels(draw(figure4, tmp_path, [MIXTURE], data_dir=data_dir)[0])
    top = TITLE + side(2) + GAP + TITLE
    assert sheet.shape == (top + side(4), side(STEPS + 4), 3)
    episode = which(cells(sheet, 0, TITLE, STEPS + 4, 2), held_out)
    neighbours = which(cells(sheet, side(STEPS + 4) - side(1), top, 1, 4), held_out)
    last = cells(sheet, side(1) + SCALE * FRAME, top, STEPS, 4)[STEPS - 1 :: STEPS]
    frames = held_out[episode].astype(int)
    distances = np.sqrt(np.square(last[:, None] - frames).sum((-3, -2, -1)))  # [chains, T]
    for distance, neighbour in zip(distances, neighbours, strict=True):
        assert distance[episode.index(neighbour)] <= 1.001 * distance.min()  # saving rounds the shown pixels


def test_figure4_has_the_nearest_written_picture_under_every_new_one(
    tmp_path: Path, data_dir: Path, held_out: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "PAIRS", 7)
    sheet = pixels(draw(figure4, tmp_path, [MIXTURE], data_dir=data_dir)[2])
    assert sheet.shape == (TITLE + side(2), side(7), 3)
    new, old = np.split(cells(sheet, 0, TITLE, 7, 2), 2)
    scene = Scene(Size(14, 4, 7), tiny_model(size=FRAME), data_dir, seed=0)
    frames = (scene.pictures / 1).movedim(1, -1).numpy()
    distances = np.square(new[:, None] - frames).sum((-3, -2, -1))  # [samples, T]
    for distance, shown in zip(distances, which(old, frames), strict=True):
        assert distance[shown] <= 1.001 * distance.min()
    assert len(np.unique(new, axis=0)) == 7


def test_chains_draw_memory_addresses_and_codes_at_every_step() -> None:
    scene = Scene(Size(14, 4, 7), tiny_model(size=FRAME), None, seed=5)
    assert scene.generator.initial_seed() == 5
    shown, model, memory = scene.samples(), scene.model, scene.memory
    before = scene.generator.get_state()
    chains = scene.reads(shown)
    scene.generator.set_state(before)
    for step in chains:
        codes = memory.read(model.encode(shown).mean, scene.generator)  # draws by default
        shown = model.decode(codes)
        assert torch.equal(step, shown)


@pytest.mark.parametrize(("kind", "choice"), [("mixture", "prior"), ("tree", "usage")])
def test_as_in_the_paper_clusters_are_alike_and_pixels_drawn_also_in_chains(kind: str, choice: Any) -> None:
    scene = Scene(Size(14, 4, 7), tiny_model(kind, size=FRAME), None, 5, as_in_paper=True)
    model, memory, before = scene.model, scene.memory, scene.generator.get_state()
    shown = scene.samples()
    chains = scene.reads(shown)
    scene.generator.set_state(before)
    draws: Any = {"sample_pixels": True, "generator": scene.generator}
    assert torch.equal(model.generate(memory, 4, reads=0, choice=choice, **draws), shown)
    for step in chains:
        codes = memory.read(model.encode(shown).mean, scene.generator)
        shown = model.decode(codes, sample=True, generator=scene.generator)
        assert torch.equal(step, shown)


@every_figure
def test_as_in_the_paper_files_have_names_of_their_own(figure: Figure, tmp_path: Path) -> None:
    ours, paper = tmp_path / "ours", tmp_path / "paper"
    draw(figure, ours, MIXTURE)
    files = figure(paper, MIXTURE, None, 0, silent(), as_in_paper=True)
    for file in files:
        other = ours / file.name.replace("-as-in-paper", "")
        assert file.name != other.name
        assert (file.read_bytes() == other.read_bytes()) == ("episode" in file.name)
    assert sorted(paper.iterdir()) == sorted(files)


def test_the_animation_shows_every_step_and_holds_the_last(tmp_path: Path) -> None:
    animation: Any
    with Image.open(draw(figure4, tmp_path, [TREE])[1]) as animation:
        assert animation.size == (side(2), TITLE + side(2))
        assert animation.n_frames == STEPS
        assert animation.info["loop"] == 0  # for ever
        durations = []
        for step in range(STEPS):
            animation.seek(step)
            durations.append(animation.info["duration"])
    assert durations[-1] > 4 * max(durations[:-1])


@pytest.mark.parametrize("model", [MIXTURE, TREE])
def test_figure5_shows_memory_samples_and_reads_side_by_side(model: str, tmp_path: Path) -> None:
    sheet, episode = (pixels(file) for file in draw(figure5, tmp_path, model))
    memory = sheet.shape[1] - 2 * (GAP + side(6))
    assert sheet.shape[0] > TITLE + side(6)  # the axes have numbers below
    red, blue = sheet[:, :memory, 0], sheet[:, :memory, 2]
    assert (red > blue + 50).sum() > 500
    assert (blue > red + 50).sum() > 500
    assert (sheet[TITLE + side(6) :, memory:] == 255).all()
    samples, reads = (cells(sheet, left, TITLE, 6, 6) for left in (memory + GAP, memory + 2 * GAP + side(6)))
    assert len(np.unique(np.concatenate([samples, reads]), axis=0)) == 2 * 36
    assert episode.shape == (TITLE + side(2, scale=1), side(32, scale=1), 3)


def test_figure6_shows_samples_above_their_reads(tmp_path: Path, data_dir: Path, held_out: np.ndarray) -> None:
    sheet, episode = (pixels(file) for file in draw(figure6, tmp_path, data_dir=data_dir))
    assert sheet.shape == (2 * (TITLE + side(2)) + GAP, side(16), 3)
    samples, reads = (cells(sheet, 0, top, 16, 2) for top in (TITLE, TITLE + side(2) + GAP + TITLE))
    assert len(np.unique(np.concatenate([samples, reads]), axis=0)) == 2 * 32
    assert episode.shape == (TITLE + side(2, scale=1), side(40, scale=1), 3)
    assert len(set(which(cells(episode, 0, TITLE, 40, 2, scale=1), held_out))) == 80
