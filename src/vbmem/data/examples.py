"""Example pictures for the demonstration, the page, figures and metrics: photographs, digits, characters, CIFAR-10.

The photographs and the digits come with scikit-learn, the characters with vbmem. CIFAR-10 is used only from a
directory that holds it: nothing is downloaded for an example. Pictures are uint8 [count, channels, size, size]; the
same seed draws the same ones.
"""

from collections.abc import Sequence
from functools import cache
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vbmem.data.decoding import fitted, read_picture
from vbmem.data.episodes import EpisodeSource
from vbmem.data.image_set import Images
from vbmem.data.known import KNOWN_SETS
from vbmem.data.loading import data_directory, load_images
from vbmem.data.settings import DataConfig
from vbmem.errors import DataError
from vbmem.nets import FrameFormat

PHOTOGRAPHS = {"a temple": "china", "a flower": "flower"}
DIGITS, CIFAR10 = "digits", "CIFAR-10"
CHARACTERS, CHARACTER_SIZE = Path(__file__).with_name("characters.png"), 28
# By channels: pictures like those that the models which come with the package were trained on, and others.
FAMILIAR = {1: DIGITS, 3: "a temple"}
UNFAMILIAR = {1: "a temple", 3: "a flower"}


def photograph(name: str) -> Image.Image:
    """One that scikit-learn carries, whole: china or flower."""
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image(f"{name}.jpg"))


def characters() -> Tensor:
    """Eight characters of the evaluation alphabets of Omniglot, on which no model here was trained.

    Omniglot is Copyright (c) 2015 Brenden Lake, under the MIT licence that lies beside the file.

    Returns:
        Drawings by five people of each, ink 255: uint8 [8, 5, 1, 28, 28].
    """
    with Image.open(CHARACTERS) as sheet:
        pixels = torch.from_numpy(np.array(sheet.convert("L")))  # a character in a column
    side = CHARACTER_SIZE
    return pixels.unfold(0, side, side).unfold(1, side, side).transpose(0, 1).unsqueeze(2).clone()


def photograph_crops(name: str, count: int, size: int, seed: int = 0, channels: int = 3) -> Images:
    """Random squares of a photograph, from a seventh of its height up: uint8 [count, size, size, channels]."""
    whole = photograph(name)
    random = np.random.default_rng(seed)
    crops = []
    for _ in range(count):
        side = int(random.integers(whole.height // 7, whole.height, endpoint=True))
        left = int(random.integers(whole.width - side, endpoint=True))
        top = int(random.integers(whole.height - side, endpoint=True))
        crops.append(read_picture(whole.crop((left, top, left + side, top + side)), size, channels))
    return np.stack(crops)


def sources(data_dir: Path | None) -> list[str]:
    """What `draw` can draw from: CIFAR-10 only where a directory that holds it is given.

    Raises:
        DataError: if the directory does not hold CIFAR-10.
    """
    if data_dir is None:
        return [*PHOTOGRAPHS, DIGITS]
    _check_holds_cifar10(data_dir)
    return [*PHOTOGRAPHS, DIGITS, CIFAR10]


def draw(source: str, count: int, frame: FrameFormat, seed: int, data_dir: Path | None = None) -> Tensor:
    """Random pictures of one of the `sources`, at most all that it has."""
    if source in PHOTOGRAPHS:
        return _as_frames(photograph_crops(PHOTOGRAPHS[source], count, frame.size, seed, frame.channels), frame)
    pool = _test_pictures(source, data_dir)
    chosen = np.random.default_rng(seed).choice(len(pool), min(count, len(pool)), replace=False)
    return _as_frames(pool[chosen], frame)


def draw_episode(length: int, frame: FrameFormat, data_dir: Path | None, seed: int) -> Tensor:
    """An episode in random order: test pictures of CIFAR-10, or without `data_dir` crops of both photographs.

    Raises:
        DataError: if the directory does not hold CIFAR-10.
    """
    if data_dir is None:
        each = -(-length // len(PHOTOGRAPHS))
        crops = [photograph_crops(name, each, frame.size, seed, frame.channels) for name in PHOTOGRAPHS.values()]
        pool = np.concatenate(crops)
    else:
        pool = _test_pictures(CIFAR10, data_dir)
    episodes = EpisodeSource(pool, DataConfig(batch_size=1, episode_length=length), seed=seed)
    chosen = episodes.epoch_indices(0)[0, 0]
    return _as_frames(pool[chosen.numpy()], frame)


def draw_sets(counts: Sequence[int], frame: FrameFormat, data_dir: Path | None, seed: int) -> list[Tensor]:
    """Sets of so many pictures each: test pictures of CIFAR-10, none in two of them, or without `data_dir` crops,
    of the one photograph in the first set, of the other in the second, and so on in turn.

    Raises:
        DataError: if the directory does not hold CIFAR-10, or CIFAR-10 too few pictures.
    """
    if data_dir is None:
        turns = enumerate(zip(cycle(PHOTOGRAPHS), counts, strict=False))
        return [draw(source, count, frame, 1000 * seed + number) for number, (source, count) in turns]
    pool, needed = _test_pictures(CIFAR10, data_dir), sum(counts)
    if needed > len(pool):
        raise DataError(
            f"{needed} test pictures are needed, CIFAR-10 in {data_dir} has {len(pool)}; "
            "choose fewer or shorter episodes"
        )
    chosen = np.random.default_rng(seed).permutation(len(pool))[:needed]
    return list(_as_frames(pool[chosen], frame).split(list(counts)))


def _as_frames(pictures: Images, frame: FrameFormat) -> Tensor:
    return torch.from_numpy(fitted(pictures, frame.size, frame.channels)).movedim(-1, 1)


@cache
def _test_pictures(source: str, data_dir: Path | None) -> Images:
    """All test pictures of the digits or of CIFAR-10, as they are stored."""
    if source == DIGITS:
        return load_images("digits").split("test")[0]
    _check_holds_cifar10(data_dir)
    return load_images("cifar10", data_dir, progress=False).split("test")[0]


def _check_holds_cifar10(data_dir: Path | None) -> None:
    known, directory = KNOWN_SETS["cifar10"], data_directory(data_dir)
    if not known.is_in(directory):
        files = " or ".join((*known.stored_as, *known.official))
        raise DataError(f"{directory} holds no {files}; name the directory that holds CIFAR-10, or none to do without")
