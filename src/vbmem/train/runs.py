"""From a configuration or a run directory to sources of episodes and models."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from vbmem.data import EpisodeSource, ImageSet, Part
from vbmem.errors import CheckpointError
from vbmem.files import write_json
from vbmem.models import EpisodicModel, FrameFormat
from vbmem.train.checkpoint import load_checkpoint, load_weights
from vbmem.train.config import DataConfig, RunConfig, from_dict, to_dict


def frame_format(data: DataConfig, images: ImageSet) -> FrameFormat:
    _, height, width, channels = images.x_train.shape
    if height != width:
        raise ValueError(f"pictures must be square, got {height} x {width}; set data.image_size")
    if data.binary:
        return FrameFormat(height, 1, "bernoulli")
    return FrameFormat(height, channels)


def make_source(data: DataConfig, images: ImageSet, part: Part, seed: int, device: torch.device) -> EpisodeSource:
    pictures, labels = images.split(part)
    return EpisodeSource(
        pictures,
        labels,
        batch_size=data.batch_size,
        episode_length=data.episode_length,
        kind=data.episodes,
        sources_per_episode=data.sources_per_episode,
        binary=data.binary,
        device=device,
        seed=seed,
    )


def make_model(config: RunConfig, images: ImageSet, device: torch.device) -> EpisodicModel:
    """An untrained model on its device; on CUDA networks in bfloat16 and channels last."""
    torch.manual_seed(config.seed)
    model = config.model.build(frame_format(config.data, images)).to(device)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model.network_dtype = torch.bfloat16
        torch.backends.cudnn.benchmark = True  # shapes never change
    return model


def load_run(run_dir: Path, images: ImageSet, device: torch.device) -> tuple[RunConfig, EpisodicModel]:
    """The best model of a run, ready for evaluation."""
    config = read_config(run_dir)
    model = make_model(config, images, device)
    tensors, _ = load_checkpoint(run_dir / "best.safetensors", device)
    load_weights(model, tensors, run_dir / "best.safetensors")
    return config, model.eval()


def write_config(run_dir: Path, config: RunConfig, frame: FrameFormat) -> None:
    values = to_dict(config) | {"frame": asdict(frame)}
    write_json(run_dir / "config.json", values)


def read_config(run_dir: Path) -> RunConfig:
    return read_run(run_dir)[0]


def read_run(run_dir: Path) -> tuple[RunConfig, FrameFormat]:
    """How a run was made, and the pictures it was made for."""
    path = run_dir / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{run_dir} is no run directory: it has no config.json")
    try:
        values = json.loads(path.read_text())
        frame = FrameFormat(**values.pop("frame"))
        return from_dict(values), frame
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged or was saved by another vbmem ({error})") from error
