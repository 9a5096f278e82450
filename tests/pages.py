"""Runs the Python blocks of a page of documentation; a module of its own, for the process that does it."""

import contextlib
import io
import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple


class Step(NamedTuple):
    line: int
    """Of the fence of the block."""
    code: str
    printed: str | None
    """What the page says it prints, to the letter."""


def run_page(steps: list[Step], alone: bool, folder: Path, errors: Path) -> None:
    """Run the blocks in `folder`, each `alone` or all in one namespace; what goes wrong is found in `errors`."""
    sys.stderr = errors.open("w")
    os.chdir(folder)
    warnings.simplefilter("error")
    shared = {"__name__": "__main__"}
    for step in steps:
        printed = io.StringIO()
        code = compile("\n" * step.line + step.code, "the page", "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"} if alone else shared)
        if step.printed is not None and printed.getvalue() != step.printed:
            sys.exit(f"line {step.line}: printed\n{printed.getvalue()}but the page says\n{step.printed}")
