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

from vbmem.errors import CheckpointError, ModelError
from vbmem.files import read_tensors, write_atomically, write_json
from vbmem.models import EpisodicModel, FrameFormat, MemoryModel
from vbmem.pretrained.card import HUB, render_card
from vbmem.pretrained.model import Model
from vbmem.train.checkpoint import Tensors, load_checkpoint, under_prefix
from vbmem.train.config import model_from_dict, to_dict
from vbmem.train.runs import read_run

FORMAT, VERSION = "vbmem.model", 1
WEIGHTS = "model.safetensors"


def shipped() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(entry.name for entry in _package().iterdir() if (entry / "config.json").is_file())


def load(source: str | Path, device: torch.device | str = "cpu") -> Model:
    """A trained memory model, ready to use.

    Args:
        source: the name of a model that comes with the package (`vbmem models` lists them), a directory made by
            `Model.save` or `vbmem export`, the directory of a training run, or `hf://user/name` for a model on the
            Hugging Face Hub, of which `hf://user/name@revision` stays the same.
    """
    network, name, card, sizes = load_network(source, device)
    if not isinstance(network, MemoryModel):
        raise ModelError(f"{source} is a {type(network).__name__}, which has no memory to write; choose a memory model")
    return Model(network, network.scaled_memory().resize(**sizes), name, fingerprint(network), card)


class Loaded(NamedTuple):
    network: EpisodicModel
    name: str
    card: dict[str, Any]
    """Where it comes from."""
    sizes: dict[str, int]
    """To which its memory was resized."""


def load_network(source: str | Path, device: torch.device | str = "cpu") -> Loaded:
    """Networks of any model, with or without a memory, ready for evaluation."""
    directory = _find(source)
    config = read_json(directory / "config.json")
    try:
        is_model = config.get("format") == FORMAT
        loaded, tensors = _open_model(directory, config) if is_model else _open_run(directory)
    except CheckpointError as error:
        raise ModelError(str(error)) from error
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{directory / 'config.json'} describes no model this vbmem can build ({error!r})") from error
    try:
        loaded.network.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise ModelError(
            f"{directory} does not hold the weights that its config.json describes; save the model again"
        ) from error
    loaded.network.to(device).eval().requires_grad_(False)
    return loaded


def save_network(
    network: EpisodicModel,
    directory: Path,
    name: str,
    card: dict[str, Any],
    *,
    sizes: dict[str, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write a model directory.

    Args:
        card: where the model comes from.
        sizes: of the memory, where it was resized. The network's own settings stay, for its prior follows from them.
        dtype: half precision halves the file.
    """
    config = {
        "format": FORMAT,
        "version": VERSION,
        "name": name,
        "model": to_dict(network.config),
        "frame": asdict(network.frame),
        "sizes": sizes or {},
        "card": card,
    }
    tensors = {
        key: (tensor.to(dtype) if tensor.is_floating_point() else tensor).cpu().contiguous()
        for key, tensor in network.state_dict().items()
    }
    parameters = sum(p.numel() for p in network.parameters())
    write_atomically(directory / WEIGHTS, save(tensors, {"format": "pt"}))
    write_json(directory / "config.json", config)
    write_atomically(directory / "README.md", render_card(config, parameters).encode())


def fingerprint(network: EpisodicModel) -> str:
    """Sixteen hexadecimal digits that change with any weight."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _find(source: str | Path) -> Path:
    if str(source).startswith(HUB):
        from vbmem.pretrained.hub import download

        return download(str(source))
    names = shipped()
    if str(source) in names:
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


def read_json(path: Path) -> dict[str, Any]:
    """A model's config.json."""
    try:
        values = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is damaged ({error}); save or download the model again") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} is not the configuration of a model; expected an object with its settings")
    return values


def _open_model(directory: Path, config: dict[str, Any]) -> tuple[Loaded, Tensors]:
    if (version := config.get("version")) != VERSION:
        raise ModelError(f"{directory} has version {version}, this vbmem reads {VERSION}; upgrade vbmem")
    network = model_from_dict(config["model"]).build(FrameFormat(**config["frame"]))
    loaded = Loaded(network, str(config["name"]), dict(config["card"]), dict(config.get("sizes", {})))
    path = directory / WEIGHTS
    if not path.is_file():
        raise ModelError(f"{path} is missing; save or download the model again")
    try:
        return loaded, read_tensors(path, "cpu")[0]
    except SafetensorError as error:
        raise ModelError(f"{path} is cut short or damaged ({error}); save or download the model again") from error


def _open_run(directory: Path) -> tuple[Loaded, Tensors]:
    run, frame = read_run(directory)
    tensors, progress = load_checkpoint(directory / "best.safetensors")
    card: dict[str, Any] = {
        "data": Path(run.data.dataset).name,  # of a folder the name: models are given away
        "episodes": f"{run.data.batch_size} x {run.data.episode_length}",
        "schedule": ", then ".join(f"{stage.epochs} epochs at {stage.learning_rate:g}" for stage in run.stages),
        "seed": run.seed,
    }
    if progress.best is not None:
        card["validation bound, nats a frame"] = f"{progress.best:.1f}"
    return Loaded(run.model.build(frame), directory.resolve().name, card, {}), under_prefix("model", tensors)
