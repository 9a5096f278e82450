"""Priors that fit the codes: noise, scales and means of rows and locations, and weights of the clusters, each set in
closed form to what maximises the bound, in turn with the two steps of a write (empirical Bayes)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from vbmem.memory import engine, expansion
from vbmem.memory.checks import check_codes
from vbmem.memory.choice import DirichletChoice
from vbmem.memory.shards import open_stream
from vbmem.memory.sized import Noise
from vbmem.memory.state import MemoryState, Prior, Statistics
from vbmem.memory.streams import CHUNK, SEED_FRAMES, Chunks, Stream
from vbmem.memory.threads import one_thread
from vbmem.progress import track

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from vbmem.memory.starting import Start
    from vbmem.memory.writing import VariationalMemory

FLOOR = 1e-6  # least noise, as a share of the codes' variance, and least scale of the rows, as a share of the noise
SHAPE = 1.0  # a, of the inverse gamma prior of a noise for every cluster and feature; it counts as 2 (a + 1) frames


@dataclass(frozen=True)
class Fit:
    """A memory whose prior fits its codes, and what was written on the way: one episode, or several that share it."""

    memory: VariationalMemory
    state: MemoryState
    sums: Statistics
    """Of a local step at this state."""
    bound: Tensor
    """[..]; with the log-density of the noise, where each cluster has its own."""
    iterations: int
    converged: bool


def fit(
    memory: VariationalMemory,
    codes: Tensor | Chunks,
    noise: Noise,
    start: Start | None,
    mask: Tensor | None,
    generator: torch.Generator | None,
    group: ProcessGroup | None = None,
    **how: Any,
) -> VariationalMemory:
    """The memory with the prior that fits the codes; see `VariationalMemory.fit_prior`, and `climb` for the rest.

    Within, codes have mean 0 and variance 1: all together, or, where features have a noise of their own, each of them.
    """
    if noise not in get_args(Noise):
        raise ValueError(f"noise must be one of {', '.join(get_args(Noise))}, got {noise!r}")
    if isinstance(codes, Tensor) and group is None:
        check_codes(codes, memory.code_size, mask)
        sample = codes
    elif mask is not None:
        raise ValueError("a mask goes with a tensor of codes [.., T, C] alone; leave those frames out of the chunks")
    else:
        codes = open_stream(codes, memory.code_size, group)
        sample = codes.sample(SEED_FRAMES, generator)
    centre, scale = measure(codes, mask, noise)
    if not memory.located:
        centre = torch.zeros_like(centre)

    def standard_pass(memory: VariationalMemory, state: MemoryState) -> tuple[Statistics, Tensor]:
        def here() -> tuple[Tensor, ...]:
            parts = (((part - centre) / scale, counts) for part, counts in pieces(codes, mask))
            sums, local = local_pass(memory, state, parts)
            return *sums.tensors().values(), local

        none, local = local_pass(memory, state, [])
        *sums, local = _total(codes, here, (*none.tensors().values(), local))
        return Statistics(*sums), local

    standard = first_prior(memory, noise, sample)
    state = standard.first_state((sample - centre) / scale, start, mask, generator)
    if isinstance(codes, Stream):
        state = codes.agreed(state)
    return rescaled(climb(standard, state, standard_pass, **how).memory, centre, scale)


def rescaled(memory: VariationalMemory, centre: Tensor, scale: Tensor) -> VariationalMemory:
    """The memory for codes z from that for (z - centre) / scale; centre [C], scale [C] or, for one noise, []."""
    scales = {name: torch.as_tensor(value) for name, value in memory.scales.items()}
    noise_var = scales["noise_var"] * scale.square()
    grown = noise_var.mean() / scales["noise_var"].mean()
    changed: dict[str, Tensor] = {"noise_var": noise_var}
    changed |= {name: grown * scales[name] for name in ("row_var", "loc_var") if name in scales}
    if "loc_mean" in scales:
        changed["loc_mean"] = scales["loc_mean"] * scale + centre
    return memory.with_scales(**{name: value if value.ndim else float(value) for name, value in changed.items()})


def first_prior(memory: VariationalMemory, noise: Noise, like: Tensor) -> VariationalMemory:
    """The memory with a prior for codes of mean 0 and variance 1, in the proportions of the mixture's default."""
    row_var = 0.4 / max(memory.layout[1], 1)
    noise_var = like.new_full(memory.noise_shape(noise), 0.2)
    return memory.with_scales(
        noise_var=noise_var, row_var=row_var, row_mean=0.0, loc_var=0.4, loc_mean=like.new_zeros(())
    )


