"""What commands print: sentences and tables for people, JSON for programs."""

from json import dumps
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

console = Console()


def say(text: str) -> None:
    """Print a sentence as it is, however long: no markup, no colours for numbers, no wrapping."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def show(rows: list[dict[str, Any]], json: bool) -> None:
    """Rows with the same names, which head the columns."""
    if json:
        print(dumps(rows, indent=1))
        return
    table = Table()
    for name, value in rows[0].items():
        table.add_column(name, justify="right" if isinstance(value, int | float) else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)


def _cell(value: Any) -> str:
    match value:
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.2f}"
        case _:
            return escape(str(value))
