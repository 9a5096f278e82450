import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tiny import noise
from vbmem.data import load_images, read_picture
from vbmem.data.decoding import picture_names, read_folder
from vbmem.errors import DataError

RED, WHITE = (255, 0, 0), (255, 255, 255)


def is_plain(picture, colour, tolerance=2):
    return np.abs(picture.astype(int) - colour).max() <= tolerance


def test_the_central_square_is_resized(tmp_path):
    image = Image.new("RGB", (60, 20), "blue")
    image.paste(RED, (20, 0, 40, 20))
    image.save(tmp_path / "a.png")
    picture = read_picture(tmp_path / "a.png", 8)
    assert picture.shape == (8, 8, 3)
    assert picture.dtype == np.uint8
    assert picture.flags.writeable
    assert is_plain(picture, RED, 0)


def test_shrinking_averages_rather_than_picks_pixels():
    checkerboard = np.indices((64, 64)).sum(0) % 2 * 255
    picture = read_picture(Image.fromarray(checkerboard.astype(np.uint8)), 8)
    assert is_plain(picture, (127, 127, 127), 4)


def test_grey_has_one_channel():
    assert is_plain(read_picture(Image.new("RGB", (9, 9), (50, 50, 50)), 4, channels=1), 50)
    assert read_picture(Image.new("L", (9, 9)), 4, channels=1).shape == (4, 4, 1)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LA", "PA"])
def test_every_common_mode_is_read_in_its_colours(mode):
    white = Image.new("RGB", (10, 10), WHITE).convert("RGBA" if mode == "PA" else "RGB").convert(mode)
    assert is_plain(read_picture(white, 4), WHITE)


def test_cmyk_jpeg(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg")
    assert is_plain(read_picture(tmp_path / "a.jpg", 4), RED)


def test_palette_with_a_transparent_colour_lies_on_white(tmp_path):
    image = Image.new("P", (10, 10), 1)
    image.putpalette([0, 0, 0, *RED])
    image.save(tmp_path / "opaque.png")
    image.save(tmp_path / "clear.png", transparency=1)
    assert is_plain(read_picture(tmp_path / "opaque.png", 4), RED, 0)
    assert is_plain(read_picture(tmp_path / "clear.png", 4), WHITE, 0)


def test_transparency_is_laid_on_white(tmp_path):
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.new("RGBA", (10, 10), (255, 0, 0, 128)).save(tmp_path / "half.png")
    assert is_plain(read_picture(tmp_path / "clear.png", 4), WHITE, 0)
    assert is_plain(read_picture(tmp_path / "half.png", 4), (255, 127, 127))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32], ids=["I;16", "I"])
def test_sixteen_bits_are_scaled_not_clipped(dtype):
    image = Image.fromarray(np.full((10, 10), 128 * 257, dtype))
    assert is_plain(read_picture(image, 4), (128, 128, 128), 0)


