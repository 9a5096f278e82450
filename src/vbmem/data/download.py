"""Fetch the official archives of known sets, with their checksums."""

from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from vbmem.errors import DataError
from vbmem.files import reading

CHUNK = 2**18  # bytes; pooch's default of 1 KiB spends its time on the progress bar


@dataclass(frozen=True)
class Archive:
    """One official file of a data set."""

    url: str
    md5: str
    file: str  # where it is kept, below the data directory


def fetch(archive: Archive, data_dir: Path, progress: bool) -> Path:
    """The path of the archive below `data_dir`, downloaded if it is not there yet, its checksum verified."""
    import pooch

    path = data_dir / archive.file
    if path.exists():
        if (found := pooch.file_hash(str(path), alg="md5")) != archive.md5:
            with reading(path):
                raise ValueError(f"its md5 is {found} instead of {archive.md5}")
        return path
    by_hand = (
        f"fetch it by hand and put it at {path}, or choose the directory where you keep data with data_dir "
        "or the variable VBMEM_DATA"
    )
    try:
        # pooch does not close the bar of a download that failed
        with closing(DownloadBar(path.name)) if progress else nullcontext(False) as bar:
            pooch.retrieve(
                archive.url,
                known_hash=f"md5:{archive.md5}",
                fname=path.name,
                path=path.parent,
                downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK),
            )
            return path
    except OSError as error:  # the network's errors (requests) and the disk's
        raise DataError(f"cannot download {archive.url} ({type(error).__name__}); {by_hand}") from error
    except ValueError as error:  # pooch found another checksum and removed the file
        raise DataError(f"{archive.url} no longer has the md5 {archive.md5}; {by_hand}") from error


class DownloadBar:
    """A rich bar that speaks pooch's progress protocol: set `total`, then update, reset, close."""

    total = 0

    def __init__(self, description: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(description, total=None)

    def update(self, count: int) -> None:
        self._bar.start()  # only now, and not again: a server that cannot be reached has no bar
        self._bar.update(self._task, total=self.total, advance=count)

    def reset(self) -> None:
        self._bar.update(self._task, completed=0)

    def close(self) -> None:
        self._bar.stop()
