"""What keeps visitors apart: nobody waits for another's work, and nobody's upload is another's."""

import asyncio
import ctypes
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from gradio import route_utils

T = TypeVar("T")

THREADS = 8  # that work at once, each for another visitor
WAITING = 10  # things that one visitor may have under way or waiting
ARENAS = 2  # of glibc, from which all threads take memory
ARENA_MAX = -8  # what glibc's mallopt calls their number


@dataclass
class _Line:
    """What one visitor waits for."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


class TooMuchUnderWay(ValueError):
    """A visitor asks for more than may wait for them."""


class Turns:
    """One thing at a time for each visitor, in the order in which they ask: whoever asks for much waits for
    themselves.

    Args:
        waiting: things that one visitor may have under way or waiting.
    """

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def of(self, visitor: str) -> AsyncIterator[None]:
        """Entered once it is the visitor's turn, which lasts until it is left.

        Raises:
            TooMuchUnderWay: if the visitor has too much under way already.
        """
        line = self._lines.setdefault(visitor, _Line())
        if line.length >= self.waiting:
            raise TooMuchUnderWay(f"{line.length} things are under way on this page; wait until they are done")
        line.length += 1
        try:
            async with line.turn:
                yield
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[visitor]


def _and_give_back_memory(work: Callable[[], T]) -> Callable[[], T]:
    """The work, and then the system gets back all that is free. By itself glibc keeps what each thread has freed for
    that thread, in pieces that the next work does not fit: the server grew by megabytes with every event."""

    def run() -> T:
        try:
            return work()
        finally:
            if _trim is not None:
                _trim(0)

    return run


def share_arenas() -> None:
    """Have threads share the memory that they free. With an arena for each, a quarter of it was nobody's."""
    if _mallopt is not None:
        _mallopt(ARENA_MAX, ARENAS)


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_trim, _mallopt = (getattr(_libc, name, None) for name in ("malloc_trim", "mallopt"))  # musl has neither
_threads = CapacityLimiter(THREADS)
turns = Turns(WAITING)


async def in_thread(work: Callable[[], T]) -> T:
    """What the work returns, done in a thread with the context variables of the caller."""
    return await to_thread.run_sync(_and_give_back_memory(work), limiter=_threads)


class _OwnUpload(route_utils.GradioUploadFile):
    """Gradio keeps an upload in a folder named after its content. Two visitors with the same file would share it, and
    the first to be done would delete it for both, so here chance is a part of the name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sha.update(secrets.token_bytes(16))


def separate_uploads() -> None:
    """Have every upload kept in a folder of its own."""
    route_utils.GradioUploadFile = _OwnUpload  # type: ignore[misc]
