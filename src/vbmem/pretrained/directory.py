"""Models by name: those that come with the package, directories, the Hugging Face Hub."""

import difflib
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from vbmem.errors import ModelError
from vbmem.models.baseline import BaselineModel
from vbmem.models.card import HUB
from vbmem.models.directory import SETTINGS, SavedModel, load_model
from vbmem.models.memory_model import MemoryModel
from vbmem.pretrained.baseline import Baseline
from vbmem.pretrained.model import Model

SHIPPED = Path(__file__).parents[1] / "weights"


def shipped() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(entry.name for entry in SHIPPED.iterdir() if (entry / SETTINGS).is_file())


def load(source: str | Path, device: torch.device | str = "cpu") -> Model:
    """A trained memory model, ready to use.

    Args:
        source: the name of a model that comes with the package (`vbmem models` lists them), a directory made by
            `Model.save` or `vbmem export`, the directory of a training run, or `hf://user/name` for a model on the
            Hugging Face Hub, of which `hf://user/name@revision` stays the same.
        device: where to put it; on CUDA its networks run in the precision of their training.

    Raises:
        ModelError: where there is no such model, or one without a memory.
    """
    model = load_any(source, device)
    if not isinstance(model, Model):
        raise ModelError(
            f"{source} is a {_kind(model)}, which has no memory to write; choose a memory model, or see what this one "
            "generates and reconstructs with vbmem.load_baseline"
        )
    return model


def load_baseline(source: str | Path, device: torch.device | str = "cpu") -> Baseline:
    """A trained model without a memory, ready to be compared: VAE, Neural Statistician or Dynamic Kanerva Machine.

    Args:
        source: as for `load`.
        device: where to put it; on CUDA its networks run in the precision of their training.

    Raises:
        ModelError: where there is no such model, or one with a memory.
    """
    model = load_any(source, device)
    if not isinstance(model, Baseline):
        raise ModelError(f"{source} is a model with a memory; load it with vbmem.load")
    return model


def load_any(source: str | Path, device: torch.device | str = "cpu") -> Model | Baseline:
    """A trained model, with or without a memory, ready to use; the arguments are those of `load`.

    Raises:
        ModelError: where there is no such model, or one that is neither of the two.
    """
    saved = load_network(source, device)
    if isinstance(saved.network, MemoryModel):
        return as_model(saved)
    if isinstance(saved.network, BaselineModel):
        return Baseline(**_fields(saved))
    raise ModelError(
        f"{source} is a {_kind(saved)}, which neither has a memory nor can be shown without one; its networks are what "
        "vbmem.pretrained.load_network returns"
    )


def as_model(saved: SavedModel) -> Model:
    """A saved memory model, as a person uses it."""
    network = saved.network
    assert isinstance(network, MemoryModel)
    memory = network.scaled_memory()
    memory.warns = True  # unlike a model's in training, which knows what it writes
    return Model(**_fields(saved), memory=memory)


def load_network(source: str | Path, device: torch.device | str = "cpu") -> SavedModel:
    """Networks of any model, with or without a memory, ready for evaluation.

    Args:
        source: a name that comes with vbmem, the directory of a model or a training run, or hf://USER/NAME.
        device: where its tensors go.
    """
    return load_model(find(source), device)


def find(source: str | Path) -> Path:
    """The directory of a model; the arguments are those of `load`."""
    if str(source).startswith(HUB):
        from vbmem.pretrained.hub import download

        return download(str(source))
    names = shipped()
    if str(source) in names:
        return SHIPPED / source
    if (Path(source) / SETTINGS).is_file():
        return Path(source)
    near = difflib.get_close_matches(str(source), names, n=1)
    advice = f"did you mean {near[0]!r}? " if near else ""
    raise ModelError(
        f"there is no model {str(source)!r}; {advice}the package has {', '.join(names)}, and a directory must hold a "
        "config.json with its weights"
    )


def _fields(saved: SavedModel) -> dict[str, Any]:
    return {field.name: getattr(saved, field.name) for field in fields(SavedModel)}


def _kind(saved: SavedModel) -> str:
    return type(saved.network).__name__
