"""Settings of every model there is, by kind, and their way to plain values and back; loads nothing heavy."""

from __future__ import annotations

import dataclasses
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from torch import Tensor

    from vbmem.memory.writing import VariationalMemory
    from vbmem.models.base import EpisodicModel
    from vbmem.models.dkm import DKM
    from vbmem.models.memory_model import MemoryModel
    from vbmem.models.statistician import NeuralStatistician
    from vbmem.models.vae import VAE
    from vbmem.nets import FrameFormat

MemoryKind = Literal["gaussian", "categorical", "shifted", "mixture", "tree"]
Objective = Literal["episode", "generalisation", "online"]


@dataclass(frozen=True)
class ModelConfig(ABC):
    """Settings of one kind of model. A subclass with a `kind` can be named by it in a file, once it is imported."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[ModelConfig]]] = {}
    """Every kind of model there is."""

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            ModelConfig.kinds[cls.kind] = cls

    @abstractmethod
    def build(self, frame: FrameFormat) -> EpisodicModel:
        """An untrained model over frames of this format."""


@dataclass(frozen=True)
class VAEConfig(ModelConfig):
    """A variational autoencoder with p(z) = N(0, I)."""

    kind: ClassVar[str] = "vae"
    code_size: int = 200
    """Numbers in the code of a frame."""
    filters: int = 32
    """Channels of every convolution."""
    style: str = "basic"
    """The encoder and the decoder, by the name they are registered under: basic, improved."""

    def build(self, frame: FrameFormat) -> VAE:
        from vbmem.models.vae import VAE

        return VAE(self, frame)


@dataclass(frozen=True)
class StatisticianConfig(ModelConfig):
    """A context c ~ N(0, I) for the whole episode, and codes z_t ~ p(z | c)."""

    kind: ClassVar[str] = "statistician"
    code_size: int = 200
    """Numbers in the code of a frame."""
    context_size: int = 6400
    """Numbers in the context of an episode."""
    filters: int = 32
    """Channels of every convolution."""
    style: str = "basic"
    """The encoder and the decoder, by the name they are registered under: basic, improved."""

    def build(self, frame: FrameFormat) -> NeuralStatistician:
        from vbmem.models.statistician import NeuralStatistician

        return NeuralStatistician(self, frame)


@dataclass(frozen=True)
class DKMConfig(ModelConfig):
    """Deterministic codes, written online into a memory of `rows` rows."""

    kind: ClassVar[str] = "dkm"
    code_size: int = 200
    """Numbers in the code of a frame."""
    rows: int = 32
    """Rows of the memory."""
    filters: int = 32
    """Channels of every convolution."""
    style: str = "basic"
    """The encoder and the decoder, by the name they are registered under: basic, improved."""
    autoencoder: bool = True
    """Train on the bound plus log p(x | e(x)), as Wu et al. and the reference code do; never part of the bound."""

    def build(self, frame: FrameFormat) -> DKM:
        from vbmem.models.dkm import DKM

        return DKM(self, frame)


@dataclass(frozen=True)
class MemoryConfig(ModelConfig):
    """A memory between encoder and decoder."""

    kind: ClassVar[str] = "memory"
    memory: MemoryKind = "mixture"
    """The kind of memory."""
    code_size: int = 200
    """Numbers in the code of a frame."""
    rows: int = 6
    """Factor rows of the memory, in every cluster; for categorical addresses, its rows."""
    clusters: int = 10
    """Clusters of a mixture or a tree."""
    partitions: int = 2
    """Pieces into which a tree cuts the code."""
    iterations: int | None = None
    """Updates in a write; by default the memory's own number."""
    filters: int = 64
    """Channels of every convolution."""
    style: str = "improved"
    """The encoder and the decoder, by the name they are registered under: basic, improved."""
    objective: Objective = "episode"
    """`generalisation`: write half of the frames, score all. `online`: one pass in random order."""
    learned_scales: bool = False
    """Train the prior's noise_var, row_var and loc_var. On CIFAR-10 this tends to switch the memory off."""

    def __post_init__(self) -> None:
        for name, kinds in (("memory", MemoryKind), ("objective", Objective)):
            if (value := getattr(self, name)) not in get_args(kinds):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kinds))}, not {value!r}")

    def build(self, frame: FrameFormat) -> MemoryModel:
        from vbmem.models.memory_model import MemoryModel

        return MemoryModel(self, frame)

    def make_memory(self) -> VariationalMemory:
        """The memory these settings describe, with the prior that is the paper's."""
        from vbmem.memory.reading import Memory
        from vbmem.memory.writing import VariationalMemory

        kind = Memory.kinds[self.memory]
        memory = kind(**{size: getattr(self, size) for size in kind.sizes})
        assert isinstance(memory, VariationalMemory)
        return memory


@dataclass(frozen=True)
class Regulariser:
    """Moves the mean of q(z_t) towards what the memory recalls, in training only (paper, 3.2.3):

    mean <- t mean + (1 - t) recalled,   t = gamma - epsilon + delta s,   s ~ Beta(alpha, beta), one t a frame.
    """

    gamma: float = 0.5
    """Centre of t."""
    epsilon: float = 0.1
    """How far below gamma t begins."""
    delta: float = 0.2
    """Width of the interval of t."""
    alpha: float = 8.0
    """Of the Beta distribution."""
    beta: float = 8.0
    """Of the Beta distribution."""

    def __call__(self, mean: Tensor, recalled: Tensor) -> Tensor:
        import torch
        from torch.distributions import Beta

        alpha, beta = (torch.full_like(mean[..., 0], x) for x in (self.alpha, self.beta))
        share = self.gamma - self.epsilon + self.delta * Beta(alpha, beta, validate_args=False).sample()
        return torch.lerp(recalled, mean, share.unsqueeze(-1))


Settings = TypeVar("Settings")


def to_dict(settings: Any) -> Any:
    """Settings as plain values, a model's with its kind."""
    if dataclasses.is_dataclass(settings):
        values = {f.name: to_dict(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
        return {"kind": settings.kind, **values} if isinstance(settings, ModelConfig) else values
    return [to_dict(item) for item in settings] if isinstance(settings, tuple) else settings


def from_dict(kind: type[Settings], values: dict[str, Any]) -> Settings:
    """Settings of a kind from what `to_dict` gave; what is missing takes its default.

    Args:
        kind: a dataclass of settings; `ModelConfig` for those of any model, which say their kind.
        values: the plain values.

    Raises:
        ValueError: for an unknown kind of model or an unknown setting.
    """
    settings: Settings = _build(kind, values)
    return settings


def _build(kind: Any, value: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if value is None:
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if kind is ModelConfig:
        kind, value = _named_kind(value)
    if dataclasses.is_dataclass(kind):
        hints = {f.name: get_type_hints(kind)[f.name] for f in dataclasses.fields(kind)}
        if unknown := set(value) - set(hints):
            raise ValueError(f"unknown settings {', '.join(sorted(unknown))}; was this saved by a newer vbmem?")
        return kind(**{name: _build(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return tuple(_build(get_args(kind)[0], item) for item in value)
    return value


def _named_kind(values: dict[str, Any]) -> tuple[type[ModelConfig], dict[str, Any]]:
    """The class of a model's settings, and those without their kind."""
    known = ", ".join(ModelConfig.kinds)
    if "kind" not in values:
        raise ValueError(f"a model needs a kind, one of {known}")
    others = dict(values)
    kind = others.pop("kind")
    if kind not in ModelConfig.kinds:
        raise ValueError(f"unknown kind of model {kind!r}; known are {known}; import the module that defines another")
    return ModelConfig.kinds[kind], others
