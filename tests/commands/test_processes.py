"""Processes that torchrun starts together write one memory."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import vbmem
from commands.test_code_commands import groups, run
from vbmem.commands import processes
from vbmem.errors import GroupError

MORTAL = Path(__file__).with_name("mortal.py")


@pytest.mark.long
def test_a_lost_process_ends_all_and_they_go_on_to_what_one_process_writes(tmp_path):
    """One test of all, since processes take seconds to start: torchrun starts both anew once one has died."""
    (shards := tmp_path / "shards").mkdir()
    codes = groups(301)[0]
    np.save(shards / "0.npy", codes[:190])
    np.save(shards / "1.npy", codes[190:])
    left = tmp_path / "two.memory"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    what = ["write", str(shards), "--clusters", "4", "--json", "-o", str(left)]
    # Without this, the processes of the second attempt may take the addresses of those of the first for their own.
    environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [*torchrun, "--max-restarts", "1", str(MORTAL), *what]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 0, ended.stderr
    told = [line for line in ended.stderr.splitlines() if line.startswith("vbmem: ")]
    assert re.match("vbmem: (another process of the group was lost|torchrun ended this process)", told[0])
    assert (tmp_path / "two.memory.status-0-0").read_text() == "2"
    assert re.fullmatch(r"vbmem: going on from .*two.memory.unfinished, after [23] of 10 iterations", told[1])
    assert len(told) == 2
    assert json.loads(ended.stdout)["frames"] == 301
    assert not (tmp_path / "two.memory.unfinished").exists()

    run("write", shards, "--clusters", 4, "-o", tmp_path / "one.memory")
    one, two = (vbmem.WrittenMemory.load(tmp_path / f"{name}.memory") for name in ("one", "two"))
    assert (two.frames, two.model) == (301, "")
    assert one.sums is not None
    assert two.sums is not None
    for ours, theirs in ((two.state, one.state), (two.choice, one.choice), (two.sums, one.sums)):
        for name, tensor in ours.tensors().items():
            torch.testing.assert_close(tensor, theirs.tensors()[name], rtol=1e-4, atol=1e-5)


def test_without_torchrun_there_is_no_group():
    with processes.torchrun_group() as group:
        assert group is None
        assert processes.is_first(group)


@pytest.fixture
def alone(monkeypatch):
    """As torchrun --nproc-per-node 1 would start this process."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "0")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("alone")
def test_a_process_that_torchrun_ends_says_so_whenever_it_is_told():
    ended = pytest.raises(GroupError, match="torchrun ended this process, as it does when another one fails")
    with ended, processes.torchrun_group():
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)  # while it says so
    assert not torch.distributed.is_initialized()


@pytest.mark.usefixtures("alone")
def test_processes_that_do_not_find_each_other_say_so(monkeypatch):
    def fail(*args):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(torch.distributed, "init_process_group", fail)
    told = pytest.raises(GroupError, match="the processes of torchrun do not find each other")
    with told, processes.torchrun_group():
        pass


@pytest.mark.usefixtures("alone")
def test_every_process_has_a_gpu_of_its_own(monkeypatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert processes.own_device(cuda, None) == cuda
    with processes.torchrun_group() as group:
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert processes.own_device(cpu, group) == cpu
        assert processes.own_device(cuda, group) == torch.device("cuda", 1)
        assert chosen == [1]
        monkeypatch.setenv("LOCAL_RANK", "2")
        with pytest.raises(ValueError, match="every process needs a GPU of its own, and there are 2; start no more"):
            processes.own_device(cuda, group)
