"""What a training run is, as frozen dataclasses: the command line is generated from them, a preset is one of them."""

from __future__ import annotations

import dataclasses
import types
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vbmem.data import EpisodeKind
from vbmem.models import DKMConfig, MemoryConfig, ModelConfig, Regulariser, StatisticianConfig, VAEConfig

MODEL_KINDS: dict[str, type[ModelConfig]] = {
    "vae": VAEConfig,
    "statistician": StatisticianConfig,
    "dkm": DKMConfig,
    "memory": MemoryConfig,
}


def _require(holds: bool, rule: str, value: float) -> None:
    if not holds:
        raise ValueError(f"{rule}, got {value}")


@dataclass(frozen=True)
class DataConfig:
    """Which pictures, and what an episode of them is."""

    dataset: str = "cifar10"
    """A known set, an .npz file, or a folder of pictures."""
    image_size: int | None = None
    """Side to which pictures are brought; by default that of the set, for a folder 32."""
    binary: bool = False
    """Frames rounded to 0 or 1 and a Bernoulli likelihood."""
    episodes: EpisodeKind = "shuffled"
    batch_size: int = 16
    episode_length: int = 64
    sources_per_episode: int = 4
    """For episodes of views and repeats."""


@dataclass(frozen=True)
class Stage:
    """Some epochs with the same settings, starting from the best weights so far and a fresh optimiser."""

    epochs: int = 100
    learning_rate: float = 1e-3
    regulariser: Regulariser | None = None
    takes_leftover: bool = False
    """Also run the epochs that early stopping left over in the stage before."""

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, "a stage needs at least one epoch", self.epochs)
        _require(self.learning_rate > 0, "the learning rate must be positive", self.learning_rate)


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=VAEConfig)
    stages: tuple[Stage, ...] = (Stage(),)
    copies: int = 1
    """How often every episode counts within its batch, each time with its own randomness."""
    beta1: float = 0.9
    """Adam's."""
    clip: float = 100.0
    """Largest norm of the whole gradient."""
    patience: int = 10
    """Epochs without a better validation bound after which a stage stops."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over a stage."""
    averaging: float = 0.0
    """Decay of an exponential average of the weights, which is then what is evaluated and kept; 0 for none."""
    seed: int = 0

    def __post_init__(self) -> None:
        _require(len(self.stages) >= 1, "a run needs at least one stage", len(self.stages))
        _require(self.copies >= 1, "copies must be at least 1", self.copies)
        _require(self.patience >= 1, "patience must be at least 1", self.patience)
        _require(self.clip > 0, "clip must be positive", self.clip)
        _require(0 <= self.averaging < 1, "averaging must lie in [0, 1)", self.averaging)


def to_dict(config: Any) -> Any:
    """A configuration as plain values; models carry their kind."""
    if dataclasses.is_dataclass(config):
        values = {f.name: to_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
        kinds = [kind for kind, cls in MODEL_KINDS.items() if isinstance(config, cls)]
        return {"kind": kinds[0], **values} if kinds else values
    return [to_dict(item) for item in config] if isinstance(config, tuple) else config


def from_dict(values: dict[str, Any]) -> RunConfig:
    """Inverse of `to_dict`; unknown names raise ValueError."""
    config: RunConfig = _build(RunConfig, values)
    return config


def model_from_dict(values: dict[str, Any]) -> ModelConfig:
    """The settings of a model alone, which carry their kind."""
    config: ModelConfig = _build(ModelConfig, values)
    return config


def _build(kind: Any, value: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        if isinstance(value, dict) and "kind" in value:
            if value["kind"] not in MODEL_KINDS:
                raise ValueError(f"unknown kind of model {value['kind']!r}; known are {', '.join(MODEL_KINDS)}")
            return _build(MODEL_KINDS[value["kind"]], {k: v for k, v in value.items() if k != "kind"})
        options = [option for option in get_args(kind) if option is not type(None)]
        if len(options) > 1 and isinstance(value, dict):
            raise ValueError(f"a model needs a kind, one of {', '.join(MODEL_KINDS)}")
        kind = options[0]
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        if unknown := set(value) - set(hints):
            raise ValueError(f"unknown settings {', '.join(sorted(unknown))}; was this saved by a newer vbmem?")
        return kind(**{name: _build(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return tuple(_build(get_args(kind)[0], item) for item in value)
    return value
