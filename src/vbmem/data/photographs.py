"""Pictures to play with that need no download: crops of the two photographs scikit-learn carries."""

from __future__ import annotations

from typing import Literal

import numpy as np

from vbmem.data.decoding import read_picture
from vbmem.data.image_set import Images

Photograph = Literal["china", "flower"]
PHOTOGRAPHS: tuple[Photograph, ...] = ("china", "flower")


def photograph_crops(name: Photograph, count: int, size: int, seed: int = 0, channels: int = 3) -> Images:
    """Random squares of a photograph, from a seventh of its height up: uint8 [count, size, size, channels]."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    photograph = Image.fromarray(load_sample_image(f"{name}.jpg"))
    random = np.random.default_rng(seed)
    crops = []
    for _ in range(count):
        side = int(random.integers(photograph.height // 7, photograph.height, endpoint=True))
        left = int(random.integers(photograph.width - side, endpoint=True))
        top = int(random.integers(photograph.height - side, endpoint=True))
        crops.append(read_picture(photograph.crop((left, top, left + side, top + side)), size, channels))
    return np.stack(crops)
