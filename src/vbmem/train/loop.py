"""The training loop."""

import math
import time
import zlib
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.distributed import ProcessGroup

from vbmem.data.image_set import ImageSet
from vbmem.errors import CheckpointError, NumericalError, TrainingError
from vbmem.files import PARTIAL, reading
from vbmem.models.base import EpisodicModel
from vbmem.models.directory import CHECKPOINT, WEIGHTS, write_weights
from vbmem.models.settings import MemoryConfig
from vbmem.models.trainable import Trainable
from vbmem.train.batch_norm import FreshStatistics, share_batch_norm
from vbmem.train.checkpoint import Progress, Tensors, load_checkpoint, random_tensors, restore_random, save_checkpoint
from vbmem.train.evaluation import Evaluation
from vbmem.train.interrupt import StoppedBetweenSteps, deferred_interrupt
from vbmem.train.lock import DirectoryLock
from vbmem.train.log import Display, RunLog
from vbmem.train.processes import Processes
from vbmem.train.runs import make_model, make_source, read_run, write_run
from vbmem.train.settings import RunConfig, differences
from vbmem.train.step import TrainingStep

LOOK_EVERY = 0.5  # seconds between looks at the running step, each of which waits for the device
SAVE_EVERY = 60.0  # seconds a crash may cost
BAD_STEPS_IN_A_ROW = 20


