"""The demonstration leaves its pictures and says what it did."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from vbmem import demo
from vbmem.paper.presets import PRESETS


def test_the_demo_writes_an_episode_and_leaves_three_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = PRESETS[demo.PRESET]
    short = replace(preset, stages=(replace(preset.stages[0], epochs=1),))
    monkeypatch.setattr(demo, "get_preset", lambda name: short)
    console = Console(record=True, width=120)
    demo.demo(tmp_path, console)
    assert "wrote 32 digits into a memory of" in console.export_text()
    for name in ("episode", "recalled", "generated"):
        assert (tmp_path / f"digits-{name}.png").stat().st_size > 500
