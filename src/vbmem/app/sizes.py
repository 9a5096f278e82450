"""How many clusters do pictures need? The bound of several numbers, and how good samples are with each."""

from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from vbmem.app.shared import seeded
from vbmem.memory.starting import Start
from vbmem.memory.writing import VariationalMemory
from vbmem.memory.written import WrittenMemory
from vbmem.models.settings import READS
from vbmem.pretrained.model import Model

SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
MAX_SIZE = SIZES[-1]
SAMPLES = 256  # of each memory
LEFT_OUT = 4  # every so many-th picture is left out, for samples to be compared with
FIRST_LEFT_OUT = (0, 2)  # the first of them, once and then again
FEWEST, MOST = 16, 256  # pictures that samples are compared with: fewer say nothing, more take long


@dataclass(frozen=True)
class SizeTrial:
    size: int
    bound: float
    """In nats a picture, of all of them."""
    distance: float | None
    """Of samples of memories without some pictures from these, see `energy_distance`; None where there are few."""


def try_sizes(model: Model, codes: Tensor, size_name: str, present: int) -> list[SizeTrial]:
    """Contents [T, C] in memories of several sizes, up to one for each of them, and of the present size."""
    tried = []
    for size in sorted({*(size for size in SIZES if size <= len(codes)), present}):
        memory, iterations = model.memory.resize(**{size_name: size}), model.network.iterations
        state, addresses = memory.write(codes, iterations, model.network.start, generator=seeded())
        bound = float(memory.bound(codes, state, addresses).total) / len(codes)
        tried.append(SizeTrial(size, bound, _sample_distance(memory, codes[:MOST], iterations, model.network.start)))
    return tried


def _sample_distance(empty: VariationalMemory, codes: Tensor, iterations: int, start: Start | None) -> float | None:
    """The mean distance of samples, read without painting any, from the pictures that were left out."""
    if len(codes) < FEWEST:
        return None
    distances = []
    for first in FIRST_LEFT_OUT:
        left_out = torch.arange(len(codes)) % LEFT_OUT == first
        memory = WrittenMemory.write(empty, codes[~left_out], iterations, seeded(), start=start)
        samples = memory.sample(SAMPLES, seeded())
        for _ in range(READS):
            samples = memory.read(samples, sample=False)
        distances.append(energy_distance(samples, codes[left_out]))
    return fmean(distances)


def energy_distance(one: Tensor, other: Tensor) -> float:
    """How different two samples of codes [n, C] and [m, C] are: 0 only for the same distribution.

        2 E|x - y| - E|x - x'| - E|y - y'|,  over pairs of different members

    Samples all alike lose by the second term, samples unlike the others by the first.
    """

    def within(codes: Tensor) -> Tensor:
        return torch.pdist(codes).mean()

    return float(2 * torch.cdist(one, other).mean() - within(one) - within(other))
