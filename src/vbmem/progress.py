"""Progress bars on standard error, where there is a terminal to show them on."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def progress_bar(description: str, total: int, show: bool = True) -> Iterator[Callable[[], None]]:
    """A bar while the block works; it yields the function that moves the bar one step on."""
    # Loaded here since most calls show nothing, and importing vbmem.data is to stay quick.
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield lambda: None
        return
    # Text printed meanwhile goes above the bar; but what is piped into a file must still reach the file.
    with Progress(console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


def track(items: Sequence[T], description: str, show: bool = True) -> Iterator[T]:
    """The items, with a bar while they are worked through."""
    with progress_bar(description, len(items), show) as advance:
        for item in items:
            yield item
            advance()