def test_sixteen_bit_png_file(tmp_path):
    Image.fromarray(np.full((10, 10), 65535 // 2, np.uint16)).save(tmp_path / "a.png")
    assert is_plain(read_picture(tmp_path / "a.png", 4), (127, 127, 127), 1)


@pytest.mark.parametrize("pixels", [np.full((4, 4), 70_000, np.int32), np.zeros((4, 4), np.float32)])
def test_pixels_of_unknown_range_are_refused(pixels):
    with pytest.raises(DataError, match=r"the given picture cannot be read .* 8-bit"):
        read_picture(Image.fromarray(pixels), 4)


def test_exif_orientation_is_applied(tmp_path):
    image = Image.new("RGB", (16, 16), "blue")
    image.paste(RED, (0, 0, 16, 8))  # the top half is red, and orientation 3 turns the picture upside down
    exif = Image.Exif()
    exif[0x0112] = 3
    image.save(tmp_path / "a.png", exif=exif)
    picture = read_picture(tmp_path / "a.png", 16)
    assert is_plain(picture[8:], RED, 0)


@pytest.mark.parametrize(("size", "channels"), [(0, 3), (8, 4), (1_000_000, 3)])
def test_impossible_requests_are_refused(size, channels):
    with pytest.raises(DataError, match="cannot make a picture"):
        read_picture(Image.new("L", (4, 4)), size, channels)


def test_a_missing_picture_is_named(tmp_path):
    with pytest.raises(DataError, match=r"no picture .*absent\.png"):
        read_picture(tmp_path / "absent.png", 4)


# Folders


@pytest.fixture
def folder(tmp_path):
    for name, colour in [("b.png", "red"), ("a.jpg", "blue"), ("c.gif", "white")]:
        Image.new("RGB", (20, 10), colour).save(tmp_path / name)
    return tmp_path


def test_a_folder_is_read_in_sorted_order_at_32_pixels(folder):
    images = load_images(folder, progress=False)
    assert images.x_train.shape == (3, 32, 32, 3)
    assert images.name == folder.name
    assert images.y_train is None
    assert images.x_test is None
    assert is_plain(images.x_train[0], (0, 0, 254))
    assert is_plain(images.x_train[1], RED)


def test_hidden_files_and_other_suffixes_are_skipped(folder):
    (folder / "notes.txt").write_text("hello")
    (folder / "labels.csv").write_text("a,b")
    (folder / ".hidden.png").write_text("not a picture")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "thumb.png").write_text("not a picture")
    assert len(load_images(folder, size=8, progress=False).x_train) == 3


def test_a_folder_of_one_picture(tmp_path):
    Image.new("L", (5, 7), 9).save(tmp_path / "ONE.PNG")
    assert load_images(str(tmp_path), size=4, progress=False).x_train.shape == (1, 4, 4, 3)


def test_subfolders_are_labels(tmp_path):
    for name in ["dog/1.png", "cat/2.png", "cat/old/3.png", "dog/0.png"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / name)
    images: Any = load_images(tmp_path, size=4, progress=False)
    assert images.y_train.tolist() == [0, 0, 1, 1]
    Image.new("L", (4, 4)).save(tmp_path / "stray.png")
    assert load_images(tmp_path, size=4, progress=False).y_train is None


def test_the_progress_bar_goes_to_standard_error(folder, capsys, monkeypatch):
    load_images(folder, size=4)
    assert capsys.readouterr() == ("", "")  # nobody looks
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal
    load_images(folder, size=4)
    captured = capsys.readouterr()
    assert "reading pictures" in captured.err
    assert captured.out == ""


def test_an_empty_folder_is_a_data_error(tmp_path):
    with pytest.raises(DataError, match="holds no pictures"):
        load_images(tmp_path)


@pytest.mark.parametrize("damage", ["text", "truncated", "empty", "postscript"])
def test_an_unreadable_picture_is_named(folder, damage):
    bad = folder / "bad.png"
    Image.fromarray(noise(1, size=64)[0]).save(bad)
    contents = {
        "text": b"I am a text file\n" * 100,
        "truncated": bad.read_bytes()[:-3000],
        "empty": b"",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n",
    }
    bad.write_bytes(contents[damage])
    with pytest.raises(DataError, match=r"bad\.png cannot be read as a picture .* remove it or replace it"):
        load_images(folder, progress=False)


@pytest.mark.parametrize("side", [110, 1000], ids=["Pillow would warn", "Pillow would raise"])
def test_a_picture_beyond_pillows_limit_is_one_clear_error(tmp_path, monkeypatch, side):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100 * 100)
    Image.new("1", (side, side)).save(tmp_path / "huge.png")
    with pytest.raises(DataError, match=r"huge\.png has more than 10000 pixels; shrink it"):
        load_images(tmp_path, progress=False)


def test_pictures_that_cannot_be_read_are_left_out_where_a_list_for_them_is_given(tmp_path):
    for name in ("a/1.png", "b/2.png", "b/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), RED).save(tmp_path / name)
    (tmp_path / "b" / "2.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"2\.png cannot be read"):
        read_folder(tmp_path, 8, progress=False)
    broken: list[Path] = []
    images = read_folder(tmp_path, 8, progress=False, broken=broken)
    assert broken == [Path("b/2.png")]
    assert len(images.x_train) == 2
    assert images.y_train is not None
    assert images.y_train.tolist() == [0, 1]


def test_linked_folders_are_read_once_and_links_may_go_round(folder, tmp_path):
    before = picture_names(folder)
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    Image.new("RGB", (8, 8)).save(other / "linked.png")
    (folder / "album").symlink_to(other)
    (folder / "album again").symlink_to(other)
    (other / "back").symlink_to(folder)
    (linked,) = set(picture_names(folder)) - set(before)
    assert linked.name == "linked.png"


def test_a_folder_that_cannot_be_listed_is_named(folder, monkeypatch):
    def refused(place):
        raise PermissionError(errno.EACCES, "Permission denied", str(place))

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(OSError, match=f"^cannot list {folder}: Permission denied$"):
        picture_names(folder)
