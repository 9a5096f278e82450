"""The command line. Each command is a function here that only composes; its arguments make the interface."""

from __future__ import annotations

import sys
from pathlib import Path

import tyro
from rich.console import Console

console = Console()


def figure2(
    out: Path,
    seed: int = 0,
    seeds: int = 1,
    rows: list[int] = [8, 16, 32, 64, 128, 256],  # noqa: B006, shown as the default
    code_sizes: list[int] = [50, 100, 200, 400, 800],  # noqa: B006
) -> None:
    """Figure 2: variational Bayes against the Dynamic Kanerva Machine on synthetic episodes.

    Args:
        out: directory for the two pictures and figure2.json.
        seed: the first seed.
        seeds: how many seeds, each with its own episode; the pictures show the mean.
        rows: memory sizes K.
        code_sizes: code sizes C.
    """
    from vbmem.paper import figure2

    if seeds < 1 or min(*rows, *code_sizes, 1) < 1:
        raise ValueError("--seeds, --rows and --code-sizes must be at least 1")
    figure2.figure2(out, seed, seeds, rows, code_sizes, console)


COMMANDS = {"figure2": figure2}


def main() -> None:
    """Entry point: one sentence on standard error and exit code 2 for what the user can mend."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="vbmem", description="Fast-adapting generative memory.")
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"vbmem: {error}", style="red", soft_wrap=True, markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
