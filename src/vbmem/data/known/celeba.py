"""CelebA: 202,599 aligned faces (Liu et al., 2015); the central 108 x 108 made 32 x 32 as in the paper.

The official files are on Google Drive, out of reach of a program, so the user brings them.

The crop is the reference code's, the resize is not. Ours is Pillow's bilinear one, which averages over the pixels that
fall together when it shrinks, rounded to bytes. The reference code has TensorFlow 1's bilinear one with legacy corners,
which looks at four pixels only, does not antialias, and keeps floats: its faces are sharper, and aliased.
"""

import io
import zipfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vbmem.data.decoding import opened_picture
from vbmem.data.image_set import Images, ImageSet, Labels
from vbmem.errors import DataError
from vbmem.files import reading
from vbmem.progress import track

FACES = "img_align_celeba.zip"
PARTITION = "list_eval_partition.txt"
IDENTITIES = "identity_CelebA.txt"
CROP = 108
SIZE = 32
PARTS = {"train": 162_770, "valid": 19_867, "test": 19_962}  # faces in the official parts, by file number
FIVE_EACH = Path(__file__).with_name("celeba-five-each.npz")  # a bit for every face


def load(data_dir: Path, progress: bool) -> ImageSet:
    """Read the faces straight out of the zip file, in the order and parts of the partition file.

    Its lines are "000001.jpg 0" with 0 for train, 1 for validation and 2 for test; those of the identities
    "000001.jpg 2880" with the number of the person, used as the label.
    """
    faces, partition, identities = (data_dir / name for name in (FACES, PARTITION, IDENTITIES))
    if not (faces.is_file() and partition.is_file()):
        raise DataError(
            f"CelebA cannot be downloaded by a program: fetch {FACES} and {PARTITION} (and {IDENTITIES} for "
            "labels) from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html and put them into "
            f"{data_dir}, or choose the directory that holds them with data_dir or the variable VBMEM_DATA"
        )
    with reading(partition):
        part_of = _numbers_by_file(partition)
        names = [[name for name, part in part_of.items() if part == number] for number in range(3)]
        if not all(names):
            raise ValueError("it does not fill the parts 0, 1 and 2")
    images = [_faces(faces, part, progress) for part in names]
    people: list[Labels | None] = [None] * 3
    if identities.is_file():
        with reading(identities):
            person_of = _numbers_by_file(identities)
            people = [np.array([person_of[name] for name in part]) for part in names]
    return ImageSet("celeba", images[0], people[0], images[2], people[2], images[1], people[1])


def five_each(images: ImageSet) -> ImageSet:
    """The 46,715 faces of our table 1: five of each of 9,343 people, in the order of their file numbers.

    Args:
        images: all faces in their official parts, as `load` gives them, or these 46,715 already, which stay.

    Returns:
        Pictures and labels of these faces, in the official parts.

    Raises:
        DataError: for anything else, judged by the number of faces in each part.
    """
    chosen = dict(zip(PARTS, np.split(_chosen_faces(), np.cumsum([*PARTS.values()])[:-1]), strict=True))
    wanted = {part: int(mask.sum()) for part, mask in chosen.items()}
    found = {part: 0 if (x := getattr(images, f"x_{part}")) is None else len(x) for part in PARTS}
    if found == wanted:
        return images
    if found != PARTS:
        raise DataError(
            f"five of each person can be picked from all of CelebA, {_counted(PARTS)}, and this file has "
            f"{_counted(found)}; give the whole set, or leave out the subset"
        )
    arrays = {f"{axis}_{part}": getattr(images, f"{axis}_{part}") for part in PARTS for axis in "xy"}
    picked: dict[str, Any] = {key: a[chosen[key[2:]]] for key, a in arrays.items() if a is not None}
    return replace(images, **picked)


def _chosen_faces() -> npt.NDArray[np.bool_]:
    """Whether a face is one of them, in the order of file numbers: [202599]."""
    with np.load(FIVE_EACH) as file:
        return np.unpackbits(file["chosen"], count=sum(PARTS.values())).astype(bool)


def _counted(parts: dict[str, int]) -> str:
    return " + ".join(f"{count:,}" for count in parts.values())


def _numbers_by_file(path: Path) -> dict[str, int]:
    """The official lists: a file name and a whole number on every line."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {name: int(number) for name, number in lines}


def _faces(path: Path, names: list[str], progress: bool) -> Images:
    with reading(path), zipfile.ZipFile(path) as archive:
        members = {PurePosixPath(member).name: member for member in archive.namelist()}
        if missing := set(names) - members.keys():
            raise ValueError(f"it lacks {min(missing)}")
        return np.stack([_face(archive, members[name]) for name in track(names, "reading CelebA", progress)])


def _face(archive: zipfile.ZipFile, member: str) -> Images:
    """The CROP x CROP pixels about (h // 2, w // 2), resized to [SIZE, SIZE, 3]."""
    name = f"{archive.filename}/{member}"
    with opened_picture(io.BytesIO(archive.read(member)), name) as image:
        if min(image.size) < CROP:
            raise DataError(f"{name} is {image.width} x {image.height}; expected an aligned face of 178 x 218")
        left, top = image.width // 2 - CROP // 2, image.height // 2 - CROP // 2
        face = image.convert("RGB").crop((left, top, left + CROP, top + CROP))
        return np.asarray(face.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
