"""CelebA: 202,599 aligned faces (Liu et al., 2015); the central 108 x 108 made 32 x 32 as in the paper.

The official files are on Google Drive, out of reach of a program, so the user brings them.
"""

import io
import zipfile
from pathlib import Path, PurePosixPath

import numpy as np
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
