"""Estimators for tables of embeddings, with the manners of scikit-learn."""

from vbmem.sklearn.mixture import MemoryMixture
from vbmem.sklearn.novelty import MemoryNovelty, MemoryOutliers

__all__ = ["MemoryMixture", "MemoryNovelty", "MemoryOutliers"]
