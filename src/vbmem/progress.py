"""Progress bars on standard error, where there is a terminal to show them on."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], description: str, show: bool = True, total: int | None = None) -> Iterator[T]:
    """The items, with a bar while they are worked through; `total` says how many, if they have no length."""
    # Loaded here since most calls show nothing, and importing vbmem.data is to stay quick.
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield from items
        return
    # Text printed meanwhile goes above the bar; but what is piped into a file must still reach the file.
    with Progress(console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        yield from bar.track(items, total, description=description)
