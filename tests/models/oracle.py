"""The bounds of all models, slowly: one frame, one cluster, one coordinate at a time, densities and KL divergences
from `torch.distributions`. Networks are the model's own, called for single frames, so it must be in evaluation mode.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.linalg import inv
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Distribution, MultivariateNormal, Normal, kl_divergence

from vbmem.memory import Addresses, MemoryState
from vbmem.memory.writing import VariationalMemory
from vbmem.models import DKM, VAE, EpisodicModel, NeuralStatistician
from vbmem.nets import BernoulliPixels

Terms = dict[str, Tensor]


def embed(model: EpisodicModel, frames: Tensor) -> Tensor:
    return torch.stack([torch.stack([model.encoder(frame[None])[0] for frame in episode]) for episode in frames])


def log_likelihood(model: EpisodicModel, codes: Tensor, frames: Tensor) -> Tensor:
    """sum_t log p(x_t | z_t) of every episode."""
    total = frames.new_zeros(len(frames))
    for b, t in np.ndindex(*frames.shape[:2]):
        pixels = model.decoder(codes[b, t][None])
        if isinstance(pixels, BernoulliPixels):
            density: Distribution = Bernoulli(logits=pixels.logits[0])
        else:
            density = Normal(pixels.mean[0], pixels.std[0])
        total[b] += density.log_prob(frames[b, t]).sum()
    return total


def posterior(outputs: Tensor) -> Normal:
    """Means, then log standard deviations, kept within limits."""
    mean, log_std = outputs[: len(outputs) // 2], outputs[len(outputs) // 2 :]
    return Normal(mean, log_std.clamp(-7, 3).exp())


def standard_normal(like: Tensor) -> Normal:
    return Normal(torch.zeros_like(like), torch.ones_like(like))


def vae(model: VAE, frames: Tensor, noise: Tensor) -> Terms:
    embeddings = embed(model, frames)
    kl = frames.new_zeros(len(frames))
    codes = torch.zeros_like(noise)
    for b, t in np.ndindex(*frames.shape[:2]):
        q = posterior(model.head.layers(embeddings[b, t]))
        codes[b, t] = q.mean + q.stddev * noise[b, t]
        kl[b] += kl_divergence(q, standard_normal(q.mean)).sum()
    return {"log_likelihood": log_likelihood(model, codes, frames), "kl_codes": kl}


def affine(layer: torch.nn.Module, inputs: Tensor) -> Tensor:
    assert isinstance(layer, torch.nn.Linear)
    return layer.weight @ inputs + (0 if layer.bias is None else layer.bias)


def two_layers(network: torch.nn.Sequential, inputs: Tensor) -> Tensor:
    hidden, _, output = network
    return affine(output, affine(hidden, inputs).clamp_min(0))


def statistician(model: NeuralStatistician, frames: Tensor, context_noise: Tensor, code_noise: Tensor) -> Terms:
    embeddings = embed(model, frames)
    episodes, length = frames.shape[:2]
    kl_context, kl_codes = frames.new_zeros(episodes), frames.new_zeros(episodes)
    codes = torch.zeros_like(code_noise)
    for b in range(episodes):
        pooled = torch.zeros_like(embeddings[b, 0])
        for t in range(length):
            pooled += affine(model.before_pooling[0], embeddings[b, t]).clamp_min(0) / length
        q_context = posterior(two_layers(model.context_head, pooled))
        kl_context[b] = kl_divergence(q_context, standard_normal(q_context.mean)).sum()
        for t in range(length):
            context = q_context.mean + q_context.stddev * context_noise[b, t]
            q = posterior(two_layers(model.code_head.layers, torch.cat([embeddings[b, t], context])))
            p = posterior(two_layers(model.code_prior, context))
            codes[b, t] = q.mean + q.stddev * code_noise[b, t]
            kl_codes[b] += kl_divergence(q, p).sum()
    return {
        "log_likelihood": log_likelihood(model, codes, frames),
        "kl_codes": kl_codes,
        "kl_context": kl_context,
    }


def kanerva_write(z: np.ndarray, R: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recursive least squares, frame after frame, each addressed with the memory as it then stands."""
    for z_t in z:
        w = kanerva_address(z_t, R)
        gain = U @ w / (w @ U @ w + 1)
        R, U = R + np.outer(gain, z_t - R.T @ w), U - np.outer(gain, w @ U)
    return R, U


def kanerva_address(z_t: np.ndarray, R: np.ndarray) -> np.ndarray:
    return inv(R @ R.T + np.eye(len(R))) @ R @ z_t


def dkm(model: DKM, frames: Tensor, address_noise: Tensor, read_noise: Tensor) -> Terms:
    embeddings = embed(model, frames)
    (episodes, length), (rows, size) = frames.shape[:2], model.row_mean.shape
    std = model.address_log_std.exp()
    identity = torch.eye(rows, dtype=frames.dtype)
    kl_weights, kl_rows = frames.new_zeros(episodes), frames.new_zeros(episodes)
    read = torch.zeros_like(read_noise)
    for b in range(episodes):
        codes = embeddings[b].detach().numpy()
        R, U = kanerva_write(codes, model.row_mean.numpy(), np.eye(rows))
        for t in range(length):
            mean = torch.from_numpy(kanerva_address(codes[t], R))
            kl_weights[b] += kl_divergence(Normal(mean, std), standard_normal(mean)).sum()
            w = mean + std * address_noise[b, t]
            read[b, t] = torch.from_numpy(R).T @ w + (w @ torch.from_numpy(U) @ w).sqrt() * read_noise[b, t]
        for c in range(size):
            q = MultivariateNormal(torch.from_numpy(R[:, c].copy()), torch.from_numpy(U))
            kl_rows[b] += kl_divergence(q, MultivariateNormal(model.row_mean[:, c], identity))
    return {"log_likelihood": log_likelihood(model, read, frames), "kl_weights": kl_weights, "kl_rows": kl_rows}


