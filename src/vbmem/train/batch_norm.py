"""Batch norm's statistics for weights that have just changed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vbmem.data.damage import randomly_damaged
from vbmem.data.episodes import EpisodeSource
from vbmem.models.trainable import Trainable
from vbmem.train.step import graphed, put_back

BATCHES = 8


class FreshStatistics:
    """Within the context, batch norm has the mean statistics of a few training batches under the present weights.

    Its running statistics are those of the weights of the last hundred steps. For weights that move fast, or averaged
    ones, they are wrong, by thousands of nats a frame in the first epochs.
    """

    def __init__(self, model: Trainable, source: EpisodeSource) -> None:
        self.model, self.source = model, source
        self.norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        self._statistics = model.gathered_statistics
        self._sum = torch.zeros_like(self._statistics)
        self._run = graphed(self._step, source)

    @contextmanager
    def __call__(self, indices: Tensor) -> Iterator[None]:
        """Measure on the batches `indices` [batches, B, T]; the running statistics are back afterwards."""
        with put_back([self._statistics]):
            if self.norms:
                self._measure(indices[:BATCHES])
            yield

    @torch.no_grad()
    def _measure(self, batches: Tensor) -> None:
        momenta = [norm.momentum for norm in self.norms]
        self.model.eval()
        self._sum.zero_()
        for norm in self.norms:
            norm.train()
            norm.momentum = 1.0  # the last batch's statistics alone
        try:
            with torch.compiler.set_stance("force_eager"):
                for indices in batches:
                    self._run(indices)
        finally:
            for norm, momentum in zip(self.norms, momenta, strict=True):
                norm.momentum = momentum
        self._statistics.copy_(self._sum / len(batches))

    def _step(self, indices: Tensor) -> None:
        # Damaged as in training: under statistics of whole pictures alone, the codes of damaged ones go astray.
        self.model(randomly_damaged(self.source.frames(indices), self.model.damage))
        self._sum += self._statistics
