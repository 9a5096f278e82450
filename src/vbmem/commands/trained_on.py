"""The pictures a trained model is used with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vbmem.data.settings import DataConfig

if TYPE_CHECKING:
    from vbmem.models.directory import SavedModel


def data_of(saved: SavedModel, model: str, dataset: str | None, subset: str | None = None) -> DataConfig:
    """Those it was trained on, unless others are given; `model` is what it was called on the command line."""
    if saved.data is None and dataset is None:
        raise ValueError(f"{model} does not say what it was trained on; give --dataset")
    data = saved.data or DataConfig(binary=saved.network.frame.likelihood == "bernoulli")
    if dataset is None and subset is None:
        return data
    return replace(data, dataset=dataset or data.dataset, subset=subset)
