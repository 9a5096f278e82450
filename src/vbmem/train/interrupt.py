"""Ctrl-C, answered between two steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vbmem.train.processes import Processes


class StoppedBetweenSteps(Exception):
    """Ctrl-C was pressed, and all that was begun is done: a moment to save."""


@contextmanager
def deferred_interrupt(processes: Processes) -> Iterator[Callable[[], None]]:
    """Within, Ctrl-C is only noted, for the loop to stop between two steps; pressed again, it interrupts at once.

    Yields the function that the loop calls there: it raises `StoppedBetweenSteps` if Ctrl-C was pressed, for any of the
    processes that train together, so that all stop between the same two steps.
    """
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        if processes.count == 1:  # torchrun passes on a Ctrl-C that all of its processes have had already
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def stop_if_pressed() -> None:
        if processes.any(pressed):
            raise StoppedBetweenSteps

    in_charge = threading.current_thread() is threading.main_thread()  # only the main thread may handle signals
    previous = signal.signal(signal.SIGINT, note) if in_charge else None
    try:
        yield stop_if_pressed
    finally:
        if previous is not None:
            signal.signal(signal.SIGINT, previous)
