"""Episodes: batches of short sets of frames, drawn from one image set that stays on the device as bytes."""

import hashlib
from collections.abc import Iterator
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from vbmem.data.image_set import Images, Labels, check_images, check_labels
from vbmem.data.settings import DataConfig, EpisodeKind
from vbmem.errors import DataError


class EpisodeSource:
    """Draws episodes of T frames from N pictures.

    What an episode holds is its kind:

    - shuffled: frames of the whole set, none twice within an epoch; the paper's protocol;
    - by-label: frames of one label, all labels equally likely, none twice while there are enough;
    - repeats: `sources_per_episode` pictures, each T / `sources_per_episode` times, in random order;
    - views: as repeats, and every frame is shifted, flipped (colour pictures) and lit by chance.

    Which pictures an epoch shows follows from `seed` and the epoch's number alone.
    """

    def __init__(
        self,
        images: Images,
        data: DataConfig,
        labels: Labels | None = None,
        *,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """
        Args:
            images: uint8 [N, H, W, C].
            data: what an episode is: its kind, T, the batch size B, and whether frames are binary, which are the first
                channel rounded to 0 or 1, rather than dequantised pixels.
            labels: whole numbers [N], needed for the kind by-label.
            device: where the pictures are kept and frames are made.
            seed: chooses the order of the pictures.
        """
        check_images(images, "images")
        if labels is not None:
            check_labels(labels, len(images), "labels")
        if (kind := data.episodes) not in get_args(EpisodeKind):
            raise DataError(f"there is no kind of episode {kind!r}; choose from {', '.join(get_args(EpisodeKind))}")
        if min(data.batch_size, data.episode_length, data.sources_per_episode) < 1:
            raise DataError("batch_size, episode_length and sources_per_episode must all be positive")
        self.data, self.seed = data, seed
        channels = images[..., :1] if data.binary else images
        # A copy: torch must not share memory that numpy may hold as read-only.
        channels_first = np.array(channels.transpose(0, 3, 1, 2), order="C")
        self.images = torch.from_numpy(channels_first).to(device)  # [N, C, H, W] uint8
        self._members = _members_by_label(labels)
        self._check_enough()

    def _check_enough(self) -> None:
        count, frames = len(self.images), self.data.batch_size * self.data.episode_length
        if self.data.episodes == "by-label" and not self._members:
            raise DataError("episodes by label need labels, and these images have none; choose another kind")
        if self.data.episodes in ("views", "repeats"):  # which show the same few pictures again and again
            if self.data.episode_length % self.data.sources_per_episode:
                raise DataError(
                    f"an episode of {self.data.episode_length} frames cannot show {self.data.sources_per_episode} "
                    "pictures equally often; choose sources_per_episode to divide episode_length"
                )
            if count < self.data.sources_per_episode:
                raise DataError(
                    f"an episode shows {self.data.sources_per_episode} pictures and there are {count}; "
                    "give more images or lower sources_per_episode"
                )
        elif count < frames:
            raise DataError(
                f"a batch of {self.data.batch_size} episodes of {self.data.episode_length} frames needs {frames} "
                f"images and there are {count}; give more images or lower batch_size or episode_length"
            )

    @property
    def batches_per_epoch(self) -> int:
        """Batches of B x T frames that the set fills, an incomplete one dropped.

        At least one: repeats and views need fewer pictures than frames, the other kinds are refused too few.
        """
        return max(len(self.images) // (self.data.batch_size * self.data.episode_length), 1)

    def epoch_indices(self, epoch: int) -> Tensor:
        """Which pictures the frames of an epoch show: int64 [batches, B, T], on the CPU."""
        generator = torch.Generator().manual_seed(_mixed(self.seed, epoch))
        episodes = self.batches_per_epoch * self.data.batch_size
        if self.data.episodes == "shuffled":
            indices = _cycle(len(self.images), episodes * self.data.episode_length, generator)
        elif self.data.episodes == "by-label":
            labels = torch.randint(len(self._members), (episodes,), generator=generator)
            chosen = [self._members[label] for label in labels.tolist()]
            length = self.data.episode_length
            indices = torch.stack([members[_cycle(len(members), length, generator)] for members in chosen])
        else:
            sources = _cycle(len(self.images), episodes * self.data.sources_per_episode, generator)
            repeats = self.data.episode_length // self.data.sources_per_episode
            frames = sources.repeat_interleave(repeats).view(episodes, self.data.episode_length)
            order = torch.rand(frames.shape, generator=generator).argsort(-1)
            indices = frames.gather(-1, order)
        return indices.view(-1, self.data.batch_size, self.data.episode_length)

    def frames(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames at `indices` (int64, on the device) as float32 [*indices.shape, C, H, W] in [0, 1].

        Noise and views are drawn afresh at every call, from the device's generator unless one is given.
        Shapes are static and the host is never waited for, so a CUDA graph may hold the call.
        """
        pixels = self.images[indices]
        pictures = (pixels / 255).round() if self.data.binary else _dequantised(pixels, generator)
        if self.data.episodes == "views":
            pictures = _shifted_and_flipped(pictures, generator)
            if not self.data.binary:
                pictures = _relit(pictures, generator)
        return pictures

    def epoch(self, epoch: int) -> Iterator[Tensor]:
        """The batches of one epoch: frames [B, T, C, H, W]."""
        for indices in self.epoch_indices(epoch).to(self.images.device):
            yield self.frames(indices)


def _mixed(seed: int, epoch: int) -> int:
    """64 well-mixed bits of the two numbers, so that neighbouring seeds and epochs share nothing."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8).digest(), "big")


def _members_by_label(labels: Labels | None) -> list[Tensor]:
    """For every label the numbers of its pictures."""
    if labels is None:
        return []
    _, counts = np.unique(labels, return_counts=True)
    order = torch.from_numpy(np.argsort(labels, kind="stable"))
    return list(torch.split(order, counts.tolist()))


def _cycle(items: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` of the numbers below `items` in random order, each again only after all others."""
    rounds = -(-count // items)
    return torch.randperm(items, generator=generator).repeat(rounds)[:count]


def _dequantised(pixels: Tensor, generator: torch.Generator | None) -> Tensor:
    """(x + u) / 256 with u uniform on [0, 1)."""
    noise = torch.rand(pixels.shape, generator=generator, device=pixels.device)
    # Shrunk by the spacing of float32 below 256: 255 + u would otherwise round up to 256 now and then.
    return (pixels + (1 - 2**-16) * noise) / 256


def _shifted_and_flipped(pictures: Tensor, generator: torch.Generator | None) -> Tensor:
    """Shift each picture [*, C, H, W] by up to an eighth, edges repeated; mirror half of those in colour."""
    *batch, channels, height, width = pictures.shape
    device = pictures.device

    def shifted(size: int) -> Tensor:  # [*, size]: where each new row or column is taken from
        reach = size // 8
        shift = torch.randint(-reach, reach + 1, (*batch, 1), generator=generator, device=device)
        return (torch.arange(size, device=device) + shift).clamp(0, size - 1)

    rows, columns = shifted(height), shifted(width)
    if channels > 1:
        flip = torch.rand((*batch, 1), generator=generator, device=device) < 0.5
        columns = torch.where(flip, width - 1 - columns, columns)
    pictures = pictures.gather(-2, rows[..., None, :, None].expand(pictures.shape))
    return pictures.gather(-1, columns[..., None, None, :].expand(pictures.shape))


def _relit(pictures: Tensor, generator: torch.Generator | None) -> Tensor:
    """Multiply each picture [*, C, H, W] by a factor from [0.7, 1.3], cut off at white."""
    factor = torch.rand((*pictures.shape[:-3], 1, 1, 1), generator=generator, device=pictures.device)
    return (pictures * (0.7 + 0.6 * factor)).clamp(0, 1)
