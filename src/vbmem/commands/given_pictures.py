"""The pictures that a command is given: a folder, or one by one. One that cannot be read is an error that says what to
do, or is left out and counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vbmem.commands.output import warn
from vbmem.errors import DataError
from vbmem.tables import counted

if TYPE_CHECKING:
    import torch

    import vbmem

GivenPictures = Annotated[
    tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER|PICTURES", help_behavior_hint="")
]
SkipBroken = Annotated[bool, tyro.conf.arg(help="leave out pictures that cannot be read, and say how many")]
NAMED = 3  # pictures that are left out, at most, by name


def given_alone(images: tuple[Path, ...]) -> Path | None:
    """The folder or file, where it is the only one; several must be pictures, one by one."""
    from vbmem.data.code_files import is_code_name

    if not images:
        raise ValueError("no pictures were given; give the folder they are in, or the pictures one by one")
    if len(images) == 1:
        return images[0]
    for path in images:
        if path.is_dir() or is_code_name(path):
            raise ValueError(
                f"{path} is given among others, which must all be pictures; give a folder, or codes, alone"
            )
    return None


def given_frames(images: tuple[Path, ...], loaded: vbmem.Model, skip_broken: bool) -> tuple[torch.Tensor, list[str]]:
    """The pictures of a folder, or those given one by one, as frames for a model, and their names."""
    from vbmem.data.code_files import holds_codes
    from vbmem.data.decoding import picture_names
    from vbmem.pretrained.inputs import as_frames

    source = given_alone(images)
    if source and holds_codes(source):
        raise ValueError(f"{source} holds codes, and the memory is one of pictures; give pictures")
    if source and not source.is_dir():
        return as_frames(source, loaded.frame), [source.name]
    given = source or images
    with broken_pictures(given, skip_broken) as broken:
        frames = as_frames(given, loaded.frame, broken)
    names = picture_names(source) if source else images
    return frames, [str(name) for name in names if name not in (broken or ())]


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
