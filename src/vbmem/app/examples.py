"""Pictures to begin with, in any format a model wants: crops of photographs, digits, CIFAR-10's test pictures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vbmem.data import load_images
from vbmem.data.decoding import read_picture
from vbmem.data.image_set import Images
from vbmem.data.known import KNOWN_SETS
from vbmem.data.photographs import Photograph, photograph_crops
from vbmem.errors import DataError
from vbmem.models import FrameFormat

PHOTOGRAPHS: dict[str, Photograph] = {"a temple": "china", "a flower": "flower"}
DIGITS, CIFAR10 = "digits", "CIFAR-10"


def sources(data_dir: Path | None) -> list[str]:
    """Where examples can be drawn from; CIFAR-10 only from a directory that holds it, for nothing is downloaded."""
    if data_dir is None:
        return [*PHOTOGRAPHS, DIGITS]
    if not any((data_dir / file).is_file() for file in KNOWN_SETS["cifar10"].stored_as):
        raise DataError(f"{data_dir} holds no cifar10.npz; give the directory it lies in, or leave out --data-dir")
    return [*PHOTOGRAPHS, DIGITS, CIFAR10]


def familiar_source(frame: FrameFormat) -> str:
    """What the models that come with the package are at home with."""
    return DIGITS if frame.channels == 1 else next(iter(PHOTOGRAPHS))


def unfamiliar_source(frame: FrameFormat) -> str:
    """Something else."""
    return "a flower" if frame.channels == 3 else "a temple"


def draw(source: str, count: int, frame: FrameFormat, seed: int, data_dir: Path | None = None) -> Tensor:
    """Random pictures of a source: uint8 [count, channels, H, W]."""
    if source in PHOTOGRAPHS:
        pixels = photograph_crops(PHOTOGRAPHS[source], count, frame.size, seed, frame.channels)
    else:
        from PIL import Image

        pool = _test_pictures("digits" if source == DIGITS else "cifar10", data_dir)
        chosen = np.random.default_rng(seed).choice(len(pool), min(count, len(pool)), replace=False)
        pictures = (Image.fromarray(pool[index].squeeze()) for index in chosen)
        pixels = np.stack([read_picture(picture, frame.size, frame.channels) for picture in pictures])
    return torch.from_numpy(pixels).movedim(-1, 1)


@cache
def _test_pictures(name: str, data_dir: Path | None) -> Images:
    return load_images(name, data_dir, progress=False).split("test")[0]
