"""Whatever people have as pictures, as frames for a model."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from vbmem.data.decoding import Picture, read_folder, readable
from vbmem.errors import DataError
from vbmem.models import FrameFormat

ROUNDING = 1e-4  # beyond black and white, as filters leave it

Pictures: TypeAlias = Tensor | npt.NDArray[Any] | Picture | Sequence[Picture]


def as_frames(images: Pictures, frame: FrameFormat, broken: list[Path] | None = None) -> Tensor:
    """Frames [T, channels, H, W], uint8 or float in [0, 1]: arrays as they are, pictures cropped and resized.

    Args:
        images: a tensor or array [T, channels, H, W] (or one frame without T), uint8 or float in [0, 1]; a folder;
            a picture or a list of pictures, each a file or a PIL image.
        frame: what frames of the model look like.
        broken: a list for the pictures that cannot be read and are left out, those of a folder by their names in it;
            without one, such a picture is an error.
    """
    if isinstance(images, np.ndarray):
        if images.dtype.kind not in "biuf":
            raise ValueError(f"frames must be uint8 or floating-point in [0, 1], got an array of {images.dtype}")
        images = torch.from_numpy(np.array(images))  # copied: torch takes neither read-only nor mirrored arrays
    if isinstance(images, Tensor):
        return _checked(images, frame)
    if isinstance(images, (str, os.PathLike)) and Path(images).is_dir():
        pixels = read_folder(Path(images), frame.size, progress=True, channels=frame.channels, broken=broken).x_train
    else:
        named = ((picture, picture) for picture in _listed(images))
        read = [picture for _, picture in readable(named, frame.size, frame.channels, broken)]
        if not read:
            raise DataError("none of the pictures can be read; replace them with intact ones")
        pixels = np.stack(read)
    return torch.from_numpy(pixels).movedim(-1, 1)


def to_unit(frames: Tensor, frame: FrameFormat) -> Tensor:
    """Frames as in training: bytes as the middle of the interval that dequantisation fills, (x + 1/2) / 256, floats
    as they are; for a model of binary frames rounded to 0 or 1."""
    unit = (frames.float() + 0.5) / 256 if frames.dtype == torch.uint8 else frames.float()
    return unit.round() if frame.likelihood == "bernoulli" else unit


def check_known(known: Tensor, frames: Tensor) -> None:
    """Raise ValueError unless a mask says of the pixels of frames [T, channels, H, W] which are known."""
    sizes = zip(known.shape[::-1], frames.shape[::-1], strict=False)
    if known.dtype != torch.bool or known.ndim > 4 or any(size not in (1, full) for size, full in sizes):
        got = f"{known.dtype} {list(known.shape)}"
        raise ValueError(f"known must be boolean and broadcastable to {list(frames.shape)}, got {got}")


def _listed(images: Any) -> Sequence[Picture]:
    pictures = images if isinstance(images, Sequence) and not isinstance(images, str) else [images]
    if not pictures:
        raise DataError("no pictures were given; expected at least one")
    for picture in pictures:
        if not isinstance(picture, (str, os.PathLike, Image.Image)):
            raise ValueError(
                f"pictures must be files or PIL images, got {type(picture).__name__}; arrays are given as one, "
                "[T, channels, H, W]"
            )
    return pictures


def _checked(frames: Tensor, frame: FrameFormat) -> Tensor:
    shape, given = (frame.channels, frame.size, frame.size), list(frames.shape)
    if frames.ndim == 3:
        frames = frames.unsqueeze(0)
    if frames.ndim != 4 or tuple(frames.shape[1:]) != shape:
        expected = ", ".join(map(str, shape))
        advice = "give files or PIL images to have them resized"
        if tuple(frames.shape[1:]) == (frame.size, frame.size, frame.channels):
            advice = "channels come before height and width"
        elif tuple(frames.shape[1:]) == shape[1:] and frame.channels == 1:
            advice = "grey pictures have a dimension of one channel, [T, 1, height, width]"
        raise ValueError(f"expected frames of shape [T, {expected}], got {given}; {advice}")
    if not len(frames):
        raise ValueError("no frames were given; expected at least one")
    if frames.dtype == torch.uint8:
        return frames
    if not frames.is_floating_point():
        raise ValueError(f"frames must be uint8 or floating-point in [0, 1], got {frames.dtype}")
    low, high = float(frames.min()), float(frames.max())
    if -ROUNDING <= low <= high <= 1 + ROUNDING:
        return frames if 0 <= low <= high <= 1 else frames.clamp(0, 1)
    advice = "divide bytes by 255" if high > 2 else "map [-1, 1] by (x + 1) / 2" if low < 0 else "clamp them"
    if math.isnan(low):
        raise ValueError("frames hold NaN; mend them or leave those frames out")
    raise ValueError(f"floating-point frames must lie in [0, 1], got {low:g} to {high:g}; {advice}")
