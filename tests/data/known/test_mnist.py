import gzip
import hashlib
import struct
from typing import Any

import numpy as np
import pytest

from vbmem.data import load_images
from vbmem.data.download import Archive
from vbmem.data.known import mnist
from vbmem.errors import DataError


def idx(array):
    """The array in the official format: magic number, big-endian sizes, bytes."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    shapes = [(6, 28, 28), (6,), (4, 28, 28), (4,)]
    return [rng.integers(0, 10, shape, np.uint8) for shape in shapes]


@pytest.mark.parametrize(("name", "archives"), [("mnist", "MNIST"), ("fashion-mnist", "FASHION_MNIST")])
def test_the_four_files_become_a_set(name, archives, arrays, tmp_path, monkeypatch, no_network):
    tiny = []
    for official, array in zip(getattr(mnist, archives), arrays, strict=True):
        path = tmp_path / official.file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(idx(array))
        tiny.append(Archive(official.url, hashlib.md5(path.read_bytes()).hexdigest(), official.file))
    monkeypatch.setattr(mnist, archives, tiny)
    images: Any = load_images(name, data_dir=tmp_path)
    assert images.name == name
    assert np.array_equal(images.x_train[..., 0], arrays[0])
    assert np.array_equal(images.y_train, arrays[1])
    assert np.array_equal(images.x_test[..., 0], arrays[2])
    assert np.array_equal(images.y_test, arrays[3])
    assert (tmp_path / f"{name}.npz").is_file()


def test_the_two_sets_do_not_share_files():
    files = [archive.file for archive in mnist.MNIST + mnist.FASHION_MNIST]
    assert len(set(files)) == 8


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-20],
        lambda whole: gzip.compress(gzip.decompress(whole)[:-1]),
        lambda whole: gzip.compress(gzip.decompress(whole) + b"x"),
        lambda whole: gzip.compress(b"\0\0\x0d" + gzip.decompress(whole)[3:]),
        lambda whole: gzip.compress(b""),
        lambda whole: b"<html>moved</html>",
    ],
    ids=["truncated gzip", "pixels missing", "pixels too many", "floats", "empty", "web page"],
)
def test_a_damaged_file_is_named(damage, arrays, tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(idx(arrays[0])))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged .* delete it"):
        mnist.decode_idx(path)
