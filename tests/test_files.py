"""A file is written whole or not at all."""

import errno
import json
import math
import os
import resource
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from vbmem.errors import DataError
from vbmem.files import OWNER_ALONE, reading, write_atomically, write_json


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
CALLS = {"open": (os, "open"), "fsync": (os, "fsync"), "rename": (Path, "replace")}
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
        with pytest.raises(OSError, match=f"^cannot write {tmp_path / 'file'}: No space left on device$"):
            write_atomically(tmp_path / "file", b"new")
    assert names(tmp_path) == []


def test_a_write_cut_off_halfway_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with limited_file_size(1000), pytest.raises(OSError, match=f"^cannot write {path}: File too large$"):
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
    for name in (".hidden", "with space", "ü", "dots.in.it", "x" * 250, "x" * 255, "not UTF-8 \udcff"):
        write_atomically(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"


# --- What is there already ------------------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o755])
def test_an_old_file_keeps_its_mode(kept, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(kept)
    write_atomically(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", kept)


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_new_file_has_the_mode_of_any_other_unless_it_is_private(umask, expected, tmp_path):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", b"new")
        write_atomically(tmp_path / "private", b"new", OWNER_ALONE)
    finally:
        os.umask(before)
    assert (mode(tmp_path / "file"), mode(tmp_path / "private")) == (expected, 0o600)


def test_what_a_link_points_to_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    path, link, dangling = tmp_path / "elsewhere" / "file", tmp_path / "link", tmp_path / "dangling"
    path.write_bytes(b"old")
    link.symlink_to(path)
    dangling.symlink_to("elsewhere/new")
    write_atomically(link, b"new")
    write_atomically(dangling, b"new")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert (path.read_bytes(), (tmp_path / "elsewhere" / "new").read_bytes()) == (b"new", b"new")
    assert names(tmp_path) == ["dangling", "elsewhere", "link"]
    assert names(tmp_path / "elsewhere") == ["file", "new"]


def test_a_link_to_itself_is_refused(tmp_path):
    path = tmp_path / "file"
    path.symlink_to(path)
    with pytest.raises(OSError, match=f"cannot write {path}: "):
        write_atomically(path, b"new")
    assert path.is_symlink()


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # that of /dev/null
    except OSError:
        pytest.skip("only root may make devices")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [os.mkfifo, make_device, make_socket], ids=["pipe", "device", "socket"])
def test_what_is_not_a_regular_file_is_refused_and_stays(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path, link = Path("there"), Path("link")
    make(path)
    link.symlink_to(path)
    before = path.stat()
    for name in (path, link):
        with pytest.raises(OSError, match=f"cannot write {name}: it is a device, a pipe or a socket, not a regular"):
            write_atomically(name, b"new")
    assert path.stat() == before
    assert names(tmp_path) == ["link", "there"]


def test_devices_of_the_system_are_refused():
    with pytest.raises(OSError, match="cannot write /dev/null: it is a device"):
        write_atomically(Path("/dev/null"), b"new")


# --- Several at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saves", [40, pytest.param(4000, marks=pytest.mark.long)])
def test_threads_that_write_one_file_never_show_another_a_part_of_it(saves, tmp_path):
    path, contents = tmp_path / "file", [bytes([number]) * 50_000 for number in range(8)]
    write_atomically(path, contents[0])

    def write_and_read(number):
        write_atomically(path, contents[number % 8])
        return path.read_bytes()

    with ThreadPoolExecutor(8) as threads:
        read = list(threads.map(write_and_read, range(saves)))
    assert all(content in contents for content in read)
    assert names(tmp_path) == ["file"]


def test_the_name_is_on_the_disk_too(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync

    def recorded_sync(descriptor):
        synced.append(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    write_atomically(tmp_path / "file", b"new")
    assert synced == [(tmp_path / "file").stat().st_ino, tmp_path.stat().st_ino]


def test_json_is_written_whole_and_ends_with_a_newline(tmp_path):
    write_json(tmp_path / "new" / "numbers.json", {"a": [1, 2.5]})
    text = (tmp_path / "new" / "numbers.json").read_text()
    assert json.loads(text) == {"a": [1, 2.5]}
    assert text.endswith("}\n")
    with pytest.raises(TypeError):
        write_json(tmp_path / "new" / "numbers.json", {"a": object()})
    assert names(tmp_path / "new") == ["numbers.json"]
    assert (tmp_path / "new" / "numbers.json").read_text() == text


def test_json_has_null_for_what_is_no_number(tmp_path):
    write_json(tmp_path / "a.json", {"a": [math.nan, 1.5], "b": {"c": (math.inf, 2)}, "d": "nan"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": [None, 1.5], "b": {"c": [None, 2]}, "d": "nan"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_file_that_may_not_be_read_is_not_called_damaged(number, tmp_path):
    error = OSError(number, os.strerror(number))
    with pytest.raises(OSError, match=f"^cannot read {tmp_path}/a: {error.strerror}$"), reading(tmp_path / "a"):
        raise error


@pytest.mark.parametrize("error", [OSError("truncated"), OSError(errno.EINVAL, "Invalid argument"), KeyError("a")])
def test_what_a_decoder_raises_is_damage(error, tmp_path):
    with pytest.raises(DataError, match="is damaged or not the expected file"), reading(tmp_path / "a"):
        raise error
