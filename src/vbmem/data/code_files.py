"""Codes on disk: .npy, .safetensors and Parquet files, or a directory of them. Never more than a chunk of rows is read
at a time, so that files may be larger than the memory of the machine."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import Tensor

from vbmem.data.decoding import picture_names
from vbmem.errors import DataError
from vbmem.files import reading
from vbmem.memory.streams import CheckedChunks

CHUNK = 8192  # rows read at a time


@dataclass(frozen=True)
class CodeFile:
    """One file of codes, [rows, columns], or some rows of it."""

    path: Path
    rows: int
    columns: int
    dtype: torch.dtype
    """Of the codes as they are read: float64 where the file has that, else float32."""
    read: Callable[[int, int], Iterator[Tensor]]
    """A fresh pass over the rows of the file from one number to another: [n, columns] with n up to CHUNK."""
    first: int = 0
    """The number in the file of the first row."""

    def chunks(self) -> Iterator[Tensor]:
        return self.read(self.first, self.first + self.rows)

    def part(self, begin: int, end: int) -> CodeFile:
        """The rows from one number to another, as far as there are such."""
        begin, end = (min(max(row, 0), self.rows) for row in (begin, end))
        return replace(self, first=self.first + begin, rows=end - begin)


class CodeFiles(CheckedChunks):
    """The rows of one or several files, one after the other, as chunks that can be gone through again and again.

    Args:
        files: with as many columns of the same type each; at least one file, though it may be without rows.

    Raises:
        DataError: they do not belong together.
    """

    def __init__(self, files: list[CodeFile]) -> None:
        self.files = [file for file in files if file.rows]
        first = (self.files or files)[0]
        for file in self.files:
            if (file.columns, file.dtype) != (first.columns, first.dtype):
                raise DataError(
                    f"{file.path} has rows of {_sort(file)}, but {first.path} has {_sort(first)}; files of one "
                    "directory must be alike"
                )
        self.code_size, self.frames = first.columns, sum(file.rows for file in self.files)

    def __len__(self) -> int:
        """The number of chunks."""
        return sum(-(-file.rows // CHUNK) for file in self.files)

    def __iter__(self) -> Iterator[Tensor]:
        """One fresh pass: chunks [n, C].

        Raises:
            DataError: a row holds NaN or infinity, or a file is damaged.
        """
        for file in self.files:
            row = file.first
            for chunk in file.chunks():
                # A quick look: where the sum is finite, all are.
                if not bool(chunk.sum().isfinite()) and len(found := chunk.isfinite().all(-1).logical_not().nonzero()):
                    raise DataError(
                        f"{file.path} holds NaN or infinity in row {row + int(found[0])}; mend or remove such rows"
                    )
                row += len(chunk)
                yield chunk

    def part(self, begin: int, end: int) -> CodeFiles:
        """The rows from one number to another, counted over all files; there may be none."""
        parts, before = [], 0
        for file in self.files:
            parts.append(file.part(begin - before, end - before))
            before += file.rows
        return CodeFiles(parts)

    def fingerprint(self) -> str:
        """Another one where a file was added, taken away, renamed or written anew: of names, sizes and times."""
        status = [(file.path.name, file.first, file.rows, file.path.stat()) for file in self.files]
        facts = [(name, first, rows, stat.st_size, stat.st_mtime_ns) for name, first, rows, stat in status]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def place(self, number: int) -> tuple[str, int]:
        """The name of the file that holds a row, and the row's number in it; rows are counted from 0."""
        for file in self.files:
            if number < file.rows:
                return file.path.name, file.first + number
            number -= file.rows
        raise IndexError(f"there are {self.frames} rows only")


def holds_codes(path: Path) -> bool:
    """Whether it is a file of codes, or a directory with such files and without pictures, by their names."""
    if path.is_dir():
        return bool(code_files(path)) and not picture_names(path)
    return is_code_name(path)


def open_codes(path: Path) -> CodeFiles:
    """The codes of a file, or of all files in a directory in the order of their names.

    Args:
        path: `.npy`, an array [T, C]; `.safetensors`, with one tensor [T, C]; `.parquet`, with one column of lists of C
            numbers, or C columns of numbers; or a directory of such files.

    Returns:
        What `MixtureMemory.write_stream` and others take as chunks.

    Raises:
        DataError: there are no codes, not even a row, or they are no floating-point numbers [T, C].
    """
    paths = code_files(path) if path.is_dir() else [path]
    if not paths or not holds_codes(paths[0]):
        raise DataError(f"{path} holds no codes; expected files that end in {', '.join(OPENERS)}")
    codes = CodeFiles([_opened(file) for file in paths])
    if not codes.frames:
        raise DataError(f"{paths[0]} holds no rows; an episode needs at least one")
    return codes


def is_code_name(path: Path) -> bool:
    """Whether a file has the suffix of codes."""
    return path.suffix.lower() in OPENERS


def code_files(directory: Path) -> list[Path]:
    """The files of codes in a directory, by their names."""
    return sorted(path for path in directory.iterdir() if is_code_name(path) and path.name[0] != ".")


