"""How a memory's functions are compiled."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def compiled(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function as one graph for static shapes.

    Strides are never padded: of rows [200, 4, 3, 100] the compiler of torch 2.11 wrote a gradient with the stride of
    1200 that they have and read it with one of 1216, which ends beyond their memory.
    """
    return torch.compile(function, fullgraph=True, dynamic=False, options={"comprehensive_padding": False})
