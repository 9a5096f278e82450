"""The one exception of this package, and how damaged files become it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataError(ValueError):
    """A problem with data that the user can mend: the message says what is wrong, where, and what to do."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any failure to decode the file at `path` inside the block into a DataError that names it."""
    try:
        yield
    except DataError:
        raise
    # Damaged or foreign bytes make the decoders of tar, zip, gzip, pickle and npy raise almost anything.
    except Exception as error:
        raise DataError(
            f"{path} is damaged or not the expected file ({str(error) or type(error).__name__}); "
            "delete it to have it fetched again, or put an intact copy in its place"
        ) from error
