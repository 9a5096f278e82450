"""One thread a process: the tensors are tiny, and `pytest -n auto` already fills the cores.

Nothing here loads torch: the process that hands out the tests to others does without.
"""

import gc
import multiprocessing
import os
import sys
from multiprocessing import forkserver

import pytest

from vbmem import cli

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded, here and in the processes that tests start
SLOW_TO_START = {"server", "processes"}


def pytest_collection_modifyitems(items):
    """What needs a process that is slow to start comes first: then all of it falls to the first worker, and nobody is
    left with it when the others have nothing more to do."""
    items.sort(key=lambda item: SLOW_TO_START.isdisjoint(item.fixturenames))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector of garbage need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the entry point in this process: exit code, standard output, standard error."""

    def call(*arguments: str) -> tuple[int | str, str, str]:
        monkeypatch.setattr(sys, "argv", ["vbmem", *arguments])
        code: int | str = 0
        try:
            cli.main()
        except SystemExit as exit:
            code = exit.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def processes():
    """Makes processes that need not import torch anew, nor what else is slow to load."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = ["train.ranks", "memory.ranks"], ["torch._dynamo", "sklearn.datasets", "sklearn.metrics"]
    context.set_forkserver_preload([*ours, *theirs])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join(sys.path))
        forkserver.ensure_running()
    return context


@pytest.fixture(params=["os.fsync", "pathlib.Path.replace"])
def fill_disk(request, monkeypatch):
    """Once called, no file can be saved: either it cannot be written, or not put in the place of the old one."""

    def fail(*args):
        raise OSError("disk full")

    return lambda: monkeypatch.setattr(request.param, fail)
