"""Work that need not wait: a second CUDA stream beside the current one."""

import functools
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_second_stream = functools.cache(torch.cuda.Stream)  # one a device


class SideStream:
    """Runs blocks beside the current CUDA stream; elsewhere just runs them.

    with side_stream(x): y = f(x)  # begins when all before it is done; what follows the block does not wait for it
    side_stream.join(y)            # from here on it does

    A memory is written by many small steps that leave most of the device idle, and the decoder does not need it:
    side by side, forward and backward (autograd keeps an operation's stream), they take little longer than the slower.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = _second_stream(device) if device.type == "cuda" else None

    def __call__(self, *inputs: Tensor) -> AbstractContextManager[object]:
        if self.stream is None:
            return nullcontext()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        for tensor in inputs:
            tensor.record_stream(self.stream)  # the allocator must not give their memory away too early
        return torch.cuda.stream(self.stream)

    def join(self, *outputs: Tensor) -> None:
        if self.stream is not None:
            current = torch.cuda.current_stream(self.stream.device)
            current.wait_stream(self.stream)
            for tensor in outputs:
                tensor.record_stream(current)
