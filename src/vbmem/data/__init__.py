"""Image sets, pictures and episodes: everything between a file on disk and a batch of frames."""

from vbmem.data.decoding import read_picture
from vbmem.data.episodes import EpisodeKind, EpisodeSource
from vbmem.data.image_set import ImageSet, Part
from vbmem.data.loading import load_images
from vbmem.errors import DataError

__all__ = ["DataError", "EpisodeKind", "EpisodeSource", "ImageSet", "Part", "load_images", "read_picture"]
