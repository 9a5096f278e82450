"""Has a memory seen such a picture? How familiar codes are to it, and from where on they count as known."""

from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from vbmem.memory.known import usage_of
from vbmem.memory.starting import Start
from vbmem.memory.written import WrittenMemory
from vbmem.nets import FrameFormat

FOLDS = 4
UNFAMILIAR_SHARE = 0.1  # of pictures like the written ones, that may count as new
MEAN_WEIGHT = 1.5  # chosen on validation pictures: more tells classes apart better, and written pictures worse
LONG_EPISODE = 256  # frames from which on two folds must do

REFERENCE_PICTURES = 800  # training pictures in a reference memory, and as many plain ones
REFERENCE_BYTES = 180_000
REFERENCE_CLUSTERS = 30
REFERENCE_ITERATIONS = 20


def familiarity(memory: WrittenMemory, reference: WrittenMemory | None, codes: Tensor) -> Tensor:
    """How much better a memory knows codes [T, C] than the reference does, in nats, [T]:

        log p(z | memory) - log p(z | reference) + a (log N(z; m, Psi) - log N(z; m_0, Psi)),    a = 3/2

    Both logarithms of p are lower bounds, see `Memory.local_bound`; m and m_0 are the mean codes of memory and
    reference, Psi the noise. Clusters and rows know the very frames that were written, the mean knows what they have in
    common; benchmarks/novelty.py shows what each is worth. Without a reference it is log p(z | memory) alone.
    """
    if reference is None:
        return memory.score(codes)
    return _knows(memory, codes) - _knows(reference, codes)


def known_from(
    memory: WrittenMemory,
    reference: WrittenMemory | None,
    codes: Tensor,
    iterations: int,
    start: Start | None = None,
) -> float | None:
    """The familiarity that 9 in 10 of the written codes [T, C] reach in memories that were written without them.

    All these memories are written in one batch from the same kind of start, each without every k-th frame, in a third
    of the iterations, which changes little. None for fewer frames than there are folds.
    """
    frames, empty = len(codes), memory.empty
    folds = FOLDS if frames <= LONG_EPISODE else 2
    if frames < folds:
        return None
    each = frames // folds  # as many are left out of every memory, so that all are of one length
    order = torch.arange(each * folds, device=codes.device).reshape(each, folds).mT  # [folds, each]
    rest = torch.arange(each * folds, frames, device=codes.device)
    kept = torch.stack([torch.cat([*order[:i], *order[i + 1 :], rest]) for i in range(folds)])
    generator = torch.Generator(codes.device).manual_seed(0)
    states, addresses = empty.write(codes[kept], max(3, iterations // 3), start, generator=generator)
    scores = []
    for i, left_out in enumerate(order):
        choice = usage_of(empty, addresses.assignment[i])
        part = replace(memory, state=states.map(itemgetter(i)), choice=choice)
        scores.append((_knows if reference else WrittenMemory.score)(part, codes[left_out]))
    found = torch.cat(scores)
    if reference is not None:
        found = found - _knows(reference, codes[order.flatten()])
    return float(found.quantile(UNFAMILIAR_SHARE))


def _knows(memory: WrittenMemory, codes: Tensor) -> Tensor:
    """log p(z | memory) + a log N(z; m, Psi) of codes [T, C], but for a constant, [T]."""
    noise = memory.empty.prior(codes).noise_var.mean(-2, keepdim=True)  # [1, C]; of the tree [G, 1, C / G]
    distance = (codes - memory.mean_code).square() / memory.empty.join(noise)
    return memory.score(codes) - 0.5 * MEAN_WEIGHT * distance.sum(-1)


def plain_pictures(count: int, frame: FrameFormat, generator: torch.Generator) -> Tensor:
    """Pictures of a single colour, a quarter of them grey: [count, channels, H, W] in [0, 1]."""
    colours = torch.rand(count, frame.channels, generator=generator)
    colours[::4] = colours[::4, :1]
    return colours[..., None, None].expand(-1, -1, frame.size, frame.size)


def reference_clusters(rows: int, code_size: int) -> int:
    """As many as a small file has room for."""
    numbers = (rows + 1) * (code_size + rows + 1)
    return max(1, min(REFERENCE_CLUSTERS, REFERENCE_BYTES // (4 * numbers)))
