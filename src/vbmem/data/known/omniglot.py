"""Omniglot: 1,623 handwritten characters, 20 drawings of each (Lake et al., 2015), made 28 x 28.

The background alphabets are the training part, the evaluation alphabets the test part. A label is the number
of a character in sorted order, counted on from the first part to the second.
"""

import io
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, ImageOps

from vbmem.data.decoding import opened_picture
from vbmem.data.download import Archive, fetch
from vbmem.data.image_set import Images, ImageSet, Labels
from vbmem.files import reading
from vbmem.progress import track

SIZE = 28
BASE_URL = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/"


def _archive(file: str, md5: str) -> Archive:
    return Archive(BASE_URL + file, md5, f"omniglot/{file}")


BACKGROUND = _archive("images_background.zip", "68d2efa1b9178cc56df9314c21c6e718")
EVALUATION = _archive("images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811")


def load(data_dir: Path, progress: bool) -> ImageSet:
    background, evaluation = (fetch(archive, data_dir, progress) for archive in (BACKGROUND, EVALUATION))
    return decode(background, evaluation, progress)


def decode(background: Path, evaluation: Path, progress: bool) -> ImageSet:
    """Read the drawings straight out of the two official zip files."""
    x_train, y_train = _drawings(background, progress)
    x_test, y_test = _drawings(evaluation, progress)
    return ImageSet("omniglot", x_train, y_train, x_test, y_test + y_train.max() + 1)


def _drawings(path: Path, progress: bool) -> tuple[Images, Labels]:
    with reading(path), zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if PurePosixPath(name).match("*/*/character*/*.png"))
        if not names:
            raise ValueError("it holds no drawings ALPHABET/character*/*.png")
        drawings = [_drawing(archive, name) for name in track(names, f"reading {path.name}", progress)]
    characters = [str(PurePosixPath(name).parent) for name in names]
    return np.stack(drawings), np.unique(characters, return_inverse=True)[1]


def _drawing(archive: zipfile.ZipFile, name: str) -> Images:
    """Ink is black in the file and 255 here, [SIZE, SIZE, 1]."""
    with opened_picture(io.BytesIO(archive.read(name)), f"{archive.filename}/{name}") as image:
        ink = ImageOps.invert(image.convert("L"))
        return np.asarray(ink.resize((SIZE, SIZE), Image.Resampling.BOX))[..., None]
