"""Tables for people to read."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table


def table(rows: Sequence[Mapping[str, Any]], title: str | None = None, decimals: int = 2) -> Table:
    """Rows with the same names, which head the columns; numbers are at the right of theirs.

    Args:
        decimals: of floating-point numbers.
    """
    result = Table(title=title)
    for name, value in next(iter(rows), {}).items():
        result.add_column(name, justify="right" if isinstance(value, int | float) else "left", overflow="fold")
    for row in rows:
        result.add_row(*(_cell(value, decimals) for value in row.values()))
    return result


def counted(number: int, things: str) -> str:
    """So many things, by their plural, whose last letter goes for a single one."""
    return f"{number} {things[:-1] if number == 1 else things}"


def file_size(count: int) -> str:
    """So many bytes, in kilobytes where there is at least one."""
    return f"{count / 1024:,.0f} kB" if count >= 1024 else counted(count, "bytes")


def _cell(value: Any, decimals: int) -> str:
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.{decimals}f}"
        case _:
            return escape(str(value))
