"""Everything needed to go on exactly where a run stood, in one safetensors file.

Tensors: weights, optimiser, averages, running sums, random generators. JSON, in the file's metadata: where the run
stands. One file, replaced in one move, so that a crash at any moment leaves a whole checkpoint.
"""

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_type_hints

import torch
from torch import Tensor

from vbmem.errors import CheckpointError
from vbmem.files import check_format, parse_json, read_tensors, reading, warn_unchecked, write_tensors

FORMAT, LANDED = "vbmem.checked-checkpoint", "vbmem.checkpoint"
Tensors = dict[str, Tensor]
Groups = dict[str, Tensors]  # in the file, a tensor's name begins with that of its group and a colon


@dataclass
class Progress:
    """Where a run stands."""

    stage: int = 0
    stage_epoch: int = 0  # epochs finished in this stage
    epoch: int = 0  # epochs finished in all
    batch: int = 0  # batches finished in the epoch under way
    stage_epochs: int = 0  # how many this stage may take
    best: float | None = None  # best validation bound per frame
    stage_best: float | None = None  # the best of this stage
    best_epoch: int = 0  # stage_epoch at which that was reached
    seconds: float = 0.0  # spent in training
    pictures: int = 0  # checksum of those it is trained on


def save_checkpoint(path: Path, groups: Groups, progress: Progress) -> None:
    tensors = {f"{group}: {name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    write_tensors(path, tensors, {"format": FORMAT, "progress": json.dumps(asdict(progress))})


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> tuple[Groups, Progress]:
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}; train first, or check the directory")
    groups: Groups = defaultdict(dict)
    with reading(path, CheckpointError, "a checkpoint of this vbmem", "begin a new run"):
        tensors, metadata = read_tensors(path, device)
        if not (is_landed := metadata.get("format") == LANDED):
            check_format(metadata, FORMAT)
        progress = Progress(**parse_json(metadata["progress"]))
        for name, kind in get_type_hints(Progress).items():
            if type(value := getattr(progress, name)) is not int and not isinstance(value, kind):
                raise ValueError(f"{name} is {value!r}")
    if is_landed:
        warn_unchecked(path)
    for key, tensor in tensors.items():
        group, _, name = key.partition("." if is_landed else ": ")
        groups[group][name] = tensor
    return groups, progress


def random_tensors(device: torch.device) -> Tensors:
    """The state of the random generators in use."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_random(tensors: Tensors, device: torch.device) -> None:
    torch.set_rng_state(tensors["cpu"].cpu())
    if device.type == "cuda" and "cuda" in tensors:
        torch.cuda.set_rng_state(tensors["cuda"].cpu(), device)
