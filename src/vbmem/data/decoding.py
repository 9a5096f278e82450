"""Read pictures of any format and size into square uint8 arrays: single files and whole folders."""

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePath
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from vbmem.data.image_set import Images, ImageSet
from vbmem.errors import DataError
from vbmem.progress import track

Picture: TypeAlias = str | os.PathLike[str] | Image.Image  # a file, or one that is open

# What Pillow registers but cannot decode, or decodes by running another program (EPS by Ghostscript).
NOT_PICTURES = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "PALM", "PDF", "WMF"}

LARGEST_SIDE = 4096  # pixels of a picture after resizing; a model of larger ones fits no machine


def read_picture(source: Picture, size: int, channels: int = 3) -> Images:
    """The picture's central square as uint8 [size, size, channels]; 3 channels are RGB, 1 is grey.

    EXIF orientation is applied, 16-bit pictures are scaled to 8 bits, and transparency is laid on white.

    Args:
        source: a file, or a PIL image.
        size: pixels of a side.
        channels: 3 or 1.
    """
    if not 1 <= size <= LARGEST_SIDE or channels not in (1, 3):
        raise DataError(
            f"cannot make a picture of size {size} with {channels} channels; expected 1 to {LARGEST_SIDE} pixels a "
            "side and 1 or 3 channels"
        )
    name = "the given picture" if isinstance(source, Image.Image) else os.fspath(source)
    with opened_picture(source, name) as image:
        return _square_array(image, size, channels)


def read_folder(
    folder: Path, size: int, progress: bool, channels: int = 3, broken: list[Path] | None = None
) -> ImageSet:
    """All pictures below `folder`, sorted by path, as a training part of [N, size, size, channels].

    If every picture is in a subfolder, its label is the number of that subfolder in sorted order.

    Args:
        folder: where they are.
        size: of a side, in pixels.
        progress: show a progress bar on standard error.
        channels: 3 for RGB, 1 for grey.
        broken: a list for the paths, relative to the folder, of pictures that cannot be read and are left out; without
            one, such a picture is an error.

    Raises:
        DataError: where there are no pictures, or one cannot be read, or none can.
    """
    names = picture_names(folder)
    if not names:
        raise DataError(f"the folder {folder} holds no pictures; put PNG, JPEG or other picture files into it")
    named = ((name, folder / name) for name in track(names, "reading pictures", progress))
    read = dict(readable(named, size, channels, broken))
    if not read:
        raise DataError(f"none of the {len(names)} pictures in {folder} can be read; replace them with intact ones")
    names, pictures = list(read), list(read.values())
    labels = None
    if all(len(name.parts) > 1 for name in names):
        labels = np.unique([name.parts[0] for name in names], return_inverse=True)[1]
    return ImageSet(folder.resolve().name, np.stack(pictures), labels)


def readable(
    named: Iterable[tuple[Any, Picture]], size: int, channels: int, broken: list[Any] | None
) -> Iterator[tuple[Any, Images]]:
    """Names and pixels [size, size, channels] of the pictures that can be read; the names of others are added to
    `broken`, and without such a list each is a DataError."""
    for name, picture in named:
        try:
            pixels = read_picture(picture, size, channels)
        except DataError:
            if broken is None:
                raise
            broken.append(name)
        else:
            yield name, pixels


@contextmanager
def opened_picture(source: Picture | IO[bytes], name: str) -> Iterator[Image.Image]:
    """The picture opened by Pillow; what goes wrong with it inside the block is a DataError that names it."""
    try:
        if isinstance(source, Image.Image):
            yield source
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                image = Image.open(source, formats=_formats())
            with image:
                yield image
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no picture {name}; check the path") from error
    except PermissionError as error:
        raise DataError(f"cannot read {name}: {error.strerror}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"{name} has more than {Image.MAX_IMAGE_PIXELS} pixels; shrink it before loading or remove it"
        ) from error
    # Damaged files make Pillow's decoders raise almost anything.
    except Exception as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # it shows a file object, which means nothing to people
            reason = "unknown format"
        raise DataError(
            f"{name} cannot be read as a picture ({reason}); remove it or replace it with an intact 8-bit PNG or JPEG"
        ) from error


def fitted(pictures: Images, size: int, channels: int) -> Images:
    """Pictures [N, H, W, C] as [N, size, size, channels]; unchanged where they are."""
    if pictures.shape[1:] == (size, size, channels):
        return pictures
    images = map(Image.fromarray, pictures[..., 0] if pictures.shape[-1] == 1 else pictures)
    return np.stack([read_picture(image, size, channels) for image in images])


def _square_array(image: Image.Image, size: int, channels: int) -> Images:
    """The largest central square, resized by averaging over the pixels that fall together."""
    image = _rgb(image)
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    return np.array(square if channels == 3 else square.convert("L")).reshape(size, size, channels)


def _rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = Image.fromarray(_eight_bits(np.asarray(image)))  # Pillow's own conversion clips at 255
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no known range")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _eight_bits(grey: npt.NDArray[np.integer[Any]]) -> Images:
    """16-bit grey values as 8 bits; Pillow also keeps 16-bit pictures in 32-bit integers."""
    if grey.min() < 0 or grey.max() > 65535:
        raise ValueError("its pixels need more than 16 bits")
    return np.rint(grey / 257).astype(np.uint8)


def picture_names(folder: Path) -> list[Path]:
    """Paths relative to `folder` of the files with a picture's suffix, hidden files and folders left out."""
    return [name for name in file_names(folder) if is_picture_name(name)]


def file_names(folder: Path) -> list[Path]:
    """Paths relative to `folder` of all files in it and in folders below, also linked ones, but for hidden ones.

    Raises:
        OSError: a folder cannot be listed.
    """
    names, seen = [], {folder.resolve()}
    for place, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        here = Path(place)
        found = {here / name: (here / name).resolve() for name in folders if not name.startswith(".")}
        folders.clear()
        for path in sorted(found, key=Path.is_symlink):  # which may lead to a folder above it, or to one beside it
            if found[path] not in seen:
                seen.add(found[path])
                folders.append(path.name)
        paths = [here / name for name in files if not name.startswith(".")]
        names += [path.relative_to(folder) for path in paths if path.is_file() or path.is_symlink()]
    return sorted(names)


def _refuse(error: OSError) -> None:
    raise OSError(f"cannot list {error.filename}: {error.strerror}") from error


def is_picture_name(name: PurePath) -> bool:
    """Whether it has a picture's suffix, and neither the file nor a folder above it is hidden."""
    return name.suffix.lower() in _suffixes() and not any(part.startswith(".") for part in name.parts)


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(kind for kind in Image.ID if kind not in NOT_PICTURES)


@cache
def _suffixes() -> set[str]:
    return {suffix for suffix, kind in Image.registered_extensions().items() if kind not in NOT_PICTURES}
