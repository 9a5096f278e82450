"""The notebooks run from top to bottom, and what they show is what they now say; Ray writes what one process writes."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vbmem
from notebooks import run_notebook

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def shown(outputs: list[dict[str, Any]]) -> list[str]:
    """What a cell prints, but for its numbers; of pictures their kind."""
    texts = ["".join(output["text"]) if "text" in output else str(sorted(output["data"])) for output in outputs]
    return [" ".join(re.sub(r"-?\d[\d.,]*", "#", text).split()) for text in texts]


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} >= {"quick_start", "embeddings", "train_on_your_folder"}


SLOW = ("train_on_your_folder",)  # `make trust` runs it


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_ran(path):
    assert path.stat().st_size < 300_000
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for output in (output for cell in cells for output in cell["outputs"]):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr"
    assert not re.search(r"/home/|/root/|/tmp/", path.read_text())


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path.stem in SLOW)) for path in NOTEBOOKS],
)
def test_a_notebook_still_says_what_it_shows(path, tmp_path, processes):
    (work := tmp_path / "work").mkdir()
    results, errors = tmp_path / "results.json", tmp_path / "errors.txt"
    process = processes.Process(target=run_notebook, args=(path, work, results, errors))
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, errors.read_text()
    for kept, done in zip(code_cells(path), json.loads(results.read_text()), strict=True):
        assert shown(done) == shown(kept["outputs"]), kept["source"]


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'ray[train]'")
def test_workers_of_ray_write_what_one_process_writes(tmp_path):
    random = np.random.default_rng(0)
    codes = (random.normal(size=(3, 8))[np.arange(301) % 3] + 0.1 * random.normal(size=(301, 8))).astype(np.float32)
    np.save(tmp_path / "codes.npy", codes)
    options = [tmp_path / "codes.npy", "-o", tmp_path / "x.memory", "--clusters", "3", "--workers", "2"]
    command = [sys.executable, EXAMPLES / "write_with_ray.py", *options]
    env = os.environ | {"HOME": str(tmp_path)}  # Ray leaves its logs there
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert result.returncode == 0, result.stderr
    assert f"wrote 301 codes into {tmp_path / 'x.memory'}" in result.stdout
    assert not (tmp_path / "x.memory.unfinished").exists()

    generator = torch.Generator().manual_seed(0)
    how: dict[str, Any] = {"noise": "feature", "iterations": 10, "generator": generator}
    memory = vbmem.MixtureMemory(8, 4, 3).fit_prior(codes, **how)
    alone = memory.write_stream(codes, 10, generator=generator)
    together = vbmem.WrittenMemory.load(tmp_path / "x.memory")
    assert together.frames == 301
    torch.testing.assert_close(together.state.row_mean, alone.row_mean, rtol=1e-3, atol=1e-4)
