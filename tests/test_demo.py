"""The demonstration leaves a page of pictures and says what it did."""

import re
import shutil
import webbrowser
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console

from vbmem import WrittenMemory, demo
from vbmem.commands import demo as commands
from vbmem.paper.presets import PRESETS


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    console = Console(record=True, width=120)
    return demo.demo(tmp_path_factory.mktemp("demo"), console), console.export_text()


def pictures(path: Path, kind: str = "png") -> list[Any]:
    """Those that a page holds itself."""
    found = re.findall(f'src="data:image/{kind};base64,([^"]+)"', path.read_text())
    return [Image.open(BytesIO(b64decode(text))) for text in found]


def test_the_page_is_one_file_and_asks_for_nothing_else(page: tuple[Path, str]) -> None:
    path, said = page
    assert {file.name for file in path.parent.iterdir()} == {"index.html", "demo.memory"}
    assert re.findall(r'src="(?!data:)', path.read_text()) == []
    assert str(path) in said.replace("\n", "")


def test_every_row_of_pictures_has_its_label_and_eight_columns(page: tuple[Path, str]) -> None:
    text = page[0].read_text()
    for label in ("Given: 5 drawings", "Drawn from memory", "New, from memory", "Nearest written", "As it was"):
        assert f"<b>{label}" in text
    strips = pictures(page[0])
    assert {strip.width for strip in strips} == {demo.SCALE * (8 * (side + 1) + 1) for side in (28, 32)}
    assert len(strips) == 5 + demo.ROUNDS + demo.FRAMES // 8 + 2 * demo.DRAWN // 8 + 2 * 4
    assert [photograph.width for photograph in pictures(page[0], "jpeg")] == [demo.THUMBNAIL] * 2


def test_recalled_pictures_are_nearer_than_those_without_memory(page: tuple[Path, str]) -> None:
    errors = [int(number) for number in re.findall(r"error (\d+) %", page[0].read_text())]
    assert len(errors) == 6
    for damaged, alone, recalled in (errors[:3], errors[3:]):
        assert recalled < alone < damaged


def test_what_is_known_is_counted(page: tuple[Path, str]) -> None:
    written, others, strange = map(int, re.findall(r"<small>(\d+) of 64 known", page[0].read_text()))
    assert written >= others > 40 > 10 > strange
    assert 'class="threshold"' in page[0].read_text()


def test_it_leads_to_the_page_and_the_documentation_and_shows_no_metadata(page: tuple[Path, str]) -> None:
    text = page[0].read_text()
    assert {"http://127.0.0.1:7860", "https://github.com/vbmem/vbmem/tree/main/docs"} <= {
        *re.findall('href="(.*?)"', text)
    }
    assert "seed:" not in text
    assert "prefers-color-scheme: dark" in text


def test_it_says_how_long_the_write_took_and_how_much_is_kept(page: tuple[Path, str]) -> None:
    path, said = page
    assert re.search(r"wrote 64 pictures into a memory of 116 kB: \d+ ms to encode, \d+ ms to write", said)
    memory = WrittenMemory.load(path.parent / "demo.memory")
    assert memory.frames == 64
    assert memory.nbytes == pytest.approx(114 * 1024, rel=0.02)


def test_what_was_written_scores_higher_than_another_photograph(page: tuple[Path, str]) -> None:
    found = re.search(r"mean score: (-?\d+) nats .* (-?\d+) for", page[1])
    assert found
    written, other = map(int, found.groups())
    assert written > other + 1000


def test_the_animation_has_a_frame_for_every_read(page: tuple[Path, str]) -> None:
    (animation,) = pictures(page[0], "gif")
    assert animation.n_frames == demo.STEPS + 1


def test_it_fits_a_telephone_and_has_a_dark_side(page: tuple[Path, str]) -> None:
    if (chromium := shutil.which("chromium")) is None:
        pytest.skip("no Chromium found: install Debian's chromium to look at the page in a browser")
    colours = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            seen = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme=scheme)
            seen.goto(page[0].as_uri())
            assert seen.evaluate("document.documentElement.scrollWidth") == 400
            assert seen.evaluate("[...document.images].every(image => image.naturalWidth > 0 && image.alt !== null)")
            colours.add(seen.evaluate("getComputedStyle(document.body).backgroundColor"))
        browser.close()
    assert len(colours) == 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures, for a short demonstration."""
    for name in ("STEPS", "DRAWN", "ROUNDS"):
        monkeypatch.setattr(demo, name, 1)
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return folder


def test_a_folder_of_ones_own_makes_the_episode(folder: Path, tmp_path: Path) -> None:
    console = Console(record=True, width=200)
    path = demo.demo(tmp_path / "out", console, folder)
    assert "wrote 3 pictures" in console.export_text()
    assert "The pictures in pictures." in path.read_text()
    assert str(folder) not in path.read_text()
    assert len(pictures(path, "jpeg")) == 1  # the photograph that was not written


def test_broken_pictures_of_that_folder_can_be_left_out(run: Any, folder: Path, tmp_path: Path) -> None:
    (folder / "3.png").write_bytes(b"no picture")
    command = ["demo", "--images", str(folder), "--out", str(tmp_path / "out")]
    code, _, err = run(*command)
    assert (code, err.strip().endswith("or add --skip-broken")) == (2, True)
    assert not (tmp_path / "out").exists()
    code, out, err = run(*command, "--skip-broken")
    assert (code, "wrote 3 pictures" in out) == (0, True)
    assert "left out 1 of 4 pictures that cannot be read: 3.png" in err


def test_the_command_opens_the_page_where_it_is_asked_to(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(demo, "demo", lambda out, *_: out / "index.html")
    assert run("demo", "--out", str(tmp_path))[0] == 0
    assert opened == []
    assert run("demo", "--out", str(tmp_path), "--open")[0] == 0
    assert opened == [(tmp_path / "index.html").as_uri()]


def test_training_digits_leaves_three_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = PRESETS[demo.DIGITS]
    short = replace(preset, stages=(replace(preset.stages[0], epochs=1),))
    monkeypatch.setattr(demo, "get_preset", lambda name: short)
    demo.train_digits(tmp_path, Console(quiet=True))
    for name in ("episode", "recalled", "generated"):
        assert (tmp_path / f"digits-{name}.png").stat().st_size > 500


def test_a_page_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(ValueError, match=r"is no page of a demonstration.*choose another --out"):
        commands.demo(tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"
