"""Where a command computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Device = Literal["auto", "cpu", "cuda"]


def pick_device(name: Device) -> torch.device:
    """The device of this name; `auto` is a GPU where there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu or auto")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)
