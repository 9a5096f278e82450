"""Builds the site into site/, and fails on any warning.

python docs/build.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import prepare

ROOT = Path(__file__).parents[1]
COMPLAINT = re.compile(
    r"^(griffe|mkdocstrings|zensical):|warning", re.IGNORECASE | re.MULTILINE
)


def main() -> None:
    prepare.main()
    # For mathml.py.
    search = filter(None, [str(ROOT / "docs"), os.environ.get("PYTHONPATH")])
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search), "NO_COLOR": "1"}
    build = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    shutil.rmtree(ROOT / ".cache", ignore_errors=True)
    print(build.stdout)
    # Strict mode lets the docstring parser's complaints pass.
    if build.returncode or COMPLAINT.search(build.stdout):
        sys.exit("the documentation does not build cleanly; see above")


if __name__ == "__main__":
    main()
