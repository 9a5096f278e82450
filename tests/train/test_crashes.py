"""Whatever kills a run, it can be resumed, and then ends as if it had never been killed."""

import gc
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tiny import CPU, squares, tiny_run, tiny_trainer
from train.runs import FEW, GivenBounds, assert_same_remains, log_lines, train_in_a_process, trained
from vbmem.files import read_tensors
from vbmem.train import Stage, loop
from vbmem.train.checkpoint import load_checkpoint

KILLS = 4
EPOCHS = 15


@pytest.mark.parametrize(("times", "epochs"), [(KILLS, EPOCHS), pytest.param(150, 600, marks=pytest.mark.long)])
def test_a_killed_run_can_always_be_resumed(times, epochs, tmp_path, processes):
    trained(tiny_run(epochs=epochs), tmp_path / "whole")
    killed = tmp_path / "killed"
    delays = random.Random(0)
    kills = 0
    for _ in range(times):
        under_way = processes.Event()
        process = processes.Process(target=train_in_a_process, args=(killed, epochs, under_way))
        process.start()
        assert under_way.wait(60)
        time.sleep(delays.uniform(0, 0.4))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if (killed / "last.safetensors").exists():
            load_checkpoint(killed / "last.safetensors")
        if (killed / "model.safetensors").exists():
            read_tensors(killed / "model.safetensors", CPU)
    assert kills
    trained(tiny_run(epochs=epochs), killed, resume=(killed / "last.safetensors").exists())
    assert_same_remains(tmp_path / "whole", killed)


def test_ctrl_c_ends_the_process_and_saves(tmp_path):
    command = [sys.executable, "-m", "train.runs", tmp_path, "10000"]
    importable = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=importable
    ) as process:
        deadline = time.monotonic() + 60
        while not ((tmp_path / "log.jsonl").exists() and len(log_lines(tmp_path)) > 1):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
    assert f"stopped, and saved in {tmp_path}; resume the run to go on" in said
    _, progress = load_checkpoint(tmp_path / "last.safetensors")
    assert progress.epoch == len(log_lines(tmp_path)) > 1
    resumed = tiny_trainer(tiny_run(epochs=10000), tmp_path, resume=True)
    assert (resumed.progress.epoch, resumed.progress.batch) == (progress.epoch, progress.batch)


class PowerCut(Exception):
    """Nothing is caught, nothing saved."""


# Worse and worse, so that the best weights of a stage are those of its first epoch.
BOUNDS = [3.0, 2.0, 1.0, 0.9, 0.8, 0.7]


class SavingNowAndThen(GivenBounds):
    """Checkpoints come after the second and the fifth epoch, which lie in different stages, and at the end."""

    def __call__(self):
        epoch = self.made.progress.epoch - 1
        loop.SAVE_EVERY = 0.0 if epoch in (1, 4) else 1e9
        return {"elbo_per_frame": BOUNDS[epoch], "standard_error": 0.0}


def run(run_dir, **options):
    made = tiny_trainer(tiny_run(stages=(Stage(3, 1e-2), Stage(3, 1e-3)), data=FEW), run_dir, squares(20), **options)
    SavingNowAndThen(made, BOUNDS)
    made.run()


@pytest.mark.parametrize("write", range(11))
def test_a_power_cut_before_any_write_loses_nothing(write, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 1e9)
    writes = 0

    def cut(original):
        def cut_or_write(*args):
            nonlocal writes
            if writes == write:
                raise PowerCut
            writes += 1
            original(*args)

        return cut_or_write

    run(tmp_path / "whole")
    with monkeypatch.context() as patch:
        for name in ("write_weights", "write_run", "save_checkpoint"):
            patch.setattr(loop, name, cut(getattr(loop, name)))
        with pytest.raises(PowerCut):
            run(tmp_path / "cut")
    run(tmp_path / "cut", resume=(tmp_path / "cut" / "last.safetensors").exists())
    assert_same_remains(tmp_path / "whole", tmp_path / "cut")


OPERATIONS = {"open": (os, "open"), "sync": (os, "fsync"), "rename": (Path, "replace")}


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_power_cut_around_any_file_operation_loses_nothing(moment, tmp_path, monkeypatch):
    """After the cut nothing works any more, so that nobody can tidy up."""
    monkeypatch.setattr(loop, "SAVE_EVERY", 1e9)
    done = 0

    def cut(original, last):
        def cut_or_do(*args, **options):
            nonlocal done
            done += 1
            if done > last or (done == last and moment == "before"):
                raise PowerCut
            result = original(*args, **options)
            if done == last:
                raise PowerCut
            return result

        return cut_or_do

    run(tmp_path / "whole")
    for last in range(1, 1000):
        run_dir, done = tmp_path / f"cut {last}", 0
        with monkeypatch.context() as patch:
            for place, name in OPERATIONS.values():
                patch.setattr(place, name, cut(getattr(place, name), last))
            try:
                run(run_dir)
                break
            except PowerCut:
                pass
        gc.collect()  # a process that died holds no lock
        run(run_dir, resume=(run_dir / "last.safetensors").exists())
        assert_same_remains(tmp_path / "whole", run_dir)
    assert last > 50
