"""Classification from a few pictures a class: by what a memory of each class expects, and by plain distances.

A rule takes the shots [B, W, S] and the queries [B, W] of B trials, both numbers of pictures, and says how well each
query suits each class, [B, classes, queries]. A new rule is one function more, and an entry in `rules_of`.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from vbmem.data.episodes import EpisodeSource
from vbmem.memory.choice import WeightedChoice, smoothed_usage
from vbmem.memory.starting import Start
from vbmem.memory.state import Addresses
from vbmem.memory.writing import VariationalMemory
from vbmem.models.base import CodedModel, EpisodicModel
from vbmem.models.memory_model import MemoryModel
from vbmem.models.statistician import NeuralStatistician
from vbmem.nets import CodePosterior

Rule: TypeAlias = Callable[[Tensor, Tensor], Tensor]

PICTURES = 1000  # that are encoded at a time
TRIALS = 50  # that are classified at a time
LEAST = 0.01  # share of a memory's noise that is left to means


@torch.no_grad()
def accuracies(rule: Rule, trials: Tensor) -> Tensor:
    """The share of the queries of each trial that a rule gives to their own class.

    Args:
        rule: the class that a query suits best gets it.
        trials: numbers of pictures, int64 [n, W, S + 1], the last of each class its query.

    Returns:
        Float64 [n], on the CPU.
    """
    own = torch.arange(trials.shape[1], device=trials.device)
    chosen = torch.cat([rule(part[..., :-1], part[..., -1]).argmax(1) for part in trials.split(TRIALS)])
    return (chosen == own).double().mean(-1).cpu()


@torch.no_grad()
def rules_of(network: EpisodicModel, source: EpisodeSource, seed: int) -> dict[str, Rule]:
    """All rules there are for a kind of model, over the pictures of a source, which are encoded once.

    Nearest neighbours are those of the content's means, of the Neural Statistician those of q(c | x), and of the DKM
    those of its codes.

    Args:
        network: in evaluation mode.
        source: the pictures.
        seed: of their binarisation, and of where a write starts.
    """
    own: dict[str, Rule] = {}
    if isinstance(network, MemoryModel):
        memory, write = network.scaled_memory(), (network.iterations, network.start)
        posterior = _of_pictures(lambda frames: _stacked(network.infer(frames)), source, seed)
        codes, variances = posterior[..., : memory.code_size].unbind(-2)
        own["predictive density"] = highest_predictive(memory, codes, *write)
        if not network.config.sees_recall:  # else the noise is that of codes which have seen the memory
            own["predictive density of means"] = highest_predictive(memory_of_means(memory, variances), codes, *write)
    elif isinstance(network, NeuralStatistician):
        embeddings = _of_pictures(network.embed, source, seed)
        codes = network.infer_context(embeddings.unsqueeze(1)).mean
        own["context divergence"] = least_divergence(network.infer_context, embeddings)
    elif isinstance(network, CodedModel):
        codes = _of_pictures(lambda frames: network.infer(frames).mean, source, seed)
    else:
        codes = _of_pictures(network.embed, source, seed)
    torch.manual_seed(seed)
    return own | {"nearest picture": nearest_picture(codes), "nearest mean": nearest_mean(codes)}


def _of_pictures(encode: Callable[[Tensor], Tensor], source: EpisodeSource, seed: int) -> Tensor:
    """What an encoder of episodes gives for every picture of a source: [N, ..]."""
    device = source.images.device
    pixels = Generator(device).manual_seed(seed)
    numbers = torch.arange(len(source.images), device=device).split(PICTURES)
    return torch.cat([encode(source.frames(part.unsqueeze(0), pixels))[0] for part in numbers])


def _stacked(posterior: CodePosterior) -> Tensor:
    """Mean and variance, [.., 2, C]."""
    return torch.stack([posterior.mean, posterior.var], dim=-2)


def highest_predictive(
    memory: VariationalMemory, codes: Tensor, iterations: int | None = None, start: Start | None = None
) -> Rule:
    """log p(z | memory) of a query's code under a memory of each class, written from the codes of its shots alone.

    The clusters of a memory count as often as its shots use them, and one more shot in all, as in a `WrittenMemory`;
    the partitions of a tree by themselves.

    Args:
        memory: empty.
        codes: of all pictures, [N, C].
        iterations: of a write.
        start: of a write.
    """

    def fit(shots: Tensor, queries: Tensor) -> Tensor:
        state, _ = memory.write(codes[shots], iterations, start)
        asked = codes[queries].unsqueeze(1).expand(-1, shots.shape[1], -1, -1)  # every query of every class
        return memory.log_predictive(state, asked, _usage(memory, memory.address(state, codes[shots])))

    return fit


def memory_of_means(memory: VariationalMemory, variances: Tensor) -> VariationalMemory:
    """A memory with the noise that means of q(z) have, which are what is written, instead of that of codes.

    By the law of total variance codes scatter around what the memory holds by sigma_z^2 = Var(mean) + E var of q(z), so
    that the memory takes means for further off than they are and draws them too far towards its prior. No label is
    needed for the difference.

    Args:
        memory: empty.
        variances: of q(z) of all pictures, [N, C].
    """
    noise_var = torch.as_tensor(memory.noise_var).to(variances)
    return memory.with_prior(noise_var=(noise_var - variances.mean(0)).maximum(LEAST * noise_var))


def _usage(memory: VariationalMemory, addresses: Addresses) -> WeightedChoice:
    """What a batch of written memories predict of the next frame's cluster, from theta [.., T, H] of their frames."""
    counts = memory.with_partitions(addresses.assignment, -3).sum(-2)  # [.., G, H]
    prior = memory.choice.log_prior(counts.shape[-1], counts).softmax(-1)
    return WeightedChoice(smoothed_usage(counts, prior))


