"""The demonstration leaves a page of pictures and says what it did."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from vbmem import WrittenMemory, demo
from vbmem.paper.presets import PRESETS


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    console = Console(record=True, width=120)
    return demo.demo(tmp_path_factory.mktemp("demo"), console), console.export_text()


def test_the_page_shows_every_picture_that_was_drawn(page: tuple[Path, str]) -> None:
    path, said = page
    shown = set(re.findall(r'<img src="([^"]+)"', path.read_text()))
    assert shown == {file.name for file in path.parent.iterdir() if file.suffix in (".png", ".gif")}
    assert len(shown) == 6
    assert str(path) in said.replace("\n", "")


def test_it_says_how_long_the_write_took_and_how_much_is_kept(page: tuple[Path, str]) -> None:
    path, said = page
    assert re.search(r"wrote 64 pictures into a memory of 114 kB: \d+ ms to encode, \d+ ms to write", said)
    memory = WrittenMemory.load(path.parent / "demo.memory")
    assert memory.frames == 64
    assert memory.nbytes == pytest.approx(114 * 1024, rel=0.02)


def test_what_was_written_scores_higher_than_another_photograph(page: tuple[Path, str]) -> None:
    found = re.search(r"mean score: (-?\d+) nats .* (-?\d+) for", page[1])
    assert found
    written, other = map(int, found.groups())
    assert written > other + 1000


def test_the_animation_has_a_frame_for_every_read(page: tuple[Path, str]) -> None:
    animation: Any
    with Image.open(page[0].parent / "reading.gif") as animation:
        assert animation.n_frames == demo.STEPS + 1


def test_a_folder_of_ones_own_makes_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "STEPS", 1)
    monkeypatch.setattr(demo, "FRAMES", 4)  # new ones that are drawn
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    console = Console(record=True, width=200)
    path = demo.demo(tmp_path / "out", console, folder)
    assert "wrote 3 pictures" in console.export_text()
    assert str(folder) in path.read_text()


def test_training_digits_leaves_three_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = PRESETS[demo.DIGITS]
    short = replace(preset, stages=(replace(preset.stages[0], epochs=1),))
    monkeypatch.setattr(demo, "get_preset", lambda name: short)
    demo.train_digits(tmp_path, Console(quiet=True))
    for name in ("episode", "recalled", "generated"):
        assert (tmp_path / f"digits-{name}.png").stat().st_size > 500
