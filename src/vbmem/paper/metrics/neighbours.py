"""How near pictures are to an episode: nearest neighbours, and the shares that are counted with them."""

from typing import TypeAlias

import torch
from torch import Tensor

from vbmem.models.base import CodedModel

Pictures: TypeAlias = dict[str, Tensor]  # sets of pictures by how they were made
Rows: TypeAlias = dict[str, dict[str, float]]  # row -> column -> number

CHUNK = 256  # pictures at a time


def nearest(queries: Tensor, references: Tensor) -> Tensor:
    """Which of the references [m, ..] is nearest to each query [n, ..], by squared Euclidean distance: int64 [n]."""
    queries, references = queries.flatten(1), references.flatten(1).double()  # small differences of large products
    squares = references.square().sum(-1)  # |q|^2 is the same for all of them
    return torch.cat([(squares - 2 * part.double() @ references.mT).argmin(-1) for part in queries.split(CHUNK)])


def precision(queries: Tensor, episode: Tensor, others: Tensor) -> float:
    """The share of queries [n, D] whose nearest picture among episode [T, D] and others [m, D] is of the episode."""
    return float((nearest(queries, torch.cat([episode, others])) < len(episode)).double().mean())


def coverage(queries: Tensor, episode: Tensor) -> float:
    """The share of the episode's frames [T, D] that are nearest to some query [n, D]; T random frames reach 1 - 1/e."""
    return len(nearest(queries, episode).unique()) / len(episode)


def hit_rate(recalled: Tensor, episode: Tensor) -> float:
    """The share of recalled frames [T, D] that are nearest to the frame of the episode [T, D] which they recall."""
    return float((nearest(recalled, episode) == torch.arange(len(episode))).double().mean())


def features(network: CodedModel, pictures: Tensor) -> dict[str, Tensor]:
    """Pictures [n, ..] in two spaces, each [n, D]: pixels, and means of q(z) of a network trained without memory."""
    with torch.no_grad():
        codes = [network.infer(part.unsqueeze(0)).mean[0] for part in pictures.split(CHUNK)]
    return {"pixels": pictures.flatten(1), "codes": torch.cat(codes)}


def judge_pictures(network: CodedModel, others: dict[str, Tensor], made: Pictures, episode: Tensor) -> Rows:
    """Precision and coverage of sets of pictures [n, ..] for an episode [T, ..], against `others`, as `features`."""
    frames, rows = features(network, episode), Rows()
    for name, pictures in made.items():
        rows[name] = {}
        for space, x in features(network, pictures).items():
            rows[name][f"{space} precision"] = precision(x, frames[space], others[space])
            rows[name][f"{space} coverage"] = coverage(x, frames[space])
    return rows
