"""One step of training or evaluation, the same code on every device.

On CUDA the whole step (gathering frames, networks, writing, backward, optimiser) is captured as one CUDA graph and
replayed; nothing in it waits for the device. Sums are kept there and read when somebody looks.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from vbmem.data.episodes import EpisodeSource
from vbmem.errors import NumericalError
from vbmem.models.trainable import Trainable
from vbmem.train.checkpoint import Groups
from vbmem.train.processes import Processes
from vbmem.train.settings import RunConfig

WARM_UP_STEPS = 3  # real steps, run before the capture so that libraries have made their allocations
FIRST_WEIGHT = 0.1  # of divergences in a warm-up: where they cost nothing, codes run off to where float32 ends
COUNTS = ("skipped", "streak", "counted")


class TrainingStep:
    """Adam on minus the objective per frame, with clipping; a step with a non-finite gradient leaves the weights alone.

    Args:
        model: what is trained.
        source: of its episodes.
        config: the run, for its `copies`, `beta1`, `clip`, `warm_up`, `scale_rate` and `averaging`.
        learning_rate: to begin with.
        steps: how many the run has made before.
        processes: that make every step together, each with its share of the batch.
    """

    def __init__(
        self,
        model: Trainable,
        source: EpisodeSource,
        config: RunConfig,
        learning_rate: float,
        steps: int = 0,
        processes: Processes | None = None,
    ) -> None:
        self.model, self.source, self.config = model, source, config
        self.processes = processes or Processes()
        self._message_length = 0  # of what processes tell each other in a step; unknown before the first
        device = source.images.device
        cuda = device.type == "cuda"
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.averages = [p.detach().clone() for p in self.parameters] if config.averaging else []
        scales = [p for p in model.prior_scales if p.requires_grad]
        others = [p for p in self.parameters if not any(p is scale for scale in scales)]
        groups: list[dict[str, Any]] = [
            {"params": its, "times": times, "waits": waits, "lr": torch.zeros((), device=device) if cuda else 0.0}
            for its, times, waits in ((others, 1.0, False), (scales, config.scale_rate, model.scales_wait))
            if its
        ]
        self.optimizer = torch.optim.Adam(groups, betas=(config.beta1, 0.999), fused=True, capturable=cuda)
        self.set_learning_rate(learning_rate)
        self.steps = torch.tensor(steps, device=device)  # made in the whole run
        self.skipped = torch.zeros((), device=device)  # non-finite steps since `reset`
        self.streak = torch.zeros((), device=device)  # of them in a row, up to now
        self.counted = torch.zeros((), device=device)  # the other steps since `reset`
        self.names: list[str] = []  # of what the model reports
        self.sums = torch.zeros(0, device=device)  # of that, in the same order, over the counted steps
        self._statistics = model.gathered_statistics
        self._statistics_before = self._statistics.clone()
        self._frames = torch.compile(source.frames, dynamic=False) if device.type == "cuda" else source.frames
        self._run = graphed(self._step, source)

    def __call__(self, indices: Tensor) -> None:
        """Train on the frames at `indices` [B, T], in a group on those of the share of this process."""
        self.model.train()
        self._run(indices)

    def set_learning_rate(self, rate: float, *, warming: bool = False) -> None:
        """Of the networks; the prior's scales have theirs so many times, and most wait where `warming`: codes then say
        too little for a scale to learn more than that nothing is shared, which would stay so."""
        for settings in self.optimizer.param_groups:
            its_rate = 0.0 if warming and settings["waits"] else rate * settings["times"]
            if isinstance(settings["lr"], Tensor):  # which a captured step reads
                settings["lr"].fill_(its_rate)
            else:
                settings["lr"] = its_rate

    def reset(self) -> None:
        for tensor in (self.skipped, self.counted, self.sums):
            tensor.zero_()

    def means(self) -> dict[str, float]:
        """What the model reported, averaged over the counted steps since `reset`; waits for the device."""
        return dict(zip(self.names, (self.sums / self.counted).tolist(), strict=True))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Within, the model has the averaged weights, where there are any."""
        with put_back(self.parameters), torch.no_grad():
            if self.averages:
                torch._foreach_copy_(self.parameters, self.averages)
            yield

    def tensors(self) -> Groups:
        """What a step depends on besides the model: Adam's state by parameter number, averages, counts and sums."""
        return {
            "optimizer": {
                f"{index}.{name}": value
                for index, parameter in enumerate(self.parameters)
                for name, value in self.optimizer.state.get(parameter, {}).items()
            },
            "average": {str(index): average for index, average in enumerate(self.averages)},
            "count": {name: getattr(self, name) for name in COUNTS},
            "sum": dict(zip(self.names, self.sums, strict=True)),
        }

    def restore(self, groups: Groups) -> None:
        """Go on from what `tensors` gave."""
        for key, value in groups["optimizer"].items():
            index, name = key.split(".")
            parameter = self.parameters[int(index)]
            if value.shape == parameter.shape:  # the fused optimiser wants the parameter's memory format, too
                value = torch.empty_like(parameter).copy_(value)
            self.optimizer.state[parameter][name] = value
        for number, average in enumerate(self.averages):
            average.copy_(groups["average"][str(number)])
        for name in COUNTS:
            getattr(self, name).copy_(groups["count"][name])
        if sums := groups["sum"]:
            self.names = sorted(sums)
            self.sums = torch.stack([sums[name] for name in self.names])

    def _step(self, indices: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._statistics_before.copy_(self._statistics)
        try:
            outcome = self.model(self._frames(indices), self.config.copies)
        except NumericalError:  # only where Python may look at values; a captured step yields NaN instead
            if not self._stood_in():
                raise
            self._finish(torch.ones_like(self.skipped))
            return
        weight = None
        if self.config.warm_up:
            weight = FIRST_WEIGHT + (1 - FIRST_WEIGHT) * (self.steps / self.config.warm_up).clamp(max=1)
        loss = -outcome.objective(weight).mean() / outcome.episode_length
        loss.backward()
        loss, reports = loss.detach(), self._reports(outcome.per_frame())
        if self.processes.count > 1:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            self._message_length = self.processes.average([*gradients, loss, reports])
        longest = math.inf if self.config.clip is None else self.config.clip
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, longest, foreach=True)
        bad = 1 - (norm.isfinite() & loss.isfinite()).to(self.skipped)
        # The fused optimiser leaves everything as it is where this is 1.
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        self.optimizer.step()
        self._finish(bad, reports)

    @torch.no_grad()
    def _reports(self, reports: dict[str, Tensor]) -> Tensor:
        """Means over the episodes of what the model reports, in the order of `names`."""
        if not self.names:
            self.names = sorted(reports)
            self.sums = torch.zeros(len(reports), device=self.sums.device)
        return torch.stack([reports[name] for name in self.names]).mean(-1)

    def _stood_in(self) -> bool:
        """Whether other processes could be told that this step is bad for all: not if they wait for a message whose
        length is not known yet, or in the middle of the networks, for statistics of batch norm."""
        if self.processes.count == 1:
            return True
        if not self._message_length or len(self._statistics):
            return False
        self.processes.spoil(self._message_length, self.sums)
        return True

    @torch.no_grad()
    def _finish(self, bad: Tensor, reports: Tensor | None = None) -> None:
        """Keep count, move the averages towards the weights, undo what a bad step did to batch norm's statistics."""
        self._statistics.copy_(torch.where(bad > 0, self._statistics_before, self._statistics))
        if self.averages:
            # At first an average of the last few steps: untrained weights would count in it for thousands.
            decay = ((1 + self.steps) / (10 + self.steps)).clamp(max=self.config.averaging)
            moves = torch._foreach_sub(self.parameters, self.averages)
            torch._foreach_mul_(moves, 1 - decay)
            torch._foreach_add_(self.averages, moves)
        self.steps += 1
        self.skipped += bad
        self.streak.copy_((self.streak + bad) * bad)
        self.counted += 1 - bad
        if reports is not None:
            self.sums += torch.where(bad > 0, 0.0, reports)


@contextmanager
def put_back(tensors: list[Tensor]) -> Iterator[None]:
    """After the block the tensors have the values they had before."""
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(tensors, before)


def graphed(function: Callable[[Tensor], None], source: EpisodeSource) -> Callable[[Tensor], None]:
    """A function of a batch of indices, on CUDA captured as a graph after a few ordinary runs."""
    device = source.images.device
    if device.type != "cuda":
        return function
    static = torch.zeros(0, dtype=torch.int64, device=device)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    calls = 0

    def run(indices: Tensor) -> None:
        nonlocal calls, static
        if not calls:
            static = torch.zeros_like(indices, device=device)
        static.copy_(indices, non_blocking=True)
        if calls < WARM_UP_STEPS:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                function(static)
            torch.cuda.current_stream().wait_stream(stream)
        else:
            if calls == WARM_UP_STEPS:
                with torch.cuda.graph(graph):
                    function(static)
            graph.replay()
        calls += 1

    return run
