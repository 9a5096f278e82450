"""Progress bars: on standard error, on a terminal, and in nobody's way."""

import sys
from pathlib import Path

import pytest

from vbmem.progress import track


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes standard error for a terminal


def test_nothing_is_shown_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(track("abc", "working")) == ["a", "b", "c"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_a_bar_goes_to_standard_error_only(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(track("abc", "working")) == ["a", "b", "c"]
    out, err = capfd.readouterr()
    assert "working" in err
    assert not out


@pytest.mark.usefixtures("terminal")
def test_a_bar_that_is_not_wanted_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(track("abc", "working", show=False)) == ["a", "b", "c"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_items_without_a_length_are_counted_to_the_total_that_is_given(capfd: pytest.CaptureFixture[str]) -> None:
    assert list(track(iter("abc"), "working", total=3)) == ["a", "b", "c"]
    assert "100%" in capfd.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_what_is_printed_meanwhile_still_reaches_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out.txt").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        for letter in track("ab", "working"):
            print(letter)
    assert (tmp_path / "out.txt").read_text() == "a\nb\n"
