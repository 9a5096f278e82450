"""What a command lists: a table for people, JSON for programs."""

from __future__ import annotations

from json import dumps
from typing import Any

from rich.console import Console
from rich.table import Table


def show(rows: list[dict[str, Any]], json: bool) -> None:
    """Rows with the same names, which head the columns."""
    if json:
        print(dumps(rows, indent=1))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    Console().print(table)
