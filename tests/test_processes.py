"""Threads may share a model; processes are spawned, and may share files."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import pytest
import torch

import vbmem
from saved_files import written_anew
from tiny import noise, seeded, tiny_model


@pytest.mark.parametrize("times", [8, pytest.param(160, marks=pytest.mark.long)])
def test_threads_that_share_a_model_do_not_disturb_each_other(times):
    model = tiny_model()
    pictures = torch.from_numpy(noise(9)).movedim(-1, 1)

    def work(seed):
        memory = model.write(pictures, generator=seeded(seed))
        return model.generate(memory, 2, generator=seeded(seed)), model.score(memory, pictures)

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(work, range(times)))
    for seed, (generated, scores) in enumerate(together):
        alone = work(seed)
        torch.testing.assert_close(generated, alone[0])
        torch.testing.assert_close(scores, alone[1])


@pytest.mark.parametrize("times", [8, pytest.param(160, marks=pytest.mark.long)])
def test_threads_that_save_to_one_file_lose_no_save_and_no_load(times, tmp_path):
    """41 of 160 saves and 11 of 160 loads used to fail."""
    path = tmp_path / "a.memory"
    with ThreadPoolExecutor(8) as threads:
        rows = list(threads.map(partial(written_anew, path=path), range(times)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.memory"]
    last = vbmem.WrittenMemory.load(path).state.row_mean
    assert any(torch.equal(last, one) for one in rows)


@pytest.mark.long
def test_processes_that_save_to_one_file_lose_no_save_and_no_load(tmp_path):
    path = tmp_path / "a.memory"
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as processes:
        rows = list(processes.map(partial(written_anew, path=path), range(160)))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.memory"]
    for seed in (0, 159):
        assert torch.equal(rows[seed], written_anew(seed))


FORKED = """
import os, sys, torch, vbmem
from saved_files import written_anew
child = os.fork()
if child == 0:
    written_anew(0)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.long
def test_a_child_that_is_forked_before_anything_is_computed_can_compute():
    importable = os.environ | {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "2"}
    process = subprocess.run([sys.executable, "-c", FORKED], env=importable, timeout=120)
    assert process.returncode == 0
