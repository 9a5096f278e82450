"""A memory on disk: what was saved comes back bit for bit, and what was not is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from memory.zoo import Sizes, every_memory, located, make_problem, normal, variances
from memory_files import rewrite
from vbmem import CategoricalMemory, GaussianMemory, KanervaMemory, MixtureMemory, load_memory, save_memory
from vbmem.errors import MemoryFileError, UncheckedFileWarning
from vbmem.files import read_tensors
from vbmem.memory import Choice


def assert_same(memory, state, other_memory, other_state) -> None:
    """Type, constructor arguments and every tensor, bit for bit."""
    assert type(other_memory) is type(memory)
    for name, value in memory.config().items():
        other = other_memory.config()[name]
        if isinstance(value, Choice):
            other, value = (type(choice).kind for choice in (other, value))
        assert torch.equal(other, value) if isinstance(value, torch.Tensor) else other == value, name
    assert other_state.located == state.located
    for mine, others in ((state.row_mean, other_state.row_mean), (state.row_cov, other_state.row_cov)):
        assert others.dtype == mine.dtype
        assert torch.equal(others, mine)


@every_memory
@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_memory_comes_back_as_it_was(name, batch, dtype, tmp_path):
    problem = make_problem(name, Sizes(batch=batch))
    codes = problem.codes.to(dtype)
    state, addresses = problem.memory.write(codes, 2)
    save_memory(tmp_path / "a.memory", problem.memory, state)
    memory, loaded = load_memory(str(tmp_path / "a.memory"))
    assert_same(problem.memory, state, memory, loaded)
    again = memory.bound(codes, loaded, addresses).total
    assert torch.equal(again, problem.memory.bound(codes, state, addresses).total)


@every_memory
def test_an_empty_memory_comes_back_as_it_was(name, tmp_path):
    """The prior state's tensors are views of the prior's own."""
    memory = make_problem(name).memory
    state = memory.prior_state(dtype=torch.float64)
    save_memory(tmp_path / "a.memory", memory, state)
    assert_same(memory, state, *load_memory(tmp_path / "a.memory"))


@pytest.mark.parametrize("name", ["gaussian", "categorical-general", "mixture-factorised", "tree-factorised"])
def test_a_file_of_version_2_holds_rows_and_locations_apart(name, tmp_path):
    """It knew no other posterior than the factorised one."""
    problem = make_problem(name)
    memory, state = problem.memory, problem.state
    if "loc_mean" in memory.config():  # it knew no prior for every cluster either
        memory = type(memory)(**(memory.config() | located(memory.code_size)))
    save_memory(tmp_path / "a.memory", memory, state)
    tensors, metadata = read_tensors(tmp_path / "a.memory", "cpu")
    apart = {
        "row_mean": state.factor_mean,
        "row_cov": state.factor_cov,
        "loc_mean": state.loc_mean,
        "loc_var": state.loc_var,
    }
    config = json.loads(metadata["config"])
    config.pop("factorised", None)
    old = {f"state: {part}": tensor.contiguous() for part, tensor in apart.items()}
    old |= {key: value for key, value in tensors.items() if not key.startswith("state: ")}
    save_landed(old, tmp_path / "a.memory", metadata | {"version": "2", "config": json.dumps(config)})
    with pytest.warns(UncheckedFileWarning, match=r"a\.memory was saved by an earlier vbmem and carries no checksum"):
        assert_same(memory, state, *load_memory(tmp_path / "a.memory"))


def save_landed(tensors, path, metadata) -> None:
    """As vbmem 0.4 and before did: by other names, and without a checksum."""
    metadata = {name: value for name, value in metadata.items() if name != "checksum"} | {"format": "vbmem.memory"}
    save_file({name.replace(": ", "."): tensor for name, tensor in tensors.items()}, path, metadata)


BATCHES: dict[str, tuple[Any, dict[str, tuple[int, ...]]]] = {
    "mixture": (MixtureMemory(3, 2, 3), {"loc_mean": (3, 1, 3), "loc_var": (3, 1)}),
    "categorical": (CategoricalMemory(3, 3), {"row_var": (3, 1, 3)}),
}


@pytest.mark.parametrize(("plain", "shapes"), BATCHES.values(), ids=list(BATCHES))
def test_a_batch_of_priors_in_a_file_of_version_3_had_no_dimension_of_clusters(plain, shapes, tmp_path):
    """Three memories of three clusters: nothing but the version tells one from the other."""
    prior = {name: variances(*shape) for name, shape in shapes.items()}
    memory = type(plain)(**(plain.config() | prior))
    state = memory.prior_state(dtype=torch.float64)
    save_memory(tmp_path / "a.memory", memory, state)
    tensors, metadata = read_tensors(tmp_path / "a.memory", "cpu")
    for name in shapes:
        tensors[f"prior: {name}"] = tensors[f"prior: {name}"].squeeze(1).contiguous()
    save_landed(tensors, tmp_path / "a.memory", metadata | {"version": "3"})
    with pytest.warns(UncheckedFileWarning):
        assert_same(memory, state, *load_memory(tmp_path / "a.memory"))


def test_a_kanerva_memory_comes_back_as_it_was(tmp_path):
    memory = KanervaMemory(5, 3, 0.1)
    state, _ = memory.write(normal(6, 5).float())
    save_memory(tmp_path / "a.memory", memory, state)
    assert_same(memory, state, *load_memory(tmp_path / "a.memory"))


def test_a_trained_prior_and_its_gradients_do_not_disturb(tmp_path):
    noise_var = torch.tensor(0.3, requires_grad=True)
    memory = GaussianMemory(3, 2, noise_var=noise_var)
    state, _ = memory.write(normal(4, 3).float(), 2)
    assert state.row_mean.requires_grad
    save_memory(tmp_path / "a.memory", memory, state)
    loaded, loaded_state = load_memory(tmp_path / "a.memory")
    assert loaded.noise_var == noise_var
    assert not loaded_state.row_mean.requires_grad


def test_a_state_that_is_a_view_is_saved(tmp_path):
    memory = MixtureMemory(3, 2, 2)
    batch = memory.prior_state((4,))
    one = batch.map(lambda t: t[2].mT.contiguous().mT if t.ndim > 2 else t[2])
    save_memory(tmp_path / "a.memory", memory, one)
    assert_same(memory, one, *load_memory(tmp_path / "a.memory"))


def test_missing_folders_are_made(tmp_path):
    memory = MixtureMemory(3, 2, 2)
    save_memory(tmp_path / "some" / "where" / "a.memory", memory, memory.prior_state())
    assert [path.name for path in (tmp_path / "some" / "where").iterdir()] == ["a.memory"]


# --- Files that are not what they should be -------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path) -> Path:
    memory = MixtureMemory(3, 2, 2, loc_mean=torch.ones(3))
    save_memory(tmp_path / "a.memory", memory, memory.prior_state())
    return tmp_path / "a.memory"


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(MemoryFileError, match=r"a\.memory is damaged or not a memory file"):
        load_memory(saved)


def test_a_file_of_something_else_is_refused(saved):
    saved.write_bytes(b"no memory, only words, and quite a few of them")
    with pytest.raises(MemoryFileError, match="not a memory file"):
        load_memory(saved)


def test_safetensors_of_another_program_are_refused(tmp_path):
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors", metadata)
        with pytest.raises(MemoryFileError, match=r"other\.safetensors is a safetensors file, but no memory"):
            load_memory(tmp_path / "other.safetensors")


def test_a_newer_version_is_refused(saved):
    rewrite(saved, version="6")
    with pytest.raises(MemoryFileError, match="format version 6, this vbmem reads up to 5; upgrade vbmem"):
        load_memory(saved)


def test_an_unknown_kind_is_refused(saved):
    rewrite(saved, kind="elephant")
    with pytest.raises(MemoryFileError, match=r"unknown kind 'elephant'; known are .*gaussian, categorical"):
        load_memory(saved)


@pytest.mark.parametrize(
    "damage", [{"version": "first"}, {"config": "{"}, {"config": "[1]"}, {"config": "[" * 100_000}]
)
def test_a_file_that_does_not_say_what_it_holds_is_refused(saved, damage):
    rewrite(saved, **damage)
    with pytest.raises(MemoryFileError, match=r"a\.memory .*save it again"):
        load_memory(saved)


@pytest.mark.parametrize("clusters", [1, 3])
def test_a_file_whose_sizes_are_not_those_of_its_tensors_is_refused(saved, clusters):
    rewrite(saved, config=json.dumps({"code_size": 3, "rows": 2, "clusters": clusters, "noise_var": 1.0}))
    with pytest.raises(MemoryFileError, match=r"a\.memory .*the state belongs to another memory"):
        load_memory(saved)


def test_a_file_without_all_its_tensors_is_refused(saved):
    rewrite(saved, drop="state: row_cov")
    with pytest.raises(MemoryFileError, match=r"a\.memory"):
        load_memory(saved)


def test_a_file_with_arguments_no_memory_takes_is_refused(saved):
    rewrite(saved, config=json.dumps({"code_size": 3, "rows": 2, "clusters": 2, "colour": "red"}))
    with pytest.raises(MemoryFileError, match=r"a\.memory"):
        load_memory(saved)


def test_a_missing_file_is_named(tmp_path):
    for path in (tmp_path / "none.memory", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"there is no memory file {path}"):
            load_memory(path)


# --- Whole or not at all --------------------------------------------------------------------------------------------


def test_a_failed_save_leaves_the_old_file_and_nothing_else(saved, fill_disk):
    before = saved.read_bytes()
    fill_disk()
    memory = GaussianMemory(3, 2)
    with pytest.raises(OSError, match="disk full"):
        save_memory(saved, memory, memory.prior_state())
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_save_replaces_the_old_file(saved):
    memory = GaussianMemory(3, 2)
    save_memory(saved, memory, memory.prior_state())
    assert isinstance(load_memory(saved)[0], GaussianMemory)
    assert list(saved.parent.iterdir()) == [saved]


def test_a_new_memory_is_its_owners_alone_and_an_old_file_keeps_its_mode(tmp_path):
    path, memory = tmp_path / "a.memory", MixtureMemory(3, 2, 2)
    save_memory(path, memory, memory.prior_state())
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    save_memory(path, memory, memory.prior_state())
    assert path.stat().st_mode & 0o777 == 0o644
