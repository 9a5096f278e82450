"""Progress bars on standard error, for decoding and for downloads."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


def track(items: Sequence[T], description: str, progress: bool) -> Iterable[T]:
    """The items, with a progress bar while they are worked through if `progress`."""
    if not progress:
        return items
    from rich.console import Console
    from rich.progress import track as rich_track

    return rich_track(items, description, console=Console(stderr=True))


class DownloadBar:
    """A rich bar that speaks pooch's progress protocol: set `total`, then update, reset, close."""

    def __init__(self, description: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(description, total=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()  # pooch does not close the bar of a download that failed

    @property
    def total(self) -> float | None:
        return self._bar.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._bar.start()
        self._bar.update(self._task, total=size)

    def update(self, count: int) -> None:
        self._bar.update(self._task, advance=count)

    def reset(self) -> None:
        self._bar.update(self._task, completed=0)

    def close(self) -> None:
        self._bar.stop()
