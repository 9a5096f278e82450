"""Files that people drop onto the page, as frames. Nothing is unpacked to disk, nothing is read beyond the limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import torch
from torch import Tensor

from vbmem.data.decoding import is_picture_name, opened_picture, read_picture
from vbmem.data.image_set import Images
from vbmem.errors import DataError
from vbmem.files import reading
from vbmem.models import FrameFormat

MEGABYTE = 2**20
MAX_FILE = 50 * MEGABYTE
MAX_UNPACKED = 500 * MEGABYTE  # all pictures of a zip together
MAX_PICTURES = 1000
MAX_PIXELS = 50_000_000


@dataclass(frozen=True)
class Upload:
    frames: Tensor  # uint8 [T, channels, H, W]
    names: tuple[str, ...]
    left_out: int
    """Files in zips that are not pictures."""


def read_uploads(paths: Sequence[Path], frame: FrameFormat) -> Upload:
    """The pictures of files and zips, in their order, cropped and resized to the model's frames."""
    pictures: list[tuple[str, Images]] = []
    left_out = 0
    for path in paths:
        if path.stat().st_size > MAX_FILE:
            raise DataError(f"{path.name} is larger than {MAX_FILE // MEGABYTE} MB; give a smaller file")
        if path.suffix.lower() == ".zip":
            left_out += _read_zip(path, frame, pictures)
        else:
            _check_count(len(pictures) + 1)
            pictures.append((path.name, _read(path, path.name, frame)))
    if not pictures:
        raise DataError("no pictures were given; expected PNG, JPEG or other picture files, or a zip of them")
    names, pixels = zip(*pictures, strict=True)
    return Upload(torch.from_numpy(np.stack(pixels)).movedim(-1, 1), names, left_out)


def _read_zip(path: Path, frame: FrameFormat, pictures: list[tuple[str, Images]]) -> int:
    """Adds the pictures of a zip; how many of its files are not pictures."""
    with reading(Path(path.name), DataError, "a zip", "pack the pictures again"), ZipFile(path) as archive:
        files = {info: PurePosixPath(info.filename) for info in archive.infolist() if not info.is_dir()}
        packed = [i for i, name in files.items() if is_picture_name(name) and "__MACOSX" not in name.parts]
        _check_count(len(pictures) + len(packed))
        _check_sizes(path.name, packed)
        for info in packed:
            name = files[info].name
            with archive.open(info) as file:
                content = file.read(info.file_size)  # without a number, zipfile unpacks whatever is there
            pictures.append((name, _read(BytesIO(content), name, frame)))
        return len(files) - len(packed)


def _check_count(count: int) -> None:
    if count > MAX_PICTURES:
        raise DataError(f"there are more than {MAX_PICTURES} pictures; give fewer at a time")


def _check_sizes(name: str, pictures: list[ZipInfo]) -> None:
    """By the archive's own list, before anything is unpacked."""
    largest, total = max((info.file_size for info in pictures), default=0), sum(info.file_size for info in pictures)
    if largest > MAX_FILE or total > MAX_UNPACKED:
        limits = f"{MAX_FILE // MEGABYTE} MB a picture and {MAX_UNPACKED // MEGABYTE} MB in all"
        raise DataError(f"{name} would unpack to {total / MEGABYTE:,.0f} MB; the limits are {limits}")
    # Of the other methods zipfile unpacks more than it was asked for.
    if any(info.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or info.flag_bits & 1 for info in pictures):
        raise DataError(f"{name} is encrypted or packed in an unusual way; pack the pictures as a plain zip")


def _read(file: Path | BytesIO, name: str, frame: FrameFormat) -> Images:
    with opened_picture(file, name) as image:
        if image.width * image.height > MAX_PIXELS:
            size = f"{image.width} x {image.height}"
            raise DataError(f"{name} has {size} pixels, more than {MAX_PIXELS // 10**6} million; shrink it first")
        image.load()  # here, so that damage is reported under the picture's own name
        return read_picture(image, frame.size, frame.channels)
