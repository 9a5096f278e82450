"""Which episode of its batch a frame belongs to, by what memories of all of them expect."""

import torch
from torch import Tensor

from vbmem.memory.writing import VariationalMemory

SHOTS = (1, 5)  # frames of an episode that are written before the others are asked for; both count the same


def log_own_share(memory: VariationalMemory, contents: Tensor) -> Tensor:
    """log p(own episode | z) = log p(z | M_own) - log sum_b p(z | M_b), one memory M_b an episode, all equally likely.

    Each is written from the first frames of its episode; all other frames of the batch ask.

    Args:
        memory: empty, of one cluster without factors, whose write is exact after one update from anywhere.
        contents: [B, T, C] with T > 1, the frames of an episode in random order.

    Returns:
        The mean over the frames of an episode that ask, in nats: [B]. At random it is -log B.
    """
    episodes, length = contents.shape[:2]
    found = []
    for shots in SHOTS:
        if shots < length:
            state, _ = memory.write(contents[:, :shots], iterations=1, start="prior")
            asking = contents[:, shots:].flatten(0, 1)
            log_density = memory.log_predictive(state, asking.expand(episodes, -1, -1))  # [memories, frames]
            shares = log_density.log_softmax(0).unflatten(1, (episodes, -1))
            found.append(shares.diagonal().mean(0))  # [frames of an episode, B] -> [B]
    return torch.stack(found).mean(0)