def least_divergence(infer_context: Callable[[Tensor], CodePosterior], embeddings: Tensor) -> Rule:
    """-KL(q(c | D) || q(c | x)) of the shots D of a class and a query x, as Edwards & Storkey (2017) classify.

    2 KL = (m_D^2 + v_D) . 1/v_x - 2 m_D . m_x/v_x - log v_D + .., where what is left out is the same for all classes.

    Args:
        infer_context: q(c | D) of episodes, [B, T, E] -> [B, context].
        embeddings: of all pictures, [N, E].
    """

    def context(numbers: Tensor) -> tuple[Tensor, Tensor]:  # mean and variance, [B, W, T] -> [B, W, context]
        found = infer_context(embeddings[numbers].flatten(0, 1))
        return found.mean.double().unflatten(0, numbers.shape[:2]), found.var.double().unflatten(0, numbers.shape[:2])

    def fit(shots: Tensor, queries: Tensor) -> Tensor:
        mean, var = context(shots)
        query_mean, query_var = context(queries.unsqueeze(-1))
        products = (mean.square() + var) @ (1 / query_var).mT - 2 * mean @ (query_mean / query_var).mT
        return -0.5 * (products - var.log().sum(-1, keepdim=True))

    return fit


def nearest_picture(codes: Tensor) -> Rule:
    """Minus the distance between the codes [N, C] of a query and of the nearest shot of a class."""

    def fit(shots: Tensor, queries: Tensor) -> Tensor:
        return -_distances(codes[shots].flatten(1, 2), codes[queries]).unflatten(1, shots.shape[1:]).amin(2)

    return fit


def nearest_mean(codes: Tensor) -> Rule:
    """Minus the distance between the code of a query and the mean of the codes [N, C] of the shots of a class."""
    return lambda shots, queries: -_distances(codes[shots].mean(2), codes[queries])


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean, of [B, n, C] and [B, m, C]: [B, n, m]; not by products, in which near neighbours would cancel."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
