"""What a run writes down and shows."""

import importlib.util
import io
import json
import math
import sys
import types
from typing import Any

import pytest
from rich.console import Console

from tiny import tiny_run
from train.runs import log_lines, trained
from vbmem.files import parse_json
from vbmem.train.log import Display, RunLog


def shown(console: Console) -> str:
    """What was written to a console over a string."""
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(autouse=True)
def _no_tensorboard(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))


def write_epochs(run_dir, count):
    log = RunLog(run_dir, epochs_known=0)
    for epoch in range(1, count + 1):
        log.event("epoch", epoch, bound=-0.5 * epoch)
    log.close()


def test_an_event_is_a_line_of_json(tmp_path):
    write_epochs(tmp_path, 2)
    text = (tmp_path / "log.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"event": "epoch", "epoch": 1, "bound": -0.5},
        {"event": "epoch", "epoch": 2, "bound": -1.0},
    ]
    assert text.endswith("\n")


def test_what_is_not_a_number_is_null(tmp_path):
    """Bare NaN is no JSON, and other programs stumble over it."""
    RunLog(tmp_path, epochs_known=0).event("epoch", 1, bound=math.nan, valid={"a": math.inf, "b": -math.inf, "c": 1.5})
    text = (tmp_path / "log.jsonl").read_text()
    expected = {"event": "epoch", "epoch": 1, "bound": None, "valid": {"a": None, "b": None, "c": 1.5}}
    assert parse_json(text) == expected


def test_an_event_is_on_disk_at_once(tmp_path):
    log = RunLog(tmp_path, epochs_known=0)
    log.event("epoch", 1)
    assert len(log_lines(tmp_path)) == 1


@pytest.mark.parametrize("known", range(5))
def test_resuming_drops_what_the_checkpoint_does_not_know(known, tmp_path):
    write_epochs(tmp_path, 4)
    before = (tmp_path / "log.jsonl").read_text().splitlines()
    RunLog(tmp_path, epochs_known=known).event("epoch", known + 1)
    after = (tmp_path / "log.jsonl").read_text().splitlines()
    assert after[:-1] == before[:known]
    assert json.loads(after[-1]) == {"event": "epoch", "epoch": known + 1}


def test_a_line_cut_short_by_a_crash_is_dropped(tmp_path):
    write_epochs(tmp_path, 2)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"event": "epoch", "epo')
    RunLog(tmp_path, epochs_known=2)
    assert [line["epoch"] for line in log_lines(tmp_path)] == [1, 2]


def test_a_run_whose_log_was_cut_short_or_lost_can_be_resumed(tmp_path):
    trained(tiny_run(epochs=2), tmp_path)
    path = tmp_path / "log.jsonl"
    path.write_text(path.read_text()[:-40])
    assert trained(tiny_run(epochs=2), tmp_path, resume=True).progress.epoch == 2
    path.unlink()
    assert trained(tiny_run(epochs=2), tmp_path, resume=True).progress.epoch == 2


def test_without_tensorboard_nothing_is_written_for_it(tmp_path):
    trained(tiny_run(epochs=1), tmp_path)
    assert not (tmp_path / "tensorboard").exists()


class FakeWriter:
    """In the place of TensorBoard's."""

    def __init__(self, directory):
        self.directory, self.scalars, self.closed = directory, [], False

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def close(self):
        self.closed = True


def test_with_tensorboard_every_number_is_a_curve(tmp_path, monkeypatch):
    made = []

    def make_writer(directory):
        made.append(FakeWriter(directory))
        return made[-1]

    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = make_writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    trained(tiny_run(epochs=2), tmp_path)
    (writer,) = made
    assert writer.directory == str(tmp_path / "tensorboard")
    assert writer.closed
    lines = log_lines(tmp_path)
    expected = {
        (f"{name}/{part}", value, line["epoch"])
        for line in lines
        for part in ("train", "valid")
        for name, value in line[part].items()
    }
    assert set(writer.scalars) == expected
    assert len(writer.scalars) == len(expected)


def test_the_display_works_where_there_is_no_terminal():
    console = Console(file=io.StringIO())
    assert not console.is_terminal
    with Display(console, batches=3) as display:
        display.show("epoch 1", 1, "bound 1.0")
        display.say("epoch 1 is over")
        display.show("epoch 2", 0, "bound nan")
    assert "epoch 1 is over\n" in shown(console)
    assert "\x1b" not in shown(console)


def test_the_display_works_in_a_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Display(console, batches=3) as display:
        display.show("epoch 1", 1, "bound 1.0   9 frames/s")
        display.say("epoch 1 is over")
    said = shown(console)
    assert "epoch 1 is over" in said
    assert "1/3" in said
    assert "9 frames/s" in said


def test_the_display_gives_the_terminal_back_after_an_error():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with pytest.raises(RuntimeError, match="broken"), Display(console, batches=3):
        raise RuntimeError("broken")
    assert shown(console).count("\x1b[?25l") == shown(console).count("\x1b[?25h") == 1


def test_long_lines_are_not_broken():
    console = Console(file=io.StringIO(), width=40)
    with Display(console, batches=3) as display:
        display.say("word " * 50)
    assert "word " * 50 in shown(console)


@pytest.mark.parametrize("run_dir", ["runs/vae[old]", "runs[/b]"])
def test_directories_are_named_as_they_are(run_dir):
    console = Console(file=io.StringIO())
    with Display(console, batches=3) as display:
        display.say(f"go on with --run-dir {run_dir}")
    assert f"go on with --run-dir {run_dir}\n" in shown(console)
