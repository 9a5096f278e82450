"""The bound over a whole pass through some pictures, with its standard error."""

import math

import torch
from torch import Tensor

from vbmem.data.episodes import EpisodeSource
from vbmem.data.image_set import ImageSet
from vbmem.data.settings import DataConfig, Part
from vbmem.models.base import EpisodicModel
from vbmem.train.runs import make_source
from vbmem.train.step import graphed


def evaluate(network: EpisodicModel, data: DataConfig, images: ImageSet, part: Part, seed: int) -> dict[str, float]:
    """The bound of a trained model, the same at every call.

    Args:
        network: the model, on the device where it is to run.
        data: what an episode is.
        images: the pictures.
        part: which of them.
        seed: of the episodes and of every random variable; that of the training, for the number a table has.

    Returns:
        What `Evaluation` gives.
    """
    torch.manual_seed(seed)
    source = make_source(data, images, part, seed, next(network.parameters()).device)
    return Evaluation(network, source, graph=False)()


class Evaluation:
    """Evaluates a model on all episodes of a source: means over episodes, one sample of every random variable."""

    def __init__(self, model: EpisodicModel, source: EpisodeSource, *, graph: bool = True) -> None:
        self.model, self.source = model, source
        self._reports: dict[str, Tensor] = {}
        self._run = graphed(self._step, source) if graph and not model.waits else self._step

    @torch.no_grad()
    def __call__(self, epoch: int = 0) -> dict[str, float]:
        """Per frame: `elbo_per_frame`, every term of it and `standard_error` of the first, over episodes."""
        self.model.eval()
        batches: list[Tensor] = []
        # Compiling the networks once more, for evaluation, would take longer than it saves.
        with torch.compiler.set_stance("force_eager"):
            for indices in self.source.epoch_indices(epoch).to(self.source.images.device):
                self._run(indices)
                batches.append(torch.stack(list(self._reports.values())))
        names = list(self._reports)
        values = torch.cat(batches, dim=-1).double()  # [names, episodes]
        means = dict(zip(names, values.mean(-1).tolist(), strict=True))
        spread = float(values[names.index("elbo_per_frame")].std()) if values.shape[-1] > 1 else math.nan
        return {**means, "standard_error": spread / math.sqrt(values.shape[-1]), "episodes": values.shape[-1]}

    def _step(self, indices: Tensor) -> None:
        self._reports = self.model(self.source.frames(indices)).per_frame()
