"""Episodes: batches of short sets of frames, drawn from one image set that stays on the device as bytes."""

import hashlib
from collections.abc import Iterator
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from vbmem.data.augmentation import affinely_changed, mirrored, relit, shifted_and_flipped, with_rotations
from vbmem.data.image_set import Images, Labels, check_images, check_labels
from vbmem.data.settings import Augmentation, Binarisation, DataConfig, EpisodeKind
from vbmem.errors import DataError


class EpisodeSource:
    """Draws episodes of T frames from N pictures.

    What an episode holds is its kind:

    - shuffled: frames of the whole set, none twice within an epoch; the paper's protocol;
    - by-label: frames of `labels_per_episode` labels, of each as many as of the others or one more, in random order;
      no frame twice while a label has enough, and all labels about equally often within an epoch;
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
        training: bool = False,
    ) -> None:
        """
        Args:
            images: uint8 [N, H, W, C].
            data: what an episode is: its kind, T, the batch size B, and whether frames are binary, which are the first
                channel made 0 or 1, rather than dequantised pixels.
            labels: whole numbers [N], needed for the kind by-label.
            device: where the pictures are kept and frames are made.
            seed: chooses the order of the pictures.
            training: change frames as `data.augment` says, and draw random bits afresh at every call; otherwise there
                is no change, and the bits follow from `seed` alone, whatever model they are for.
        """
        check_images(images, "images")
        if labels is not None:
            check_labels(labels, len(images), "labels")
        _check_settings(data)
        self.data, self.seed = data, seed
        self._augment = data.augment if training else ()
        self._fresh_bits = data.binarise == "random" and training
        if "rotations" in self._augment:
            images, labels = with_rotations(images, labels)
        channels = images[..., :1] if data.binary else images
        # A copy: torch must not share memory that numpy may hold as read-only.
        pixels = torch.from_numpy(np.array(channels.transpose(0, 3, 1, 2), order="C"))
        if data.binarise == "random" and not training:
            pixels = 255 * _random_bits(pixels, torch.Generator().manual_seed(seed)).to(torch.uint8)
        self.images = pixels.to(device)  # [N, C, H, W] uint8
        self._by_label, self._starts, self._counts = _ordered_by_label(labels)
        self._check_enough()

    def _check_enough(self) -> None:
        count, frames = len(self.images), self.data.batch_size * self.data.episode_length
        if self.data.episodes == "by-label":
            if not len(self._counts):
                raise DataError("episodes by label need labels, and these images have none; choose another kind")
            if self.data.labels_per_episode > min(len(self._counts), self.data.episode_length):
                raise DataError(
                    f"an episode of {self.data.episode_length} frames cannot show {self.data.labels_per_episode} of "
                    f"{len(self._counts)} labels; lower labels_per_episode"
                )
        if self.data.repeats_pictures:
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
        generator = torch.Generator().manual_seed(mixed(self.seed, epoch))
        episodes = self.batches_per_epoch * self.data.batch_size
        if self.data.episodes == "shuffled":
            indices = _cycle(len(self.images), episodes * self.data.episode_length, generator)
        elif self.data.episodes == "by-label":
            labels = _dealt(len(self._counts), episodes, self.data.labels_per_episode, generator)
            indices = torch.stack([self._of_labels(batch, generator) for batch in labels.split(self.data.batch_size)])
        else:
            sources = _cycle(len(self.images), episodes * self.data.sources_per_episode, generator)
            repeats = self.data.episode_length // self.data.sources_per_episode
            frames = sources.repeat_interleave(repeats).view(episodes, self.data.episode_length)
            indices = _shuffled(frames, generator)
        return indices.view(-1, self.data.batch_size, self.data.episode_length)

    def _of_labels(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Which pictures the frames of episodes with the labels [B, L] show: [B, T]."""
        length, each = self.data.episode_length, -(-self.data.episode_length // labels.shape[-1])
        counts, starts = self._counts[labels].unsqueeze(-1), self._starts[labels].unsqueeze(-1)
        largest = int(counts.max())
        order = torch.rand((*labels.shape, largest), generator=generator)
        order = torch.where(torch.arange(largest) < counts, order, 1.0).topk(min(each, largest), largest=False).indices
        chosen = order.gather(-1, torch.arange(each) % counts)  # where a label has too few pictures, the first again
        frames = self._by_label[starts + chosen].mT.flatten(1)[:, :length]  # one of each label, the next of each, ..
        return frames if labels.shape[-1] == 1 else _shuffled(frames, generator)

    def frames(self, indices: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The frames at `indices` (int64, on the device) as float32 [*indices.shape, C, H, W] in [0, 1].

        Noise, changes and views are drawn afresh at every call, from the device's generator unless one is given.
        Shapes are static and the host is never waited for, so a CUDA graph may hold the call.
        """
        pixels = self.images[indices]
        if "mirror" in self._augment:
            pixels = mirrored(pixels, indices, len(self.images), generator)
        if "affine" in self._augment:
            pixels = affinely_changed(pixels, generator)
        if self._fresh_bits:
            pictures = _random_bits(pixels, generator)
        else:
            pictures = (pixels / 255).round() if self.data.binary else _dequantised(pixels, generator)
        if self.data.episodes == "views":
            pictures = shifted_and_flipped(pictures, generator)
            if not self.data.binary:
                pictures = relit(pictures, generator)
        return pictures

    def epoch(self, epoch: int) -> Iterator[Tensor]:
        """The batches of one epoch: frames [B, T, C, H, W]."""
        for indices in self.epoch_indices(epoch).to(self.images.device):
            yield self.frames(indices)


def _check_settings(data: DataConfig) -> None:
    """Insist on settings that make sense whatever the pictures."""
    if (kind := data.episodes) not in get_args(EpisodeKind):
        raise DataError(f"there is no kind of episode {kind!r}; choose from {', '.join(get_args(EpisodeKind))}")
    if min(data.batch_size, data.episode_length, data.labels_per_episode, data.sources_per_episode) < 1:
        raise DataError("batch_size, episode_length, labels_per_episode and sources_per_episode must all be positive")
    if unknown := set(data.augment) - set(get_args(Augmentation)):
        known = ", ".join(get_args(Augmentation))
        raise DataError(f"there is no augmentation {', '.join(sorted(unknown))}; choose from {known}")
    if (way := data.binarise) not in get_args(Binarisation):
        raise DataError(f"frames cannot be made binary by {way!r}; choose from {', '.join(get_args(Binarisation))}")
    if data.binarise == "random" and not data.binary:
        raise DataError("binarise is random and frames are not to be binary; choose binary frames, too")


def mixed(*numbers: int) -> int:
    """64 well-mixed bits of the numbers, so that neighbouring seeds, epochs or steps share nothing."""
    text = " ".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _ordered_by_label(labels: Labels | None) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of the pictures, label after label, and for every label where it starts there and how many it has."""
    values = np.empty(0, np.int64) if labels is None else labels
    _, starts, counts = np.unique(np.sort(values), return_index=True, return_counts=True)
    return torch.from_numpy(np.argsort(values, kind="stable")), torch.from_numpy(starts), torch.from_numpy(counts)


def _cycle(items: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` of the numbers below `items` in random order, each again only after all others."""
    rounds = -(-count // items)
    return torch.randperm(items, generator=generator).repeat(rounds)[:count]


def _dealt(items: int, hands: int, each: int, generator: torch.Generator) -> Tensor:
    """Numbers below `items`, dealt like cards: [hands, each]. When too few are left for a hand, all are mixed again."""
    rounds = -(-hands // (items // each))
    packs = [torch.randperm(items, generator=generator)[: items - items % each] for _ in range(rounds)]
    return torch.cat(packs).view(-1, each)[:hands]


def _shuffled(frames: Tensor, generator: torch.Generator) -> Tensor:
    """The frames [B, T] of every episode in random order."""
    return frames.gather(-1, torch.rand(frames.shape, generator=generator).argsort(-1))


def _random_bits(pixels: Tensor, generator: torch.Generator | None) -> Tensor:
    """1 with probability x / 255, else 0; float32."""
    chance = torch.rand(pixels.shape, generator=generator, device=pixels.device)
    return (chance < pixels / 255).float()


def _dequantised(pixels: Tensor, generator: torch.Generator | None) -> Tensor:
    """(x + u) / 256 with u uniform on [0, 1)."""
    noise = torch.rand(pixels.shape, generator=generator, device=pixels.device)
    # Shrunk by the spacing of float32 below 256: 255 + u would otherwise round up to 256 now and then.
    return (pixels + (1 - 2**-16) * noise) / 256
