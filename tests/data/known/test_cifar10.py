import hashlib
import io
import os
import pickle
import struct
import tarfile
from typing import Any, ClassVar

import numpy as np
import pytest

from tiny import noise
from vbmem.data import load_images
from vbmem.data.download import Archive
from vbmem.data.known import cifar10
from vbmem.errors import DataError


class Python2Pickler(pickle._Pickler):
    """Writes text, bytes and truth values as Python 2 did, which made the official files."""

    write: Any  # methods that the stub of pickle does not tell of
    memoize: Any
    save_long: Any

    def save_string(self, text):
        raw = text.encode() if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(text)

    def save_truth(self, truth):
        self.save_long(int(truth))

    dispatch: ClassVar[Any] = {
        **pickle._Pickler.dispatch,
        bytes: save_string,
        str: save_string,
        bool: save_truth,
    }


def python2_pickle(contents):
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(contents)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def batch(images, labels):
    """The contents of an official batch for images [N, 32, 32, 3]: colour planes one after the other."""
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), 3072)
    names = [f"picture{i}.png" for i in range(len(images))]
    return {"batch_label": "a batch", "labels": labels.tolist(), "data": planes, "filenames": names}


def write_archive(path, members):
    with tarfile.open(path, "w:gz") as tar:
        for name, contents in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))


@pytest.fixture
def images():
    return noise(24, size=32)


@pytest.fixture
def members(images):
    labels = np.arange(24) % 10
    # The official archive is out of order too.
    names = {cifar10.TEST: 5, **{name: i for i, name in reversed([*enumerate(cifar10.TRAIN)])}}
    parts = {name: slice(4 * i, 4 * i + 4) for name, i in names.items()}
    batches = {name: python2_pickle(batch(images[part], labels[part])) for name, part in parts.items()}
    return {"cifar-10-batches-py/readme.html": b"<html>", **batches}


def test_the_official_archive_becomes_a_set(members, images, tmp_path, monkeypatch, no_network):
    path = tmp_path / cifar10.ARCHIVE.file
    write_archive(path, members)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(cifar10, "ARCHIVE", Archive(cifar10.ARCHIVE.url, md5, path.name))
    loaded: Any = load_images("cifar10", data_dir=tmp_path)
    assert np.array_equal(loaded.x_train, images[:20])
    assert np.array_equal(loaded.x_test, images[20:])
    assert np.array_equal(loaded.y_train, np.arange(20) % 10)
    assert loaded.y_test.tolist() == [0, 1, 2, 3]
    assert np.array_equal(load_images(tmp_path / "cifar10.npz").x_train, images[:20])


def test_pickles_of_today_are_read_too(images):
    contents = batch(images, np.arange(24))
    today = pickle.dumps({key.encode(): value for key, value in contents.items()}, protocol=4)
    assert np.array_equal(cifar10._batch(io.BytesIO(today))[0], images)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_is_refused_and_runs_nothing(members, tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    members[cifar10.TEST] = pickle.dumps({"data": Malicious()}, protocol=protocol)
    write_archive(tmp_path / "evil.tar.gz", members)
    with pytest.raises(DataError, match=r"evil\.tar\.gz is damaged .*mkdir, which no image batch needs"):
        cifar10.decode(tmp_path / "evil.tar.gz")
    assert os.listdir(tmp_path) == ["evil.tar.gz"]


def test_members_that_point_elsewhere_are_never_written(members, images, tmp_path):
    members = {"../../outside": b"x", "/tmp/vbmem-outside": b"x", **members}
    write_archive(tmp_path / "sub.tar.gz", members)
    assert np.array_equal(cifar10.decode(tmp_path / "sub.tar.gz").x_train, images[:20])
    assert os.listdir(tmp_path) == ["sub.tar.gz"]
    assert not os.path.exists("/tmp/vbmem-outside")


def test_a_missing_batch_is_named(members, tmp_path):
    del members[cifar10.TRAIN[2]]
    write_archive(tmp_path / "a.tar.gz", members)
    with pytest.raises(DataError, match=r"a\.tar\.gz is damaged .*lacks .*data_batch_3"):
        cifar10.decode(tmp_path / "a.tar.gz")


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_truncated_archive_is_named(members, tmp_path, kept):
    path = tmp_path / "a.tar.gz"
    write_archive(path, members)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(DataError, match=r"a\.tar\.gz is damaged .* delete it"):
        cifar10.decode(path)


@pytest.mark.parametrize("contents", [b"", b"garbage", pickle.dumps([1, 2]), pickle.dumps({b"data": 3})])
def test_a_batch_of_something_else_is_refused(members, tmp_path, contents):
    members[cifar10.TEST] = contents
    write_archive(tmp_path / "a.tar.gz", members)
    with pytest.raises(DataError, match=r"a\.tar\.gz is damaged"):
        cifar10.decode(tmp_path / "a.tar.gz")
