"""Digits: 1,797 grey pictures of 8 x 8 that scikit-learn carries, for trying things out without a network."""

from pathlib import Path

import numpy as np

from vbmem.data.image_set import ImageSet

BRIGHTEST = 16  # scikit-learn's pixels run from 0 to 16


def load(data_dir: Path, progress: bool) -> ImageSet:
    """The last fifth, in scikit-learn's order, is the test part."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.rint(digits.images * (255 / BRIGHTEST)).astype(np.uint8)[..., None]
    cut = len(images) - len(images) // 5
    return ImageSet("digits", images[:cut], digits.target[:cut], images[cut:], digits.target[cut:])
