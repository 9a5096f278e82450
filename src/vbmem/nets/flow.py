"""Rectified flow in as many or as few steps as one likes, whatever the network: how it is trained, how it is followed.

Noise x_0, N(0, I) or any other, and data x_1 are joined by straight lines, x_t = (1 - t) x_0 + t x_1. A network
s(x, t, d) says where a step of length d from x at time t leads, x_(t+d) = x_t + d s(x_t, t, d): a shortcut (Frans et
al. 2024). Of length 0 it is the velocity E[x_1 - x_0 | x_t], whose flow carries the noise to the distribution of the
data; the others learn from it, one step to arrive where two of half its length do.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# Points [N, ..], times [N], lengths of the step [N], and what the data depend on, [N, ..] each -> directions [N, ..].
Shortcuts = Callable[..., Tensor]

FINEST = 64  # steps that need no shortcuts: the velocity is as good
TAUGHT_SHARE = 0.25  # of a batch: those which learn shortcuts; the others learn velocities


class FlowErrors(NamedTuple):
    """Mean square errors of what the network says, one of each for every item that is asked for it."""

    velocity: Tensor  # [N - M], against x_1 - x_0
    shortcut: Tensor  # [M], against two steps of half the length

    @property
    def objective(self) -> Tensor:
        """What training lowers: the mean over all items."""
        return torch.cat([self.velocity, self.shortcut]).mean()


def flow_errors(
    shortcuts: Shortcuts, data: Tensor, noise: Tensor, *conditions: Tensor, taught: int | None = None
) -> FlowErrors:
    """How far a network is from following the flow, at random times; the average of its gradient trains it.

    Times of velocities are logit-normal, most of them about the middle of the way, where there is most to decide;
    those of shortcuts of length d are multiples of d, since that is where a sampler takes them. Nothing here waits for
    the device.

    Args:
        shortcuts: the network; see `Shortcuts`.
        data: x_1, [N, ..].
        noise: x_0, [N, ..], drawn as it will be when the flow is followed.
        conditions: what goes with each, [N, ..]; the network is called with them after points, times and lengths.
        taught: M, how many items are asked for shortcuts, the first ones; by default a quarter of all.

    Returns:
        The errors, differentiable; what two half steps say is a constant.
    """
    taught = int(TAUGHT_SHARE * len(data)) if taught is None else taught
    times = torch.randn(len(data), dtype=data.dtype, device=data.device).sigmoid()
    lengths = torch.zeros_like(times)
    halvings = torch.randint(FINEST.bit_length() - 1, (taught,), device=data.device)
    lengths[:taught] = torch.exp2(-halvings.to(times))  # from 1 down to 2 / FINEST
    times[:taught] = (times.new_empty(taught).uniform_() / lengths[:taught]).floor() * lengths[:taught]
    points = torch.lerp(noise, data, _beside(times, data))
    targets = data - noise
    if taught:
        parts = [tensor[:taught] for tensor in (points, times, lengths, *conditions)]
        targets[:taught] = _two_half_steps(shortcuts, *parts)
    said = shortcuts(points, times, lengths, *conditions)
    errors = (said - targets).square().flatten(1).mean(-1)
    return FlowErrors(errors[taught:], errors[:taught])


@torch.no_grad()
def _two_half_steps(
    shortcuts: Shortcuts, points: Tensor, times: Tensor, lengths: Tensor, *conditions: Tensor
) -> Tensor:
    """Their mean direction, which a shortcut of the whole length should have; half the shortest is the velocity."""
    half = lengths / 2
    asked = torch.where(half < 1.5 / FINEST, 0, half)
    first = shortcuts(points, times, asked, *conditions)
    middle = points + _beside(half, points) * first
    return (first + shortcuts(middle, times + half, asked, *conditions)) / 2


@torch.no_grad()
def follow(shortcuts: Shortcuts, noise: Tensor, steps: int, *conditions: Tensor) -> Tensor:
    """The data that noise becomes in so many steps of equal length, [N, ..].

    Args:
        shortcuts: a trained network; see `Shortcuts`.
        noise: x_0, [N, ..].
        steps: 1, 2, 4, 8, 16 and 32 are what shortcuts are taught; those between work as well, and 64 or more follow
            the velocities themselves.
        conditions: as in `flow_errors`.
    """
    points, length = noise, noise.new_full((len(noise),), 1 / steps)
    asked = length if steps < FINEST else torch.zeros_like(length)
    for step in range(steps):
        points = points + shortcuts(points, step * length, asked, *conditions) / steps
    return points


def _beside(values: Tensor, like: Tensor) -> Tensor:
    """[N] as [N, 1, ..], to be combined with [N, ..]."""
    return values.reshape(-1, *(1 for _ in like.shape[1:]))
