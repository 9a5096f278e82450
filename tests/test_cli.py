"""The command line as a person meets it."""

import subprocess
import sys
from pathlib import Path


def vbmem(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from vbmem.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)


def test_figure2_runs_and_says_where_the_pictures_are(tmp_path: Path) -> None:
    result = vbmem("figure2", "--out", str(tmp_path), "--rows", "8", "--code-sizes", "50")
    assert result.returncode == 0, result.stderr
    assert "figure2a.png" in result.stdout
    assert (tmp_path / "figure2b.png").exists()


def test_a_bad_value_is_one_sentence_and_a_failing_exit() -> None:
    result = vbmem("figure2", "--out", "unused", "--rows", "0")
    assert result.returncode == 2
    assert "must be at least 1" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unwritable_directory_is_reported() -> None:
    result = vbmem("figure2", "--out", "/proc/nowhere", "--rows", "8", "--code-sizes", "50")
    assert result.returncode == 2
    assert "/proc/nowhere" in result.stderr
    assert "Traceback" not in result.stderr
