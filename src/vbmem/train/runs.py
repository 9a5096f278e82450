"""From the settings of a run to its source of episodes and its model, and from its directory back to the settings."""

from dataclasses import asdict
from pathlib import Path

import torch

from vbmem.data.episodes import EpisodeSource
from vbmem.data.image_set import ImageSet
from vbmem.data.settings import DataConfig, Part
from vbmem.errors import CheckpointError
from vbmem.files import reading
from vbmem.models.base import EpisodicModel
from vbmem.models.directory import SETTINGS, SavedModel, facts_of_training, read_settings, write_settings
from vbmem.models.settings import from_dict
from vbmem.nets import FrameFormat
from vbmem.train.settings import RunConfig

DESCRIBED = ("data", "model", "seed")  # settings of a run that its model directory has anyway


def frame_format(data: DataConfig, images: ImageSet) -> FrameFormat:
    _, height, width, channels = images.x_train.shape
    if height != width:
        raise ValueError(f"pictures must be square, got {height} x {width}; set data.image_size")
    if data.binary:
        return FrameFormat(height, 1, "bernoulli")
    return FrameFormat(height, channels)


def make_source(
    data: DataConfig,
    images: ImageSet,
    part: Part,
    seed: int,
    device: torch.device,
    *,
    training: bool = False,
    trained_on: DataConfig | None = None,
) -> EpisodeSource:
    """Episodes of one part of the pictures.

    Args:
        data: what an episode is.
        images: all pictures.
        part: which of them.
        seed: of the episodes.
        device: where frames are made.
        training: whether they are augmented as the settings say.
        trained_on: of a model that was trained on episodes of another kind, which ones: they say where the parts
            are cut. By default these.
    """
    pictures, labels = images.split(part, (trained_on or data).episodes)
    return EpisodeSource(pictures, data, labels, device=device, seed=seed, training=training)


def make_model(config: RunConfig, images: ImageSet, device: torch.device) -> EpisodicModel:
    """An untrained model on its device."""
    torch.manual_seed(config.seed)
    return config.model.build(frame_format(config.data, images)).place_on(device)


def write_run(run_dir: Path, config: RunConfig, model: EpisodicModel, bound: float | None) -> None:
    """Write a run's config.json: that of its model, and the settings of its training.

    Args:
        run_dir: the run's directory.
        config: the run.
        model: what it trains.
        bound: the best so far on the validation pictures, in nats a frame.
    """
    values = asdict(config)
    saved = SavedModel(model, run_dir.resolve().name, config.data, config.seed, card=facts_of_training(values, bound))
    training = {name: value for name, value in values.items() if name not in DESCRIBED}
    write_settings(run_dir, saved, training=training)


def read_run(run_dir: Path) -> RunConfig:
    """How a run was made."""
    values = read_settings(run_dir)
    with reading(run_dir / SETTINGS, CheckpointError, "the settings of a training run", "begin a new run"):
        return from_dict(RunConfig, values["training"] | {name: values[name] for name in DESCRIBED})
