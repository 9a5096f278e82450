"""MNIST and Fashion-MNIST: 60,000 + 10,000 grey pictures of 28 x 28, ten classes, in idx files."""

import gzip
import math
from pathlib import Path

import numpy as np

from vbmem.data.download import Archive, fetch
from vbmem.data.image_set import Images, ImageSet, with_channel_axis
from vbmem.files import reading

FILES = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]


def _archives(name: str, base_url: str, *md5s: str) -> list[Archive]:
    # The two sets use the same file names, so each has a folder of its own.
    return [Archive(base_url + file, md5, f"{name}/{file}") for file, md5 in zip(FILES, md5s, strict=True)]


MNIST = _archives(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
FASHION_MNIST = _archives(
    "fashion-mnist",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)


def load_mnist(data_dir: Path, progress: bool) -> ImageSet:
    return decode("mnist", [fetch(archive, data_dir, progress) for archive in MNIST])


def load_fashion_mnist(data_dir: Path, progress: bool) -> ImageSet:
    return decode("fashion-mnist", [fetch(archive, data_dir, progress) for archive in FASHION_MNIST])


def decode(name: str, files: list[Path]) -> ImageSet:
    """Read the four idx files, in the order of FILES."""
    x_train, y_train, x_test, y_test = map(decode_idx, files)
    return ImageSet(name, with_channel_axis(x_train), y_train, with_channel_axis(x_test), y_test)


def decode_idx(path: Path) -> Images:
    """The uint8 array, of any rank, in a gzipped idx file.

    Two zero bytes, a type code (8 for bytes), the rank, the sizes as big-endian 32-bit numbers, the values.
    """
    with reading(path), gzip.open(path) as file:
        magic = file.read(4)
        if len(magic) < 4 or magic[:3] != b"\0\0\x08":
            raise ValueError("it is not an idx file of bytes")
        shape = np.frombuffer(file.read(4 * magic[3]), ">u4").tolist()
        values = file.read(math.prod(shape) + 1)  # one more than there should be, to notice it
        return np.frombuffer(values, np.uint8).reshape(shape).copy()  # bytes are read-only
