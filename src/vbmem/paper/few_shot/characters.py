"""Which pictures make an episode of one character or of several, and which a trial of classification."""

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

    def with_drawings(self, count: int, labels: int = 1) -> Self:
        """Those of which there are at least so many.

        Args:
            count: drawings of each.
            labels: the least number of such characters that will do.

        Raises:
            DataError: there are fewer.
        """
        enough = tuple(numbers for numbers in self.drawings if len(numbers) >= count)
        if not enough:
            most = max(map(len, self.drawings))
            raise DataError(f"{count} pictures of one label are needed, and no label has more than {most}")
        if len(enough) < labels:
            raise DataError(
                f"{labels} labels with {count} pictures each are needed at a time, and there are {len(enough)}"
            )
        return type(self)(enough)

    def episodes(self, size: int, generator: Generator, mixed: int = 1) -> tuple[Tensor, Tensor]:
        """Episodes of `size` pictures, every picture in one of them, but for what is left over.

        Characters that are mixed meet in all their episodes, so that these depend on no others. They are far apart in
        the order of labels, in which those of one alphabet are neighbours.

        Args:
            size: pictures in an episode, a multiple of `mixed`.
            generator: chooses which of a character's pictures come together.
            mixed: characters in an episode, as many pictures of each, in turn.

        Returns:
            Numbers of pictures, int64 [episodes, size], and of the character or the group of them, int64 [episodes].
        """
        each = size // mixed
        drawings = self.with_drawings(each, mixed).drawings
        shuffled = [numbers[torch.randperm(len(numbers), generator=generator)] for numbers in drawings]
        groups, episodes, owners = len(drawings) // mixed, [], []
        for owner in range(groups):
            group = shuffled[owner::groups][:mixed]
            count = min(map(len, group)) // each
            drawn = torch.stack([numbers[: count * each].view(count, each) for numbers in group], dim=-1)
            episodes.append(drawn.flatten(1))
            owners += [owner] * count
        return torch.cat(episodes), torch.tensor(owners)

    def trials(self, way: int, shots: int, count: int, generator: Generator) -> Tensor:
        """`count` times `way` different characters, and of each `shots` drawings and one more, the query.

        Returns:
            Numbers of pictures, int64 [count, way, shots + 1], the query last.
        """
        drawings = self.with_drawings(shots + 1, way).drawings
        padded = torch.nn.utils.rnn.pad_sequence(list(drawings), batch_first=True)
        missing = torch.arange(padded.shape[1]) >= torch.tensor([len(numbers) for numbers in drawings]).unsqueeze(-1)
        chosen = torch.rand(count, len(drawings), generator=generator).argsort(-1)[:, :way]
        order = torch.rand(count, way, padded.shape[1], generator=generator) + missing[chosen]  # what is missing last
        return padded[chosen].gather(-1, order.argsort(-1)[..., : shots + 1])
