"""Codes on disk: read a chunk of rows at a time, and refused in one sentence where they are none."""

import os
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vbmem.data import code_files
from vbmem.data.code_files import holds_codes, open_codes
from vbmem.errors import DataError
from vbmem.memory import streams

ROWS = np.random.default_rng(0).normal(size=(25, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(code_files, "CHUNK", 10)


def save(path, rows=ROWS):
    """In the format that the suffix names."""
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".safetensors":
        save_file({"embeddings": torch.from_numpy(rows)}, path)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        arrow = sys.modules["pyarrow"]
        parquet.write_table(arrow.table({"id": range(len(rows)), "embedding": list(rows)}), path)
    return path


@pytest.mark.parametrize("suffix", [".npy", ".safetensors", ".parquet"])
def test_a_file_is_read_in_chunks_again_and_again(suffix, tmp_path):
    codes = open_codes(save(tmp_path / f"codes{suffix}"))
    assert (codes.frames, codes.code_size, len(codes)) == (25, 3, 3)
    for _ in range(2):
        assert [len(chunk) for chunk in codes] == [10, 10, 5]
        assert torch.equal(torch.cat(list(codes)), torch.from_numpy(ROWS))


def test_columns_of_a_parquet_file_are_the_numbers_of_a_code(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({f"feature {i}": column for i, column in enumerate(ROWS.T)})
    parquet.write_table(table, tmp_path / "codes.parquet")
    assert torch.equal(torch.cat(list(open_codes(tmp_path / "codes.parquet"))), torch.from_numpy(ROWS))
    parquet.write_table(arrow.table({"id": [1, 2], "name": ["a", "b"]}), tmp_path / "names.parquet")
    with pytest.raises(DataError, match="has the columns id, name; expected one with lists of floating-point numbers"):
        open_codes(tmp_path / "names.parquet")


def test_shards_follow_each_other_in_the_order_of_their_names(tmp_path):
    save(tmp_path / "b.safetensors", ROWS[12:])
    save(tmp_path / "a.npy", ROWS[:12])
    save(tmp_path / "c.npy", ROWS[:0])
    (tmp_path / "notes.txt").write_text("no codes")
    codes = open_codes(tmp_path)
    assert torch.equal(torch.cat(list(codes)), torch.from_numpy(ROWS))
    assert [len(chunk) for chunk in codes] == [10, 2, 10, 3]
    assert (codes.frames, len(codes)) == (25, 4)
    assert [codes.place(row) for row in (0, 11)] == [("a.npy", 0), ("a.npy", 11)]
    assert [codes.place(row) for row in (12, 24)] == [("b.safetensors", 0), ("b.safetensors", 12)]
    with pytest.raises(IndexError, match="25 rows only"):
        codes.place(25)


def test_a_part_of_the_rows_is_read_alone_and_keeps_their_numbers(tmp_path):
    save(tmp_path / "a.npy", ROWS[:12])
    spoilt = ROWS[12:].copy()
    spoilt[9] = np.nan
    save(tmp_path / "b.safetensors", spoilt)
    codes = open_codes(tmp_path)
    for begin, end in [(0, 5), (3, 12), (11, 21), (12, 20), (22, 25), (7, 7), (25, 25)]:
        part = codes.part(begin, end)
        assert (part.frames, part.code_size) == (end - begin, 3)
        assert torch.equal(torch.cat([torch.empty(0, 3), *part]), torch.from_numpy(np.array(ROWS[begin:end])))
    assert codes.part(11, 25).place(1) == ("b.safetensors", 0)
    assert codes.part(3, 12).part(2, 9).place(0) == ("a.npy", 5)
    with pytest.raises(DataError, match=r"b.safetensors holds NaN or infinity in row 9"):
        list(codes.part(13, 25))


def test_of_a_parquet_file_only_the_groups_of_rows_that_are_needed_are_read(tmp_path, monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "codes.parquet"
    parquet.write_table(arrow.table({"embedding": list(ROWS)}), path, row_group_size=12)
    codes, asked, plain = open_codes(path), [], parquet.ParquetFile.iter_batches

    def watched(*args, **options):
        asked.append(options["row_groups"])
        return plain(*args, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    for begin, end in [(0, 25), (13, 15), (11, 23), (23, 25), (5, 5)]:
        rows = torch.cat([torch.empty(0, 3), *codes.part(begin, end)])
        assert torch.equal(rows, torch.from_numpy(np.array(ROWS[begin:end])))
    assert asked == [[0, 1, 2], [1], [0, 1], [1, 2]]


def test_a_fingerprint_notices_every_change(tmp_path):
    save(tmp_path / "a.npy", ROWS[:12])
    seen = [open_codes(tmp_path).fingerprint()]
    assert open_codes(tmp_path).fingerprint() == seen[0]
    for change in (
        lambda: save(tmp_path / "b.npy"),
        lambda: (tmp_path / "b.npy").rename(tmp_path / "c.npy"),
        lambda: save(tmp_path / "c.npy", ROWS[:24]),
        lambda: os.utime(tmp_path / "a.npy", ns=(0, 0)),  # as when it is written anew, with other rows
    ):
        change()
        seen.append(open_codes(tmp_path).fingerprint())
    assert len(set(seen)) == 5


@pytest.mark.parametrize(
    ("stored", "read"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float64", "float64"), (">f4", "float32")],
)
def test_codes_are_computed_with_in_single_precision_at_least(stored, read, tmp_path):
    path = tmp_path / "codes.safetensors"
    if stored == "bfloat16":
        save_file({"z": torch.from_numpy(ROWS).bfloat16()}, path)
    else:
        np.save(path := path.with_suffix(".npy"), ROWS.astype(stored))
    (chunk, *_), codes = open_codes(path), open_codes(path)
    assert chunk.dtype == codes.files[0].dtype == getattr(torch, read)
    torch.testing.assert_close(chunk, torch.from_numpy(ROWS[:10]).to(chunk), rtol=1e-2, atol=1e-2)


def test_what_is_on_disk_is_never_read_whole(tmp_path, monkeypatch):
    opened, load = [], np.load

    def watched(*args, **options):
        opened.append(options["mmap_mode"])
        return load(*args, **options)

    monkeypatch.setattr(np, "load", watched)
    codes = iter(open_codes(save(tmp_path / "codes.npy")))
    assert next(codes).untyped_storage().nbytes() == 10 * 3 * 4
    assert opened == ["r", "r"]


def test_a_stream_of_them_is_not_checked_twice(tmp_path, monkeypatch):
    checked: list[int] = []
    monkeypatch.setattr(streams, "check_codes", lambda codes, size: checked.append(len(codes)))
    stream = streams.Stream(open_codes(save(tmp_path / "codes.npy")), 3)
    assert torch.equal(torch.cat(list(stream)), torch.from_numpy(ROWS))
    assert checked == [10]  # what the memory expects is compared with the first chunk


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named(suffix, value, tmp_path):
    rows = ROWS.copy()
    rows[17, 2] = value
    save(tmp_path / "0.npy")
    path = save(tmp_path / f"codes{suffix}", rows)
    with pytest.raises(DataError, match=rf"codes{suffix} holds NaN or infinity in row 17; mend or remove"):
        list(open_codes(path))
    with pytest.raises(DataError, match=rf"codes{suffix} holds NaN or infinity in row 17"):
        list(open_codes(tmp_path))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (ROWS[0], r"an array of shape \[3\]; expected \[T, C\]"),
        (ROWS[None], r"an array of shape \[1, 25, 3\]; expected \[T, C\]"),
        (ROWS[:, :0], r"an array of shape \[25, 0\]; expected"),
        (ROWS[:0], "holds no rows"),
        (np.arange(6).reshape(2, 3), "numbers of type (int64|I64); expected floating-point numbers"),
    ],
    ids=["vector", "batch", "no columns", "no rows", "whole numbers"],
)
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_what_is_no_table_of_codes_is_refused(rows, message, suffix, tmp_path):
    with pytest.raises(DataError, match=message):
        open_codes(save(tmp_path / f"codes{suffix}", np.ascontiguousarray(rows)))


def test_files_of_other_sizes_and_types_do_not_belong_together(tmp_path):
    save(tmp_path / "a.npy")
    save(tmp_path / "b.npy", ROWS[:, :2].copy())
    with pytest.raises(DataError, match=r"b.npy has rows of 2 numbers of type float32, but .*a.npy has 3 numbers"):
        open_codes(tmp_path)
    save(tmp_path / "b.npy", ROWS.astype(np.float64))
    with pytest.raises(DataError, match=r"b.npy has rows of 3 numbers of type float64, but"):
        open_codes(tmp_path)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_damaged_file_is_named(suffix, tmp_path):
    (path := tmp_path / f"codes{suffix}").write_bytes(b"garbage" * 20)
    with pytest.raises(DataError, match=rf"codes{suffix} is damaged or not a {suffix} file .*; write it again"):
        open_codes(path)


def test_pickles_and_several_tensors_are_refused(tmp_path):
    np.save(tmp_path / "codes.npy", np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"damaged or not a \.npy file"):
        open_codes(tmp_path / "codes.npy")
    save_file({name: torch.tensor(ROWS) for name in "ab"}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"holds 2 tensors; expected a single one, \[T, C\]"):
        open_codes(tmp_path / "model.safetensors")


def test_where_there_are_no_codes_that_is_said(tmp_path):
    for path in (tmp_path, tmp_path / "codes.csv"):
        with pytest.raises(DataError, match=r"holds no codes; expected files that end in .npy, .safetensors, .parquet"):
            open_codes(path)
    with pytest.raises(DataError, match=r"there is no file .*absent.npy"):
        open_codes(tmp_path / "absent.npy")


def test_pictures_go_before_codes(tmp_path):
    assert not holds_codes(tmp_path)
    save(tmp_path / "codes.npy")
    assert holds_codes(tmp_path)
    assert holds_codes(tmp_path / "codes.NPY")
    (tmp_path / "a.png").touch()
    assert not holds_codes(tmp_path)


def test_parquet_without_pyarrow_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(code_files, "find_spec", lambda name: None)
    (tmp_path / "codes.parquet").touch()
    with pytest.raises(DataError) as caught:
        open_codes(tmp_path / "codes.parquet")
    assert str(caught.value) == "Parquet files need pyarrow, which is not installed; run: pip install 'vbmem[arrow]'"
