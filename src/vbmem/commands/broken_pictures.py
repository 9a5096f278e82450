"""Pictures in a folder that cannot be read: an error that says what to do, or left out and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from vbmem.commands.output import warn
from vbmem.errors import DataError

SkipBroken = Annotated[
    bool, tyro.conf.arg(help="leave out pictures in the folder that cannot be read, and say how many")
]
NAMED = 3  # pictures that are left out, at most, by name


@contextmanager
def broken_pictures(source: str | Path, skip: bool) -> Iterator[list[Path] | None]:
    """A list for pictures of a folder that are to be left out, which are counted in the end; none where each is an
    error. Any other source of pictures has none."""
    from vbmem.data.decoding import picture_names

    folder = Path(source)
    broken: list[Path] | None = [] if skip else None
    try:
        yield broken
    except DataError as error:
        if skip or not (folder.is_dir() and picture_names(folder)):
            raise
        raise DataError(f"{error}, or add --skip-broken") from error
    if broken:
        named = ", ".join(map(str, broken[:NAMED])) + ", .." * (len(broken) > NAMED)
        warn(f"left out {len(broken)} of {len(picture_names(folder))} pictures that cannot be read: {named}")
