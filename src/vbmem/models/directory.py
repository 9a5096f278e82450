"""Models on disk: a directory with config.json, model.safetensors and, of some, reference.safetensors and
decoder.safetensors. Loading never runs code from it.

A training run's directory is one, to which `train` adds its own settings, a log and the checkpoint it goes on from.
"""

import hashlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vbmem.checksums import check_checksum
from vbmem.data.settings import DataConfig
from vbmem.errors import MemoryFileError, ModelError
from vbmem.files import (
    check_device,
    check_format,
    parse_json,
    read_tensors,
    reading,
    scratch_directory,
    warn_unchecked,
    write_atomically,
    write_checked_json,
    write_tensors,
)
from vbmem.memory.choice import UNIFORM
from vbmem.memory.written import WrittenMemory
from vbmem.models.base import EpisodicModel
from vbmem.models.card import render_card
from vbmem.models.memory_model import MemoryModel
from vbmem.models.settings import CrispConfig, ModelConfig, from_dict
from vbmem.nets import CrispDecoder, FrameFormat

FORMAT, VERSION = "vbmem.checked-model", 3
WEIGHTS_FORMAT, PREFIX = "vbmem.checked-weights", "network: "  # every tensor's name begins with the prefix
SETTINGS, WEIGHTS, REFERENCE = "config.json", "model.safetensors", "reference.safetensors"
DECODER, CARD = "decoder.safetensors", "README.md"
FILES = (SETTINGS, WEIGHTS, REFERENCE, DECODER, CARD)  # that a model directory may have; without the first, it is none
CHECKPOINT = "last.safetensors"  # of a training run, where it goes on
SAVE_AGAIN = "save or download the model again"


@dataclass(frozen=True)
class SavedModel:
    """A model with what a directory says about it."""

    network: EpisodicModel  # its trained networks
    name: str  # what it is called; memories it writes know it
    data: DataConfig | None = None
    """What it was trained on, where that is known."""
    seed: int = 0
    """Of its training."""
    sizes: dict[str, int] = field(default_factory=dict)
    """To which its memory was resized. The network's own settings stay, for its prior follows from them."""
    card: dict[str, Any] = field(default_factory=dict)
    """Where it comes from: data, schedule, test bound, in words."""
    kept_reference: WrittenMemory | Path | None = None
    """`reference`, or the file it is read from when it is first used."""
    painter: CrispDecoder | None = None
    """Paints crisp pictures of its codes; not all models have one. Memories, scores and bounds do not depend on it."""

    @cached_property
    def fingerprint(self) -> str:
        """A memory knows that of the model that wrote it; see `fingerprint`."""
        return fingerprint(self.network)

    @cached_property
    def reference(self) -> WrittenMemory | None:
        """A memory of pictures like those it was trained on, with which other memories are compared; not all models
        have one.

        Raises:
            ModelError: where its file is damaged, or of another model.
        """
        if not isinstance(self.kept_reference, Path):
            return self.kept_reference
        device = next(self.network.parameters()).device
        try:
            memory = WrittenMemory.load(self.kept_reference, device)
        except MemoryFileError as error:
            raise ModelError(f"the reference memory of {self.name} cannot be read: {error}") from error
        if memory.fingerprint != self.fingerprint:
            raise ModelError(
                f"{self.kept_reference} is of another model ({memory.fingerprint}), not of {self.name} "
                f"({self.fingerprint}); {SAVE_AGAIN}, or delete that file"
            )
        return memory


def load_model(directory: Path, device: torch.device | str = "cpu") -> SavedModel:
    """A model of any kind, on its device and ready for evaluation.

    Args:
        directory: what `save_model` or a training run left.
        device: where to put it; see `EpisodicModel.place_on`.

    Raises:
        ModelError: where the directory holds no model that can be built here, or not its weights.
        ValueError: there is no such device here.
    """
    check_device(device)
    values, weights = read_settings(directory), read_weights(directory)
    painter_weights = {} if values.get("decoder") is None else _read(directory, DECODER)
    with torch.device("meta"):  # where tensors have shapes and take no memory: the settings may ask for anything
        described = _build(directory, values, most_blocks=len(painter_weights))
        _check_shapes(described.network, weights, directory)
        if described.painter is not None:
            _check_shapes(described.painter, painter_weights, directory)
    saved = _build(directory, values)
    saved.network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    saved.network.place_on(torch.device(device)).eval().requires_grad_(False)
    if saved.painter is not None:
        saved.painter.load_state_dict({name: tensor.float() for name, tensor in painter_weights.items()})
        saved.painter.place_on(torch.device(device), saved.network.network_dtype).eval().requires_grad_(False)
    return saved


