"""Pictures that cannot be read: an error that says what to do, or left out and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from vbmem.commands.output import warn
from vbmem.errors import DataError
from vbmem.tables import counted

SkipBroken = Annotated[bool, tyro.conf.arg(help="leave out pictures that cannot be read, and say how many")]
NAMED = 3  # pictures that are left out, at most, by name


@contextmanager
def broken_pictures(source: str | Path | tuple[Path, ...], skip: bool) -> Iterator[list[Path] | None]:
    """A list for pictures of a folder, or of several that are given, that are to be left out, which are counted in the
    end; none where each is an error. Any other source of pictures has none. Files in the folder that are no pictures by
    their names are counted, too."""
    from vbmem.data.code_files import is_code_name
    from vbmem.data.decoding import file_names, is_picture_name, picture_names

    folder = None if isinstance(source, tuple) or not Path(source).is_dir() else Path(source)
    pictures = source if isinstance(source, tuple) else picture_names(folder) if folder else ()
    broken: list[Path] | None = [] if skip else None
    try:
        yield broken
    except DataError as error:
        if skip or not pictures:
            raise
        raise DataError(f"{error}, or add --skip-broken") from error
    if broken:
        warn(f"left out {len(broken)} of {len(pictures)} pictures that cannot be read: {_some(broken)}")
    if folder:
        others = [name for name in file_names(folder) if not (is_picture_name(name) or is_code_name(name))]
        if others:
            warn(f"left out {counted(len(others), 'files')} whose names are not those of pictures: {_some(others)}")


def _some(names: list[Path]) -> str:
    return ", ".join(map(str, names[:NAMED])) + ", .." * (len(names) > NAMED)
