"""Files of embeddings that people drop onto the page: nothing is read before its size is known to be within limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from vbmem.app.uploads import MAX_FILE, MEGABYTE
from vbmem.errors import DataError
from vbmem.files import reading

FEWEST_ROWS, MOST_ROWS = 10, 10_000
MOST_COLUMNS = 2048
MOST_NUMBERS = 2_000_000
LONGEST_LINE = 32 * MOST_COLUMNS  # bytes of a row of a CSV file
SEPARATORS = (",", ";", "\t")

Codes = npt.NDArray[np.float32]


def read_codes(path: Path) -> Codes:
    """A code in every row: float32 [T, C].

    Args:
        path: an .npy file with an array of numbers [T, C]; or a text file with as many numbers in every line, separated
            by commas, semicolons or tabs. A first line without numbers is taken for names.

    Raises:
        DataError: it is neither, too large, or holds what is not a number; named without its folder.
    """
    if path.stat().st_size > MAX_FILE:
        raise DataError(f"{path.name} is larger than {MAX_FILE // MEGABYTE} MB; give a smaller file")
    shown = Path(path.name)
    if path.suffix.lower() == ".npy":
        with reading(shown, DataError, "an .npy file", "write it again with numpy.save"):
            codes = _read_npy(path)
    else:
        with reading(shown, DataError, "a CSV file of numbers", "write a code in every line"):
            codes = _read_csv(path)
    if not np.isfinite(codes).all():
        row = int(np.flatnonzero(~np.isfinite(codes).all(-1))[0])
        raise DataError(f"{path.name} holds NaN, infinity or too large a number in row {row + 1}; mend or remove it")
    return codes


def _check_shape(name: str, rows: int, columns: int) -> None:
    if rows < FEWEST_ROWS or not columns:
        raise DataError(f"{name} holds {rows} rows of {columns} numbers; expected at least {FEWEST_ROWS} rows")
    if rows > MOST_ROWS or columns > MOST_COLUMNS or rows * columns > MOST_NUMBERS:
        limits = f"{MOST_ROWS:,} rows, {MOST_COLUMNS:,} columns and {MOST_NUMBERS:,} numbers"
        raise DataError(f"{name} holds more than {limits}; give a part of it, or use `vbmem write`")


def _read_npy(path: Path) -> Codes:
    array = np.load(path, mmap_mode="r", allow_pickle=False)  # the header alone; refused if the file is shorter
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise DataError(f"{path.name} holds {array.dtype} {list(array.shape)}; expected numbers [T, C]")
    _check_shape(path.name, *array.shape)
    with np.errstate(over="ignore"):  # what becomes infinite is found afterwards
        return np.array(array, np.float32)


def _read_csv(path: Path) -> Codes:
    with path.open("rb") as file:
        first = next(_lines(path.name, file), "")
    separator = max(SEPARATORS, key=first.count)
    names = first if _are_names(path.name, first.split(separator)) else None
    columns = first.count(separator) + 1
    with path.open("rb") as file:
        rows = max(0, sum(1 for _ in _lines(path.name, file)) - (names is not None))
    _check_shape(path.name, rows, columns)
    codes = np.empty((rows, columns), np.float32)
    with path.open("rb") as file:
        lines = _lines(path.name, file)
        if names is not None:
            next(lines)
        for row, line in enumerate(lines):
            cells = line.split(separator)
            if len(cells) != columns:
                raise DataError(f"{path.name} has {len(cells)} numbers in row {row + 1}; expected {columns} in each")
            try:
                codes[row] = [float(cell) for cell in cells]
            except ValueError:
                wrong = next(cell for cell in cells if not _is_number(cell)).strip()
                advice = "leave out columns that are not numbers"
                if not wrong:
                    advice = "fill in what is missing, or leave out the row"
                elif _is_number(wrong.strip("\"'")):
                    advice = "write numbers without quotation marks"
                raise DataError(f"{path.name} has {wrong[:40]!r} in row {row + 1}; {advice}") from None
    return codes


def _are_names(name: str, cells: list[str]) -> bool:
    """Whether a first line names the columns; also by numbers 0, 1, 2, .. as tables without names are saved.

    Raises:
        DataError: one column of several has no name, as the numbers of the rows have none, or a number is missing.
    """
    cells = [cell.strip() for cell in cells]
    filled = [cell for cell in cells if cell]
    if not filled:
        return False
    counted = len(filled) > 1 and filled == [str(number) for number in range(len(filled))]
    if not counted and all(map(_is_number, filled)):
        if len(filled) < len(cells):
            raise DataError(f"{name} has an empty cell in row 1; fill in what is missing, or leave out the row")
        return False
    if len(filled) < len(cells):
        raise DataError(
            f"{name} has a column without a name, as the numbers of rows have none; leave it out (with pandas: "
            "to_csv(.., index=False))"
        )
    return True


def _lines(name: str, file: BinaryIO) -> Iterator[str]:
    """Those with something in them; never more than one is held."""
    read = 0
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise DataError(f"{name} has a line of more than {LONGEST_LINE:,} bytes; write a code in every line")
        text = line.decode("utf-8-sig" if not read else "utf-8").strip()
        read += 1
        if read > 2 * MOST_ROWS + 1:  # no file of allowed size needs reading further
            _check_shape(name, read, 1)
        if text:
            yield text


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
