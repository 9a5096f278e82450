"""The bound over a whole pass through some pictures, with its standard error."""

import math
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from vbmem.data.episodes import EpisodeSource
from vbmem.data.image_set import ImageSet
from vbmem.data.settings import DataConfig, Part
from vbmem.errors import DataError
from vbmem.memory.checks import check_size
from vbmem.memory.starting import Start
from vbmem.models.base import EpisodicModel
from vbmem.models.memory_model import MemoryModel
from vbmem.models.trainable import Trainable
from vbmem.nets import FrameFormat
from vbmem.train.runs import make_source
from vbmem.train.step import graphed

SHARES = tuple(tenths / 10 for tenths in range(10))  # of refinement, to choose from


def evaluate(
    network: EpisodicModel,
    data: DataConfig,
    images: ImageSet,
    part: Part,
    seed: int,
    refine: float = 0.0,
    trained_on: DataConfig | None = None,
) -> dict[str, float]:
    """The bound of a trained model, the same at every call.

    Args:
        network: the model, on the device where it is to run.
        data: what an episode is.
        images: the pictures.
        part: which of them.
        seed: of the episodes and of every random variable; that of the training, for the number a table has.
        refine: move the mean of q(z) by this share towards what the memory recalls of the content, or, of a model
            without a memory, towards the mean of p(z). Also a lower bound, and often a better one.
        trained_on: the episodes that the model was trained on, if of another kind: see `make_source`.

    Returns:
        What `Evaluation` gives.

    Raises:
        ValueError: for a share below 0 or above 1, or for a model without q(z).
    """
    if not 0 <= refine <= 1:
        raise ValueError(f"refine must lie between 0 and 1, got {refine}")
    if refine and not network.refines:
        raise ValueError(f"a {type(network).__name__} cannot be refined: it has no q(z) whose mean could move")
    torch.manual_seed(seed)
    source = make_source(data, images, part, seed, next(network.parameters()).device, trained_on=trained_on)
    network.refinement, before = refine, network.refinement
    try:
        return Evaluation(network, source, graph=False)()
    finally:
        network.refinement = before


def best_refinement(
    network: EpisodicModel, data: DataConfig, images: ImageSet, seed: int, trained_on: DataConfig | None = None
) -> float:
    """The share of refinement, 0 to 0.9 in tenths, with the best bound on the validation pictures.

    Args:
        network: the model, on the device where it is to run.
        data: what an episode is.
        images: the pictures.
        seed: of the episodes and of every random variable, the same for all shares.
        trained_on: as in `evaluate`.

    Raises:
        ValueError: for a model without q(z).
    """

    def bound(share: float) -> float:
        return evaluate(network, data, images, "valid", seed, share, trained_on)["elbo_per_frame"]

    return max(SHARES, key=bound)


def bits_per_dimension(nats: float, frame: FrameFormat) -> float:
    """What a bound comes to as the length of a lossless code: 8 - nats / (D ln 2), D = channels x size^2.

    The mean density over a cell of dequantisation, 1/256 wide, times its width is the probability of a level: hence 8.

    Args:
        nats: the bound a frame.
        frame: the format of frames, with a Gaussian likelihood.

    Returns:
        Bits for each pixel and channel; less is better.
    """
    return 8 - nats / (frame.channels * frame.size**2 * math.log(2))


