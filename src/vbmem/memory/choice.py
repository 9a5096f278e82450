"""p(s): who chooses a frame's cluster.

Two things, not to be confused. A `Choice` is the *prior* in the bound, a part of the model. What a *written memory*
predicts of the next frame is the smoothed usage of its clusters, `prefixes.PrefixCounts`; sampling, scoring and the
predictive density share it. A new p(s) is a subclass of `Choice` in a file of its own.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from vbmem.memory.checks import check_positive


class Predictive(Protocol):
    """A distribution over the clusters of all G partitions of a frame, as far as a density needs it."""

    def log_evidence(self, log_likelihood: Tensor) -> Tensor:
        """log sum_s p(s) exp(sum_g l_g(s_g)): [.., G, H, T] -> [.., T]."""


class Choice(ABC):
    """p(s) of every frame and partition by itself. A subclass gives `log_prior`; the rest follows from it."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Choice]]] = {}
    """Every p(s) there is by its kind, so that a file can name it."""

    def __init_subclass__(cls) -> None:
        if "kind" in vars(cls):
            Choice.kinds[cls.kind] = cls

    @abstractmethod
    def log_prior(self, clusters: int, like: Tensor) -> Tensor:
        """log p(s = h), or its expectation, [.., H], with the dtype and device of `like`.

        Raises:
            ValueError: it has not that many clusters.
        """

    def assign(self, log_likelihood: Tensor) -> Tensor:
        """The optimal q(s), theta_th ~ p(s=h) exp(l_th): [.., H, T] -> [.., H, T]."""
        clusters = log_likelihood.shape[-2]
        if clusters == 1:  # theta is 1, and no iteration need carry its gradient
            return torch.ones_like(log_likelihood)
        return (log_likelihood + self.log_prior(clusters, log_likelihood).unsqueeze(-1)).softmax(-2)

    def kl(self, assignment: Tensor) -> Tensor:
        """sum_t KL(q(s_t) || p(s)): theta [.., T, H], 0 where a frame is masked, and where it has a weight, times that
        -> [..]."""
        return kl_of_assignments(assignment, self.log_prior(assignment.shape[-1], assignment))

    def divergence(self, clusters: int, like: Tensor) -> Tensor:
        """KL(q || p) of what p(s) itself is uncertain of, paid once for all frames, [] or [..]."""
        return like.new_zeros(())

    def log_evidence(self, log_likelihood: Tensor) -> Tensor:
        """sum_g log sum_h p(s=h) exp(l_gth), as partitions choose independently: [.., G, H, T] -> [.., T]."""
        log_prior = self.log_prior(log_likelihood.shape[-2], log_likelihood).log_softmax(-1).unsqueeze(-1)
        return (log_likelihood + log_prior).logsumexp(-2).sum(-2)

    def sample(self, shape: tuple[int, ...], clusters: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Clusters drawn from p(s), each by itself: int64 of the shape [.., n]."""
        weights = self.log_prior(clusters, like).exp().expand(*shape[:-1], clusters)
        return draw_clusters(weights.unsqueeze(-2).expand(*shape, clusters), generator)

    def tensors(self) -> dict[str, Tensor]:
        """What a file must hold of it, by name."""
        return {}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Inverse of `tensors`."""
        return cls(**tensors)


class UniformChoice(Choice):
    """p(s = h) = 1/H, as in the paper."""

    kind = "uniform"

    def log_prior(self, clusters: int, like: Tensor) -> Tensor:
        return like.new_full((clusters,), -math.log(clusters))


class WeightedChoice(Choice):
    """p(s = h) = weight_h.

    Args:
        weights: positive, [H] or [.., H]; they need not sum to 1.
    """

    kind = "weights"

    def __init__(self, weights: Tensor | Sequence[float]) -> None:
        self.weights = torch.as_tensor(weights)
        check_positive("weights", self.weights)

    def log_prior(self, clusters: int, like: Tensor) -> Tensor:
        if self.weights.ndim == 0 or self.weights.shape[-1] != clusters:
            raise ValueError(f"expected {clusters} weights, one for every cluster, got {list(self.weights.shape)}")
        return self.weights.to(like).log().log_softmax(-1)

    def tensors(self) -> dict[str, Tensor]:
        return {"weights": self.weights}


class DirichletChoice(Choice):
    """p(s = h | pi) = pi_h with weights pi ~ Dir(concentration), whose posterior is q(pi) = Dir(posterior).

    As a prior of s it is exp E log pi_h, and an episode pays KL(q(pi) || p(pi)) for it.

    Args:
        concentration: of the prior, the same for every cluster; below 1 it prefers few clusters.
        posterior: [H] or [.., H]; by default the prior, before `given` counts.
    """

    kind = "dirichlet"

    def __init__(self, concentration: float | Tensor = 1.0, posterior: Tensor | None = None) -> None:
        check_positive("concentration", concentration)
        self.concentration = torch.as_tensor(concentration)
        self.posterior = self.concentration if posterior is None else posterior
        check_positive("posterior", self.posterior)

    def given(self, count: Tensor) -> DirichletChoice:
        """With the posterior after frames in every cluster, [.., H]."""
        return DirichletChoice(self.concentration, self.concentration.to(count) + count)

    def log_prior(self, clusters: int, like: Tensor) -> Tensor:
        posterior = self._posterior(clusters, like)
        return posterior.digamma() - posterior.sum(-1, keepdim=True).digamma()

    def divergence(self, clusters: int, like: Tensor) -> Tensor:
        posterior = self._posterior(clusters, like)
        prior = self.concentration.to(posterior).expand_as(posterior)
        return kl_divergence(Dirichlet(posterior, validate_args=False), Dirichlet(prior, validate_args=False))

    def tensors(self) -> dict[str, Tensor]:
        return {"concentration": self.concentration, "posterior": self.posterior}

    def _posterior(self, clusters: int, like: Tensor) -> Tensor:
        if self.posterior.ndim == 0:
            return self.posterior.to(like).expand(clusters)
        if self.posterior.shape[-1] != clusters:
            got = list(self.posterior.shape)
            raise ValueError(f"expected {clusters} weights, one for every cluster, got {got}")
        return self.posterior.to(like)


UNIFORM: Choice = UniformChoice()


def kl_of_assignments(assignment: Tensor, log_prior: Tensor) -> Tensor:
    """`Choice.kl` with log p(s) as it is given, [.., H]."""
    # Not xlogy: where a softmax has underflowed to 0, the gradient of that is infinite.
    tiny = torch.finfo(assignment.dtype).tiny
    log_weight = assignment.sum(-1, keepdim=True).clamp_min(tiny).log()
    log_theta = assignment.clamp_min(tiny).log() - log_weight
    return (assignment * (log_theta - log_prior.unsqueeze(-2))).sum((-1, -2))


def smoothed_usage(count: Tensor, base: Tensor) -> Tensor:
    """(n_h + p_h) / (T + 1): the frames of each cluster [.., H] and one more, spread over all by the prior p(s)."""
    return (count + base) / (count.sum(-1, keepdim=True) + 1)


def draw_clusters(weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """One cluster from each row of weights [.., H], never one of weight 0: int64 [..]."""
    cumulative = weights.cumsum(-1)
    total = cumulative[..., -1:]
    level = torch.empty_like(total).uniform_(generator=generator) * total
    level = level.minimum(total.nextafter(torch.zeros_like(total)))  # rounding may reach the total
    return torch.searchsorted(cumulative, level, right=True).squeeze(-1)
