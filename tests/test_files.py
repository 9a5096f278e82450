"""A file is written whole or not at all."""

import errno
import json
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest

from vbmem.files import write_atomically, write_json


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@contextmanager
def limited_file_size(size):
    """The system cuts off what is written beyond this size, as a full disk does."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
CALLS = {"open": (Path, "open"), "fsync": (os, "fsync"), "rename": (Path, "replace")}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@pytest.mark.parametrize("content", [b"", b"a", bytes(range(256)) * 1000], ids=["empty", "short", "long"])
def test_the_content_arrives(content, tmp_path):
    write_atomically(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == content
    assert names(tmp_path) == ["file"]


def test_an_old_file_is_replaced(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a longer text than the new one")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_parents_are_made(tmp_path):
    write_atomically(tmp_path / "some" / "where" / "file", b"new")
    assert (tmp_path / "some" / "where" / "file").read_bytes() == b"new"


def test_the_content_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    order = []
    sync, replace = os.fsync, Path.replace

    def recorded_sync(descriptor):
        order.append(("sync", os.fstat(descriptor).st_size))
        sync(descriptor)

    def recorded_replace(partial, path):
        order.append(("rename", path.name))
        return replace(partial, path)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(Path, "replace", recorded_replace)
    write_atomically(tmp_path / "file", b"12345")
    assert order[:2] == [("sync", 5), ("rename", "file")]


def test_a_reader_of_the_old_file_keeps_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_atomically(path, b"new")
        assert reader.read() == b"old"


@each_call
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()], ids=["full-disk", "interrupt"])
def test_a_failure_leaves_the_old_file_and_nothing_else(call, error, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(*call, failing(error))
        with pytest.raises(type(error)):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


@each_call
def test_a_failure_leaves_nothing_where_there_was_nothing(call, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(*call, failing(FULL))
        with pytest.raises(OSError, match="No space left on device"):
            write_atomically(tmp_path / "file", b"new")
    assert names(tmp_path) == []


def test_a_write_cut_off_halfway_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with limited_file_size(1000), pytest.raises(OSError, match="File too large"):
        write_atomically(path, bytes(100_000))
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_directory_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "file", b"new")
    assert names(tmp_path) == ["file"]


def test_below_a_file_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match=r"exists|Not a directory"):
        write_atomically(tmp_path / "file" / "below", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_names_may_be_unusual(tmp_path):
    for name in (".hidden", "with space", "ü", "dots.in.it", "x" * 200):
        write_atomically(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"


def test_json_is_written_whole_and_ends_with_a_newline(tmp_path):
    write_json(tmp_path / "new" / "numbers.json", {"a": [1, 2.5]})
    text = (tmp_path / "new" / "numbers.json").read_text()
    assert json.loads(text) == {"a": [1, 2.5]}
    assert text.endswith("}\n")
    with pytest.raises(TypeError):
        write_json(tmp_path / "new" / "numbers.json", {"a": object()})
    assert names(tmp_path / "new") == ["numbers.json"]
    assert (tmp_path / "new" / "numbers.json").read_text() == text
