"""Batch norm's statistics: for weights that have just changed, and of a batch that several processes share."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vbmem.data.damage import randomly_damaged
from vbmem.data.episodes import EpisodeSource
from vbmem.models.trainable import Trainable
from vbmem.nets.precision import at_least_float32
from vbmem.train.processes import Processes
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


class SharedBatchNorm(nn.BatchNorm2d):
    """In training, batch norm over the frames of all processes, which have equally many; otherwise as any other.

    With the mean m_r and the variance v_r of process r, those of all are

        m = mean_r m_r,    v = mean_r v_r + mean_r (m_r - m)^2

    Args:
        norm: what it takes the place of.
        processes: that share a batch.
    """

    def __init__(self, norm: nn.BatchNorm2d, processes: Processes) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, device=norm.weight.device)
        self.load_state_dict(norm.state_dict())
        self.train(norm.training)
        self.processes = processes

    def forward(self, features: Tensor) -> Tensor:
        if not self.training:
            return super().forward(features)
        wide = at_least_float32(features)  # [N, F, H, W]
        each = self.processes.gather(torch.stack(torch.var_mean(wide, dim=(0, 2, 3), correction=0)))
        variances, means = each.unbind(1)  # [processes, F]
        mean, var = means.mean(0), variances.mean(0) + means.var(0, correction=0)
        self._remember(mean, var, self.processes.count * wide.numel() // self.num_features)
        normal = (wide - mean[:, None, None]) * torch.rsqrt(var + self.eps)[:, None, None]
        return (normal * self.weight[:, None, None] + self.bias[:, None, None]).to(features.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics towards these, of `count` numbers."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(var * (count / (count - 1)), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1


def share_batch_norm(model: nn.Module, processes: Processes) -> bool:
    """Let the batch norms of a model be those of the batches that processes share; whether it has any."""
    norms = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.BatchNorm2d)
    ]
    for parent, name, norm in norms:
        setattr(parent, name, SharedBatchNorm(norm, processes))
    return bool(norms)