def _check_shapes(network: nn.Module, weights: dict[str, Tensor], directory: Path) -> None:
    """A file of weights must hold what the settings ask for, before anything is made in those sizes."""
    with suppress(RuntimeError):  # a model may take the shape of what it learned from there
        network.load_state_dict({name: tensor.to("meta") for name, tensor in weights.items()})
    shapes, expected = ({name: t.shape for name, t in tensors.items()} for tensors in (weights, network.state_dict()))
    if shapes != expected:
        raise ModelError(f"{directory} does not hold the weights that its config.json describes; save the model again")


def build_model(directory: Path) -> SavedModel:
    """The model that a directory describes, its weights not loaded.

    Raises:
        ModelError: where it describes none that can be built here.
    """
    return _build(directory, read_settings(directory))


def _build(directory: Path, values: dict[str, Any], most_blocks: int | None = None) -> SavedModel:
    """The model of these settings; its crisp decoder may have so many blocks, where their number is in doubt."""
    try:
        settings, frame = from_dict(ModelConfig, values["model"]), FrameFormat(**values["frame"])
        decoder = None if values.get("decoder") is None else from_dict(CrispConfig, values["decoder"])
        if decoder is not None and most_blocks is not None and decoder.blocks > most_blocks:
            raise ValueError(f"its decoder has {decoder.blocks} blocks and {most_blocks} weights")
        network, sizes = settings.build(frame), dict(values["sizes"])
        if sizes:
            if not isinstance(network, MemoryModel):
                raise ValueError(f"it has no memory, and {', '.join(sizes)} of one")
            network.resize(**sizes)
        return SavedModel(
            network=network,
            name=str(values["name"]),
            data=None if values["data"] is None else from_dict(DataConfig, values["data"]),
            seed=int(values["seed"]),
            sizes=sizes,
            card=dict(values["card"]),
            kept_reference=path if (path := directory / REFERENCE).is_file() else None,
            painter=None if decoder is None else decoder.build(frame, settings.code_size),
        )
    except Exception as error:  # networks raise almost anything in sizes they were not made for
        reason = str(error) if isinstance(error, ValueError) else repr(error)
        raise ModelError(f"{directory / SETTINGS} describes no model this vbmem can build: {reason}") from error


def check_replaceable(directory: Path) -> None:
    """Raise ModelError where saving a model would lose more than an earlier model: a run, or somebody's files."""
    if (directory / CHECKPOINT).exists():
        raise ModelError(f"{directory} is the directory of a run, whose config.json would be lost; choose another")
    if not (there := [name for name in FILES if (directory / name).exists()]):
        return
    try:
        _read_config(directory)
    except ModelError as error:
        raise ModelError(
            f"{directory} is no model directory, and its {', '.join(there)} would be lost; choose another"
        ) from error


