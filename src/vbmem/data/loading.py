"""One door to every image set: a known name, an .npz file, a folder of pictures, or an array."""

import difflib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vbmem.data.decoding import fitted, read_folder
from vbmem.data.image_set import ImageSet, with_channel_axis
from vbmem.data.known import KNOWN_SETS
from vbmem.errors import DataError

FOLDER_SIZE = 32  # pixels a side of pictures from a folder, unless another size is given: the paper's size


def load_images(
    source: str | os.PathLike[str] | npt.NDArray[Any],
    data_dir: str | os.PathLike[str] | None = None,
    size: int | None = None,
    progress: bool = True,
    subset: str | None = None,
    broken: list[Path] | None = None,
) -> ImageSet:
    """Load an image set.

    Args:
        source: the name of a known set (cifar10, celeba, mnist, fashion-mnist, omniglot, digits), or the path
            of an .npz file or of a folder of pictures, or a uint8 array [N, H, W] or [N, H, W, C]. A known
            name wins over a folder of that name: write ./digits for the folder.
        data_dir: where known sets are kept; by default the directory named by the variable VBMEM_DATA, or
            else the user's cache. A set that is not there yet is downloaded into it.
        size: crop every picture to its central square and resize it to this many pixels a side. By default
            a folder's pictures become 32 x 32 and all others stay as they are stored.
        progress: show progress bars on standard error.
        subset: a named part of a known set; celeba has five-each, 46,715 faces, five of each of 9,343 people.
        broken: a list for the names of pictures in a folder that cannot be read and are left out; without one, such a
            picture is an error.

    Raises:
        DataError: for a set that cannot be found, read or downloaded, or one without that subset.
    """
    if size is not None and size < 1:
        raise DataError(f"size is {size}; expected a positive number of pixels a side")
    subsets = KNOWN_SETS[source].subsets if isinstance(source, str) and source in KNOWN_SETS else {}
    if subset is not None and subset not in subsets:
        raise DataError(_no_subset(source, subset, subsets))
    if isinstance(source, np.ndarray):
        images = ImageSet("array", with_channel_axis(source))
    elif source in KNOWN_SETS:
        images = _load_known(str(source), data_directory(data_dir), progress)
    elif Path(source).is_dir():
        return read_folder(Path(source), FOLDER_SIZE if size is None else size, progress, broken=broken)
    elif Path(source).is_file():
        images = ImageSet.from_npz(source)
    else:
        raise DataError(_nothing_called(os.fspath(source)))
    if subset is not None:
        images = subsets[subset](images)
    return images if size is None else _resized(images, size)


def _load_known(name: str, data_dir: Path, progress: bool) -> ImageSet:
    known = KNOWN_SETS[name]
    if stored := known.stored_in(data_dir):
        return replace(ImageSet.from_npz(stored), name=name)
    images = known.load(data_dir, progress)
    if known.stored_as:
        images.save(data_dir / known.stored_as[0])
    return images


def data_directory(data_dir: str | os.PathLike[str] | None) -> Path:
    """Where data sets are kept: as given, else VBMEM_DATA, else the user's cache."""
    if chosen := data_dir or os.environ.get("VBMEM_DATA"):
        return Path(chosen).expanduser()
    import pooch  # only here: it loads tqdm, which warns in notebooks

    return Path(pooch.os_cache("vbmem"))


def _resized(images: ImageSet, size: int) -> ImageSet:
    channels = images.x_train.shape[-1]
    parts = {name: getattr(images, name) for name in ("x_train", "x_valid", "x_test")}
    resized: dict[str, Any] = {name: fitted(x, size, channels) for name, x in parts.items() if x is not None}
    return replace(images, **resized)


def _nothing_called(source: str) -> str:
    nearest = difflib.get_close_matches(source.lower(), KNOWN_SETS, n=1)
    advice = f"did you mean {nearest[0]!r}?" if nearest else "check the spelling"
    known = ", ".join(KNOWN_SETS)
    return f"{source!r} is neither a known image set ({known}) nor an existing file or folder; {advice}"


def _no_subset(source: str | os.PathLike[str] | npt.NDArray[Any], subset: str, known: Iterable[str]) -> str:
    name = "an array" if isinstance(source, np.ndarray) else os.fspath(source)
    return f"{name} has no subset {subset!r}; choose {' or '.join([*known, 'none'])}"
