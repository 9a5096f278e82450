"""A written memory on disk: one safetensors file with the state, the prior and the kind. Nothing is ever unpickled."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vbmem.errors import MemoryFileError
from vbmem.files import EVERYBODY, OWNER_ALONE, read_tensors, reading, write_tensors
from vbmem.memory.choice import Choice
from vbmem.memory.reading import Memory
from vbmem.memory.state import MemoryState

FORMAT, VERSION = "vbmem.memory", 4


def save_memory(path: str | Path, memory: Memory, state: MemoryState) -> None:
    """Write memory and state to one file, which only its owner may read if it is new. An existing file is replaced only
    once the new one is complete."""
    write_memory(Path(path), memory, state, {}, {})


def load_memory(path: str | Path, device: torch.device | str = "cpu") -> tuple[Memory, MemoryState]:
    """Read what `save_memory` wrote: the memory (kind, sizes, prior) and its state."""
    memory, state, _, _ = read_memory(Path(path), device)
    return memory, state


def write_memory(
    path: Path,
    memory: Memory,
    state: MemoryState,
    more: dict[str, Tensor],
    more_metadata: dict[str, str],
    *,
    private: bool = True,
) -> None:
    """A memory file with `more` in it, under names of their own; where it is new and private, its owner's alone."""
    tensors = {f"state.{name}": tensor for name, tensor in state.tensors().items()} | more
    numbers: dict[str, Any] = {}
    for name, value in memory.config().items():
        if isinstance(value, Tensor):
            tensors[f"prior.{name}"] = value
        elif isinstance(value, Choice):
            numbers[name] = value.kind
            tensors |= {f"choice.{part}": tensor for part, tensor in value.tensors().items()}
        else:
            numbers[name] = value
    metadata = {"format": FORMAT, "version": str(VERSION), "kind": memory.kind, "config": json.dumps(numbers)}
    metadata |= more_metadata
    write_tensors(path, tensors, metadata, OWNER_ALONE if private else EVERYBODY)


def read_memory(
    path: Path, device: torch.device | str
) -> tuple[Memory, MemoryState, dict[str, Tensor], dict[str, str]]:
    """Memory and state of a memory file, and all its tensors and metadata."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no memory file {path}")
    with reading(path, MemoryFileError, "a memory file", "save it again"):
        tensors, metadata = read_tensors(path, device)
    if metadata.get("format") != FORMAT:
        raise MemoryFileError(f"{path} is a safetensors file, but no memory saved by vbmem.save_memory")
    try:
        version, kind, config = int(metadata["version"]), metadata["kind"], json.loads(metadata["config"])
    except (KeyError, ValueError, RecursionError) as error:
        raise MemoryFileError(f"{path} does not say what memory it holds ({error!r}); save it again") from error
    if version > VERSION:
        raise MemoryFileError(f"{path} has format version {version}, this vbmem reads up to {VERSION}; upgrade vbmem")
    if kind not in Memory.kinds:
        raise MemoryFileError(f"{path} holds a memory of unknown kind {kind!r}; known are {', '.join(Memory.kinds)}")
    if version < 3 and kind in ("shifted", "mixture", "tree"):
        config["factorised"] = True  # all were
    if version == 1:
        tensors |= _lacking_in_version_1(tensors)
    try:
        config |= below("prior.", tensors)
        if version < 4:
            config |= _with_clusters(kind, config)
        choice = config.pop("choice", None)
        if choice is not None:
            if choice not in Choice.kinds:
                raise ValueError(f"its p(s) is {choice!r}, known are {', '.join(Choice.kinds)}")
            config["choice"] = Choice.kinds[choice].from_tensors(below("choice.", tensors))
        memory = Memory.kinds[kind](**config)
        state = _state(below("state.", tensors), memory.located)
        memory.check(state)
    except (KeyError, TypeError, ValueError) as error:
        raise MemoryFileError(f"{path} lacks or misnames a part of the memory ({error}); save it again") from error
    return memory, state, tensors, metadata


def _state(tensors: dict[str, Tensor], located: bool) -> MemoryState:
    """Of version 3; before, factor rows and locations stood apart, locations of zeros where there were none."""
    if "loc_mean" not in tensors:
        return MemoryState(**tensors, located=located)
    return MemoryState.of(**tensors) if located else MemoryState(tensors["row_mean"], tensors["row_cov"], located=False)


def _with_clusters(kind: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """The prior of a batch of memories; before version 4 it had no dimension of clusters, which all shared it."""
    # name: the dimensions of a single memory's, and where the clusters belong
    shared = {"row_var": (1, -2)} if kind == "categorical" else {"loc_mean": (1, -2), "loc_var": (0, -1)}
    return {
        name: config[name].unsqueeze(dim)
        for name, (single, dim) in shared.items()
        if isinstance(config.get(name), Tensor) and config[name].ndim > single
    }


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _lacking_in_version_1(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Its written memories knew no prior p(s) but the uniform one."""
    counts = {name: tensor for name, tensor in tensors.items() if name.startswith("assignments.counts.")}
    return {
        name.replace("counts", "base"): torch.full_like(tensor[0], 1 / tensor.shape[-1])
        for name, tensor in counts.items()
    }
