"""One step of training or evaluation, the same code on every device.

On CUDA the whole step (gathering frames, networks, writing, backward, optimiser) is captured as one CUDA graph and
replayed; nothing in it waits for the device. Sums are kept there and read when somebody looks.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vbmem.data.episodes import EpisodeSource
from vbmem.errors import NumericalError
from vbmem.models.base import EpisodicModel

WARM_UP_STEPS = 3  # real steps, run before the capture so that libraries have made their allocations


class TrainingStep:
    """Adam on the negative bound per frame, with clipping; a step with a non-finite gradient leaves the weights alone.

    Args:
        copies: how often every episode counts.
        clip: largest norm of the whole gradient.
        averages: exponential averages of the parameters, updated with `decay`; none if empty.
    """

    def __init__(
        self,
        model: EpisodicModel,
        optimizer: torch.optim.Adam,
        source: EpisodeSource,
        *,
        copies: int,
        clip: float,
        averages: list[Tensor],
        decay: float,
    ) -> None:
        self.model, self.optimizer, self.source = model, optimizer, source
        self.copies, self.clip, self.averages, self.decay = copies, clip, averages, decay
        device = source.images.device
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.skipped = torch.zeros((), device=device)  # non-finite steps since `reset`
        self.streak = torch.zeros((), device=device)  # of them in a row, up to now
        self.counted = torch.zeros((), device=device)  # the other steps since `reset`
        self.names: list[str] = []  # of what the model reports
        self.sums = torch.zeros(0, device=device)  # of that, in the same order, over the counted steps
        self._statistics = model.gathered_statistics()
        self._statistics_before = self._statistics.clone()
        self._frames = torch.compile(source.frames, dynamic=False) if device.type == "cuda" else source.frames
        self._run = graphed(self._step, source)

    def __call__(self, indices: Tensor) -> None:
        """Train on the frames at `indices` [B, T]."""
        self.model.train()
        self._run(indices)

    def reset(self) -> None:
        for tensor in (self.skipped, self.counted, self.sums):
            tensor.zero_()

    def means(self) -> dict[str, float]:
        """What the model reported, averaged over the counted steps since `reset`; waits for the device."""
        return dict(zip(self.names, (self.sums / self.counted).tolist(), strict=True))

    def _step(self, indices: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._statistics_before.copy_(self._statistics)
        try:
            evidence = self.model(self._frames(indices), self.copies)
        except NumericalError:  # only where Python may look at values; a captured step yields NaN instead
            self._finish(torch.ones_like(self.skipped))
            return
        objective = evidence.elbo if evidence.extra_objective is None else evidence.elbo + evidence.extra_objective
        loss = -objective.mean() / evidence.episode_length
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip, foreach=True)
        bad = 1 - (norm.isfinite() & loss.detach().isfinite()).to(self.skipped)
        # The fused optimiser leaves everything as it is where this is 1.
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        self.optimizer.step()
        self._finish(bad, evidence.per_frame())

    @torch.no_grad()
    def _finish(self, bad: Tensor, reports: dict[str, Tensor] | None = None) -> None:
        """Keep count, move the averages towards the weights, undo what a bad step did to batch norm's statistics."""
        self._statistics.copy_(torch.where(bad > 0, self._statistics_before, self._statistics))
        if self.averages:
            torch._foreach_lerp_(self.averages, self.parameters, 1 - self.decay)
        self.skipped += bad
        self.streak.copy_((self.streak + bad) * bad)
        self.counted += 1 - bad
        if reports is not None:
            if not self.names:
                self.names = sorted(reports)
                self.sums = torch.zeros(len(reports), device=bad.device)
            self.sums += torch.where(bad > 0, 0.0, torch.stack([reports[name] for name in self.names]).mean(-1))


def graphed(function: Callable[[Tensor], None], source: EpisodeSource) -> Callable[[Tensor], None]:
    """A function of a batch of indices, on CUDA captured as a graph after a few ordinary runs."""
    device = source.images.device
    if device.type != "cuda":
        return function
    static = torch.zeros(source.batch_size, source.episode_length, dtype=torch.int64, device=device)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    calls = 0

    def run(indices: Tensor) -> None:
        nonlocal calls
        static.copy_(indices, non_blocking=True)
        if calls < WARM_UP_STEPS:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function(static)
            torch.cuda.current_stream().wait_stream(stream)
        else:
            if calls == WARM_UP_STEPS:
                torch.cuda.synchronize()
                with torch.cuda.graph(graph):
                    function(static)
            graph.replay()
        calls += 1

    return run
