"""Not a byte of what was saved can change unnoticed, and what is loaded can be computed with."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import vbmem
from saved_files import save_checkpoint_file, save_memory_file, save_model_files, save_written_memory
from tiny import tiny_network
from vbmem.errors import MemoryFileError, ModelError, UncheckedFileWarning, VbmemError
from vbmem.files import read_tensors, write_tensors
from vbmem.models.directory import read_settings, read_weights
from vbmem.train.checkpoint import load_checkpoint

BODY = 2000  # bytes that are flipped of the tensors


Kind = tuple[str, Callable[[Path], None], Callable[[Path], Any]]
KINDS: dict[str, Kind] = {
    "memory": ("a.memory", save_memory_file, vbmem.load_memory),
    "written memory": ("a.memory", save_written_memory, vbmem.WrittenMemory.load),
    "weights": ("model.safetensors", save_model_files, lambda path: read_weights(path.parent)),
    "settings": ("config.json", save_model_files, lambda path: read_settings(path.parent)),
    "checkpoint": ("last.safetensors", save_checkpoint_file, load_checkpoint),
}
every_kind = pytest.mark.parametrize(("name", "save", "load"), KINDS.values(), ids=KINDS.keys())


def detected(path: Path, load: Callable[[Path], Any], content: bytes, place: int, flip: int) -> bool:
    """Whether a file with one byte flipped is refused, by its name."""
    path.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
    try:
        load(path)
    except VbmemError as error:
        return path.name in str(error)
    return False


def header_size(path: Path, content: bytes) -> int:
    return len(content) if path.suffix == ".json" else 8 + int.from_bytes(content[:8], "little")


@every_kind
@pytest.mark.parametrize("share", [0.02, pytest.param(1.0, marks=pytest.mark.long)])
def test_every_flipped_byte_is_detected(name, save, load, share, tmp_path):
    """Of the header all, of the tensors 2,000, by one bit and by all of them; in the quick test some of these."""
    path, chosen = tmp_path / name, random.Random(0)
    save(path)
    load(path)
    content = path.read_bytes()
    header = header_size(path, content)
    body = chosen.choices(range(header, len(content)), k=BODY) if header < len(content) else []
    places = [place for place in [*range(header), *body] if share == 1 or chosen.random() < share]
    missed = [
        (place, flip)
        for place in places
        for flip in (1 << chosen.randrange(8), 255)
        if not detected(path, load, content, place, flip)
    ]
    assert places
    assert not missed


@every_kind
def test_a_file_that_lost_its_checksum_is_refused(name, save, load, tmp_path):
    path = tmp_path / name
    save(path)
    path.write_bytes(path.read_bytes().replace(b'"checksum"', b'"shecksum"'))
    with pytest.raises(VbmemError, match=f"{path.name} .*lost its checksum"):
        load(path)


@every_kind
def test_saving_twice_gives_the_same_file(name, save, load, tmp_path):
    torch.manual_seed(0)
    save(tmp_path / name)
    once = (tmp_path / name).read_bytes()
    torch.manual_seed(0)
    save(tmp_path / name)
    assert (tmp_path / name).read_bytes() == once


def test_no_memory_of_today_passes_for_one_of_before(tmp_path):
    """Even without its checksum and under the old name of the format."""
    path = tmp_path / "a.memory"
    save_memory_file(path)
    tensors, metadata = read_tensors(path, "cpu")
    del metadata["checksum"]
    save_file(tensors, path, metadata | {"format": "vbmem.memory", "version": "4"})
    with pytest.warns(UncheckedFileWarning), pytest.raises(MemoryFileError, match="it has a tensor 'state: "):
        vbmem.load_memory(path)


def test_weights_without_a_checksum_do_not_go_with_settings_that_have_one(tmp_path):
    save_model_files(tmp_path / "model.safetensors")
    weights = {name: tensor.contiguous() for name, tensor in tiny_network().state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged .*its format is not 'vbmem\.checked-weights'"):
        vbmem.load(tmp_path)


# --- What matches its checksum, and is wrong nevertheless -----------------------------------------------------------


def with_nan(tensor):
    tensor.view(-1)[0] = torch.nan


def with_infinity(tensor):
    tensor.view(-1)[-1] = torch.inf


def negative(tensor):
    tensor.view(-1)[0] = -1


def asymmetric(tensor):
    tensor[..., 0, 1] += 1


DAMAGES: list[tuple[str, Callable[[torch.Tensor], Any], str]] = [
    ("state: row_mean", with_nan, "row_mean holds NaN or infinity"),
    ("state: row_mean", with_infinity, "row_mean holds NaN or infinity"),
    ("state: row_cov", with_nan, "row_cov holds NaN or infinity"),
    ("state: row_cov", negative, "row_cov.* is not positive definite"),
    ("state: row_cov", asymmetric, "row_cov.* is not symmetric"),
    ("state: row_cov", torch.Tensor.double, "must both be float32 or float64"),
    ("state: row_mean", torch.Tensor.half, "must both be float32 or float64"),
    ("state: row_cov", lambda tensor: tensor.repeat(2, 1, 1, 1), r"must be \[\.\., H, J, C\]"),
    ("usage: counts.0", with_nan, "counts.0 holds NaN or infinity"),
    ("usage: counts.1", negative, "counts.1 must not be negative"),
    ("sums: weight_code", with_nan, "weight_code holds NaN or infinity"),
    ("sums: count", lambda tensor: tensor[..., :1], "sums.count must have the shape"),
    ("sums: code_square", lambda tensor: tensor[..., :1], "sums.code_square must have the shape"),
    ("weights: weights", with_nan, "weights.weights holds NaN or infinity"),
    ("weights: weights", lambda tensor: tensor[..., :0, :], "weights.weights must have the shape"),
    ("weights: clusters", lambda tensor: tensor.unsqueeze(0), "weights.clusters must have the shape"),
    ("weights: clusters", lambda tensor: tensor[0], "weights.clusters must have the shape"),
    ("weights: clusters", lambda tensor: tensor.double(), "weights.clusters must hold whole numbers"),
    ("weights: clusters", lambda tensor: tensor + 1000, "weights.clusters must hold whole numbers"),
]


@pytest.mark.parametrize(("name", "damage", "told"), DAMAGES)
def test_a_memory_that_cannot_be_computed_with_is_refused(name, damage, told, tmp_path):
    path = tmp_path / "a.memory"
    save_written_memory(path)
    tensors, metadata = read_tensors(path, "cpu")
    changed = damage(tensors[name])
    if changed is not None:
        tensors[name] = changed
    write_tensors(path, tensors, metadata)
    with pytest.raises(MemoryFileError, match=rf"a\.memory .*{told}"):
        vbmem.WrittenMemory.load(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_settings_that_are_not_numbers_are_refused(number, tmp_path):
    path = tmp_path / "a.memory"
    save_memory_file(path)
    tensors, metadata = read_tensors(path, "cpu")
    config = metadata["config"].replace('"row_mean": 0.0', f'"row_mean": {number}')
    write_tensors(path, tensors, metadata | {"config": config})
    with pytest.raises(
        MemoryFileError, match=rf"a\.memory does not say what memory it holds .*{number} is not a number"
    ):
        vbmem.load_memory(path)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    memory = vbmem.GaussianMemory(3, 2)
    state = memory.prior_state().map(lambda tensor: tensor * torch.nan)
    with pytest.raises(ValueError, match="row_mean holds NaN or infinity"):
        vbmem.save_memory(tmp_path / "a.memory", memory, state)
    assert not list(tmp_path.iterdir())
