"""Fetch the official archives of known sets, with their checksums."""

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from vbmem.data.progress import DownloadBar
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
    if not path.exists():
        _download(archive, path, progress)
    elif (found := pooch.file_hash(str(path), alg="md5")) != archive.md5:
        with reading(path):
            raise ValueError(f"its md5 is {found} instead of {archive.md5}")
    return path


def _download(archive: Archive, path: Path, progress: bool) -> None:
    import pooch

    by_hand = (
        f"fetch it by hand and put it at {path}, or choose the directory where you keep data with data_dir "
        "or the variable VBMEM_DATA"
    )
    try:
        with DownloadBar(path.name) if progress else nullcontext(False) as bar:
            pooch.retrieve(
                archive.url,
                known_hash=f"md5:{archive.md5}",
                fname=path.name,
                path=path.parent,
                downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK),
            )
    except OSError as error:  # the network's errors (requests) and the disk's
        raise DataError(f"cannot download {archive.url} ({type(error).__name__}); {by_hand}") from error
    except ValueError as error:  # pooch found another checksum and removed the file
        raise DataError(f"{archive.url} no longer has the md5 {archive.md5}; {by_hand}") from error
