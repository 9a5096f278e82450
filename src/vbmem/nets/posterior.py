"""The posterior q(z | x) of a frame's code, and the network that computes it from the embedding."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn

from vbmem.nets.layers import dense
from vbmem.nets.precision import at_least_float32

LOG_STD = (-7.0, 3.0)  # limits; a VAE trained for long has none below -4.5 or above 0.5


@dataclass(frozen=True)
class CodePosterior:
    """q(z | x) = N(z; mean, diag(var)), one for every frame."""

    mean: Tensor  # [.., C]
    var: Tensor  # [.., C]

    @classmethod
    def from_network(cls, outputs: Tensor) -> Self:
        """Means and log standard deviations, [.., 2 C], lifted to float32 before anything nonlinear.

        The latter are kept between -7 and 3. An untrained network may say anything, and where another one sees a draw
        of the code, as p(own | content) does, single frames would have an enormous divergence. Beyond the limits there
        is no gradient: one that still pushed outwards would meet no resistance, and in the end take all else with it.
        """
        mean, log_std = at_least_float32(outputs).chunk(2, dim=-1)
        return cls(mean, torch.exp(2 * log_std.clamp(*LOG_STD)))

    def cut(self, size: int) -> tuple[Self, Self]:
        """Of the first `size` numbers of the codes, and of the rest."""
        (mean, rest), (var, rest_var) = (x.tensor_split((size,), dim=-1) for x in (self.mean, self.var))
        return type(self)(mean, var), type(self)(rest, rest_var)

    def joined(self, rest: Self) -> Self:
        """Of these numbers of the codes and then the rest: what `cut` undoes."""
        return type(self)(torch.cat([self.mean, rest.mean], dim=-1), torch.cat([self.var, rest.var], dim=-1))

    def product(self, other: Self) -> Self:
        """The normalised product of both densities: precisions add up, and means are weighed by them."""
        var = 1 / (1 / self.var + 1 / other.var)
        return type(self)(var * (self.mean / self.var + other.mean / other.var), var)

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        """One code per frame, [.., C], differentiable in `mean` and `var`."""
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype, device=self.mean.device)
        return self.mean + self.var.sqrt() * noise


class CodeHead(nn.Module):
    """A small network from an embedding to the posterior of a code; float32 out, even under autocast.

    Args:
        embedding_size: size of the input.
        code_size: size C of the code.
        activation: makes the nonlinearity of a hidden layer.
        fixed_var: the variance of every coordinate; without it the network gives log standard deviations
            beside the means.
        hidden: units of every hidden layer; by default one layer of 2 C.
    """

    def __init__(
        self,
        embedding_size: int,
        code_size: int,
        activation: Callable[[], nn.Module],
        fixed_var: float | None = None,
        hidden: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.fixed_var = fixed_var
        outputs = 2 * code_size if fixed_var is None else code_size
        sizes = (embedding_size, *(hidden or (2 * code_size,)))
        layers = [layer for pair in pairwise(sizes) for layer in (dense(*pair, bias=True), activation())]
        self.layers = nn.Sequential(*layers, dense(sizes[-1], outputs, bias=False))

    def start_at_standard(self) -> Self:
        """Let it begin with N(0, I), whatever the input."""
        nn.init.zeros_(self.layers[-1].get_parameter("weight"))
        return self

    def forward(self, embeddings: Tensor) -> CodePosterior:
        """Embeddings [.., embedding_size] -> posterior of codes [.., C]."""
        outputs = at_least_float32(self.layers(embeddings))
        if self.fixed_var is not None:
            return CodePosterior(outputs, torch.full_like(outputs, self.fixed_var))
        return CodePosterior.from_network(outputs)