@one_thread()
def climb(
    memory: VariationalMemory,
    state: MemoryState,
    local_pass: Callable[[VariationalMemory, MemoryState], tuple[Statistics, Tensor]],
    *,
    iterations: int,
    tol: float,
    relevance: bool = False,
    follow: Callable[[Tensor], None] | None = None,
    progress: bool = False,
) -> Fit:
    """Local step, global step and the best prior in turn, until an iteration gains less than `tol` nats a frame.

    Args:
        memory: with a prior for codes of variance about 1.
        local_pass: a local step over all codes: their statistics, and of the bound [..] all but the divergence of the
            memory from its prior.
        relevance: a variance for every factor row, so that rows nobody needs vanish.
        follow: told of every change D of the weights, w~ <- D w~, for statistics that are not made anew by the next
            local step.
        progress: show a progress bar, which may end before it is full.
    """
    previous, prior = -math.inf, memory.prior(state.row_mean)
    for iteration in track(range(1, iterations + 1), "fitting the prior", progress):
        sums, local = local_pass(memory, state)
        bound = local - memory.divergence(state) + log_noise_prior(memory)
        total, frames = float(bound.sum()), float(sums.count.sum()) / memory.partitions
        fit = Fit(memory, state, sums, bound, iteration, total - previous < tol * frames)
        if fit.converged or iteration == iterations:
            break
        previous = total
        state = engine.global_step(sums, state, prior)
        memory, state = refit(memory, state, sums, prior, relevance=relevance)
        prior = memory.prior(state.row_mean)
        if prior.joint:
            change, back = expansion.best_change(sums, state, prior)
            state = expansion.turned(state, back)
            if follow is not None:
                follow(change)
        if relevance:
            change = expansion.principal_axes(state, prior)
            state = expansion.turned(state, change.mT)
            memory = memory.with_scales(row_var=best_row_var(prior, state, relevance=True))
            prior = memory.prior(state.row_mean)
            if follow is not None:
                follow(change)
    return fit


def refit(
    memory: VariationalMemory, state: MemoryState, sums: Statistics, before: Prior, *, relevance: bool = False
) -> tuple[VariationalMemory, MemoryState]:
    """The prior with the highest bound for a state and the statistics it was made from: noise, mean of the locations,
    scales of rows and locations, weights of the clusters, one after the other. And the state, whose uncertainty is in
    units of the noise. `before` is the prior that the memory has.
    """
    memory = memory.with_scales(noise_var=best_noise(memory, state, sums, before))
    prior = memory.prior(state.row_mean)
    grown = prior.noise_scale / before.noise_scale
    state = replace(state, row_cov=state.row_cov * grown)
    several = state.located and state.row_mean.shape[:-2].numel() > memory.partitions
    if several:  # a single location would be its own prior mean
        precision = (1 / prior.noise_var).expand_as(state.loc_mean)
        total = _over_episodes(memory, precision * state.loc_mean).sum(0)
        memory = memory.with_scales(loc_mean=total / _over_episodes(memory, precision).sum(0))
        prior = memory.prior(state.row_mean)
    if state.rows:
        memory = memory.with_scales(row_var=best_row_var(prior, state, relevance=relevance))
    if state.located:
        loc_var = 1 / before.row_precision[..., -1, -1].mean() * grown
        memory = memory.with_scales(loc_var=_best_var(prior, state)[..., -1].mean() if several else loc_var)
    if isinstance(memory.choice, DirichletChoice):
        count = sums.count.reshape(-1, memory.partitions, sums.count.shape[-1]).sum(0)
        memory = memory.with_prior(choice=memory.choice.given(count.squeeze(0)))
    return memory, state


def best_row_var(prior: Prior, state: MemoryState, *, relevance: bool) -> Tensor:
    """The variance of the factor rows, [], or of each of them, [K]."""
    row_var = _best_var(prior, state)[..., : state.rows].flatten(0, -2).mean(0)
    return row_var if relevance else row_var.mean()


def _best_var(prior: Prior, state: MemoryState) -> Tensor:
    """E |r - r_0|^2 of every row in units of the noise, times its scale, [.., H, J]."""
    shift = (state.row_mean - prior.row_mean).square() * (prior.noise_scale / prior.noise_var).unsqueeze(-2)
    var = shift.mean(-1) + state.row_cov.diagonal(dim1=-2, dim2=-1)
    return var.clamp_min(FLOOR * prior.noise_scale)


def best_noise(memory: VariationalMemory, state: MemoryState, sums: Statistics, prior: Prior) -> Tensor:
    """psi_hc = (sum_t theta E(z_c - r_c'w~)^2 + (r_c - r_0c)' U_0^-1 (r_c - r_0c)) / n_h, U and R held; r_c is a column
    of R, U_0 in units of the noise. Over clusters and features both are summed, where they share it.

    The second term is the rows' own share, since p(M) and q(M) scale with the noise. Where each cluster has its own,
    p(psi) is an inverse gamma; see `log_noise_prior`.
    """
    shift = state.row_mean - prior.row_mean
    pull = prior.noise_scale * (shift * (prior.row_precision @ shift)).sum(-2)  # [.., H, C]
    count = sums.count
    if prior.noise_var.shape[-2] == 1:
        pull, count = pull.sum(-2, keepdim=True), count.sum(-1, keepdim=True)
    error = pull + engine.residual(sums, state, prior)
    squares, frames = (_over_episodes(memory, x) for x in (error, count.unsqueeze(-1).expand_as(error)))  # [1 or H, C]
    noise_var = memory.noise_var
    assert isinstance(noise_var, Tensor)
    if noise_var.ndim == 0:
        squares, frames = squares.sum(), frames.sum()
    elif noise_var.ndim == 1:
        squares, frames = squares[0], frames[0]
    else:
        squares, frames = squares + 2 * _noise_rate(noise_var), frames + 2 * (SHAPE + 1)
    return (squares / frames).clamp_min(FLOOR)