def save_model(saved: SavedModel, directory: Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write a model directory with its card, its reference memory and its crisp decoder, to keep or to give away.

    Of data in a folder or file it tells the name only. Where it cannot be written, a model that was there stays.

    Args:
        saved: the model.
        directory: made if it is not there.
        dtype: half precision halves the file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with scratch_directory(directory) as new:
        _write_model(saved, new, dtype)
        (directory / SETTINGS).unlink(missing_ok=True)  # until it is back there is no model, rather than half of two
        for name in reversed(FILES):
            if (new / name).exists():
                (new / name).replace(directory / name)
            else:
                (directory / name).unlink(missing_ok=True)


def _write_model(saved: SavedModel, directory: Path, dtype: torch.dtype) -> None:
    data = saved.data and replace(saved.data, dataset=Path(saved.data.dataset).name)
    write_weights(directory, saved.network.state_dict(), dtype)
    if saved.painter is not None:
        write_weights(directory, saved.painter.state_dict(), dtype, DECODER)
    write_settings(directory, replace(saved, data=data))
    if saved.reference is not None:
        saved.reference.save(directory / REFERENCE, private=False)  # whoever may use the model needs it
    write_atomically(directory / CARD, render_card(saved.name, saved.network, saved.card).encode(errors="replace"))


def rounded(saved: SavedModel, dtype: torch.dtype) -> SavedModel:
    """The model with its weights as a file in that precision keeps them, in place. Where that makes it another model,
    its reference memory, which was the first one's, is gone."""
    before = saved.fingerprint
    for network in (saved.network, saved.painter):
        if network is not None:
            network.load_state_dict(_in_precision(network.state_dict(), dtype))
    return saved if fingerprint(saved.network) == before else replace(saved, kept_reference=None)


def read_settings(directory: Path) -> dict[str, Any]:
    """What config.json of a model directory says."""
    from vbmem.models.landed import upgraded

    values, checked = _read_config(directory)
    if not checked:
        warn_unchecked(path := directory / SETTINGS)
        with reading(path, ModelError, "a model's settings", SAVE_AGAIN):
            return upgraded(values, directory)
    if (version := values.get("version")) != VERSION:
        raise ModelError(f"{directory} has version {version}, this vbmem reads {VERSION}; upgrade vbmem")
    return values


def _read_config(directory: Path) -> tuple[dict[str, Any], bool]:
    """config.json as it is, and whether it carries a checksum, as all do but landed ones."""
    from vbmem.models.landed import is_landed

    path = directory / SETTINGS
    if not path.is_file():
        raise ModelError(f"{directory} holds no model or run: it has no config.json")
    with reading(path, ModelError, "a model's settings", SAVE_AGAIN):
        values = parse_json(content := path.read_bytes())
        if is_landed(values):
            return values, False
        if values.get("format") != FORMAT:
            raise ValueError(f"it was not saved by vbmem, whose format is {FORMAT!r}")
        check_checksum(content)
    return values, True


def write_settings(directory: Path, saved: SavedModel, **more: Any) -> None:
    """Write config.json; `more` is what else a training run must find there again."""
    settings = saved.network.config
    values = {
        "format": FORMAT,
        "version": VERSION,
        "name": saved.name,
        "model": {"kind": settings.kind, **asdict(settings)},
        "frame": asdict(saved.network.frame),
        "data": saved.data and asdict(saved.data),
        "seed": saved.seed,
        "sizes": saved.sizes,
        "card": saved.card,
        **more,
    }
    if saved.painter is not None:
        values["decoder"] = saved.painter.settings
    write_checked_json(directory / SETTINGS, values)


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The tensors of a model directory, on the CPU."""
    from vbmem.models import landed

    if not (directory / WEIGHTS).is_file() and (directory / landed.RUN_WEIGHTS).is_file():
        return _read(directory, landed.RUN_WEIGHTS, landed.RUN_FORMAT, landed.RUN_PREFIX)
    return _read(directory, WEIGHTS)


def _read(directory: Path, name: str, landed_format: str = "pt", landed_prefix: str = "") -> dict[str, Tensor]:
    """A file of weights. One without a checksum belongs to a config.json without one, which has been warned of."""
    path = directory / name
    if not path.is_file():
        raise ModelError(f"{path} is missing; {SAVE_AGAIN}, or train at least an epoch of the run")
    with reading(path, ModelError, "a model's weights", SAVE_AGAIN):
        tensors, metadata = read_tensors(path, "cpu")
        if metadata.get("format") == landed_format and not _read_config(directory)[1]:
            return {key.removeprefix(landed_prefix): tensor for key, tensor in tensors.items()}
        check_format(metadata, WEIGHTS_FORMAT)
        return {key.removeprefix(PREFIX): tensor for key, tensor in tensors.items()}


def write_weights(
    directory: Path, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, name: str = WEIGHTS
) -> None:
    """Write model.safetensors, or another file of weights, floating-point numbers in the given precision."""
    stored = {PREFIX + key: tensor for key, tensor in _in_precision(tensors, dtype).items()}
    write_tensors(directory / name, stored, {"format": WEIGHTS_FORMAT})


def _in_precision(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def facts_of_training(run: dict[str, Any], bound: float | None) -> dict[str, Any]:
    """What the card of a trained model tells.

    Args:
        run: its settings as plain values. Of a folder or file the card tells the name only, since models are given
            away.
        bound: on the validation pictures, in nats a frame.
    """
    data = run["data"]
    stages = [f"{stage['epochs']} epochs at {stage['learning_rate']:g}" for stage in run["stages"]]
    facts = {
        "data": Path(data["dataset"]).name,
        "episodes": f"{data['batch_size']} x {data['episode_length']}",
        "schedule": ", then ".join(stages),
        "seed": run["seed"],
    }
    if bound is not None:
        facts["validation bound, nats a frame"] = f"{bound:.1f}"
    return facts


def fingerprint(network: EpisodicModel) -> str:
    """Sixteen hexadecimal digits that change with everything a memory depends on: the encoder and what follows it, and
    the memory's kind and prior. Another decoder leaves them as they are, for the memories written stay valid."""
    tensors = {name: tensor for name, tensor in network.state_dict().items() if not name.startswith("decoder.")}
    if (memory := getattr(network, "memory", None)) is not None:
        # What is trained of the prior is among the weights already; how a memory is written is no part of it.
        passed = (*memory.sizes, *tensors, "factorised")
        fixed = {name: value for name, value in memory.config().items() if name not in passed}
        fixed |= fixed.pop("choice", UNIFORM).tensors()
        tensors |= {
            f"{memory.kind}.{name}": torch.as_tensor(value, dtype=torch.float32) for name, value in fixed.items()
        }
    return digest(tensors)


def digest(tensors: dict[str, Tensor]) -> str:
    """Sixteen hexadecimal digits of names and numbers."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(name.encode())
        hashed.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]
