"""A written memory on disk: exact, whole or not at all, and refused when it is something else."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import vbmem
from memory_files import rewrite
from tiny import KINDS, seeded, tiny_model, waves
from vbmem.errors import MemoryFileError

LOAD = vbmem.WrittenMemory.load


def tensors_of(record: Any) -> list[torch.Tensor]:
    return [value for value in vars(record).values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_memory_comes_back_as_it_was(kind, tmp_path):
    model = tiny_model(kind)
    memory = model.write(waves(9, 8), generator=seeded())
    memory.save(tmp_path / "a.memory")
    loaded = LOAD(str(tmp_path / "a.memory"))
    assert vars(loaded).keys() == vars(memory).keys()
    for name in ("frames", "model", "fingerprint", "threshold", "reference"):
        assert getattr(loaded, name) == getattr(memory, name)
    assert loaded.empty.config() | {"choice": None} == memory.empty.config() | {"choice": None}
    assert type(loaded.empty) is type(memory.empty)
    tensors = zip(
        *(
            [
                *(tensor for part in (m.state, m.sums, m.weights) if part is not None for tensor in tensors_of(part)),
                *m.choice.tensors().values(),
                m.usage,
            ]
            for m in (memory, loaded)
        ),
        strict=True,
    )
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in tensors)
    assert loaded.nbytes == memory.nbytes
    for use in (model.generate, lambda m, n, **draws: model.read(m, waves(2, 8), n, **draws)):
        assert torch.equal(use(loaded, 4, generator=seeded()), use(memory, 4, generator=seeded()))
    assert torch.equal(
        model.bound(loaded, waves(2, 8), generator=seeded()), model.bound(memory, waves(2, 8), generator=seeded())
    )


def test_learned_scales_go_with_the_memory(tmp_path):
    model = tiny_model("mixture", learned_scales=True)
    memory = model.write(waves(5, 8))
    memory.save(tmp_path / "a.memory")
    trained = torch.as_tensor(model.memory.noise_var)
    assert not (trained == 0.4).any()
    assert torch.equal(torch.as_tensor(LOAD(tmp_path / "a.memory").empty.noise_var), trained)


def test_a_file_of_a_shipped_model_is_small_and_holds_no_picture(mixture, china, tmp_path):
    mixture.write(china.transpose(0, 3, 1, 2)).save(tmp_path / "a.memory")
    size = (tmp_path / "a.memory").stat().st_size
    assert size < 2 * china.nbytes / 3  # with what `update` and `forget` need
    assert LOAD(tmp_path / "a.memory").nbytes == pytest.approx(size, rel=0.1)


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "a.memory"
    tiny_model().write(waves(5, 8)).save(path)
    return path


def test_a_failed_save_leaves_the_old_file_and_nothing_else(saved, fill_disk):
    before = saved.read_bytes()
    fill_disk()
    with pytest.raises(OSError, match="disk full"):
        tiny_model().write(waves(7, 8)).save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


# --- Files that are not what they should be -------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_file_cut_short_is_refused(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(MemoryFileError, match=r"a\.memory is damaged or not a memory file"):
        LOAD(saved)


def test_a_bare_memory_is_refused_and_a_written_one_is_also_a_bare_one(saved, tmp_path):
    memory, state = vbmem.load_memory(saved)
    assert torch.equal(state.loc_mean, LOAD(saved).state.loc_mean)
    vbmem.save_memory(tmp_path / "bare.memory", memory, state)
    with pytest.raises(MemoryFileError, match=r"bare\.memory holds a bare memory of codes.*use vbmem\.load_memory"):
        LOAD(tmp_path / "bare.memory")


@pytest.mark.parametrize("drop", ["state: row_cov", "usage: counts.0", "usage: prefixes.0"])
def test_a_file_without_all_its_tensors_is_refused(saved, drop):
    rewrite(saved, drop)
    with pytest.raises(MemoryFileError, match=r"a\.memory lacks or misnames"):
        LOAD(saved)


@pytest.mark.parametrize(
    "written",
    [
        "{",
        "[]",
        '{"model": "tiny"}',
        json.dumps({"model": "a", "fingerprint": "b", "frames": 1, "colour": "red"}),
        json.dumps({"model": "a", "fingerprint": "b", "frames": 0}),
        json.dumps({"model": "a", "fingerprint": "b", "frames": 1, "threshold": "high"}),
    ],
)
def test_a_file_that_does_not_say_who_wrote_it_is_refused(saved, written):
    rewrite(saved, written=written)
    with pytest.raises(MemoryFileError, match=r"a\.memory lacks or misnames what was written .*write it again"):
        LOAD(saved)


def test_a_newer_version_is_refused(saved):
    rewrite(saved, version="6")
    with pytest.raises(MemoryFileError, match="format version 6, this vbmem reads up to 5; upgrade vbmem"):
        LOAD(saved)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no memory file .*none\.memory"):
        LOAD(tmp_path / "none.memory")


def test_a_pickle_is_refused_unopened(saved):
    saved.write_bytes(pickle.dumps({"written": 1}))
    with pytest.raises(MemoryFileError, match="not a memory file"):
        LOAD(saved)
