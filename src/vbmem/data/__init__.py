"""Image sets, pictures and episodes: everything between a file on disk and a batch of frames."""

from vbmem.data.decoding import read_picture
from vbmem.data.episodes import EpisodeSource
from vbmem.data.image_set import ImageSet
from vbmem.data.loading import load_images
from vbmem.data.settings import DataConfig, EpisodeKind, Part
from vbmem.errors import DataError

__all__ = ["DataConfig", "DataError", "EpisodeKind", "EpisodeSource", "ImageSet", "Part", "load_images", "read_picture"]