def with_episode_length(data: DataConfig, episode_length: int, pictures: int) -> DataConfig:
    """Episodes of another length, in batches of no more frames than before that leave out no whole episode.

    Args:
        data: what an episode is now.
        episode_length: frames in one from now on.
        pictures: how many there are to draw episodes from.

    Returns:
        The same with that length, and the largest such batch size.

    Raises:
        DataError: for an episode without frames, or with more than there are pictures.
    """
    if episode_length < 1:
        raise DataError(f"episode_length is {episode_length}; expected at least 1")
    if episode_length > pictures and not data.repeats_pictures:
        raise DataError(f"an episode of {episode_length} frames needs as many pictures and there are {pictures}")
    episodes = max(pictures // episode_length, 1)
    most = max(data.batch_size * data.episode_length // episode_length, 1)
    batch_size = max(size for size in range(1, most + 1) if episodes % size == 0)
    return replace(data, episode_length=episode_length, batch_size=batch_size)


def change_memory(
    network: EpisodicModel,
    clusters: int | None = None,
    rows: int | None = None,
    iterations: int | None = None,
    start: Start | None = None,
) -> None:
    """Let a trained model write otherwise than it was trained; its networks and its prior stay.

    Args:
        network: the model, which is changed.
        clusters: H, of a mixture or a tree.
        rows: K, factor rows of the memory, in every cluster.
        iterations: updates in a write.
        start: where a write starts.

    Raises:
        ValueError: for a model without such a memory, or a value that its memory cannot have.
    """
    sizes = {name: size for name, size in (("clusters", clusters), ("rows", rows)) if size is not None}
    other = {name: value for name, value in (("iterations", iterations), ("start", start)) if value is not None}
    if not sizes and not other:
        return
    if not isinstance(network, MemoryModel):
        changed = " and ".join((*sizes, *other))
        raise ValueError(f"{changed} cannot be changed: a {type(network).__name__} has no memory with iterated updates")
    if sizes:
        network.resize(**sizes)
    if iterations is not None:
        if network.config.objective == "online":
            raise ValueError("iterations cannot be changed: a model with the objective online writes in one pass")
        network.iterations = check_size("iterations", iterations)
    if start is not None:
        if start not in get_args(Start):
            raise ValueError(f"start must be one of {', '.join(get_args(Start))}, got {start!r}")
        network.start = start


class Evaluation:
    """Evaluates a model on all episodes of a source: means over episodes, one sample of every random variable.

    Args:
        model: what is evaluated.
        source: the episodes, one pass of them.
        graph: capture a step as a CUDA graph, where the model allows it.
    """

    def __init__(self, model: Trainable, source: EpisodeSource, *, graph: bool = True) -> None:
        self.model, self.source = model, source
        self._reports: dict[str, Tensor] = {}
        # Of views, so that all models are shown the same ones, whatever they draw themselves; a graph has its own.
        alike = not graph and source.data.episodes == "views"
        self._views = torch.Generator(source.images.device) if alike else None
        self._run = graphed(self._step, source) if graph and not model.waits else self._step

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """What the model reports per frame, of most models `elbo_per_frame` and every term of it, and `standard_error`
        of its headline, over episodes.

        A bound is also given as `bits_per_dimension`, if frames are dequantised pixels: neither binary nor relit, as
        views are.
        """
        self.model.eval()
        batches: list[Tensor] = []
        if self._views is not None:
            self._views.manual_seed(self.source.seed)
        # Compiling the networks once more, for evaluation, would take longer than it saves.
        with torch.compiler.set_stance("force_eager"):
            for indices in self.source.epoch_indices(0).to(self.source.images.device):
                self._run(indices)
                batches.append(torch.stack(list(self._reports.values())))
        names = list(self._reports)
        values = torch.cat(batches, dim=-1).double()  # [names, episodes]
        means = dict(zip(names, values.mean(-1).tolist(), strict=True))
        spread = float(values[names.index(self.model.headline)].std()) if values.shape[-1] > 1 else math.nan
        result = {**means, "standard_error": spread / math.sqrt(values.shape[-1]), "episodes": values.shape[-1]}
        bound = means.get("elbo_per_frame")
        if bound is not None and self.model.frame.likelihood == "gaussian" and self.source.data.episodes != "views":
            result["bits_per_dimension"] = bits_per_dimension(bound, self.model.frame)
        return result

    def _step(self, indices: Tensor) -> None:
        self._reports = self.model(self.source.frames(indices, self._views)).per_frame()
