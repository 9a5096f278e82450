"""Files that are either whole or not there, and how they are read."""

import errno
import json
import math
import os
import secrets
import stat
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import torch
from safetensors.torch import load, save
from torch import Tensor

from vbmem import checksums
from vbmem.errors import DataError, UncheckedFileWarning, VbmemError

UNREADABLE = {errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT}
EVERYBODY, OWNER_ALONE = 0o666, 0o600  # who may read a new file, less what the umask forbids
PARTIAL = ".vbmem-*.partial"  # what a process that was killed while writing leaves in a directory


@contextmanager
def whole_file(path: Path, mode: int = EVERYBODY) -> Iterator[BinaryIO]:
    """A file to write, whole or not at all: a neighbour, renamed over the old one once it is complete.

    An old file keeps its mode, and a link stays one: what it points to is replaced.

    Args:
        path: of the file; folders above it are made.
        mode: who may read and write a new file, less what the umask forbids.

    Raises:
        OSError: where it cannot be written, or what is there is not a regular file.
    """
    target = Path(os.path.realpath(path))
    try:
        mode_before = _mode_of(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Of a name that nobody can guess or shares, and short: that of the target may be as long as names can be.
        partial = target.with_name(PARTIAL.replace("*", secrets.token_hex(8)))
        try:
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                if mode_before is not None:
                    os.fchmod(file.fileno(), mode_before)
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        _sync_directory(target.parent)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def scratch_directory(directory: Path) -> Iterator[Path]:
    """A new directory in this one, gone at the end: for files that are to be put into their places all at once."""
    try:
        scratch = TemporaryDirectory(prefix=".vbmem-", suffix=".new", dir=directory)
    except OSError as error:
        raise OSError(f"cannot write into {directory}: {error.strerror}") from error
    with scratch as name:
        yield Path(name)


def check_writable(path: Path) -> None:
    """Raise OSError where `whole_file` could not write, before the work that the file is for."""
    try:
        target = Path(os.path.realpath(path))
        _mode_of(target)
        folder = next(folder for folder in target.parents if folder.exists())
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror or error}") from error


def _mode_of(target: Path) -> int | None:
    """The mode of a file that is there, to be kept; only regular files are ever replaced."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("it is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise OSError("it is a device, a pipe or a socket, not a regular file; name a file")
    return stat.S_IMODE(mode)


def _sync_directory(directory: Path) -> None:
    """So that the new name, too, is on the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of file systems that cannot do this
            raise
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes, mode: int = EVERYBODY) -> None:
    """Write a whole file or nothing; see `whole_file`."""
    with whole_file(path, mode) as file:
        file.write(content)


def data_url(kind: str, content: bytes) -> str:
    """An address that holds the content itself, of a kind such as image/png, for pages that need no other file."""
    return f"data:{kind};base64,{b64encode(content).decode()}"


def as_json(value: Any) -> Any:
    """The same with null in the place of NaN and infinity, which JSON has not."""
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Write a whole JSON file or nothing."""
    write_atomically(path, (json.dumps(as_json(value), indent=1) + "\n").encode())


def write_checked_json(path: Path, values: dict[str, Any]) -> None:
    """Write a whole JSON file or nothing, with a checksum."""
    text = json.dumps(values | checksums.BLANK, indent=1) + "\n"
    write_atomically(path, checksums.with_checksum(text.encode()))


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str], mode: int = EVERYBODY) -> None:
    """Write a whole safetensors file or nothing, with a checksum; see `whole_file`."""
    # Cloned: two tensors of a file may not share their memory.
    stored = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    content = _with_metadata(save(stored), metadata | checksums.BLANK)
    write_atomically(path, checksums.with_checksum(content), mode)


def _with_metadata(content: bytes, metadata: dict[str, str]) -> bytes:
    """A safetensors file with metadata. The library would write them in another order every time."""
    header = _header(content)
    text = json.dumps({"__metadata__": dict(sorted(metadata.items())), **json.loads(header)}, separators=(",", ":"))
    text += -len(text) % 8 * " "
    return len(text).to_bytes(8, "little") + text.encode() + content[8 + len(header) :]


def _header(content: bytes) -> bytes:
    """The JSON that heads a safetensors file, after its length."""
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def read_tensors(path: Path, device: torch.device | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, compared with its checksum if it has one; see `check_format`."""
    content = path.read_bytes()
    tensors = load(content)
    metadata: dict[str, str] = json.loads(_header(content)).get("__metadata__") or {}
    if checksums.NAME in metadata:
        checksums.check_checksum(content)
    return {name: tensor.to(device) for name, tensor in tensors.items()}, metadata


def check_device(device: torch.device | str) -> None:
    """Raise ValueError for a CUDA device where there is none: what cannot be put there is not damaged."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"there is no CUDA device here to load onto, but {str(device)!r} was asked for; use 'cpu'")


def parse_json(text: str | bytes) -> Any:
    """JSON as the standard has it: without NaN and infinity, which a value that is missing or wrong would become."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a number")

    return json.loads(text, parse_constant=refuse)


def check_format(metadata: dict[str, Any], format: str) -> None:
    """Raise ValueError unless a file is of this format, and carries its checksum, which all such files do."""
    if metadata.get("format") != format:
        raise ValueError(f"its format is not {format!r}")
    if checksums.NAME not in metadata:
        raise ValueError("it has lost its checksum")


def warn_unchecked(path: Path) -> None:
    """Of a file that vbmem 0.4 or before wrote. Its format has a name from which no flipped bit leads to today's."""
    warnings.warn(
        f"{path} was saved by an earlier vbmem and carries no checksum, so damage to it would not be noticed; save it "
        "again",
        UncheckedFileWarning,
        stacklevel=2,
    )


@contextmanager
def reading(
    path: Path,
    failure: type[VbmemError] = DataError,
    expected: str = "the expected file",
    advice: str = "delete it to have it fetched again, or put an intact copy in its place",
) -> Iterator[None]:
    """Turn any failure to decode the file at `path` inside the block into one sentence that names it."""
    try:
        yield
    except (VbmemError, FileNotFoundError):
        raise
    except OSError as error:
        if error.errno in UNREADABLE:  # which says nothing against the file
            raise OSError(f"cannot read {path}: {error.strerror}") from error
        raise _undecodable(path, failure, expected, advice, error) from error
    # Damaged or foreign bytes make the decoders of tar, zip, gzip, pickle, npy and JSON raise almost anything.
    except Exception as error:
        raise _undecodable(path, failure, expected, advice, error) from error


def _undecodable(path: Path, failure: type[VbmemError], expected: str, advice: str, error: Exception) -> VbmemError:
    return failure(f"{path} is damaged or not {expected} ({str(error) or type(error).__name__}); {advice}")