def letters(memory: VariationalMemory, state: MemoryState, addresses: Addresses) -> tuple[Tensor, ...]:
    """R, U, mu_b, v_b of a factorised memory, theta, mu_w, Sigma_w, all with the partitions second: [B, G, ..]."""
    tensors = (state.factor_mean, state.factor_cov, state.loc_mean, state.loc_var, *vars(addresses).values())
    return tensors if memory.kind == "tree" else tuple(tensor.unsqueeze(1) for tensor in tensors)


def memory_divergences(
    memory: VariationalMemory, means: Tensor, variances: Tensor, state: MemoryState, addresses: Addresses
) -> Terms:
    """The five KL divergences of the memory model, for any prior of plain numbers but for its noise, which may be [C]:
    the variances of rows and locations then go with it, number by number, and are those of the prior in the mean."""
    R, U, mu, v, theta, mu_w, Sigma_w = letters(memory, state, addresses)
    episodes, length = means.shape[:2]
    _, G, H, K, C = R.shape
    others = ("choice", "factorised", "noise_var")
    prior = {name: float(value) for name, value in memory.config().items() if name not in others}
    noise_var = torch.as_tensor(memory.noise_var, dtype=means.dtype).expand(G * C).view(G, C)
    relative = noise_var / noise_var.mean()
    loc_var = prior["row_var"] if memory.kind == "categorical" else prior.get("loc_var")
    identity = torch.eye(K, dtype=means.dtype)
    names = ("kl_codes", "kl_assignments", "kl_weights", "kl_rows", "kl_locations")
    terms = {name: means.new_zeros(episodes) for name in names}
    for b, g, t in np.ndindex(episodes, G, length):
        assignment = theta[b, g, t]
        terms["kl_assignments"][b] += kl_divergence(
            Categorical(assignment), Categorical(torch.full_like(assignment, 1 / H))
        )
        for h in range(H):
            weights = mu_w[b, g, t, h]
            if K:
                q = MultivariateNormal(weights, Sigma_w[b, g, h])
                p = MultivariateNormal(torch.zeros_like(weights), identity)
                terms["kl_weights"][b] += assignment[h] * kl_divergence(q, p)
            for c in range(C):
                row = R[b, g, h, :, c]
                code = Normal(means[b, t, g * C + c], variances[b, t, g * C + c].sqrt())
                recalled = Normal(row @ weights + mu[b, g, h, c], noise_var[g, c].sqrt())
                # The variance of (M'w + b)_c adds to the expected square.
                var = weights @ U[b, g, h] @ weights + torch.trace(U[b, g, h] @ Sigma_w[b, g, h]) + v[b, g, h]
                var = relative[g, c] * var + row @ Sigma_w[b, g, h] @ row
                terms["kl_codes"][b] += assignment[h] * (kl_divergence(code, recalled) + 0.5 * var / noise_var[g, c])
    for b, g, h, c in np.ndindex(episodes, G, H, C):
        if K:
            q = MultivariateNormal(R[b, g, h, :, c], relative[g, c] * U[b, g, h])
            p = MultivariateNormal(torch.zeros(K, dtype=means.dtype), relative[g, c] * prior["row_var"] * identity)
            terms["kl_rows"][b] += kl_divergence(q, p)
        if loc_var is not None:
            std = relative[g, c].sqrt()
            location = Normal(mu[b, g, h, c], v[b, g, h].sqrt() * std)
            terms["kl_locations"][b] += kl_divergence(location, Normal(torch.zeros_like(std), loc_var**0.5 * std))
    return terms


def own_divergence(means: Tensor, variances: Tensor, priors: list[Normal] | None = None) -> Tensor:
    """KL of the frames' own parts [B, T, own_size], from a prior for every frame, by default N(0, I): [B]."""
    total = means.new_zeros(len(means))
    for number, (b, t) in enumerate(np.ndindex(*means.shape[:2])):
        prior = standard_normal(means[b, t]) if priors is None else priors[number]
        total[b] += kl_divergence(Normal(means[b, t], variances[b, t].sqrt()), prior).sum()
    return total


def sampled_kl_codes(
    memory: VariationalMemory, means: Tensor, variances: Tensor, state: MemoryState, addresses: Addresses, count: int
) -> Tensor:
    """`count` unbiased estimates of the expected KL of the codes, [count, B]: s, w, M and b drawn from q."""
    noise_std = float(memory.noise_var) ** 0.5
    total = means.new_zeros(count, len(means))
    R, U, mu, v, theta, mu_w, Sigma_w = letters(memory, state, addresses)
    _, G, _, K, C = R.shape
    for b, g, t in np.ndindex(len(means), G, means.shape[1]):
        s = Categorical(theta[b, g, t]).sample((count,))
        location = mu[b, g, s] + v[b, g, s].sqrt().unsqueeze(-1) * torch.randn(count, C, dtype=means.dtype)
        recalled = location
        if K:
            weights = MultivariateNormal(mu_w[b, g, t, s], Sigma_w[b, g, s]).sample()
            factor = torch.linalg.cholesky(U[b, g])[s]
            M = R[b, g, s] + factor @ torch.randn(count, K, C, dtype=means.dtype)
            recalled = location + torch.einsum("nk,nkc->nc", weights, M)
        piece = slice(g * C, (g + 1) * C)
        q = Normal(means[b, t, piece], variances[b, t, piece].sqrt())
        total[:, b] += kl_divergence(q, Normal(recalled, noise_std)).sum(-1)
    return total
