"""Which pictures make an episode of one character, and which a trial of classification."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Generator, Tensor

from vbmem.data.image_set import Labels
from vbmem.errors import DataError


@dataclass(frozen=True)
class Characters:
    """The pictures of every label, by their numbers."""

    drawings: tuple[Tensor, ...]  # of every character int64 [n_i]

    @classmethod
    def of(cls, labels: Labels) -> Self:
        """Those of labels [N]."""
        _, counts = np.unique(labels, return_counts=True)
        order = torch.from_numpy(np.argsort(labels, kind="stable"))
        return cls(torch.split(order, counts.tolist()))

    def with_drawings(self, count: int) -> Self:
        """Those of which there are at least so many.

        Raises:
            DataError: there is none.
        """
        enough = tuple(numbers for numbers in self.drawings if len(numbers) >= count)
        if not enough:
            most = max(map(len, self.drawings))
            raise DataError(f"{count} pictures of one label are needed, and no label has more than {most}")
        return type(self)(enough)

    def episodes(self, size: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Episodes of `size` pictures of one character, every picture in one of them, but for what is left over.

        Returns:
            Numbers of pictures, int64 [episodes, size], and of the character of each episode, int64 [episodes].
        """
        episodes, owners = [], []
        for owner, numbers in enumerate(self.with_drawings(size).drawings):
            shuffled = numbers[torch.randperm(len(numbers), generator=generator)]
            episodes += shuffled[: len(numbers) // size * size].split(size)
            owners += [owner] * (len(numbers) // size)
        return torch.stack(episodes), torch.tensor(owners)

    def trials(self, way: int, shots: int, count: int, generator: Generator) -> Tensor:
        """`count` times `way` different characters, and of each `shots` drawings and one more, the query.

        Returns:
            Numbers of pictures, int64 [count, way, shots + 1], the query last.
        """
        drawings = self.with_drawings(shots + 1).drawings
        if way > len(drawings):
            raise DataError(
                f"{way} labels with {shots + 1} pictures each are needed to tell them apart, and there are "
                f"{len(drawings)}"
            )
        padded = torch.nn.utils.rnn.pad_sequence(list(drawings), batch_first=True)
        missing = torch.arange(padded.shape[1]) >= torch.tensor([len(numbers) for numbers in drawings]).unsqueeze(-1)
        chosen = torch.rand(count, len(drawings), generator=generator).argsort(-1)[:, :way]
        order = torch.rand(count, way, padded.shape[1], generator=generator) + missing[chosen]  # what is missing last
        return padded[chosen].gather(-1, order.argsort(-1)[..., : shots + 1])
