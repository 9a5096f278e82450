"""What commands print and leave: sentences and tables for people, JSON and files of numbers for programs."""

from __future__ import annotations

from csv import writer
from io import StringIO
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vbmem.tables import table

if TYPE_CHECKING:
    import torch

console = Console()


def say(text: str) -> None:
    """Print a sentence as it is, however long: no markup, no colours for numbers, no wrapping."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def warn(text: str) -> None:
    """Print a sentence on standard error, so that what a program reads stays as it is."""
    Console(stderr=True).print(f"vbmem: {text}", soft_wrap=True, markup=False, highlight=False)


def check_outputs(*outputs: Path | None, inputs: tuple[Path | None, ...] = ()) -> None:
    """Raise before any work where a file could not be written, or would replace what a command reads or another that it
    writes.

    Args:
        outputs: the files to leave; None for those that nobody asked for.
        inputs: the files and folders that are read; None likewise.

    Raises:
        ValueError: one would replace a file that is still needed.
        OSError: one cannot be written.
    """
    from vbmem.files import check_writable

    asked = [path for path in outputs if path is not None]
    for path in asked:
        check_writable(path)
        if any(_is_of(path.resolve(), given.resolve()) for given in inputs if given is not None):
            raise ValueError(f"{path} is read by this command, and would be replaced; name another file to write")
    if len({path.resolve() for path in asked}) < len(asked):
        raise ValueError(f"{asked[0]} is named twice, and one would replace the other; name two files")


def check_png(path: Path | None) -> None:
    """Raise ValueError where a picture, which is a PNG whatever its name, would have a name that says otherwise."""
    _check_name(path, ".png", "a PNG picture")


def check_npy(path: Path | None) -> None:
    """Likewise of numbers, which are left as an .npy file."""
    _check_name(path, ".npy", "a NumPy array")


def _check_name(path: Path | None, suffix: str, what: str) -> None:
    if path is not None and path.suffix.lower() != suffix:
        raise ValueError(f"{path} would hold {what}; give it a name that ends in {suffix}")


def _is_of(path: Path, given: Path) -> bool:
    """Whether a file is what is given, or one of the pictures or codes in such a folder."""
    from vbmem.data.code_files import holds_codes
    from vbmem.data.decoding import is_picture_name

    if path == given:
        return True
    return path.is_file() and given in path.parents and (holds_codes(path) or is_picture_name(path.relative_to(given)))


def print_json(value: Any) -> None:
    from vbmem.files import as_json

    print(dumps(as_json(value), indent=1))


def show(rows: list[dict[str, Any]], json: bool) -> None:
    """Rows with the same names, which head the columns."""
    if json:
        print_json(rows)
    else:
        console.print(table(rows))


def save_csv(rows: list[dict[str, Any]], path: Path) -> None:
    """Leave a whole CSV file of rows with the same names, or nothing."""
    from vbmem.files import write_atomically

    lines = StringIO(newline="")
    writer(lines).writerows([tuple(rows[0]), *(tuple(row.values()) for row in rows)])
    write_atomically(path, lines.getvalue().encode(errors="surrogateescape"))  # the name of a file may be any bytes


def save_numbers(numbers: torch.Tensor, path: Path) -> None:
    """Leave a whole .npy file, or nothing."""
    import numpy as np

    from vbmem.files import whole_file

    with whole_file(path) as file:
        np.save(file, numbers.contiguous().numpy())
