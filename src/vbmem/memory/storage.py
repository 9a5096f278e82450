"""A written memory on disk: one safetensors file with the state, the prior and the kind. Nothing is ever unpickled."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vbmem.errors import MemoryFileError
from vbmem.files import (
    EVERYBODY,
    OWNER_ALONE,
    check_device,
    check_format,
    parse_json,
    read_tensors,
    reading,
    warn_unchecked,
    write_tensors,
)
from vbmem.memory import landed
from vbmem.memory.checks import check_finite, check_size, check_stored
from vbmem.memory.choice import Choice
from vbmem.memory.reading import Memory
from vbmem.memory.state import MemoryState

FORMAT, VERSION = "vbmem.checked-memory", 5
STATE, PRIOR, CHOICE = "state: ", "prior: ", "choice: "  # begin the names of their tensors in a file


def save_memory(path: str | Path, memory: Memory, state: MemoryState) -> None:
    """Write memory and state to one file, which only its owner may read if it is new.

    Args:
        path: the file; an existing one is replaced only once the new one is complete.
        memory: kind, sizes and prior.
        state: what was written into it, with any batch dimensions.
    """
    write_memory(Path(path), memory, state, {}, {})


def load_memory(path: str | Path, device: torch.device | str = "cpu") -> tuple[Memory, MemoryState]:
    """Read what `save_memory` wrote.

    Args:
        path: the file.
        device: where its tensors go.

    Returns:
        The memory (kind, sizes, prior) and its state.
    """
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
    check_stored(state)
    tensors = {STATE + name: tensor for name, tensor in state.tensors().items()} | more
    numbers: dict[str, Any] = {}
    for name, value in memory.config().items():
        if isinstance(value, Tensor):
            tensors[PRIOR + name] = value
        elif isinstance(value, Choice):
            numbers[name] = value.kind
            tensors |= {CHOICE + part: tensor for part, tensor in value.tensors().items()}
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
    check_device(device)
    with reading(path, MemoryFileError, "a memory file", "save it again"):
        tensors, metadata = read_tensors(path, device)
    if metadata.get("format") not in (FORMAT, landed.FORMAT):
        raise MemoryFileError(f"{path} is a safetensors file, but no memory saved by vbmem.save_memory")
    if is_landed := metadata["format"] == landed.FORMAT:
        warn_unchecked(path)
    try:
        if not is_landed:
            check_format(metadata, FORMAT)
        version, name, config = int(metadata["version"]), metadata["kind"], parse_json(metadata["config"])
    except (KeyError, ValueError, RecursionError) as error:
        raise MemoryFileError(f"{path} does not say what memory it holds ({error!r}); save it again") from error
    if version > VERSION:
        raise MemoryFileError(f"{path} has format version {version}, this vbmem reads up to {VERSION}; upgrade vbmem")
    if name not in Memory.kinds:
        raise MemoryFileError(f"{path} holds a memory of unknown kind {name!r}; known are {', '.join(Memory.kinds)}")
    kind = Memory.kinds[name]
    try:
        if is_landed:
            config, tensors = landed.upgraded(version, kind, config, tensors)
        _check_sizes(kind, config, tensors[STATE + "row_mean"])
        memory = kind(**config | _prior(config, tensors))
        state = MemoryState(**below(STATE, tensors), located=memory.located)
        memory.check(state)
        check_stored(state)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise MemoryFileError(f"{path} lacks or misnames a part of the memory ({error}); save it again") from error
    return memory, state, tensors, metadata


def _check_sizes(kind: type[Memory], config: dict[str, Any], row_mean: Tensor) -> None:
    """Before anything is made in these sizes: the file must hold that many numbers."""
    sizes = {name: check_size(name, config[name], least=0) for name in kind.sizes}
    numbers = math.prod(max(1, size) for name, size in sizes.items() if name != "partitions")  # which cut the code
    if max(numbers, *sizes.values()) > row_mean.numel():
        raise ValueError(
            f"the state belongs to another memory: its rows have the shape {list(row_mean.shape)}, too few for "
            + ", ".join(f"{name}={size}" for name, size in sizes.items())
        )


def _prior(config: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """What of the constructor's arguments is made of tensors."""
    prior: dict[str, Any] = {name: check_finite(name, tensor) for name, tensor in below(PRIOR, tensors).items()}
    if "choice" in config:
        if (choice := config["choice"]) not in Choice.kinds:
            raise ValueError(f"its p(s) is {choice!r}, known are {', '.join(Choice.kinds)}")
        prior["choice"] = Choice.kinds[choice].from_tensors(below(CHOICE, tensors))
    return prior


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
