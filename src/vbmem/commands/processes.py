"""A command that torchrun starts several times over, to work as one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vbmem.errors import GroupError

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


@contextmanager
def torchrun_group(*, cuda: bool = False) -> Iterator[ProcessGroup | None]:
    """The processes that torchrun started together with this one; None where it started none.

    Args:
        cuda: whether they also tell each other what is on their GPUs.

    Raises:
        GroupError: they do not find each other; or, within, torchrun ended this one, as it does when another fails.
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_torchelastic_launched()):
        yield None
        return
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    except RuntimeError as error:
        raise GroupError(f"the processes of torchrun do not find each other ({error}); start them again") from error
    previous = signal.signal(signal.SIGTERM, _end)
    try:
        yield dist.group.WORLD
        signal.signal(signal.SIGTERM, previous)
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending already, once it has said why
        raise
    finally:
        dist.destroy_process_group()


def is_first(group: ProcessGroup | None) -> bool:
    """Whether this is the process that prints, and writes files."""
    import torch.distributed as dist

    return group is None or dist.get_rank(group) == 0


def own_device(device: torch.device, group: ProcessGroup | None) -> torch.device:
    """That of this process, where each of a group has a GPU for itself.

    Raises:
        ValueError: there are more processes on this machine than GPUs.
    """
    import torch

    if group is None or device.type != "cuda":
        return device
    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count:
        raise ValueError(f"every process needs a GPU of its own, and there are {count}; start no more, or --device cpu")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise GroupError(
        "torchrun ended this process, as it does when another one fails; mend what that one says, and start all again"
    )
