"""The bound a picture of episodes of one character each, or of several mixed."""

import copy
import math

import torch
from torch import Generator, Tensor

from vbmem.data.episodes import EpisodeSource
from vbmem.models.base import EpisodicModel
from vbmem.models.memory_model import MemoryModel
from vbmem.paper.few_shot.characters import Characters

FRAMES = 2000  # that go through the networks at a time
FRAMES_ON_CPU = 100  # of more, the features leave its caches


@torch.no_grad()
def character_bounds(
    network: EpisodicModel, source: EpisodeSource, characters: Characters, size: int, seed: int, mixed: int = 1
) -> dict[str, Tensor]:
    """What a model reports of a picture in an episode of its character, or of several characters mixed, with one sample
    of every random variable.

    The seed alone chooses episodes and binarisation, so that models can be compared picture by picture.

    Args:
        network: in evaluation mode.
        source: the pictures.
        characters: which of them belong together.
        size: pictures in an episode.
        seed: of all chance.
        mixed: characters in an episode, as many pictures of each. For several, a memory that can be resized is given as
            many clusters, whatever it was trained with.

    Returns:
        `elbo_per_frame`, every term of it and the other measures, averaged over the episodes of every character that
        has as many pictures, or of every group of them: [characters // mixed].
    """
    device = source.images.device
    episodes, owners = characters.episodes(size, Generator().manual_seed(seed), mixed)
    pixels = Generator(device).manual_seed(seed)
    torch.manual_seed(seed)
    most = FRAMES_ON_CPU if device.type == "cpu" else FRAMES
    batches = episodes.to(device).split(max(1, most // size))
    network = network if mixed == 1 else _with_clusters(network, mixed)
    reports = [network(source.frames(batch, pixels)).per_frame() for batch in batches]
    return {name: _means(torch.cat([report[name] for report in reports]).cpu(), owners) for name in reports[0]}


def _with_clusters(network: EpisodicModel, count: int) -> EpisodicModel:
    """The same model with a memory of so many clusters, where it has any."""
    if not isinstance(network, MemoryModel) or "clusters" not in network.memory.sizes:
        return network
    sized = copy.copy(network)
    sized.resize(clusters=count)
    return sized


def _means(values: Tensor, owners: Tensor) -> Tensor:
    """Means of the values [E] of every owner, int64 [E]: [owners]."""
    counts = owners.bincount()
    return counts.new_zeros(len(counts), dtype=torch.float64).index_add(0, owners, values.double()) / counts


def mean_and_error(values: Tensor) -> dict[str, float]:
    """The mean of values [n] and its standard error."""
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": float(values.mean()), "standard_error": error}
