"""Models by name: those that come with the package, directories, the Hugging Face Hub."""

import difflib
from dataclasses import fields
from pathlib import Path

import torch

from vbmem.errors import ModelError
from vbmem.models.card import HUB
from vbmem.models.directory import SETTINGS, SavedModel, load_model
from vbmem.models.memory_model import MemoryModel
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
        device: where to put it; on CUDA its networks run in bfloat16.

    Raises:
        ModelError: where there is no such model, or one without a memory.
    """
    saved = load_network(source, device)
    if not isinstance(saved.network, MemoryModel):
        kind = type(saved.network).__name__
        raise ModelError(f"{source} is a {kind}, which has no memory to write; choose a memory model")
    return as_model(saved)


def as_model(saved: SavedModel) -> Model:
    """A saved memory model, as a person uses it."""
    network = saved.network
    assert isinstance(network, MemoryModel)
    stored = {field.name: getattr(saved, field.name) for field in fields(SavedModel)}
    return Model(**stored, memory=network.scaled_memory().resize(**saved.sizes))


def load_network(source: str | Path, device: torch.device | str = "cpu") -> SavedModel:
    """Networks of any model, with or without a memory, ready for evaluation; the arguments are those of `load`."""
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