class Trainer:
    """Trains one model: stages of epochs, each epoch followed by a validation; a checkpoint every minute.

    In `run_dir`, which is a model directory: config.json, model.safetensors (the weights with the best validation
    bound), last.safetensors (to resume from), log.jsonl.

    Something else than a model is trained by a subclass that says how it is made, written down and recognised.

    Processes of a `group` train one model together: each takes its share of the episodes of every batch, gradients,
    reports and statistics of batch norm are those of the whole batch, and the first one alone validates, writes and
    prints. So they do what one process does, to rounding, but for what is drawn: every process draws from the seed, the
    step and its number. All must be able to read `run_dir`.

    Args:
        config: all that is to be settled of a run.
        images: the pictures; a part of those to train on is kept for validation.
        run_dir: its directory.
        device: where to train.
        resume: go on from the last checkpoint in that directory.
        console: where a line an epoch is printed.
        group: processes that train together; each has all the pictures.
    """

    def __init__(
        self,
        config: RunConfig,
        images: ImageSet,
        run_dir: Path,
        device: torch.device,
        *,
        resume: bool = False,
        console: Console | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self.config, self.run_dir, self.device = config, run_dir, device
        self.processes = Processes(group)
        self.processes.check_batch(config.data.batch_size)
        if self.processes.count > 1 and isinstance(config.model, MemoryConfig) and config.model.tells_apart:
            raise ValueError("tells_apart compares all episodes of a batch, which processes share; train with one")
        self.console = (console or Console()) if self.processes.is_first else Console(quiet=True)
        path = run_dir / CHECKPOINT
        if resume and not path.is_file():
            raise CheckpointError(f"there is no checkpoint {path}; train first, or check the directory")
        self._lock = DirectoryLock(run_dir) if self.processes.is_first else None
        try:
            if not resume and path.exists():
                raise CheckpointError(f"{run_dir} holds a run already; resume it, or choose another directory")
            if not resume and (run_dir / WEIGHTS).exists():
                raise CheckpointError(f"{run_dir} holds a model, which would be lost; choose another directory")
            self.processes.meet()  # when the first one has the directory for them
            self._prepare(images, resume)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    def _prepare(self, images: ImageSet, resume: bool) -> None:
        config, device = self.config, self.device
        self.model = self._make(images)
        waits = self.processes.count > 1 and share_batch_norm(self.model, self.processes)
        if device.type == "cuda" and not waits:  # for other processes, which nothing that is compiled can
            self.model.compile_parts()
        self.source = make_source(config.data, images, "train", config.seed, device, training=True)
        self.validate = Evaluation(self.model, make_source(config.data, images, "valid", config.seed + 1, device))
        self.fresh_statistics = FreshStatistics(self.model, self.source)
        checksum = zlib.crc32(np.ascontiguousarray(images.x_train).data)
        self.progress = Progress(stage_epochs=config.stages[0].epochs, pictures=checksum)
        self._best: Tensors = {}  # weights with the best validation bound
        if resume:
            self._restore()
        else:
            self._open_stage()
        self.processes.meet()  # when all have read what is there
        self._claim_directory()

    def _make(self, images: ImageSet) -> Trainable:
        """What is trained, untrained and on its device."""
        return make_model(self.config, images, self.device)

    def _write(self) -> None:
        """Write the model directory, with the best weights so far."""
        if self._best:
            write_weights(self.run_dir, self._best)
        assert isinstance(self.model, EpisodicModel)
        write_run(self.run_dir, self.config, self.model, self.progress.best)

    def _other_settings(self) -> list[str]:
        """In what this run differs from that which the directory holds."""
        return [*differences(read_run(self.run_dir), self.config)]

    def run(self) -> float:
        """Train to the end; the best validation bound per frame."""
        if self._lock is None:
            return self._run()
        self._lock.acquire()
        try:
            return self._run()
        finally:
            self._lock.release()

    def _run(self) -> float:
        log = RunLog(self.run_dir, self.progress.epoch) if self.processes.is_first else None
        display = Display(self.console, self.source.batches_per_epoch)
        closed = nullcontext() if log is None else closing(log)
        with closed, display, deferred_interrupt(self.processes) as self._stop_if_pressed:
            try:
                while not self._finished:
                    self._epoch(display, log)
            except StoppedBetweenSteps:
                self._save()
                display.say(f"stopped, and saved in {self.run_dir}; resume the run to go on")
                self.processes.meet()  # torchrun ends all as soon as one has ended
                raise KeyboardInterrupt from None
        return self.progress.best if self.progress.best is not None else math.nan

    @property
    def _finished(self) -> bool:
        return self.progress.stage >= len(self.config.stages)

    def _epoch(self, display: Display, log: RunLog | None) -> None:
        progress = self.progress
        batches = self.processes.share(self.source.epoch_indices(progress.epoch)).to(self.device)
        warming = math.ceil(self.config.warm_up / self.source.batches_per_epoch)  # epochs, in which the bound may fall
        self.step.set_learning_rate(self._learning_rate(), warming=progress.epoch < warming)
        trained, skipped = self._train(batches, display)
        validated, better = self._validate(batches)
        if log is not None:
            log.event(
                "epoch",
                progress.epoch,
                stage=progress.stage,
                train=trained,
                valid=validated,
                skipped_steps=skipped,
                seconds=progress.seconds,
            )
        headline, digits = self.model.headline, self.model.digits
        display.say(
            f"epoch {progress.epoch:4d}   train {trained.get(headline, math.nan):9.{digits}f}   "
            f"valid {validated[headline]:9.{digits}f} +- {validated['standard_error']:.{digits}f} {self.model.unit}"
            + (" *" if better else "")
        )
        waited = min(progress.stage_epoch - progress.best_epoch, progress.epoch - warming)
        if progress.stage_epoch >= progress.stage_epochs or waited >= self.config.patience:
            self._next_stage(display)
        if not self._finished:
            self._stop_if_pressed()
        if self._finished or time.monotonic() - self._saved > SAVE_EVERY:
            self._save()

    def _train(self, batches: Tensor, display: Display) -> tuple[dict[str, float], int]:
        """Train on the batches of an epoch that are left; what the model reported, and the number of skipped steps."""
        progress, first = self.progress, self.progress.batch
        started = looked = time.monotonic()
        for indices in batches[first:]:
            self._stop_if_pressed()
            self.processes.seed(self.config.seed, self._steps)
            self.step(indices)
            progress.batch += 1
            if time.monotonic() - looked > LOOK_EVERY:
                self._look(display, started, first)
                looked = time.monotonic()
                if looked - self._saved > SAVE_EVERY:
                    self._save()
        self._look(display, started, first)
        trained, skipped = self.step.means(), int(self.step.skipped)
        progress.seconds += time.monotonic() - started
        progress.epoch += 1
        progress.stage_epoch += 1
        progress.batch = 0
        self.step.reset()
        return trained, skipped

    def _validate(self, batches: Tensor) -> tuple[dict[str, float], bool]:
        """The bound on the validation pictures, and whether it is the best so far; the best weights are kept."""
        progress = self.progress
        self.processes.seed(self.config.seed, -self._steps)  # not with the draws of the next step
        try:
            with self.step.averaged(), self._statistics(batches):
                validated = self._validated()
                bound = self.processes.of_first(validated[self.model.headline])
                if _better(bound, progress.stage_best):
                    progress.stage_best, progress.best_epoch = bound, progress.stage_epoch
                if better := _better(bound, progress.best):
                    progress.best = bound
                    self._best = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        except NumericalError:
            if self.processes.count > 1:  # others may be waiting for statistics of batch norm
                raise
            return self._no_bound, False
        return validated, better

    def _validated(self) -> dict[str, float]:
        """What the first process finds, on the same episodes every time, so that epochs can be compared."""
        try:
            return self.validate() if self.processes.is_first else self._no_bound
        except NumericalError:  # as bad as a NaN, which is what CUDA gives
            return self._no_bound

    @property
    def _no_bound(self) -> dict[str, float]:
        return {self.model.headline: math.nan, "standard_error": math.nan}

    def _statistics(self, batches: Tensor) -> AbstractContextManager[None]:
        """Batch norm's for a validation."""
        return nullcontext() if self.config.batch_norm == "accumulated" else self.fresh_statistics(batches)

    def _look(self, display: Display, started: float, first: int) -> None:
        """Show where the epoch stands; stop where training has broken down."""
        progress, step = self.progress, self.step
        bound = step.means().get(self.model.headline, math.nan)
        if float(step.streak) >= BAD_STEPS_IN_A_ROW:
            raise TrainingError(
                f"{BAD_STEPS_IN_A_ROW} steps in a row had a non-finite loss or gradient (epoch {progress.epoch + 1}, "
                f"batch {progress.batch}); start again in another directory with a lower learning rate"
            )
        frames = (progress.batch - first) * self.config.data.batch_size * self.config.data.episode_length
        speed = frames / max(time.monotonic() - started, 1e-9)
        note = f"{self.model.word} {bound:.{self.model.digits - 1}f}   {speed:,.0f} frames/s"
        display.show(f"epoch {progress.epoch + 1}", progress.batch, note)

    def _next_stage(self, display: Display) -> None:
        progress = self.progress
        leftover = progress.stage_epochs - progress.stage_epoch
        progress.stage += 1
        if self._finished:
            return
        stage = self.config.stages[progress.stage]
        progress.stage_epochs = stage.epochs + (leftover if stage.takes_leftover else 0)
        progress.stage_epoch, progress.stage_best, progress.best_epoch = 0, None, 0
        if not self._best:
            raise TrainingError("no epoch so far had a finite validation bound; lower the learning rate")
        self.model.load_state_dict(self._best)
        self._open_stage()
        display.say(f"stage {progress.stage + 1}: {progress.stage_epochs} epochs from the best weights")

    def _open_stage(self) -> None:
        """A fresh optimiser, and a step with this stage's settings."""
        stages = self.config.stages
        stage = stages[min(self.progress.stage, len(stages) - 1)]
        self.model.regulariser, self.model.damage = self.config.regulariser(stage), self.config.damage
        rate = stage.learning_rate
        self.step = TrainingStep(self.model, self.source, self.config, rate, self._steps, self.processes)

    @property
    def _steps(self) -> int:
        """Made in the whole run."""
        return self.progress.epoch * self.source.batches_per_epoch + self.progress.batch

    def _learning_rate(self) -> float:
        progress = self.progress
        rate = self.config.stages[progress.stage].learning_rate
        if self.config.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * progress.stage_epoch / progress.stage_epochs))
        return rate

    def _save(self) -> None:
        """Write the model as it is best, and last.safetensors, which alone is what the run goes on from."""
        if self.processes.is_first:
            self._write()
            groups = {
                "model": self.model.state_dict(),
                "best": self._best,
                "random": random_tensors(self.device),
                **self.step.tensors(),
            }
            save_checkpoint(self.run_dir / CHECKPOINT, groups, self.progress)
        self._saved = time.monotonic()

    def _restore(self) -> None:
        path, pictures = self.run_dir / CHECKPOINT, self.progress.pictures
        groups, self.progress = load_checkpoint(path, self.device)
        if others := self._other_settings():
            raise CheckpointError(
                f"{self.run_dir} was trained with other settings; resume with the same ones: {'; '.join(others)}"
            )
        with reading(path, CheckpointError, "a checkpoint of this model", "begin a new run"):
            self.model.load_state_dict(groups["model"])
        if self.progress.pictures != pictures:
            raise CheckpointError(f"{self.run_dir} was trained on other pictures; bring those back, or begin a new run")
        with reading(path, CheckpointError, "a checkpoint of this model", "begin a new run"):
            self._open_stage()
            self.step.restore(groups)
            self._best = groups["best"]
            restore_random(groups["random"], self.device)

    def _claim_directory(self) -> None:
        """Write everything a run writes, once, before training: a full or read-only disk shows now."""
        for leftover in self.run_dir.glob(PARTIAL) if self.processes.is_first else ():
            leftover.unlink()
        self._save()


def _better(bound: float, best: float | None) -> bool:
    return math.isfinite(bound) and (best is None or bound > best)
