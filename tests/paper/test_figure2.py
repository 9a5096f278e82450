"""Figure 2 on a small grid: the claims, the files, the format."""

import json
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from vbmem.paper.figure2 import figure2, run


def test_variational_bayes_is_ahead_in_every_cell() -> None:
    for rows, code_size in [(8, 50), (64, 50), (8, 200)]:
        for cell in run(rows, code_size, [0, 1, 2]):
            assert cell.vb > max(cell.dkm_online, cell.dkm_iterative)
            assert cell.ratio("dkm_iterative") > 1.5


def test_a_seed_gives_the_same_cell_alone_and_in_a_batch() -> None:
    (alone,), batch = run(8, 50, [3]), run(8, 50, [2, 3])
    assert alone.seed == batch[1].seed == 3
    assert alone.vb == pytest.approx(batch[1].vb, rel=1e-10)
    assert alone.dkm_online == pytest.approx(batch[1].dkm_online, rel=1e-10)


def test_leaves_two_pictures_and_the_numbers(tmp_path: Path) -> None:
    console = Console(record=True, width=100)
    figure2(tmp_path / "new", 0, 2, [8, 16], [50, 100], console)
    cells = json.loads((tmp_path / "new" / "figure2.json").read_text())["cells"]
    assert len(cells) == 2 * 2 * 2
    assert set(cells[0]) == {"rows", "code_size", "seed", "vb", "dkm_online", "dkm_iterative"}
    for name in ("figure2a.png", "figure2b.png"):
        with Image.open(tmp_path / "new" / name) as picture:
            assert min(picture.size) > 200
    assert "at least 1.64x" in console.export_text()


def test_a_longer_episode_has_files_of_its_own_that_say_its_length(tmp_path: Path) -> None:
    for length in (32, 40):
        figure2(tmp_path, 0, 1, [8], [50], Console(quiet=True), length)
    for length, mark in [(32, ""), (40, "-T40")]:
        numbers = json.loads((tmp_path / f"figure2{mark}.json").read_text())
        assert numbers["episode_length"] == length
        (cell,) = run(8, 50, [0], length)
        assert numbers["cells"][0]["vb"] == cell.vb
    pictures = {f"figure2{letter}{mark}.png" for letter in "ab" for mark in ("", "-T40")}
    assert {path.name for path in tmp_path.glob("*.png")} == pictures


def test_variational_bayes_is_ahead_in_longer_episodes_too() -> None:
    for cell in run(16, 50, [0, 1], 96):
        assert cell.vb > max(cell.dkm_online, cell.dkm_iterative)
