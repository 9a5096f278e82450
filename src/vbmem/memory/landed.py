"""The one reader of memories that vbmem 0.4 and before wrote, in four versions, none of which has a checksum."""

from typing import Any

import torch
from torch import Tensor

from vbmem.memory.reading import Memory
from vbmem.memory.state import MemoryState

FORMAT, VERSION = "vbmem.memory", 4
GROUPS = {
    "state": "state",
    "prior": "prior",
    "choice": "choice",
    "assignments": "usage",
    "sums": "sums",
}  # then and now


def upgraded(
    version: int, kind: type[Memory], config: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and tensors by the names of this version, and as it has them.

    Raises:
        KeyError, TypeError, ValueError: where it is no such memory.
    """
    if not 1 <= version <= VERSION:
        raise ValueError(f"there was no version {version}")
    if version < 3 and kind.kind in ("shifted", "mixture", "tree"):
        config = {**config, "factorised": True}  # all were
    named = {}
    for name, tensor in tensors.items():
        group, _, own = name.partition(".")
        if group not in GROUPS:
            raise ValueError(f"it has a tensor {name!r}")
        named[f"{GROUPS[group]}: {own}"] = tensor
    if version == 1:
        named |= _lacking_in_version_1(named)
    if version < 3:
        named |= _rows_and_locations(named, located=kind.located)
        named = {name: tensor for name, tensor in named.items() if not name.startswith("state: loc")}
    if version < 4:
        named |= _with_clusters(kind.kind, named)
    return config, named


def _lacking_in_version_1(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Its written memories knew no prior p(s) but the uniform one."""
    counts = {name: tensor for name, tensor in tensors.items() if name.startswith("usage: counts.")}
    return {
        name.replace("counts", "base"): torch.full_like(tensor[0], 1 / tensor.shape[-1])
        for name, tensor in counts.items()
    }


def _rows_and_locations(tensors: dict[str, Tensor], located: bool) -> dict[str, Tensor]:
    """One matrix of both. Before version 3 they stood apart, locations of zeros where there were none."""
    names = ("row_mean", "row_cov", "loc_mean", "loc_var")
    row_mean, row_cov, loc_mean, loc_var = (tensors[f"state: {name}"] for name in names)
    if not located:
        return {}
    batches = {row_mean.shape[:-2], row_cov.shape[:-2], loc_mean.shape[:-1], loc_var.shape}
    if len(batches) > 1:  # of a whole file they are one and the same; others are not to be made as large as both
        raise ValueError(f"rows and locations have different shapes, {', '.join(str(list(one)) for one in batches)}")
    state = MemoryState.of(row_mean, row_cov, loc_mean, loc_var)
    return {f"state: {name}": tensor for name, tensor in state.tensors().items()}


def _with_clusters(kind: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The prior of a batch of memories; before version 4 it had no dimension of clusters, which all shared it."""
    # name: the dimensions of a single memory's, and where the clusters belong
    shared = {"row_var": (1, -2)} if kind == "categorical" else {"loc_mean": (1, -2), "loc_var": (0, -1)}
    named = {f"prior: {name}": place for name, place in shared.items()}
    return {
        name: tensors[name].unsqueeze(dim)
        for name, (single, dim) in named.items()
        if name in tensors and tensors[name].ndim > single
    }