def log_noise_prior(memory: VariationalMemory) -> Tensor:
    """log p(psi), for a noise of every cluster and feature: sum_hc log IG(psi_hc; a, b_c), the rate b_c at its best,
    a H / sum_h 1 / psi_hc. It keeps the noise of a cluster without frames, or of copies, near that of the others.
    """
    noise_var = memory.noise_var
    if not isinstance(noise_var, Tensor) or noise_var.ndim < 2:
        return torch.zeros(())
    rate = _noise_rate(noise_var)
    each = SHAPE * rate.log() - (SHAPE + 1) * noise_var.log() - rate / noise_var - math.lgamma(SHAPE)
    return each.sum()


def _noise_rate(noise_var: Tensor) -> Tensor:
    """b_c, [C]."""
    return SHAPE / (1 / noise_var).mean(0)


Pieces = Iterable[tuple[Tensor, Tensor | None]]


def pieces(codes: Tensor | Stream, mask: Tensor | None) -> Pieces:
    """One pass over the codes, a chunk of frames [.., n, C] at a time, with its mask."""
    if isinstance(codes, Stream):
        return ((chunk, None) for chunk in codes)
    masks = itertools.repeat(None) if mask is None else mask.split(CHUNK, -1)
    return zip(codes.split(CHUNK, -2), masks, strict=False)


def local_pass(memory: VariationalMemory, state: MemoryState, parts: Pieces) -> tuple[Statistics, Tensor]:
    """A local step over all codes, as `climb` wants it; the bound in float64."""
    sums, bounds = None, []
    for codes, mask in parts:
        part, bound = memory.local_step(state, codes, mask)
        sums = part if sums is None else sums + part
        bounds.append(bound)
    if sums is None:
        return Statistics.none(state, memory.prior(state.row_mean)), state.row_mean.new_zeros((), dtype=torch.float64)
    return sums, torch.stack(bounds).double().sum(0)


def _total(
    codes: Tensor | Stream, act: Callable[[], tuple[Tensor, ...]], none: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Sums over all frames, also those of other processes; see `Stream.total`."""
    return codes.total(act, none) if isinstance(codes, Stream) else act()


def measure(codes: Tensor | Stream, mask: Tensor | None, noise: Noise) -> tuple[Tensor, Tensor]:
    """Mean of every feature over all frames, [C], and standard deviation: of each, [C], or, where the noise is to be
    the same everywhere, of all together, []. It is 1 where nothing varies."""
    if isinstance(codes, Stream):
        first = codes.first
    else:
        first = codes.reshape(-1, codes.shape[-1]) if mask is None else codes[mask > 0]
    if not len(first):
        raise ValueError("a prior can only be fitted to frames, and all are masked")
    origin = first.double().amin(0)  # near the codes, so that nothing cancels, whichever comes first
    none = origin.new_zeros(()), torch.zeros_like(origin), torch.zeros_like(origin)

    def here() -> tuple[Tensor, ...]:
        count, total, square = none
        for part, counts in pieces(codes, mask):
            part = part.double()
            weights = torch.ones_like(part[..., 0]) if counts is None else counts.to(part)
            shifted = (part - origin).where((weights > 0).unsqueeze(-1), 0)
            weighted = weights.unsqueeze(-1) * shifted
            count = count + weights.sum()
            total = total + weighted.flatten(0, -2).sum(0)
            square = square + (weighted * shifted).flatten(0, -2).sum(0)
        return count, total, square

    count, total, square = _total(codes, here, none)
    mean = total / count
    var = square / count - mean.square()
    rounding = (8 * torch.finfo(first.dtype).eps * (mean + origin)).square()
    if noise == "global":
        var, rounding = var.mean(), rounding.mean()
    return (mean + origin).to(first), torch.where(var > rounding, var, 1).sqrt().to(first)


def _over_episodes(memory: VariationalMemory, tensor: Tensor) -> Tensor:
    """Summed over batch dimensions, partitions joined: [.., n, C] or [.., G, n, C / G] -> [n, C]."""
    joined = memory.join(tensor)
    return joined.reshape(-1, *joined.shape[-2:]).sum(0)
