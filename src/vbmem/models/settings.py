"""Settings of every model there is, by kind, and their way to plain values and back; loads nothing heavy."""

from __future__ import annotations

import math
import pkgutil
from dataclasses import KW_ONLY, asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast, get_args, get_type_hints

if TYPE_CHECKING:
    from vbmem.models.base import EpisodicModel
    from vbmem.nets import CrispDecoder, FrameFormat

MemoryKind = Literal["gaussian", "categorical", "shifted", "mixture", "tree"]
Objective = Literal["episode", "generalisation", "online"]
Start = Literal["prior", "random", "data", "kmeans++", "kmeans", "ward"]
OwnPrior = Literal["standard", "network"]
Precision = Literal["bfloat16", "float32"]

# How pictures are made unless told otherwise.
READS = 1  # of what was drawn from a memory: none leaves blends, and more gain little
PAINT_STEPS = 2  # in which a crisp picture is painted; the second makes more of a difference than two further ones


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Settings of one kind of model. A subclass with a `kind` can be named by it in a file, once it is imported."""

    kind: ClassVar[str]
    model: ClassVar[str]
    """Where its class is, `module:class`. Called with the settings and the format of frames, it makes a model."""
    kinds: ClassVar[dict[str, type[ModelConfig]]] = {}
    """Every kind of model there is."""
    sizes: ClassVar[tuple[str, ...]] = ("code_size", "filters")
    """Settings that are numbers of something, at least 1; or None, for a default."""

    code_size: int = 200
    """Numbers in the code of a frame."""
    filters: int = 32
    """Channels of every convolution."""
    style: str = "basic"
    """The encoder and the decoder, by name: basic, improved, or put together as in group-relu-up-last, or with a linear
    map beside either as in group-relu-up-last-linear."""
    precision: Precision = "bfloat16"
    """Of the networks on a GPU, where convolutions in float32 are those of cudnn, in TensorFloat32; on a CPU all is
    float32."""

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            ModelConfig.kinds[cls.kind] = cls

    def __post_init__(self) -> None:
        for name in self.sizes:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.precision not in get_args(Precision):
            raise ValueError(f"precision must be one of {', '.join(get_args(Precision))}, got {self.precision!r}")

    def build(self, frame: FrameFormat) -> EpisodicModel:
        """An untrained model over frames of this format."""
        return pkgutil.resolve_name(self.model)(self, frame)


@dataclass(frozen=True)
class VAEConfig(ModelConfig):
    """A variational autoencoder with p(z) = N(0, I)."""

    kind: ClassVar[str] = "vae"
    model: ClassVar[str] = "vbmem.models.vae:VAE"


@dataclass(frozen=True)
class StatisticianConfig(ModelConfig):
    """A context c ~ N(0, I) for the whole episode, and codes z_t ~ p(z | c)."""

    kind: ClassVar[str] = "statistician"
    model: ClassVar[str] = "vbmem.models.statistician:NeuralStatistician"
    sizes: ClassVar[tuple[str, ...]] = (*ModelConfig.sizes, "context_size")

    context_size: int = 6400
    """Numbers in the context of an episode."""


@dataclass(frozen=True)
class DKMConfig(ModelConfig):
    """Deterministic codes, written online into a memory of `rows` rows."""

    kind: ClassVar[str] = "dkm"
    model: ClassVar[str] = "vbmem.models.dkm:DKM"
    sizes: ClassVar[tuple[str, ...]] = (*ModelConfig.sizes, "rows")

    rows: int = 32
    """Rows of the memory."""
    autoencoder: bool = True
    """Train on the bound plus log p(x | e(x)), as Wu et al. and the reference code do; never part of the bound."""
    mean_memory: bool = False
    """Read from the mean of the memory instead of a draw: the biased estimate of Wu et al."""


@dataclass(frozen=True)
class MemoryConfig(ModelConfig):
    """A memory between encoder and decoder."""

    kind: ClassVar[str] = "memory"
    model: ClassVar[str] = "vbmem.models.memory_model:MemoryModel"
    sizes: ClassVar[tuple[str, ...]] = (
        *ModelConfig.sizes,
        "clusters",
        "partitions",
        "iterations",
        "gradient_iterations",
    )

    memory: MemoryKind = "mixture"
    """The kind of memory."""
    _: KW_ONLY
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
    """The encoder and the decoder, by name: basic, improved, or put together as in group-relu-up-last, or with a linear
    map beside either as in group-relu-up-last-linear."""
    factorised: bool = False
    """q(M, b) = q(M) q(b), and a write that starts at k-means++ seeds, as the paper has it, for shifted, mixture and
    tree memories; otherwise rows and location are one matrix, which has a tighter bound."""
    start: Start | None = None
    """Where a write starts, in training and afterwards; by default the memory's own choice."""
    gradient_iterations: int | None = None
    """Train through the last so many updates of a write only; by default through the whole write, as the paper has it
    (section 2.4), whose gradient can be very long where clusters compete for frames."""
    learned_code_var: bool = True
    """Infer the variance of q(z) with its mean, as the paper has it (appendix F.1); otherwise it is half the memory's
    noise, as its reference code has it for mixture and tree."""
    objective: Objective = "episode"
    """`generalisation`: write a share of the frames, score all. `online`: one pass in random order."""
    written_share: float = 0.5
    """Of the frames, under the objective `generalisation`."""
    own_size: int = 0
    """Of the numbers in a code, the last so many belong to the frame alone; the others are its content, which alone is
    written into memory. All of them make it a VAE."""
    own_prior: OwnPrior = "standard"
    """That of the own part: `standard`, N(0, I); or `network`, N(mean, var) by a small network of the content."""
    sees_recall: bool = False
    """Let q(z) of a frame see what the memory recalls of it, once all are written as the encoder sees each alone: the
    mean of its content is what is recalled, and a correction. For frames that share something."""
    weighs_recall: bool = False
    """Let q(content) be the product of what a frame says of it and what the memory does, N(recalled, noise_var), rather
    than what is recalled and a correction: no network can then learn to ignore the memory. The own part still is
    corrected. Needs sees_recall and learned_scales, which begin to be learned in the warm-up."""
    noise_var: float | None = None
    """Of the prior, or where its training begins; by default the memory's own."""
    row_var: float | None = None
    """The same for rows."""
    loc_var: float | None = None
    """The same for clusters' locations. Samples are as far apart as codes only if both suit the codes."""
    learned_scales: bool = False
    """Train the prior's row_var and loc_var, and a noise_var for every number of the content. Where frames have nothing
    in common, as on shuffled CIFAR-10, this tends to switch the memory off."""
    tells_apart: float = 0.0
    """In training, how many times log p(own episode | content) of a frame counts beside its bound, by the density of
    its content under memories of one and of five frames of every episode of the batch. For episodes of one label each,
    whose labels a memory is to tell apart afterwards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kinds in (("memory", MemoryKind), ("objective", Objective), ("own_prior", OwnPrior)):
            if (value := getattr(self, name)) not in get_args(kinds):
                raise ValueError(f"{name} must be one of {', '.join(get_args(kinds))}, not {value!r}")
        if self.start is not None and self.start not in get_args(Start):
            raise ValueError(f"start must be one of {', '.join(get_args(Start))}, or none, not {self.start!r}")
        if not 0 <= self.own_size <= self.code_size:
            raise ValueError(f"own_size must lie between 0 and code_size, {self.code_size}, got {self.own_size}")
        if (self.own_size or self.sees_recall) and not self.learned_code_var:
            raise ValueError("own_size and sees_recall need a learned variance of q(z); set learned_code_var to true")
        if self.sees_recall and self.own_size == self.code_size:
            raise ValueError("sees_recall needs a memory, and own_size leaves nothing to write; make it smaller")
        if self.weighs_recall and not (self.sees_recall and self.learned_scales):
            raise ValueError("weighs_recall weighs by the learned noise; set sees_recall and learned_scales to true")
        if self.own_prior == "network" and not 0 < self.own_size < self.code_size:
            raise ValueError(f"own_prior network is of a part of the code given the rest; own_size is {self.own_size}")
        if self.loc_var is not None and self.memory in ("gaussian", "categorical"):
            raise ValueError(f"a {self.memory} memory has no locations, and so no loc_var; leave it out")
        if not 0 < self.written_share <= 1:
            raise ValueError(f"written_share must lie above 0 and not above 1, got {self.written_share}")
        if not 0 <= self.tells_apart < math.inf:
            raise ValueError(f"tells_apart must be 0 or a positive number, got {self.tells_apart}")
        if self.tells_apart and self.own_size == self.code_size:
            raise ValueError("tells_apart is by the content, and own_size leaves none; make it smaller")
        if self.tells_apart and self.memory not in ("mixture", "tree"):
            raise ValueError(f"tells_apart needs a memory with clusters, mixture or tree, not a {self.memory} one")

    def build(self, frame: FrameFormat) -> EpisodicModel:
        """An untrained model over frames of this format; where nothing of a code is written, a VAE."""
        model = self.model if self.own_size < self.code_size else VAEConfig.model
        return pkgutil.resolve_name(model)(self, frame)


@dataclass(frozen=True)
class CrispConfig:
    """Settings of a crisp decoder, which paints the codes of a frozen model."""

    style: str = "unet"
    """Its network, by name."""
    width: int = 64
    """Channels of its network at the full size of frames, a multiple of 4; at smaller ones there are twice as many."""
    blocks: int = 2
    """Residual blocks at every size, on the way down and on the way up."""
    attention: bool = True
    """Whether the places of the smallest features attend to each other."""
    sees_mean: bool = False
    """Begin at the mean picture of a code, by the model's own decoder, with a little noise, and see it beside the code;
    otherwise begin at noise alone."""

    def build(self, frame: FrameFormat, code_size: int) -> CrispDecoder:
        """An untrained decoder of codes of this size."""
        from vbmem.nets import CrispDecoder

        return CrispDecoder(frame, code_size, **asdict(self))


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


Settings = TypeVar("Settings")


def from_dict(kind: type[Settings], values: dict[str, Any]) -> Settings:
    """Settings of a kind from the values of their fields; what is missing takes its default.

    Args:
        kind: a dataclass of settings; `ModelConfig` for those of any model, which say their kind.
        values: plain values, as in JSON.

    Raises:
        ValueError: for an unknown kind of model or an unknown setting.
    """
    if kind is ModelConfig:
        model, values = values.get("kind"), {name: value for name, value in values.items() if name != "kind"}
        if model not in ModelConfig.kinds:
            raise ValueError(
                f"unknown kind of model {model!r}; known are {', '.join(ModelConfig.kinds)}; import the module that "
                "defines another"
            )
        kind = cast(type[Settings], ModelConfig.kinds[model])
        if model == MemoryConfig.kind:  # one that does not say so is of a time when all were
            learned = values.get("memory") not in ("mixture", "tree")
            values = {"factorised": True, "learned_code_var": learned, **values}
    hints = get_type_hints(kind)
    if unknown := set(values) - {field.name for field in fields(kind)}:  # type: ignore[arg-type]
        raise ValueError(f"unknown settings {', '.join(sorted(unknown))}; was this saved by a newer vbmem?")
    return kind(**{name: _of_type(hints[name], value) for name, value in values.items()})


def _of_type(hint: Any, value: Any) -> Any:
    """The value of a setting: settings within settings are stored as a dictionary, several of them as a list."""
    match value:
        case dict():
            # Of an optional one, that which is not None.
            kind: Any = next(filter(is_dataclass, (hint, *get_args(hint))), None)
            if kind is None:
                raise ValueError(f"expected {hint}, got {value!r}")
            return from_dict(kind, value)
        case list() | tuple():
            if not get_args(hint):
                raise ValueError(f"expected {hint}, got {value!r}")
            return tuple(_of_type(get_args(hint)[0], item) for item in value)
    return value
