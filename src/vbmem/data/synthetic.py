"""Synthetic episodes from a linear Gaussian model (paper, appendix E.1)."""

import torch
from torch import Tensor


def linear_gaussian_episode(
    row_mean: Tensor,
    episode_length: int = 32,
    *,
    row_std: float = 1.0,
    noise_var: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Codes of episodes drawn by ancestral sampling: R_0 [.., K, C] -> z [.., T, C].

    M ~ MN(R_0, row_std^2 I, I) once an episode, then w_t ~ N(0, I_K) and z_t ~ N(M'w_t, noise_var I) for every frame.
    """
    *batch, rows, code_size = row_mean.shape

    def normal(*shape: int) -> Tensor:
        return row_mean.new_empty(*batch, *shape).normal_(generator=generator)

    memory = row_mean + row_std * normal(rows, code_size)
    return normal(episode_length, rows) @ memory + noise_var**0.5 * normal(episode_length, code_size)
