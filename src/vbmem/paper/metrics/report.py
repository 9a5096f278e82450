"""The measurements of all episodes taken together, and shown as tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from vbmem.paper.metrics.trial import Json

WIDE = 5  # columns of a table that has no room for standard errors; they are in the result


def summarise(episodes: Sequence[Any]) -> Json:
    """Of every number in nested dictionaries the mean over episodes, and its standard error, which one has not."""
    if isinstance(episodes[0], dict):
        return {name: summarise([episode[name] for episode in episodes]) for name in episodes[0]}
    error = statistics.stdev(episodes) / math.sqrt(len(episodes)) if len(episodes) > 1 else None
    return {"mean": statistics.fmean(episodes), "error": error}


def show(tables: dict[str, Json], console: Console) -> None:
    """Every table that has rows, under its title: row -> column -> number, or what `summarise` made of several."""
    for title, rows in tables.items():
        if rows:
            table = Table("", *next(iter(rows.values())), title=title)
            for name, columns in rows.items():
                table.add_row(name, *(_text(value, len(columns) < WIDE) for value in columns.values()))
            console.print(table)


def metric_tables(title: str, content: Json) -> dict[str, Json]:
    """A summarised metric that is a table, or one that has several by name: title -> table."""
    first_row: Json = next(iter(content.values()), {})
    if all("mean" in value for value in first_row.values()):
        return {title: content}
    return {f"{title}, {name}": rows for name, rows in content.items()}


def size_tables(cells: Sequence[Json]) -> dict[str, Json]:
    """The cells of `size_table`, those of the samples and those of the reads by themselves."""
    rows = {f"{cell['frames']} frames, {cell['clusters']} clusters": cell for cell in cells}
    common = ("bound per frame", "base rate")
    return {
        f"sizes, {made}": {name: {key: cell[key] for key in common} | cell[made] for name, cell in rows.items()}
        for made in ("samples", "reads")
    }


def _text(value: Any, with_error: bool) -> str:
    if isinstance(value, dict):
        error = f" ± {value['error']:.4f}" if with_error and value["error"] is not None else ""
        return f"{value['mean']:.4f}{error}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
