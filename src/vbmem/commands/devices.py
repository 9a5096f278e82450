"""Where a command computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Device = Literal["auto", "cpu", "cuda"]


def pick_device(name: Device) -> torch.device:
    """The device of this name; `auto` is a GPU where there is one."""
    import torch

    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise ValueError("there is no CUDA device here; use --device cpu or auto")
    return torch.device("cuda" if found and name != "cpu" else "cpu")
