"""Codes of frames as a crisp decoder will meet them."""

import torch
from torch import Tensor

from vbmem.memory.writing import VariationalMemory
from vbmem.models.base import CodedModel
from vbmem.models.memory_model import MemoryModel
from vbmem.nets import CodePosterior


class CodesToCome:
    """Codes of frames that have been through a memory or not, from a frozen model.

    What a decoder paints was seldom encoded a moment ago: it was read from a memory, or drawn from one, and is a blend
    of what several frames left there. So of every frame of an episode the code is, with equal chances, a draw of the
    encoder's q(z | x); one read back from a memory of all frames, half the time a draw and half the time the mean; or a
    blend of the two in any proportion. The episodes of a batch share out the sizes of memories. What of a code belongs
    to the frame alone is the encoder's always. Of a model without a memory all codes are the encoder's.

    Args:
        network: the model, ready for evaluation.
        clusters: of the memories, for a model whose memory has clusters; others have the size they have.

    Raises:
        ValueError: for a number of clusters that a memory cannot have.
    """

    def __init__(self, network: CodedModel, clusters: tuple[int, ...]) -> None:
        self.network = network
        self.memories: list[VariationalMemory] = []
        if isinstance(network, MemoryModel):
            with torch.no_grad():
                memory = network.scaled_memory()
            sized = "clusters" in memory.sizes and clusters
            self.memories = [memory.resize(clusters=count) for count in clusters] if sized else [memory]
            for memory in self.memories:
                memory.warns = False

    @torch.no_grad()
    def __call__(self, frames: Tensor) -> Tensor:
        """Frames [B, T, channels, H, W] -> codes [B, T, C]; random, and never waiting for the device."""
        embeddings, posterior = self.network.look(frames)
        if not self.memories:
            return posterior.rsample()
        parts = len(self.memories)
        groups = zip(*(x.tensor_split(parts) for x in (embeddings, posterior.mean, posterior.var)), strict=True)
        each = [
            self._seen(memory, e, CodePosterior(mean, var))
            for memory, (e, mean, var) in zip(self.memories, groups, strict=True)
            if len(e)
        ]
        return torch.cat(each)

    def _seen(self, memory: VariationalMemory, embeddings: Tensor, posterior: CodePosterior) -> Tensor:
        """The codes of some of the episodes, [b, T, C], with one memory for each of these."""
        network = self.network
        assert isinstance(network, MemoryModel)
        content = network.content(posterior.mean)
        state, addresses = memory.write(content, network.iterations, network.start)
        posterior = network.revise(embeddings, posterior, memory.recall(state, addresses))
        content = network.content(posterior.mean)
        drawn, mean = (memory.read(state, content, sample=sample) for sample in (True, False))
        read = torch.where(_chances(content) < 0.5, drawn, mean)
        encoded, own = posterior.rsample().tensor_split((network.content_size,), dim=-1)
        share = (3 * _chances(content) - 1).clamp(0, 1)  # a third at either end
        return torch.cat([torch.lerp(encoded, read, share), own], dim=-1)


def _chances(codes: Tensor) -> Tensor:
    """Uniform on [0, 1), one for every code [.., C]: [.., 1]."""
    return torch.rand(*codes.shape[:-1], 1, dtype=codes.dtype, device=codes.device)
