"""Models on disk: a directory with config.json, model.safetensors and a card. Loading never runs code from it."""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor

from vbmem.files import read_tensors, write_atomically
from vbmem.models import EpisodicModel, FrameFormat, MemoryModel, ModelConfig
from vbmem.pretrained.card import render_card
from vbmem.pretrained.model import Model
from vbmem.train.checkpoint import CheckpointError, under_prefix
from vbmem.train.config import model_from_dict, to_dict
from vbmem.train.setup import read_run

FORMAT, VERSION = "vbmem.model", 1
WEIGHTS = "model.safetensors"


class ModelError(ValueError):
    """Something that is not a model this version can load."""


def shipped() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(entry.name for entry in _package().iterdir() if (entry / "config.json").is_file())


def load(source: str | Path, device: torch.device | str = "cpu") -> Model:
    """A trained memory model, ready to use.

    Args:
        source: the name of a model that comes with the package (`vbmem models` lists them), a directory made by
            `Model.save` or `vbmem export`, or the directory of a training run.
    """
    network, name, card = load_network(source, device)
    if not isinstance(network, MemoryModel):
        raise ModelError(f"{source} is a {type(network).__name__}, which has no memory to write; choose a memory model")
    return Model(network, network.scaled_memory(), name, fingerprint(network), card)


class Loaded(NamedTuple):
    network: EpisodicModel
    name: str
    card: dict[str, Any]
    """Where it comes from."""


def load_network(source: str | Path, device: torch.device | str = "cpu") -> Loaded:
    """Networks of any model, with or without a memory, ready for evaluation."""
    directory = _find(source)
    config = _read_json(directory / "config.json")
    card: dict[str, Any] = config.get("card", {})
    if config.get("format") == FORMAT:
        if config["version"] > VERSION:
            raise ModelError(f"{directory} has version {config['version']}, this vbmem reads {VERSION}; upgrade vbmem")
        name, path = config["name"], directory / WEIGHTS
        settings, frame = model_from_dict(config["model"]), FrameFormat(**config["frame"])
        tensors = _read_weights(path, device)
    else:
        try:
            run, frame = read_run(directory)
        except CheckpointError as error:
            raise ModelError(str(error)) from error
        name, path, settings = directory.resolve().name, directory / "best.safetensors", run.model
        tensors = under_prefix("model", _read_weights(path, device))
    network = settings.build(frame).to(device)
    try:
        network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise ModelError(
            f"{path} does not hold the weights that config.json describes; save the model again"
        ) from error
    return Loaded(network.eval().requires_grad_(False), name, card)


def save_network(
    network: EpisodicModel,
    directory: Path,
    name: str,
    card: dict[str, Any],
    *,
    settings: ModelConfig | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a model directory.

    Args:
        card: where the model comes from.
        settings: of the model, if other than those it was built from: a memory may have been resized.
        dtype: half precision halves the file.
    """
    config = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "model": to_dict(settings or network.config),
        "frame": asdict(network.frame),
        "card": card,
    }
    tensors = {
        key: (tensor.to(dtype) if tensor.is_floating_point() else tensor).cpu().contiguous()
        for key, tensor in network.state_dict().items()
    }
    parameters = sum(p.numel() for p in network.parameters())
    write_atomically(directory / WEIGHTS, save(tensors, {"format": "pt"}))
    write_atomically(directory / "config.json", (json.dumps(config, indent=1) + "\n").encode())
    write_atomically(directory / "README.md", render_card(config, parameters).encode())


def fingerprint(network: EpisodicModel) -> str:
    """Sixteen hexadecimal digits that change with any weight."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _find(source: str | Path) -> Path:
    names = shipped()
    if source in names:
        return Path(str(_package() / str(source)))
    if (Path(source) / "config.json").is_file():
        return Path(source)
    near = difflib.get_close_matches(str(source), names, n=1)
    advice = f"did you mean {near[0]!r}? " if near else ""
    raise ModelError(
        f"there is no model {str(source)!r}; {advice}the package has {', '.join(names)}, and a directory must hold a "
        "config.json with its weights"
    )


def _package() -> Any:
    return resources.files("vbmem") / "weights"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{path} is damaged ({error}); save or download the model again") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} is not the configuration of a model; expected an object with its settings")
    return values


def _read_weights(path: Path, device: torch.device | str) -> dict[str, Tensor]:
    if not path.is_file():
        raise ModelError(f"{path} is missing; save or download the model again")
    try:
        return read_tensors(path, device)[0]
    except SafetensorError as error:
        raise ModelError(f"{path} is cut short or damaged ({error}); save or download the model again") from error
