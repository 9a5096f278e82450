"""What a training run is, as frozen dataclasses: the command line is generated from them, a preset is one of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any, Literal, get_args

from vbmem.data.settings import Augmentation
from vbmem.data.settings import DataConfig as DataConfig
from vbmem.models.settings import CrispConfig, MemoryConfig, ModelConfig, Regulariser, VAEConfig

Schedule = Literal["constant", "cosine"]
BatchNorm = Literal["fresh", "accumulated"]


def _require(holds: bool, rule: str, value: float) -> None:
    if not holds:
        raise ValueError(f"{rule}, got {value}")


@dataclass(frozen=True)
class Stage:
    """Some epochs with the same settings, starting from the best weights so far and a fresh optimiser."""

    epochs: int = 100
    """The most epochs it takes."""
    learning_rate: float = 1e-3
    """Adam's learning rate, at the start of the stage."""
    regulariser: Regulariser | None = None
    """Moves codes towards what the memory recalls; None for none."""
    takes_leftover: bool = False
    """Also run the epochs that early stopping left over in the stage before."""

    def __post_init__(self) -> None:
        _require(self.epochs >= 1, "a stage needs at least one epoch", self.epochs)
        _require(self.learning_rate > 0, "the learning rate must be positive", self.learning_rate)


@dataclass(frozen=True)
class RunConfig:
    """A training run."""

    data: DataConfig = field(default_factory=DataConfig)  # the pictures, and what an episode of them is
    model: ModelConfig = field(default_factory=VAEConfig)  # the kind of model and its sizes
    stages: tuple[Stage, ...] = (Stage(),)  # one after the other
    copies: int = 1
    """How often every episode counts within its batch, each time with its own randomness."""
    beta1: float = 0.9
    """Adam's decay of its average gradient."""
    clip: float | None = 100.0
    """Largest norm of the whole gradient; None for any."""
    patience: int = 10
    """Epochs without a better validation bound after which a stage stops."""
    schedule: Schedule = "constant"
    """How the learning rate changes over a stage."""
    warm_up: int = 0
    """Steps, counted over the whole run, in which the weight of every divergence rises from a tenth to 1 in what is
    trained; the bound that is reported has the full weight always. Patience begins after them."""
    scale_rate: float = 20.0
    """How many times the learning rate the prior's learned scales have once the warm-up is over: a logarithm that moves
    as slowly as a weight gets nowhere."""
    regularise: bool | None = None
    """Move codes towards what the memory recalls in every stage, or in none; by default as each stage says."""
    damage: float = 0.0
    """In training, the share of frames whose code is inferred from a damaged picture (noise, or a half hidden), while
    the whole one is what counts: codes of damaged pictures then stay where the memory finds them."""
    batch_norm: BatchNorm = "fresh"
    """What batch norm is validated and kept with: statistics measured afresh under the weights as they are, or those
    accumulated in training."""
    averaging: float = 0.0
    """Decay of an exponential average of the weights, which is then what is evaluated and kept; 0 for none. After n
    steps it is at most (1 + n) / (10 + n)."""
    seed: int = 0
    """Seed of the weights, the episodes and every draw."""

    def regulariser(self, stage: Stage) -> Regulariser | None:
        """That of a stage of this run."""
        if self.regularise is None:
            return stage.regulariser
        return stage.regulariser or Regulariser() if self.regularise else None

    def __post_init__(self) -> None:
        _require(len(self.stages) >= 1, "a run needs at least one stage", len(self.stages))
        _require(self.copies >= 1, "copies must be at least 1", self.copies)
        _require(self.patience >= 1, "patience must be at least 1", self.patience)
        _require(self.warm_up >= 0, "warm_up must not be negative", self.warm_up)
        _require(self.scale_rate > 0, "scale_rate must be positive", self.scale_rate)
        _require(self.clip is None or self.clip > 0, "clip must be positive", self.clip or 0)
        for name, known in (("schedule", Schedule), ("batch_norm", BatchNorm)):
            if (value := getattr(self, name)) not in get_args(known):
                raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")
        remembers = isinstance(self.model, MemoryConfig) and self.model.own_size < self.model.code_size
        if not remembers and any(self.regulariser(stage) for stage in self.stages):
            raise ValueError("only a model with a memory can be regularised: codes move towards what it recalls")
        if isinstance(self.model, MemoryConfig) and self.model.tells_apart:
            alone = self.data.episodes == "by-label" and self.data.labels_per_episode == 1
            if not alone or self.data.episode_length < 2 or self.data.batch_size < 2:
                raise ValueError(
                    "tells_apart needs episodes of one label, of two frames or more, and two of them in a batch; set "
                    "data.episodes to by-label and data.labels_per_episode to 1, or leave tells_apart 0"
                )
        _require(0 <= self.averaging < 1, "averaging must lie in [0, 1)", self.averaging)
        _require(0 <= self.damage <= 1, "damage must lie in [0, 1]", self.damage)


@dataclass(frozen=True)
class PaintingConfig:
    """The training of a crisp decoder over a frozen model."""

    decoder: CrispConfig = field(default_factory=CrispConfig)  # its network
    epochs: int = 240
    """Passes through the pictures."""
    batch_frames: int = 512
    """Frames in a batch, in whole episodes."""
    learning_rate: float = 1e-3
    """Adam's learning rate at the start; it falls as a cosine."""
    clip: float = 1.0
    """Largest norm of the whole gradient."""
    averaging: float = 0.999
    """Decay of the exponential average of the weights, which is what is kept."""
    clusters: tuple[int, ...] = (10, 20, 64)
    """Of the memories that codes are read back from, where the model's memory has clusters."""
    augment: tuple[Augmentation, ...] | None = None
    """Changes of the pictures; by default those the model was trained with."""
    seed: int = 0
    """Seed of the weights, the episodes and every draw."""

    def __post_init__(self) -> None:
        _require(self.batch_frames >= 1, "batch_frames must be at least 1", self.batch_frames)

    def run(self, data: DataConfig, model: ModelConfig) -> RunConfig:
        """The same for the training loop, over a model trained on such data."""
        return RunConfig(
            data=replace(
                data,
                batch_size=max(self.batch_frames // data.episode_length, 1),
                augment=data.augment if self.augment is None else self.augment,
            ),
            model=model,
            stages=(Stage(self.epochs, self.learning_rate),),
            clip=self.clip,
            patience=self.epochs,
            schedule="cosine",
            averaging=self.averaging,
            seed=self.seed,
        )


def differences(then: Any, now: Any, name: str = "") -> Iterator[str]:
    """In what settings differ: each by its name, such as stages.0.epochs, with both values."""
    inside: dict[str, tuple[Any, Any]] = {}
    if is_dataclass(then) and type(then) is type(now):
        inside = {field.name: (getattr(then, field.name), getattr(now, field.name)) for field in fields(then)}
    elif isinstance(then, tuple) and any(map(is_dataclass, then)):
        inside = {str(number): pair for number, pair in enumerate(zip_longest(then, now))}
    for part, pair in inside.items():
        yield from differences(*pair, f"{name}.{part}" if name else part)
    if not inside and then != now:
        yield f"{name} {_shown(then)}, not {_shown(now)}"


def _shown(value: Any) -> str:
    """Settings within settings by their kind alone: all of them would be many."""
    return type(value).__name__ if is_dataclass(value) else repr(value)
