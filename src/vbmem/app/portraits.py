"""What a memory holds, as pictures: a portrait of every cluster."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vbmem.app.session import Session
from vbmem.app.shared import seeded
from vbmem.memory.written import WrittenMemory

DRAWS = 16  # joint assignments over which a tree's portraits are averaged
SPREAD = 2.0  # standard deviations along a row


@dataclass(frozen=True)
class Portrait:
    cluster: int
    frame_count: float
    """How many frames it holds; not a whole number, since a frame may belong to several clusters in part."""
    mean: Tensor  # its location, decoded: [channels, H, W]
    variations: Tensor  # how it varies, the location moved along every row: [K, channels, H, W]
    frames: Tensor  # those of the episode that are in it, [n, channels, H, W]


def portraits(session: Session, limit: int) -> list[Portrait]:
    """The `limit` most used clusters, in the order of their use; of a tree, those of its first partition."""
    memory = session.memory

    def decode(contents: Tensor) -> Tensor:
        # What the frames of a cluster have in common is a mean picture: a crisp one would be of something else.
        return session.model.decode(session.model.complete(contents, sample=False), crisp=False)

    usage, clusters = memory.usage.reshape(memory.empty.partitions, -1)[0].sort(descending=True, stable=True)
    clusters = clusters[:limit]
    codes, state = _locations(memory, clusters), memory.state
    rows = state.factor_mean.reshape(memory.empty.partitions, *state.factor_mean.shape[-3:])[
        0, clusters
    ]  # [n, K, C / G]
    moved = codes.unsqueeze(1).repeat(1, rows.shape[1], 1)
    moved[..., : rows.shape[-1]] += SPREAD * rows
    means = decode(codes)
    along = decode(moved) if rows.shape[1] else means[:, None][:, :0]
    assigned = torch.empty(0) if session.codes is None else session.assigned()
    return [
        Portrait(int(c), float(usage[i]), means[i], along[i], session.frames[: len(assigned)][assigned == c])
        for i, c in enumerate(clusters)
    ]


def _locations(memory: WrittenMemory, clusters: Tensor) -> Tensor:
    """Codes [n, C] at the clusters; a tree's other partitions lie where the frames of the cluster have them."""
    first = clusters.repeat_interleave(DRAWS)
    chosen = memory.choice.sample(len(first), seeded(), first=first)  # [G, n DRAWS]
    locations = memory.state.loc_mean.reshape(len(chosen), -1, memory.state.loc_mean.shape[-1])
    parts = locations.take_along_dim(chosen.unsqueeze(-1), 1).movedim(0, 1)  # [n DRAWS, G, C / G]
    return parts.reshape(len(clusters), DRAWS, -1).mean(1)
