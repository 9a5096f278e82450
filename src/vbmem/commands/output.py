"""What commands print: sentences and tables for people, JSON for programs."""

from json import dumps
from typing import Any

from rich.console import Console

from vbmem.tables import table

console = Console()


def say(text: str) -> None:
    """Print a sentence as it is, however long: no markup, no colours for numbers, no wrapping."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def warn(text: str) -> None:
    """Print a sentence on standard error, so that what a program reads stays as it is."""
    Console(stderr=True).print(f"vbmem: {text}", soft_wrap=True, markup=False, highlight=False)


def print_json(value: Any) -> None:
    print(dumps(value, indent=1))


def show(rows: list[dict[str, Any]], json: bool) -> None:
    """Rows with the same names, which head the columns."""
    if json:
        print_json(rows)
    else:
        console.print(table(rows))
