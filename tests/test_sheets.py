"""Sheets of frames."""

from pathlib import Path

import torch
from PIL import Image

from vbmem.sheets import CLEAR, LABEL_WIDTH, TITLE, grid, labelled, save_picture, titled


def test_frames_lie_row_by_row_with_a_margin() -> None:
    frames = torch.stack([torch.full((1, 2, 3), value) for value in (0.0, 0.5, 1.0)])
    sheet = grid(frames, columns=2)
    assert sheet.size == (2 * 4 + 1, 2 * 3 + 1)
    assert sheet.getpixel((1, 1)) == (0, 0, 0)
    assert sheet.getpixel((5, 1)) == (128, 128, 128)
    assert sheet.getpixel((1, 4)) == (255, 255, 255)
    assert sheet.getpixel((0, 0)) == (255, 255, 255)


def test_colours_and_values_out_of_range_are_kept_in_range() -> None:
    frames = torch.tensor([2.0, -1.0, 0.2]).reshape(1, 3, 1, 1)
    assert grid(frames, 1).getpixel((1, 1)) == (255, 0, 51)


def test_a_saved_picture_is_an_enlarged_png(tmp_path: Path) -> None:
    save_picture(grid(torch.zeros(4, 1, 8, 8), 4, scale=3), tmp_path / "new" / "sheet.png")
    with Image.open(tmp_path / "new" / "sheet.png") as picture:
        assert picture.format == "PNG"
        assert picture.size == (3 * 37, 3 * 10)


def test_rows_and_columns_are_labelled_beside_and_over_the_pictures() -> None:
    sheet = grid(torch.zeros(6, 1, 32, 32), 3, scale=2)
    whole = labelled(sheet, ["one", "two"], ["a", "b", "c"])
    left, top = whole.width - sheet.width, whole.height - sheet.height
    assert (0 < left < 60, top) == (True, TITLE)
    assert whole.crop((left, top, whole.width, whole.height)).tobytes() == sheet.tobytes()
    beside, over = whole.crop((0, top, left, whole.height)), whole.crop((left, 0, whole.width, top))
    assert all(min(part.convert("L").tobytes()) < 128 for part in (beside, over))
    assert labelled(sheet).tobytes() == sheet.tobytes()


def test_a_label_too_long_for_its_place_is_cut() -> None:
    sheet = grid(torch.zeros(1, 1, 32, 32), 1)
    assert labelled(sheet, ["x" * 500]).width == sheet.width + LABEL_WIDTH
    assert labelled(sheet, columns=["a very long word"]).width == sheet.width


def test_names_of_files_may_hold_anything() -> None:
    sheet, odd = grid(torch.zeros(1, 1, 32, 32), 1), "a\udcff\nb"
    assert labelled(sheet, [odd], [odd]).tobytes() == labelled(sheet, ["a??b"], ["a??b"]).tobytes()
    assert titled(sheet, odd).tobytes() == titled(sheet, "a??b").tobytes()


def test_a_clear_background_lets_through_what_is_behind() -> None:
    sheet = grid(torch.zeros(1, 1, 2, 2), 1, background=CLEAR)
    assert sheet.getpixel((0, 0)) == (0, 0, 0, 0)
    assert sheet.getpixel((1, 1)) == (0, 0, 0, 255)
