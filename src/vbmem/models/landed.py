"""The one reader of models that vbmem 0.4 and before wrote, without checksums: model directories of versions 1 and 2,
and runs of the time of version 1, with their best.safetensors."""

from pathlib import Path
from typing import Any

from vbmem.checksums import NAME
from vbmem.files import parse_json, read_tensors
from vbmem.models.base import EpisodicModel
from vbmem.models.directory import digest, facts_of_training

FORMAT = "vbmem.model"
# Of a run: its weights, their format, and what every tensor's name begins with.
RUN_WEIGHTS, RUN_FORMAT, RUN_PREFIX = "best.safetensors", "vbmem.checkpoint", "model."


def is_landed(values: dict[str, Any]) -> bool:
    """Whether config.json is that of a model of version 1 or 2, or of a run of version 1, which had no format."""
    if "format" in values:
        return bool(values["format"] == FORMAT and values.get("version") in (1, 2) and NAME not in values)
    return {"data", "model", "frame", "stages"} <= values.keys()


def upgraded(values: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The same settings by the names of this version."""
    if values.get("version") == 2:
        return values
    return _upgraded_model(values) if "format" in values else _upgraded_run(values, directory)


def _upgraded_model(values: dict[str, Any]) -> dict[str, Any]:
    """What a model was trained on stood in its card, in words, and whether in black and white in its likelihood."""
    card, data = values["card"], None
    if "data" in card:
        batch_size, episode_length = map(int, card.get("episodes", "16 x 64").split(" x "))
        data = {"dataset": str(card["data"]), "batch_size": batch_size, "episode_length": episode_length}
        data["binary"] = values["frame"]["likelihood"] == "bernoulli"
    return {"sizes": {}, **values, "data": data, "seed": int(card.get("seed", 0))}


def _upgraded_run(values: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The name was that of the directory, and the bound stood beside the weights."""
    described = {name: values[name] for name in ("model", "frame", "data", "seed")}
    training = {name: value for name, value in values.items() if name not in described}
    path, bound = directory / RUN_WEIGHTS, None
    if path.is_file():
        bound = parse_json(read_tensors(path, "cpu")[1]["progress"])["best"]
    return {
        "name": directory.resolve().name,
        **described,
        "sizes": {},
        "card": facts_of_training(values, bound),
        "training": training,
    }


def landed_fingerprint(network: EpisodicModel) -> str:
    """The fingerprint that memories of vbmem 0.1 carry, over all weights, the decoder's too."""
    return digest(network.state_dict())
