"""Everything needed to go on exactly where a run stood, in one safetensors file.

Tensors: weights, optimiser, averages, running sums, random generators. JSON, in the file's metadata: where the run
stands. One file, replaced in one move, so that a crash at any moment leaves a whole checkpoint.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from vbmem.errors import CheckpointError
from vbmem.files import read_tensors, write_atomically

Tensors = dict[str, Tensor]


@dataclass
class Progress:
    """Where a run stands."""

    stage: int = 0
    stage_epoch: int = 0  # epochs finished in this stage
    epoch: int = 0  # epochs finished in all
    batch: int = 0  # batches finished in the epoch under way
    stage_epochs: int = 0  # how many this stage may take
    best: float | None = None  # best validation bound per frame of this stage
    best_epoch: int = 0  # stage_epoch at which it was reached
    seconds: float = 0.0  # spent in training
    pictures: int = 0  # checksum of those it is trained on


def save_checkpoint(path: Path, tensors: Tensors, progress: Progress) -> None:
    content = save(
        {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()},
        {"format": "vbmem.checkpoint", "progress": json.dumps(asdict(progress))},
    )
    write_atomically(path, content)


def load_checkpoint(path: Path, device: torch.device | str = "cpu") -> tuple[Tensors, Progress]:
    if not path.is_file():
        raise CheckpointError(f"there is no checkpoint {path}; train first, or check the directory")
    try:
        tensors, metadata = read_tensors(path, device)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged or not a checkpoint ({error}); begin a new run") from error
    if metadata.get("format") != "vbmem.checkpoint":
        raise CheckpointError(f"{path} is a safetensors file, but not a checkpoint of vbmem; begin a new run")
    try:
        return tensors, Progress(**json.loads(metadata["progress"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} does not say where the run stands, or was saved by another vbmem") from error


def load_weights(model: torch.nn.Module, tensors: Tensors, path: Path) -> None:
    """Put a checkpoint's weights into a model."""
    try:
        model.load_state_dict(under_prefix("model", tensors))
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not hold the weights of this model; was it trained differently?") from error


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """Adam's state by parameter number, each tensor under its own name."""
    return {
        f"optimizer.{index}.{name}": value
        for index, parameter in enumerate(optimizer.param_groups[0]["params"])
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, index, name = key.split(".")
            parameter = optimizer.param_groups[0]["params"][int(index)]
            optimizer.state[parameter][name] = value.to(parameter.device)


def random_tensors(device: torch.device) -> Tensors:
    """The state of the random generators in use."""
    states = {"random.cpu": torch.get_rng_state()}
    return states | ({"random.cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_random(tensors: Tensors, device: torch.device) -> None:
    torch.set_rng_state(tensors["random.cpu"].cpu())
    if device.type == "cuda" and "random.cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random.cuda"].cpu(), device)


def with_prefix(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under_prefix(prefix: str, tensors: Tensors) -> Tensors:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
