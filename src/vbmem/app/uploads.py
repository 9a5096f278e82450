"""Files that people drop onto the page, as frames. Nothing is unpacked to disk, nothing is read beyond the limits, and
no picture is decoded before the headers of all have told how many pixels there are."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
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
MAX_PIXELS = 50_000_000  # of one picture
MAX_PIXELS_IN_ALL = 500_000_000  # of large pictures a core decodes 40 million a second


@dataclass(frozen=True)
class Upload:
    frames: Tensor  # uint8 [T, channels, H, W]
    names: tuple[str, ...]
    left_out: int
    """Files in zips that are not pictures."""


@dataclass(frozen=True)
class _Found:
    """A picture that is not decoded yet: a file, or one inside a zip that is open."""

    name: str
    path: Path
    archive: ZipFile | None = None
    packed: ZipInfo | None = None

    def content(self) -> Path | BytesIO:
        if self.archive is None or self.packed is None:
            return self.path
        with _reading_zip(self.path), self.archive.open(self.packed) as file:
            return BytesIO(file.read(self.packed.file_size))  # without a number, zipfile unpacks whatever is there

    def pixels(self) -> int:
        """As many as its header says."""
        with opened_picture(self.content(), self.name) as image:
            if image.width * image.height > MAX_PIXELS:
                size, limit = f"{image.width} x {image.height}", f"{MAX_PIXELS // 10**6} million"
                raise DataError(f"{self.name} has {size} pixels, more than {limit}; shrink it first")
            return image.width * image.height

    def decoded(self, frame: FrameFormat) -> Images:
        with opened_picture(self.content(), self.name) as image:
            image.load()  # here, so that damage is reported under the picture's own name
            return read_picture(image, frame.size, frame.channels)


def read_uploads(paths: Sequence[Path], frame: FrameFormat) -> Upload:
    """The pictures of files and zips, in their order, cropped and resized to the model's frames."""
    with ExitStack() as opened:
        pictures: list[_Found] = []
        left_out = 0
        for path in paths:
            if path.stat().st_size > MAX_FILE:
                raise DataError(f"{path.name} is larger than {MAX_FILE // MEGABYTE} MB; give a smaller file")
            if path.suffix.lower() == ".zip":
                with _reading_zip(path):
                    archive = opened.enter_context(ZipFile(path))
                packed, others = _packed_pictures(path, archive)
                pictures += packed
                left_out += others
            else:
                pictures.append(_Found(path.name, path))
            if len(pictures) > MAX_PICTURES:
                raise DataError(f"there are more than {MAX_PICTURES} pictures; give fewer at a time")
        if not pictures:
            raise DataError("no pictures were given; expected PNG, JPEG or other picture files, or a zip of them")
        _check_pixels(pictures)
        frames = np.stack([picture.decoded(frame) for picture in pictures])
    return Upload(torch.from_numpy(frames).movedim(-1, 1), tuple(picture.name for picture in pictures), left_out)


def _reading_zip(path: Path) -> AbstractContextManager[None]:
    return reading(Path(path.name), DataError, "a zip", "pack the pictures again")


def _packed_pictures(path: Path, archive: ZipFile) -> tuple[list[_Found], int]:
    """The pictures in a zip, and how many of its files are not pictures."""
    files = {info: PurePosixPath(info.filename) for info in archive.infolist() if not info.is_dir()}
    packed = [i for i, name in files.items() if is_picture_name(name) and "__MACOSX" not in name.parts]
    _check_sizes(path.name, packed)
    return [_Found(files[info].name, path, archive, info) for info in packed], len(files) - len(packed)


def _check_sizes(name: str, pictures: list[ZipInfo]) -> None:
    """By the archive's own list, before anything is unpacked."""
    largest, total = max((info.file_size for info in pictures), default=0), sum(info.file_size for info in pictures)
    if largest > MAX_FILE or total > MAX_UNPACKED:
        limits = f"{MAX_FILE // MEGABYTE} MB a picture and {MAX_UNPACKED // MEGABYTE} MB in all"
        raise DataError(f"{name} would unpack to {total / MEGABYTE:,.0f} MB; the limits are {limits}")
    # Of the other methods zipfile unpacks more than it was asked for.
    if any(info.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or info.flag_bits & 1 for info in pictures):
        raise DataError(f"{name} is encrypted or packed in an unusual way; pack the pictures as a plain zip")


def _check_pixels(pictures: list[_Found]) -> None:
    total = 0
    for picture in pictures:
        total += picture.pixels()
        if total > MAX_PIXELS_IN_ALL:
            limit = f"{MAX_PIXELS_IN_ALL // 10**6} million"
            raise DataError(f"the pictures have more than {limit} pixels in all; give fewer, or shrink them first")
