from .decoding import read_picture
from .episodes import EpisodeSource
from .image_set import ImageSet
from .loading import load_images
from .settings import Augmentation, Binarisation, DataConfig, EpisodeKind, Part

__all__ = [
    "Augmentation",
    "Binarisation",
    "DataConfig",
    "EpisodeKind",
    "EpisodeSource",
    "ImageSet",
    "Part",
    "load_images",
    "read_picture",
]
