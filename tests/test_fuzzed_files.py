"""Whatever the header of a file says, it is loaded or refused, in no more memory than the file itself can justify.

The checksums are right: these are files that somebody made, not files that broke.
"""

import copy
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vbmem
from saved_files import save_checkpoint_file, save_memory_file, save_written_memory
from tiny import tiny_model
from vbmem.checksums import BLANK, with_checksum
from vbmem.errors import MemoryFileError, ModelError, VbmemError
from vbmem.files import write_checked_json, write_tensors
from vbmem.nets import CrispDecoder
from vbmem.train.checkpoint import load_checkpoint

ROOM = 2**31  # bytes that a process may take beyond what it has: an allocation beyond that fails, and is noticed
SLACK = 40 * 2**20  # bytes by which the memory of a process moves without any file
TIMES = 10  # the size of a file, that loading it may take


def memory_of_process(entry: str) -> int:
    """VmRSS, VmHWM or VmSize, in bytes."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(entry))
    return int(line.split()[1]) * 1024


@contextmanager
def little_memory(size: int) -> Iterator[None]:
    """Fails where the block takes more memory than a file of this size justifies."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory_of_process("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (memory_of_process("VmSize") + ROOM, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert memory_of_process("VmHWM") - before < TIMES * size + SLACK


def load_or_refuse(load: Callable[[Path], Any], path: Path, size: int) -> None:
    """Errors other than ours go through, and so do ours where memory ran out."""
    with little_memory(size):
        try:
            load(path)
        except VbmemError as error:
            if "allocate" in str(error) or isinstance(error.__cause__, MemoryError):
                raise MemoryError from error


NUMBERS = [0, 1, -1, 2, 3, 7, 255, 30_000, 10**6, 10**9, 2**31, 2**63, 10**30, 0.5, -1e300]
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(NUMBERS),
    st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.sampled_from(NUMBERS), max_size=4),
    st.builds(dict)
    | st.sampled_from(["F16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "kanerva", "gaussian", "tree", "vae"]),
)
Path_ = tuple[str | int, ...]


def places(value: Any, above: Path_ = ()) -> Iterator[Path_]:
    """The way to every value within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield (*above, name)
        yield from places(part, (*above, name))


def changed(value: Any, draw: Any) -> Any:
    """A few values within it replaced, or left out."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(list(places(value))))
        holder = value
        for name in way:
            holder = holder[name]
        if draw(st.integers(0, 9)):
            holder[last] = draw(VALUES)
        else:
            del holder[last]
        if not value:
            break
    return value


INNER = ("config", "written", "progress")  # JSON within the metadata


@st.composite
def fuzzed_tensors(draw: st.DrawFn, content: bytes) -> bytes:
    """A safetensors file with another header, whose checksum is right if it still has its place."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    metadata = header["__metadata__"]
    metadata |= {name: json.loads(metadata[name]) for name in INNER if name in metadata}
    header = changed(header, draw)
    metadata = header.get("__metadata__")
    if isinstance(metadata, dict):
        metadata |= {name: json.dumps(metadata[name]) for name in INNER if name in metadata} | BLANK
        header["__metadata__"] = {
            name: value if isinstance(value, str) else str(value) for name, value in metadata.items()
        }
    text = json.dumps(header).encode()
    body = content[end:] if draw(st.booleans()) else content[end:] + bytes(draw(st.integers(-40, 400).map(abs)))
    made = len(text).to_bytes(8, "little") + text + body
    return with_checksum(made) if isinstance(metadata, dict) else made


def save_kanerva(path: Path) -> None:
    memory = vbmem.KanervaMemory(5, 3)
    vbmem.save_memory(path, memory, memory.write(torch.randn(6, 5))[0])


KINDS: dict[str, Any] = {
    "memory": (save_memory_file, vbmem.load_memory),
    "kanerva": (save_kanerva, vbmem.load_memory),
    "written memory": (save_written_memory, vbmem.WrittenMemory.load),
    "checkpoint": (save_checkpoint_file, load_checkpoint),
}
lengths = pytest.mark.parametrize("examples", [30, pytest.param(5000, marks=pytest.mark.long)])


def fuzz(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=20_000,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@pytest.mark.parametrize(("save", "load"), KINDS.values(), ids=KINDS.keys())
@lengths
def test_any_header_of_tensors_is_loaded_or_refused(save, load, examples, tmp_path):
    path = tmp_path / "file"
    save(path)

    @fuzz(examples)
    @given(fuzzed_tensors(path.read_bytes()))
    def attempt(content):
        path.write_bytes(content)
        load_or_refuse(load, path, len(content))

    attempt()


@lengths
def test_any_settings_of_a_model_are_loaded_or_refused(examples, tmp_path):
    model = tiny_model()
    decoder = CrispDecoder(model.frame, 4, width=8, blocks=1)
    vbmem.Model(**{**vars(model), "painter": decoder}).save(tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    size = sum(path.stat().st_size for path in tmp_path.iterdir())

    @fuzz(examples)
    @given(st.data())
    def attempt(data):
        write_checked_json(tmp_path / "config.json", changed(before, data.draw))
        load_or_refuse(vbmem.load, tmp_path, size)

    attempt()


# --- What was found -------------------------------------------------------------------------------------------------


def test_a_memory_file_of_a_few_bytes_is_not_made_large(tmp_path):
    """It took 7.1 GB."""
    path = tmp_path / "a.memory"
    tensors = {"state: row_mean": torch.zeros(1, 1, 1), "state: row_cov": torch.ones(1, 1, 1)}
    config = json.dumps({"code_size": 30_000, "rows": 30_000})
    write_tensors(
        path, tensors, {"format": "vbmem.checked-memory", "version": "5", "kind": "kanerva", "config": config}
    )
    assert path.stat().st_size < 600
    with little_memory(600), pytest.raises(MemoryFileError, match="too few for code_size=30000, rows=30000"):
        vbmem.load_memory(path)


@pytest.mark.parametrize("setting", ["filters", "code_size"])
def test_a_model_is_not_made_larger_than_its_weights(setting, tmp_path):
    tiny_model().save(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    values["model"][setting] = 20_000
    write_checked_json(tmp_path / "config.json", values)
    with little_memory(10**5), pytest.raises(ModelError, match="does not hold the weights"):
        vbmem.load(tmp_path)


def test_numbers_of_clusters_and_blocks_are_not_made_either(tmp_path):
    tiny_model().save(tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    write_checked_json(tmp_path / "config.json", before | {"sizes": {"clusters": 10**10}})
    with little_memory(10**5):
        vbmem.load(tmp_path)
    write_checked_json(tmp_path / "config.json", before | {"decoder": {"blocks": 10**9}})
    (tmp_path / "decoder.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes())
    with little_memory(10**5), pytest.raises(ModelError, match="1000000000 blocks"):
        vbmem.load(tmp_path)


def test_nothing_waits_for_a_pipe(tmp_path):
    """Where a file is expected, there may be something that never ends."""
    path = tmp_path / "model.safetensors"
    os.mkfifo(path)
    with pytest.raises(FileNotFoundError, match="there is no memory file"):
        vbmem.load_memory(path)
    with pytest.raises(VbmemError, match="there is no checkpoint"):
        load_checkpoint(path)
    with pytest.raises(VbmemError, match="holds no model or run"):
        vbmem.models.load_model(tmp_path)
