"""A named set of labelled uint8 pictures, cut into parts as the paper cuts them, and its file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias, get_args
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from vbmem.data.settings import EpisodeKind, Part
from vbmem.errors import DataError
from vbmem.files import reading, whole_file

Images: TypeAlias = npt.NDArray[np.uint8]  # [N, H, W, C]
Labels: TypeAlias = npt.NDArray[np.integer[Any]]  # [N]

HARMLESS = 2**28  # bytes that any file may take when it is unpacked
MOST_PACKED = 100  # times that a larger one may grow; drawings in black and white do by 30


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Pictures [N, H, W, C] of one size, C = 1 (grey) or 3 (RGB), with one whole-number label each or none.

    `x_valid` is an official validation part where a set has one. The paper's protocol ignores it and cuts
    its own from the end of the training part, which mixes labels: see `split`.
    """

    name: str  # what the set is called in messages and on cards
    x_train: Images  # pictures to train on
    y_train: Labels | None = None  # [N], theirs
    x_test: Images | None = None  # pictures to test on
    y_test: Labels | None = None  # theirs
    x_valid: Images | None = None  # the official validation part
    y_valid: Labels | None = None  # its labels

    def __post_init__(self) -> None:
        for part in get_args(Part):
            images, labels = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if images is None and (labels is not None or part == "train"):
                raise DataError(f"{self.name}: x_{part} is missing; give the images that the labels belong to")
            if images is None:
                continue
            check_images(images, f"{self.name}: x_{part}")
            if images.shape[1:] != self.x_train.shape[1:]:
                raise DataError(
                    f"{self.name}: pictures of x_{part} have shape {images.shape[1:]} and those of x_train "
                    f"{self.x_train.shape[1:]}; bring them to one size"
                )
            if labels is not None:
                check_labels(labels, len(images), f"{self.name}: y_{part}")

    def split(self, part: Part, episodes: EpisodeKind = "shuffled") -> tuple[Images, Labels | None]:
        """Images [N, H, W, C] and labels [N] of one part, by the paper's protocol.

        train is the first 90 % of `x_train`, valid its last 10 %, test is `x_test`. Where the pictures of every label
        come one after the other, as in Omniglot, the cut moves to the nearest end of a label, unless that changes the
        size of valid by more than half: no label is then in both. Otherwise labels may be in both, also those of
        CelebA, whose people are in no order.

        Args:
            part: which.
            episodes: what it is for. By label an official validation part is taken where there is one, and train is
                all of `x_train`: of the people in CelebA, a cut would leave most only one or two pictures in
                valid, and episodes that show these again and again.
        """
        if part not in get_args(Part):
            raise DataError(f"{self.name}: there is no part {part!r}; choose train, valid or test")
        if part == "test":
            if self.x_test is None:
                raise DataError(f"{self.name} has no test images; use the part valid (--split valid) or train")
            return self.x_test, self.y_test
        if episodes == "by-label" and self.x_valid is not None:
            return (self.x_train, self.y_train) if part == "train" else (self.x_valid, self.y_valid)
        held_out = len(self.x_train) // 10
        if part == "valid" and held_out == 0:
            raise DataError(
                f"{self.name} has {len(self.x_train)} training images, too few to hold out a tenth for "
                "validation; at least 10 are needed"
            )
        cut = _between_labels(self.y_train, len(self.x_train) - held_out, held_out // 2)
        chosen = slice(cut) if part == "train" else slice(cut, None)
        return self.x_train[chosen], None if self.y_train is None else self.y_train[chosen]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the set as one .npz file, whole or not at all."""
        path = Path(path)
        arrays = {key: value for key, value in vars(self).items() if value is not None}
        try:
            with whole_file(path) as file:
                np.savez(file, **arrays)
        except OSError as error:
            raise DataError(f"{error}; choose another directory or make room") from error

    @classmethod
    def from_npz(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file written by `save`, or any .npz with x_train and optionally y_train, x_test, y_test, ...

        Grey pictures may lack the channel axis. Without a stored name, the set is called after the file.
        """
        path = Path(path)
        if not path.is_file():
            raise DataError(f"there is no file {path}; give the path of an .npz file of images")
        # The file is opened here because numpy leaves its own handle open when the zip is damaged.
        with reading(path), path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile) or "x_train" not in loaded:
                raise DataError(
                    f"{path} is not a file of images; expected an .npz with the array x_train (for single "
                    "pictures, give the folder they are in)"
                )
            _check_packing(path, sum(member.file_size for member in ZipFile(file).infolist()))
            keys = [f"{axis}_{part}" for part in get_args(Part) for axis in "xy"]
            arrays = {key: loaded[key] for key in keys if key in loaded}
            name = str(loaded["name"]) if "name" in loaded else path.stem
        arrays = {key: with_channel_axis(a) if key[0] == "x" else a for key, a in arrays.items()}
        try:
            return cls(name, **arrays)
        except DataError as error:
            raise DataError(f"{path} does not hold a usable image set: {error}") from error


def _check_packing(path: Path, unpacked: int) -> None:
    """Raise DataError for a file made to fill the memory, by the size it says it has when it is unpacked; no more than
    that is ever read."""
    size = path.stat().st_size
    if unpacked > max(HARMLESS, MOST_PACKED * size):
        raise DataError(
            f"{path} would grow from {size / 1e6:.3g} MB to {unpacked / 1e6:.0f} MB when it is unpacked, more than "
            "pictures do; if you trust it, save it again without compression (numpy.savez)"
        )


def _between_labels(labels: Labels | None, cut: int, reach: int) -> int:
    """The end of a label nearest to `cut`, if each label is one run and that end is no farther than `reach`."""
    if labels is None:
        return cut
    ends = np.flatnonzero(labels[1:] != labels[:-1]) + 1
    if len(ends) == 0 or len(ends) + 1 > len(np.unique(labels)):
        return cut
    nearest = int(ends[np.abs(ends - cut).argmin()])
    return nearest if abs(nearest - cut) <= reach else cut


def with_channel_axis(images: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N, H, W] -> [N, H, W, 1]; anything else unchanged."""
    return images[..., None] if images.ndim == 3 else images


def check_images(images: npt.NDArray[Any], what: str) -> None:
    """Insist on a non-empty uint8 array [N, H, W, C], C = 1 or 3."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] not in (1, 3) or images.size == 0:
        raise DataError(
            f"{what} is {images.dtype} {list(images.shape)}; expected a non-empty uint8 array [N, H, W, C] "
            "with C = 1 (grey) or 3 (RGB)"
        )


def check_labels(labels: npt.NDArray[Any], count: int, what: str) -> None:
    """Insist on one whole number for each of `count` images."""
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{what} is {labels.dtype} {list(labels.shape)}; expected one whole number for each of the {count} images"
        )
