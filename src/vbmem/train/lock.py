"""One run at a time in a directory."""

import errno
import fcntl
import os
import platform
import time
import weakref
from contextlib import suppress
from pathlib import Path

from vbmem.errors import CheckpointError

NAME = "run.lock"
UNKNOWN_THERE = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK)  # of file systems without locks, where nothing can be done


class DirectoryLock:
    """Keeps other runs out of a directory until it is released, or whoever holds it has died, in whatever way.

    The system holds the lock; the file only says who has it, and is gone afterwards.

    Args:
        directory: of the run; made if it is not there.

    Raises:
        CheckpointError: where another run holds it.
        OSError: where nothing can be written to it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory.resolve() / NAME
        self.acquire()

    def acquire(self) -> None:
        """Take the lock; if this object has it already, nothing happens."""
        if self._held:
            return
        try:
            is_new = not self._directory.exists()
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor = self._locked()
            self._release = weakref.finalize(self, _release, self._path, descriptor, is_new)
            os.ftruncate(descriptor, 0)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.write(descriptor, f"process {os.getpid()} on {platform.node()}, since {since}".encode())
        except OSError as error:
            self.release()
            raise OSError(f"cannot write checkpoints to {self._directory}: {error.strerror or error}") from error

    def release(self) -> None:
        """Let others in."""
        if self._held:
            self._release()

    @property
    def _held(self) -> bool:
        return hasattr(self, "_release") and self._release.alive

    def _locked(self) -> int:
        """The file, once it is ours and has not been taken away by its former holder meanwhile."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
                os.close(descriptor)
                raise CheckpointError(
                    f"{self._directory} is in use by {holder}; wait until that run has ended, or choose another "
                    "directory"
                ) from None
            except OSError as error:
                if error.errno not in UNKNOWN_THERE:
                    os.close(descriptor)
                    raise
            if self._path.exists() and os.path.samestat(os.fstat(descriptor), self._path.stat()):
                return descriptor
            os.close(descriptor)


def _release(path: Path, descriptor: int, is_new: bool) -> None:
    path.unlink(missing_ok=True)
    os.close(descriptor)
    if is_new:
        with suppress(OSError):  # a run that could begin has left something there
            path.parent.rmdir()
