import hashlib
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vbmem.data import load_images
from vbmem.data.download import Archive
from vbmem.data.known import omniglot
from vbmem.errors import DataError


def drawing(row):
    """An official drawing: 105 x 105, one bit, black ink (here one thick line) on white."""
    pixels = np.full((105, 105), True)
    pixels[row : row + 15] = False
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_zip(path, folder, characters, drawings=2):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../outside.png", b"x")
        archive.writestr(f"__MACOSX/{folder}/._Greek", b"x")
        for i, character in enumerate(reversed(characters)):
            for j in range(drawings):
                archive.writestr(f"{folder}/{character}/{i:04}_{j:02}.png", drawing(15 * j))


@pytest.fixture
def zips(tmp_path):
    paths = [tmp_path / archive.file for archive in (omniglot.BACKGROUND, omniglot.EVALUATION)]
    paths[0].parent.mkdir()
    write_zip(paths[0], "images_background", ["Greek/character01", "Greek/character02", "Latin/character01"])
    write_zip(paths[1], "images_evaluation", ["Ge_ez/character01"])
    return paths


def decode(background: Path, evaluation: Path) -> Any:
    return omniglot.decode(background, evaluation, progress=False)


def test_the_two_zips_become_a_set(zips, tmp_path, monkeypatch, no_network):
    for name, path in zip(["BACKGROUND", "EVALUATION"], zips, strict=True):
        official = getattr(omniglot, name)
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        monkeypatch.setattr(omniglot, name, Archive(official.url, md5, official.file))
    images: Any = load_images("omniglot", data_dir=tmp_path, progress=False)
    assert images.x_train.shape == (6, 28, 28, 1)
    assert images.y_train.tolist() == [0, 0, 1, 1, 2, 2]
    assert images.y_test.tolist() == [3, 3]
    assert sorted(os.listdir(tmp_path)) == ["omniglot", "omniglot.npz"]


def test_ink_is_bright_and_lines_are_averaged(zips):
    first, second = decode(*zips).x_test[..., 0]
    assert (first[:4] == 255).all()
    assert (first[4:] == 0).all()
    assert (second[4:8] == 255).all()


@pytest.mark.parametrize("damage", [lambda whole: whole[:-30], lambda whole: b"", lambda whole: b"text"])
def test_a_damaged_zip_is_named(zips, damage):
    zips[1].write_bytes(damage(zips[1].read_bytes()))
    with pytest.raises(DataError, match=r"images_evaluation\.zip is damaged .* delete it"):
        decode(*zips)


def test_a_zip_without_drawings_is_named(zips):
    write_zip(zips[0], "images_background", [])
    with pytest.raises(DataError, match=r"images_background\.zip .* holds no drawings"):
        decode(*zips)


def test_a_drawing_that_is_no_picture_is_named(zips):
    with zipfile.ZipFile(zips[0], "a") as archive:
        archive.writestr("images_background/Greek/character01/bad.png", b"text")
    with pytest.raises(DataError, match=r"Greek/character01/bad\.png cannot be read"):
        decode(*zips)
