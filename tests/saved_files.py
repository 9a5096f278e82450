"""A file of every kind that is saved, and what processes of tests do with them."""

from pathlib import Path

import torch

import vbmem
from tiny import noise, seeded, tiny_model, tiny_network
from vbmem.models.directory import SavedModel, save_model
from vbmem.train.checkpoint import Progress, random_tensors, save_checkpoint


def save_memory_file(path: Path) -> None:
    memory = vbmem.MixtureMemory(4, 2, 3)
    vbmem.save_memory(path, memory, memory.write(torch.randn(20, 4), 2)[0])


def save_written_memory(path: Path) -> None:
    tiny_model("tree").write(torch.from_numpy(noise(9)).movedim(-1, 1)).save(path)


def save_model_files(path: Path) -> None:
    save_model(SavedModel(tiny_network(), "tiny"), path.parent)


def save_checkpoint_file(path: Path) -> None:
    weights = tiny_network().state_dict()
    groups = {"model": weights, "best": weights, "random": random_tensors(torch.device("cpu"))}
    save_checkpoint(path, groups, Progress(epoch=3, best=-1.5))


def written_anew(seed: int, path: Path | None = None) -> torch.Tensor:
    """The rows of a memory of nine pictures, which is also saved and loaded, if there is a path."""
    pictures = torch.from_numpy(noise(9, seed=seed)).movedim(-1, 1)
    memory = tiny_model().write(pictures, generator=seeded(seed))
    if path is not None:
        memory.save(path)
        vbmem.WrittenMemory.load(path)
    return memory.state.row_mean
