"""Ctrl-C, answered between two steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class InterruptNow(KeyboardInterrupt):
    """Ctrl-C was pressed again: perhaps in the middle of a step, of which nothing must be saved."""


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Within, Ctrl-C is only noted, for the loop to stop between two steps; pressed again, it interrupts at once.

    Yields a function that says whether it was pressed.
    """
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise InterruptNow
        pressed = True

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield lambda: False
        return
    previous = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, previous)
