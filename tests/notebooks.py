"""Runs a notebook from top to bottom as IPython does; a module of its own, for the process that does it."""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any


def run_notebook(path: Path, folder: Path, results: Path, errors: Path) -> None:
    """Run the cells of a notebook in `folder`; what each shows is left in `results`, what goes wrong in `errors`."""
    sys.stderr = errors.open("w")
    os.chdir(folder)
    os.environ["IPYTHONDIR"] = str(folder.with_name("ipython"))
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from traitlets.config import Config

    warnings.simplefilter("default")
    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    displayed: list[dict[str, Any]] = []
    shell.display_trap.hook = CapturingDisplayHook(shell, displayed)
    outputs = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        displayed.clear()
        with capture_output(display=False) as captured:
            shell.run_cell("".join(cell["source"])).raise_error()
        printed = [{"text": text} for text in (captured.stdout, captured.stderr) if text]
        outputs.append(printed + [{"data": sorted(shown["data"])} for shown in displayed])
    results.write_text(json.dumps(outputs))
