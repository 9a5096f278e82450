"""A directory holds one run at a time, and whoever comes second is told who has it."""

import os
import platform
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from tiny import tiny_run, tiny_trainer
from train.runs import assert_same_remains, log_lines, trained
from vbmem.errors import CheckpointError
from vbmem.train.lock import NAME, DirectoryLock

CONFIG = tiny_run(epochs=2)
HELD = rf"is in use by process {os.getpid()} on {platform.node()}, since \d{{4}}-.*; wait until that run has ended"
HOLD = """
import sys, pathlib
from vbmem.train.lock import DirectoryLock

held = DirectoryLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
input()
"""


def test_a_second_run_is_told_who_holds_the_directory(tmp_path):
    first = tiny_trainer(CONFIG, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for resume in (False, True):
        with pytest.raises(CheckpointError, match=HELD) as caught:
            tiny_trainer(CONFIG, tmp_path, resume=resume)
        assert str(caught.value).startswith(str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    first.run()
    assert len(log_lines(tmp_path)) == 2


def test_once_a_run_has_ended_others_may_go_on(tmp_path):
    first = trained(CONFIG, tmp_path)
    assert not (tmp_path / NAME).exists()
    second = tiny_trainer(CONFIG, tmp_path, resume=True)
    with pytest.raises(CheckpointError, match=HELD):
        first.run()
    second.run()
    first.run()


def test_a_run_that_could_not_begin_or_broke_off_holds_nothing(tmp_path, monkeypatch):
    made = tiny_trainer(CONFIG, tmp_path)
    monkeypatch.setattr(made, "_epoch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.run()
    assert not (tmp_path / NAME).exists()
    with pytest.raises(CheckpointError, match="other settings"):
        tiny_trainer(tiny_run(epochs=3), tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="holds a run already"):
        tiny_trainer(CONFIG, tmp_path)
    assert not (tmp_path / NAME).exists()


def test_a_run_that_could_not_begin_leaves_no_directory(tmp_path):
    data = replace(CONFIG.data, batch_size=10**9)
    with pytest.raises(ValueError, match="needs 4000000000 images"):
        tiny_trainer(replace(CONFIG, data=data), tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path):
    importable = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=importable
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=f"is in use by process {process.pid} on "):
            DirectoryLock(tmp_path)
        process.kill()
    assert (tmp_path / NAME).exists()
    DirectoryLock(tmp_path).release()
    assert not (tmp_path / NAME).exists()


def test_a_lock_that_nobody_refers_to_is_released(tmp_path):
    DirectoryLock(tmp_path)
    DirectoryLock(tmp_path).release()


@pytest.mark.long
def test_of_several_that_resume_at_once_one_goes_on(tmp_path):
    """Three used to mix their logs, and one deleted what another was about to write."""
    trained(tiny_run(epochs=300), tmp_path / "whole")
    run_dir = tmp_path / "run"
    importable = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    for _ in range(3):
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "train.runs", run_dir, "300"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=importable,
            )
            for _ in range(3)
        ]
        said = [process.communicate(timeout=300)[1] for process in processes]
        refused = [re.search(r"is in use by process \d+ on", text) is not None for text in said]
        for process, was_refused in zip(processes, refused, strict=True):
            assert (process.returncode != 0) == was_refused
    assert_same_remains(tmp_path / "whole", run_dir)
