"""Files of embeddings as people drop them: read within limits, or refused in a sentence."""

import io
from pathlib import Path

import numpy as np
import pytest

from vbmem.app import code_uploads
from vbmem.app.code_uploads import read_codes
from vbmem.errors import DataError

CODES = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)


def text_of(codes: np.ndarray, separator: str = ",") -> str:
    return "\n".join(separator.join(f"{value:.9g}" for value in row) for row in codes) + "\n"


def make(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def npy(array: np.ndarray) -> bytes:
    np.save(buffer := io.BytesIO(), array)
    return buffer.getvalue()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int16])
def test_numbers_of_every_kind_are_read(tmp_path: Path, dtype: type) -> None:
    array: np.ndarray = (10 * CODES).astype(dtype)
    read = read_codes(make(tmp_path / "a.npy", npy(array)))
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, array.astype(np.float32))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("names", ["", "one{0}two{0}three\n"])
def test_text_is_read_with_or_without_names(tmp_path: Path, separator: str, names: str) -> None:
    text = "\ufeff" + names.format(separator) + text_of(CODES, separator) + "\n"
    np.testing.assert_allclose(read_codes(make(tmp_path / "a.csv", text)), CODES, rtol=1e-6)


def huge_npy(shape: str, dtype: str = "<f4") -> bytes:
    """A header that promises much, and nothing behind it."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


REFUSED: dict[str, tuple[str, bytes | str, str]] = {
    "text": ("a.csv", "dear sir or madam", "expected at least 10 rows"),
    "empty": ("a.csv", "", "expected at least 10 rows"),
    "few rows": ("a.npy", npy(CODES[:9]), "holds 9 rows of 3 numbers; expected at least 10"),
    "no columns": ("a.npy", npy(CODES[:, :0]), "rows of 0 numbers"),
    "one axis": ("a.npy", npy(CODES[:, 0]), r"expected numbers \[T, C\]"),
    "words": ("a.npy", npy(np.array([["a"]])), "expected numbers"),
    "objects": ("a.npy", npy(np.array([[None]])), "damaged or not an .npy file"),
    "no npy": ("a.npy", b"PK", "a.npy is damaged or not an .npy file"),
    "promises": ("a.npy", huge_npy("(1000000, 1000000)"), "damaged or not an .npy file"),
    "a name in a row": ("a.csv", text_of(CODES) + "1,2,x\n", "has 'x' in row 13; leave out columns"),
    "a missing name": ("a.csv", ",x,y,z\n" + text_of(CODES), "has a column without a name.*index=False"),
    "no names, but numbers of rows": ("a.csv", ",0,1,2\n" + text_of(CODES), "has a column without a name"),
    "nothing in the first row": ("a.csv", ",2,3\n" + text_of(CODES), "has an empty cell in row 1; fill in"),
    "nothing in a row": ("a.csv", text_of(CODES) + "1,,3\n", "has '' in row 13; fill in what is missing"),
    "quotation marks": ("a.csv", text_of(CODES) + '1,"2",3\n', "write numbers without quotation marks"),
    "uneven": ("a.csv", text_of(CODES) + "1,2\n", "has 2 numbers in row 13; expected 3"),
    "not a number": ("a.csv", text_of(CODES) + "1,nan,3\n", "holds NaN, infinity or too large a number in row 13"),
    "too large": ("a.npy", npy(np.full((12, 3), 1e300)), "too large a number in row 1"),
    "bytes": ("a.csv", bytes(range(128, 256)) * 3, "damaged or not a CSV file of numbers"),
    "a long line": ("a.csv", "1," * 100_000, "has a line of more than"),
    "many rows": ("a.csv", "1\n" * 10_001, "holds more than 10,000 rows"),
    "very many rows": ("a.csv", "\n" * 30_000, "holds more than 10,000 rows"),
    "many columns": ("a.csv", ("1," * 2100 + "1\n") * 10, "more than .* 2,048 columns"),
}


@pytest.mark.parametrize(("name", "content", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_one_sentence_without_the_folder(
    tmp_path: Path, name: str, content: bytes | str, reason: str
) -> None:
    with pytest.raises(DataError, match=reason) as refused:
        read_codes(make(tmp_path / name, content))
    assert str(tmp_path) not in str(refused.value)


def test_a_file_within_its_size_but_beyond_the_numbers_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a.npy", npy(np.zeros((5000, 500), np.float16)))
    monkeypatch.setattr(np, "array", lambda *args: pytest.fail("it was read"))
    with pytest.raises(DataError, match="2,000,000 numbers"):
        read_codes(path)


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_uploads, "MAX_FILE", 10)
    with pytest.raises(DataError, match=r"a.csv is larger than"):
        read_codes(make(tmp_path / "a.csv", text_of(CODES)))


def test_columns_may_be_named_by_their_numbers(tmp_path: Path) -> None:
    np.testing.assert_allclose(read_codes(make(tmp_path / "a.csv", "0,1,2\n" + text_of(CODES))), CODES, rtol=1e-6)
