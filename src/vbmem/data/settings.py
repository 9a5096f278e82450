"""What pictures a model is trained on, and what an episode of them is; loads nothing heavy."""

from dataclasses import dataclass
from typing import Literal

Part = Literal["train", "valid", "test"]
EpisodeKind = Literal["shuffled", "by-label", "views", "repeats"]
Augmentation = Literal["mirror", "rotations", "affine"]
Binarisation = Literal["rounded", "random"]


@dataclass(frozen=True)
class DataConfig:
    """Which pictures, and what an episode of them is."""

    dataset: str = "cifar10"
    """A known set, an .npz file, or a folder of pictures."""
    image_size: int | None = None
    """Side to which pictures are brought; by default that of the set, for a folder 32."""
    binary: bool = False
    """Frames of 0 and 1, and a Bernoulli likelihood."""
    episodes: EpisodeKind = "shuffled"
    """How the frames of an episode are chosen."""
    batch_size: int = 16
    """Episodes in a batch."""
    episode_length: int = 64
    """Frames in an episode."""
    sources_per_episode: int = 4
    """Different pictures in an episode of views or repeats."""
    subset: str | None = None
    """A named part of a known set; of celeba, five-each: the 46,715 faces of our table 1."""
    labels_per_episode: int = 1
    """Different labels in an episode by label, which share its frames as evenly as they can."""
    binarise: Binarisation = "rounded"
    """How binary frames are made: by rounding, or at random, each pixel 1 with its grey value as the probability. Bits
    are drawn anew at every pass of training, and once for an evaluation."""
    augment: tuple[Augmentation, ...] = ()
    """Changes of the pictures, in training only. mirror: half of the frames left-right, for colour pictures; rotations:
    every picture also turned by 90, 180 and 270 degrees, a turned label being a new label, and epochs four times as
    long; affine: every frame rotated, scaled, sheared and shifted a little."""

    @property
    def repeats_pictures(self) -> bool:
        """Whether an episode shows the same few pictures again; otherwise a batch needs as many as it has frames."""
        return self.episodes in ("views", "repeats")
