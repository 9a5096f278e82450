"""Every Python block of the README and of the results runs as it stands; every file they link to exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "results").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", block]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text()) + re.findall(r'src="([^"]+)"', page.read_text())
    missing = [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]
    assert not missing


def test_there_is_something_to_run() -> None:
    assert len(BLOCKS) >= 2


def test_every_command_of_the_readme_exists() -> None:
    from vbmem.cli import COMMANDS

    text = re.sub(r"```.*?```", "", PAGES[0].read_text(), flags=re.DOTALL)
    named = set(re.findall(r"(?:^    |`)vbmem ([a-z][a-z0-9]+)", text, re.MULTILINE))
    assert len(named) > 5
    assert named <= set(COMMANDS), named - set(COMMANDS)
