"""Training of a crisp decoder over a frozen model, in the loop that trains models."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from torch import Tensor
from torch.distributed import ProcessGroup

from vbmem.data.image_set import ImageSet
from vbmem.data.settings import DataConfig, Part
from vbmem.errors import CheckpointError, DataError, ModelError
from vbmem.files import reading
from vbmem.models.base import CodedModel
from vbmem.models.directory import (
    DECODER,
    SETTINGS,
    WEIGHTS,
    SavedModel,
    digest,
    read_settings,
    read_weights,
    save_model,
    write_settings,
    write_weights,
)
from vbmem.models.settings import from_dict
from vbmem.models.trainable import Trainable
from vbmem.nets import CrispDecoder
from vbmem.train.codes import CodesToCome
from vbmem.train.loop import Trainer
from vbmem.train.settings import PaintingConfig, differences

PARTS: tuple[Part, ...] = ("train", "valid")  # that training needs


@dataclass(frozen=True)
class PaintingOutcome:
    """How far a decoder is from following the flow."""

    loss: Tensor  # scalar
    reports: dict[str, Tensor]  # [B] each
    episode_length: ClassVar[int] = 1  # the loss is a mean over frames already

    def objective(self, weight: Tensor | None = None) -> Tensor:
        return -self.loss.reshape(1)

    def per_frame(self) -> dict[str, Tensor]:
        return self.reports


class Painting(Trainable):
    """A crisp decoder that learns to paint the frames whose codes it is given; the model they come from is frozen, and
    no part of it.

    Args:
        decoder: what learns, on its device.
        network: what makes the codes, there as well and ready for evaluation.
        clusters: of the memories they are read back from; see `CodesToCome`.
    """

    headline = "minus_velocity_error"
    word = "minus error"
    unit = "minus the mean square error of a velocity"
    digits = 4

    def __init__(self, decoder: CrispDecoder, network: CodedModel, clusters: tuple[int, ...]) -> None:
        super().__init__()
        self.decoder, self.frame = decoder, network.frame
        self.codes = CodesToCome(network, clusters)

    def forward(self, frames: Tensor, copies: int = 1) -> PaintingOutcome:
        batch = len(frames)
        # The first frame of every episode, then the second of every episode: the first items of a batch learn
        # shortcuts, and episodes have memories of several sizes.
        codes, frames = (tensor.transpose(0, 1).flatten(0, 1) for tensor in (self.codes(frames), frames))
        means = None
        if self.decoder.sees_mean:
            with torch.no_grad():
                means = self.codes.network.decode(codes).mean
        if self.training:
            errors = self.decoder.errors(frames, codes, means)
            velocity, shortcut = (error.detach().mean().expand(batch) for error in errors)
            return PaintingOutcome(errors.objective, {self.headline: -velocity, "shortcut_error": shortcut})
        # All frames are asked for both.
        velocity, shortcut = (
            self.decoder.errors(frames, codes, means, taught=0).velocity,
            self.decoder.errors(frames, codes, means, taught=len(frames)).shortcut,
        )
        reports = {self.headline: -velocity, "shortcut_error": shortcut}
        by_episode = {name: error.unflatten(0, (-1, batch)).mean(0) for name, error in reports.items()}
        return PaintingOutcome(velocity.mean(), by_episode)

    def compile_parts(self) -> None:
        self.codes.network.compile_parts()
        self.decoder.shortcuts.compile(fullgraph=True, dynamic=False)


def _check_enough(data: DataConfig, images: ImageSet) -> None:
    """Raise DataError where the pictures do not fill a batch, in the words of who chooses its frames, not episodes."""
    frames = data.batch_size * data.episode_length
    fewest = min(len(images.split(part, data.episodes)[0]) for part in PARTS)
    if fewest < frames and not data.repeats_pictures:
        raise DataError(
            f"a batch of {frames} frames needs as many pictures, and {images.name} has {fewest} to train or validate "
            "on; lower batch_frames (--batch-frames)"
        )


class DecoderTrainer(Trainer):
    """Trains a crisp decoder over a frozen model.

    In `run_dir`: what a model's run leaves there, with the frozen weights in model.safetensors and the best of the
    decoder in decoder.safetensors. So it is a directory of the same model, with a decoder.

    Args:
        painting: the settings.
        saved: the model, on its device and ready for evaluation.
        images: the pictures.
        run_dir: where everything goes.
        data: what an episode of them is; by default as the model was trained.
        resume: go on from the last checkpoint there.
        console: where to show how it goes.
        group: of processes that train it together; see `Trainer`.

    Raises:
        ModelError: for a model whose frames have no codes of their own, or that does not know its data.
        CheckpointError: where there is a run already, or none that could be resumed like this.
    """

    def __init__(
        self,
        painting: PaintingConfig,
        saved: SavedModel,
        images: ImageSet,
        run_dir: Path,
        *,
        data: DataConfig | None = None,
        resume: bool = False,
        console: Console | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        data = data or saved.data
        if not isinstance(saved.network, CodedModel):
            kind = type(saved.network).__name__
            raise ModelError(f"{saved.name} is a {kind}, which has no code of each frame alone; choose another model")
        if data is None:
            raise ModelError(f"{saved.name} does not say what it was trained on; give it data settings")
        if not resume and (run_dir / SETTINGS).exists():
            raise CheckpointError(f"{run_dir} holds a model or a run already; resume it, or choose another directory")
        self.painting, self.saved = painting, saved
        device = next(saved.network.parameters()).device
        config = painting.run(data, saved.network.config)
        _check_enough(config.data, images)
        super().__init__(config, images, run_dir, device, resume=resume, console=console, group=group)

    def _make(self, images: ImageSet) -> Trainable:
        network = self.saved.network
        assert isinstance(network, CodedModel)
        torch.manual_seed(self.painting.seed)
        decoder = self.painting.decoder.build(network.frame, network.config.code_size)
        made = Painting(decoder.place_on(self.device, network.network_dtype), network, self.painting.clusters)
        if (episodes := self.config.data.batch_size // self.processes.count) < (sizes := len(made.codes.memories)):
            raise ValueError(
                f"memories of {sizes} sizes need as many episodes in a batch, and {self.painting.batch_frames} frames "
                f"are {episodes}; raise batch_frames, or give fewer clusters"
            )
        return made

    def _write(self) -> None:
        assert isinstance(self.model, Painting)
        named = replace(self.saved, name=self.run_dir.resolve().name, painter=None)
        if not (self.run_dir / WEIGHTS).is_file():
            save_model(named, self.run_dir)
        if self._best:
            prefix = "decoder."
            best = {name.removeprefix(prefix): tensor for name, tensor in self._best.items()}
            write_weights(self.run_dir, best, name=DECODER)
            decoder = self.model.decoder
            size = f"{sum(weights.numel() for weights in decoder.parameters()):,} parameters"
            source = Path(self.config.data.dataset).name
            how = f"{size}, {self.painting.epochs} epochs of {source} at {self.painting.learning_rate:g}"
            fact = {"crisp decoder": how}
            named = replace(named, painter=decoder, card=named.card | fact)
        write_settings(self.run_dir, named, painting=asdict(self.painting))

    def _other_settings(self) -> list[str]:
        values = read_settings(self.run_dir)
        with reading(self.run_dir / SETTINGS, CheckpointError, "the settings of a decoder's run", "begin a new run"):
            painting = from_dict(PaintingConfig, values["painting"])
        same_model = digest(read_weights(self.run_dir)) == digest(self.saved.network.state_dict())
        others = [*differences(painting, self.painting)]
        return others if same_model else ["the model, which had other weights", *others]
