"""Threads by the work: operators on the CPU run in one, whole blocks of frames run side by side.

Several threads inside every operator wait for each other at its end. On a machine that does something else as well, one
of them is often not running, and a write of many small operators was seen to take a hundred times as long with two
threads as with one. Blocks wait for each other once in a pass.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from vbmem.memory.choice import Choice
from vbmem.memory.state import Prior, TensorRecord

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")

CACHE = 3 * 2**17  # numbers of a block
FEWEST, MOST = 64, 4096  # frames of a block
LANES = 32  # of which it is a multiple

_local = threading.local()


def block_size(clusters: int, rows: int, code_size: int) -> int:
    """Frames whose codes, v and theta stay in the cache."""
    size = min(max(CACHE // (clusters * (rows + 1) + code_size), FEWEST), MOST)
    return size - size % LANES


def block_threads(method: Callable[P, R]) -> Callable[P, R]:
    """Runs a memory's method with one thread an operator, and leaves the others to its blocks; not where gradients are
    asked for, which are not made in blocks, nor in compiled code, nor on another device."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_compiling() or not plain(*args, *kwargs.values(), *vars(args[0]).values()):
            return method(*args, **kwargs)
        with one_thread():
            return method(*args, **kwargs)

    return run


def plain(*values: Any) -> bool:
    """Whether all tensors among the values, also those in records, are on the CPU and without gradients."""
    values += tuple(value.choice for value in values if isinstance(value, Prior))
    records = [value.tensors().values() for value in values if isinstance(value, TensorRecord | Choice)]
    tensors = [value for value in values if isinstance(value, Tensor)] + [t for record in records for t in record]
    asked = torch.is_grad_enabled()
    return all(tensor.device.type == "cpu" and not (asked and tensor.requires_grad) for tensor in tensors)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for every operator that this thread calls; `side_by_side` may use those there were."""
    threads = torch.get_num_threads()
    if threads == 1:  # also within another such block
        yield
        return
    _local.threads = threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        del _local.threads


def side_by_side(function: Callable[[Item], R], items: Sequence[Item]) -> Iterator[R]:
    """The function of every item, in their order; several at a time, each in one thread. Without gradients."""
    threads = min(getattr(_local, "threads", torch.get_num_threads()), len(items))
    if threads <= 1:
        with torch.no_grad():
            yield from map(function, items)
        return
    inference, before = torch.is_inference_mode_enabled(), torch.get_num_threads()

    def run(item: Item) -> R:  # these modes belong to a thread
        with torch.inference_mode(inference), torch.no_grad():
            return function(item)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(run, items)
    finally:
        torch.set_num_threads(before)  # of this thread it still holds; it is what threads to come start with
