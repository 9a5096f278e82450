"""What `benchmarks/write.py` measures against: the same writes done the straightforward way."""

from __future__ import annotations

import warnings

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import BayesianGaussianMixture
from torch import Tensor


def spd_inverse(matrix: Tensor) -> Tensor:
    """By Cholesky: quicker than torch.linalg.inv, whose batched LU is moreover broken in this build of MKL."""
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))


def transcribed_write(codes: Tensor, clusters: int, rows: int, iterations: int) -> tuple[Tensor, ...]:
    """Theorem C.4 as one would type it from the paper: order s, b, w, M; einsum over [B, T, H, C]; full C x C
    covariances of the locations, inverted as matrices. Same prior, same kind of start, no gradients."""
    batch, frames, size = codes.shape
    noise, row_var, loc_var = 0.2 * rows, 0.4, 0.4 * rows
    eye_k, eye_c = torch.eye(rows), torch.eye(size)
    chosen = torch.stack([torch.randperm(frames)[torch.arange(clusters) % frames] for _ in range(batch)])
    loc = torch.gather(codes, 1, chosen[..., None].expand(-1, -1, size))  # [B, H, C]
    loc_cov = (loc_var * eye_c).expand(batch, clusters, size, size)
    row_mean = torch.randn(batch, clusters, rows, size) / size
    row_cov = (eye_k / size).expand(batch, clusters, rows, rows)
    weight = torch.zeros(batch, frames, clusters, rows)
    weight_cov = eye_k.expand(batch, clusters, rows, rows)
    for _ in range(iterations):
        gram = row_mean @ row_mean.mT + size * row_cov  # [B, H, K, K]
        centred = codes[:, :, None, :] - loc[:, None]  # [B, T, H, C]
        quadratic = torch.einsum("bthk,bhkl,bthl->bth", weight, gram, weight)
        traces = torch.einsum("bhkl,bhlk->bh", gram, weight_cov)[:, None]
        norms = loc.square().sum(-1)[:, None] + loc_cov.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None]
        cross = torch.einsum("bthk,bhkc,bthc->bth", weight, row_mean, centred)
        overlap = torch.einsum("bhc,btc->bth", loc, codes)
        entropy = 2 * torch.linalg.cholesky(weight_cov).diagonal(dim1=-2, dim2=-1).log().sum(-1)[:, None]
        energy = weight.square().sum(-1) + weight_cov.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None]
        logits = (cross + overlap - 0.5 * (quadratic + traces + norms)) / noise + 0.5 * (entropy - energy)
        theta = logits.softmax(-1)  # [B, T, H]

        count = theta.sum(1)
        loc_cov = spd_inverse(eye_c / loc_var + count[..., None, None] / noise * eye_c)
        read = torch.einsum("bhkc,bthk->bthc", row_mean, weight)
        residual = torch.einsum("bth,bthc->bhc", theta, codes[:, :, None, :] - read)
        loc = torch.einsum("bhcd,bhd->bhc", loc_cov, residual / noise)

        weight_cov = spd_inverse(eye_k + (row_mean @ row_mean.mT + size * row_cov) / noise)
        centred = codes[:, :, None, :] - loc[:, None]
        weight = torch.einsum("bhkl,bhlc,bthc->bthk", weight_cov, row_mean, centred) / noise

        outer = torch.einsum("bth,bthk,bthl->bhkl", theta, weight, weight)
        outer = outer + count[..., None, None] * weight_cov
        row_cov = spd_inverse(eye_k / row_var + outer / noise)
        row_mean = row_cov @ torch.einsum("bth,bthk,bthc->bhkc", theta, weight, centred) / noise
    return row_mean, row_cov, loc, loc_cov, theta, weight


def sklearn_write(codes: Tensor, clusters: int, iterations: int, covariance: str) -> None:
    """scikit-learn's variational mixture, episode by episode, the same number of components and iterations."""
    for episode in codes.numpy():
        model = BayesianGaussianMixture(
            n_components=min(clusters, len(episode)),
            covariance_type=covariance,
            max_iter=iterations,
            tol=0,
            init_params="k-means++",
            reg_covar=1e-3,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(episode)