def _opened(path: Path) -> CodeFile:
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the path")
    kind = path.suffix.lower()
    with reading(path, DataError, f"a {kind} file", "write it again"):
        return OPENERS[kind](path)


def _open_npy(path: Path) -> CodeFile:
    def mapped() -> npt.NDArray[Any]:
        return np.load(path, mmap_mode="r", allow_pickle=False)

    def read(start: int, stop: int) -> Tensor:
        # Mapped anew for every chunk: pages that were read do not stay with this process.
        return torch.from_numpy(np.array(mapped()[start:stop], np.float64 if dtype is torch.float64 else np.float32))

    array = mapped()
    dtype = _check(path, list(array.shape), str(array.dtype), np.issubdtype(array.dtype, np.floating))
    return _by_rows(path, len(array), array.shape[1], dtype, read)


def _open_safetensors(path: Path) -> CodeFile:
    def read(start: int, stop: int) -> Tensor:
        with safe_open(path, framework="pt") as file:
            return file.get_slice(name)[start:stop].to(dtype)

    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
        if len(names) != 1:
            raise DataError(f"{path} holds {len(names)} tensors; expected a single one, [T, C]")
        name = names[0]
        shape, kind = file.get_slice(name).get_shape(), file.get_slice(name).get_dtype()
    dtype = _check(path, shape, kind, kind in ("F64", "F32", "F16", "BF16"))
    return _by_rows(path, shape[0], shape[1], dtype, read)


def _open_parquet(path: Path) -> CodeFile:
    if find_spec("pyarrow") is None:
        raise DataError("Parquet files need pyarrow, which is not installed; run: pip install 'vbmem[arrow]'")
    import pyarrow as arrow
    from pyarrow.parquet import ParquetFile

    def is_list(kind: Any) -> bool:
        lists = arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind)
        return bool(lists and arrow.types.is_floating(kind.value_type))

    file = ParquetFile(path)
    lists = [field.name for field in file.schema_arrow if is_list(field.type)]
    plain = all(arrow.types.is_floating(field.type) for field in file.schema_arrow)
    if len(lists) != 1 and not plain:
        raise DataError(
            f"{path} has the columns {', '.join(file.schema_arrow.names)}; expected one with lists of floating-point "
            "numbers, or floating-point columns alone"
        )
    columns = lists or file.schema_arrow.names
    kinds = [file.schema_arrow.field(name).type for name in columns]
    double = str(kinds[0].value_type if lists else kinds[0]) == "double"
    kind = np.float64 if double else np.float32

    def numbers(column: Any) -> npt.NDArray[Any]:
        return column.to_numpy(zero_copy_only=False).astype(kind)

    def rows_of(batch: Any) -> Tensor:
        if not lists:
            return torch.from_numpy(np.stack([numbers(column) for column in batch.columns], -1))
        flat = numbers(batch.column(0).flatten())
        if len(flat) != len(batch) * size:
            raise DataError(f"{path} has rows of unequal length in its column {lists[0]!r}; expected {size} numbers")
        return torch.from_numpy(flat.reshape(len(batch), size))

    size = len(columns)
    if lists:
        first = next(file.iter_batches(1, columns=columns), None)
        size = 0 if first is None else len(first.column(0).flatten())

    def read(begin: int, end: int) -> Iterator[Tensor]:
        file = ParquetFile(path)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        firsts = list(itertools.accumulate(sizes, initial=0))
        groups = [i for i, size in enumerate(sizes) if firsts[i] < end and begin < firsts[i] + size]
        row = firsts[groups[0]]
        for batch in file.iter_batches(CHUNK, row_groups=groups, columns=columns):
            wanted = range(max(begin - row, 0), min(end - row, len(batch)))
            if wanted:
                yield rows_of(batch.slice(wanted.start, len(wanted)))
            row += len(batch)

    return CodeFile(path, file.metadata.num_rows, size, torch.float64 if double else torch.float32, read)


OPENERS: dict[str, Callable[[Path], CodeFile]] = {
    ".npy": _open_npy,
    ".safetensors": _open_safetensors,
    ".parquet": _open_parquet,
}


def _by_rows(path: Path, rows: int, columns: int, dtype: torch.dtype, read: Callable[[int, int], Tensor]) -> CodeFile:
    """A file of which any rows can be read."""

    def chunks(begin: int, end: int) -> Iterator[Tensor]:
        return (read(row, min(row + CHUNK, end)) for row in range(begin, end, CHUNK))

    return CodeFile(path, rows, columns, dtype, chunks)


def _check(path: Path, shape: list[int], kind: str, floating: bool) -> torch.dtype:
    """The type in which codes are read that are stored like this; half precision is too coarse to compute with."""
    if len(shape) != 2 or not shape[1]:
        raise DataError(f"{path} holds an array of shape {shape}; expected [T, C], a code in every row")
    if not floating:
        raise DataError(f"{path} holds numbers of type {kind}; expected floating-point numbers, such as float32")
    return torch.float64 if kind in ("F64", "float64") else torch.float32


def _sort(file: CodeFile) -> str:
    return f"{file.columns} numbers of type {str(file.dtype).removeprefix('torch.')}"
