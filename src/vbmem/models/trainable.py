"""What the training loop asks of whatever it trains."""

from abc import abstractmethod
from functools import cached_property
from typing import ClassVar, Protocol

from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from vbmem.models.settings import Regulariser
from vbmem.nets import FrameFormat


class Outcome(Protocol):
    """What came of a batch of episodes."""

    @property
    def episode_length(self) -> int:
        """By which the objective is divided."""

    def objective(self, weight: Tensor | None = None) -> Tensor:
        """What training raises, [B]; `weight` is that of divergences in a warm-up, for those that have any."""

    def per_frame(self) -> dict[str, Tensor]:
        """What is reported, by name, [B] each: the headline, of which more is better, and others."""


class Trainable(nn.Module):
    """Something that learns from batches of episodes."""

    headline: ClassVar[str] = "elbo_per_frame"
    """The reported number by which the best weights are chosen."""
    word: ClassVar[str] = "bound"
    """What it is called where there is little room."""
    unit: ClassVar[str] = "nats a frame"
    """Its unit, or what it is."""
    digits: ClassVar[int] = 2
    """With which it is shown."""
    frame: FrameFormat
    """What frames look like."""
    waits: bool = False
    """Whether without gradients it waits for the device, so that no graph of it can be captured."""
    scales_wait: bool = True
    """Whether its prior's scales stay as they are in a warm-up."""
    regulariser: Regulariser | None = None
    """That of the present stage of training, for a model that has a memory."""
    damage: float = 0.0
    """In training, the share of frames whose codes are inferred from damaged pictures."""

    @abstractmethod
    def forward(self, frames: Tensor, copies: int = 1) -> Outcome:
        """Frames [B, T, channels, H, W] -> what comes of each episode, one sample of every random variable.

        With `copies`, every episode counts that many times, each with randomness of its own.
        """

    @property
    def prior_scales(self) -> list[nn.Parameter]:
        """Trained logarithms of its prior's scales: few numbers with far to go, so they have a rate of their own."""
        return []

    @abstractmethod
    def compile_parts(self) -> None:
        """Compile what repeats. Called once, before the first step."""

    @cached_property
    def gathered_statistics(self) -> Tensor:
        """Batch norm's statistics as one tensor, so that all can be copied in one go. Moved into it at the first use,
        once the model is on its device; the modules keep views."""
        norms = [module for module in self.modules() if isinstance(module, nn.BatchNorm2d)]
        statistics = [next(self.parameters()).new_empty(0)]  # for models that have none
        statistics += [buffer for norm in norms for buffer in norm.buffers() if buffer.is_floating_point()]
        gathered = parameters_to_vector(statistics)
        vector_to_parameters(gathered, statistics)
        return gathered
