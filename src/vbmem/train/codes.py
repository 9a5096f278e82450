"""Codes of frames as a crisp decoder will meet them."""

import torch
from torch import Tensor

from vbmem.memory.choice import draw_clusters
from vbmem.memory.known import sums_of
from vbmem.memory.state import MemoryState
from vbmem.memory.usage import draw_weights
from vbmem.memory.writing import VariationalMemory
from vbmem.models.base import CodedModel
from vbmem.models.memory_model import MemoryModel
from vbmem.nets import CodePosterior

NEW_SHARE = 0.25  # of the codes: those that a memory draws
SOFTNESS = 0.01  # of the transport between drawn codes and written ones, of the mean squared distance
ROUNDS = 30  # in which it is found


class CodesToCome:
    """Codes of frames that have been through a memory or not, from a frozen model.

    What a decoder paints was seldom encoded a moment ago: it was read from a memory, or drawn from one, and is a blend
    of what several frames left there. So of every frame of an episode the code is, with equal chances, a draw of the
    encoder's q(z | x); one read back from a memory of all frames, half the time a draw and half the time the mean; a
    blend of the two in any proportion; or a new code from the memory, one that is near (see `matched`). No frame
    belongs to a new code by itself, but all frames do to as many of them: so a decoder learns to paint new codes, taken
    together, as pictures like the written ones. The episodes of a batch share out the sizes of memories. What of a code
    belongs to the frame alone is the encoder's always. Of a model without a memory all codes are the encoder's.

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
        seen = torch.lerp(encoded, read, share)
        new = matched(new_codes(memory, state, content), content)
        return torch.cat([torch.where(_chances(content) < NEW_SHARE, new, seen), own], dim=-1)


def new_codes(memory: VariationalMemory, state: MemoryState, codes: Tensor) -> Tensor:
    """As many as were written, [.., T, C], from memories of these codes [.., T, C]; as `WrittenMemory.sample` draws
    them, but each from the cluster of another frame."""
    sums, addresses = sums_of(memory, state, codes)
    clusters = draw_clusters(addresses.assignment, None)
    return memory.sample(state, codes.shape[-2], clusters=clusters, weights=draw_weights(clusters, sums, state))


def matched(drawn: Tensor, codes: Tensor) -> Tensor:
    """A drawn code for each code, near to it, and on average each for one: [.., T, C] and [.., T, C] -> [.., T, C].

    The transport between the two sets that costs least in squared distance, softened and found by scaling rows and
    columns in turn (Cuturi 2013): what is drawn for a code follows its column. Never waits for the device.
    """
    cost = torch.cdist(drawn, codes).square()
    plan = -cost / (SOFTNESS * cost.mean((-1, -2), keepdim=True))  # its logarithm
    for _ in range(ROUNDS):
        plan = plan.log_softmax(-1).log_softmax(-2)
    chosen = draw_clusters(plan.mT.exp(), None)
    return drawn.gather(-2, chosen.unsqueeze(-1).expand_as(codes))


def _chances(codes: Tensor) -> Tensor:
    """Uniform on [0, 1), one for every code [.., C]: [.., 1]."""
    return torch.rand(*codes.shape[:-1], 1, dtype=codes.dtype, device=codes.device)
