"""Tables for people to read."""

import io
from typing import Any

from rich.console import Console

from vbmem.tables import file_size, table


def printed(*args: Any, **options: Any) -> str:
    console = Console(file=io.StringIO(), record=True, width=60)
    console.print(table(*args, **options))
    return console.export_text()


def test_names_head_the_columns_and_numbers_are_rounded() -> None:
    text = printed([{"name": "a[b]", "share": 0.125, "count": 12345}], "a title", decimals=1)
    assert "a title" in text
    assert "┃ name ┃ share ┃  count ┃" in text
    assert "│ a[b] │   0.1 │ 12,345 │" in text


def test_no_rows_are_an_empty_table() -> None:
    assert printed([]).strip() == ""


def test_sizes_are_bytes_up_to_a_kilobyte() -> None:
    assert [file_size(count) for count in (1, 1023, 1024, 3_000_000)] == ["1 byte", "1023 bytes", "1 kB", "2,930 kB"]
