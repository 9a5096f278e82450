"""Mean-field variational Bayes for the one model behind every memory (paper, theorems C.1 to C.5):

    z | s=h, w  ~  N( M_h' w + b_h ,  sigma_z^2 I ),     s ~ p(s),   w ~ N(0, I_K)

with M_h ~ MN(R_0, U_0, I) and b_h ~ N(mu_b0, v_b0 I). Gaussian memory: H=1, no b. Categorical: K=0. Tree: the
partitions are a batch dimension.

Pure functions over the records of `state`. A write alternates `local_step` (q(w|s), then q(s), then their sufficient
statistics) and `global_step` (q(b), then q(M)); each of the four raises the bound. Nothing of shape [.., T, H, C]
is ever built. Inside, frames are the last dimension, [.., H, K, T], so that every product is a plain matrix product.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from vbmem.linalg import cholesky, inverse_and_logdet, small_matmul
from vbmem.memory.choice import draw_clusters
from vbmem.memory.state import Addresses, Bound, MemoryState, Prior, Statistics


def local_step(
    codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None
) -> tuple[Addresses, Statistics]:
    """Optimal q(y_t) of every frame given the memory, and the sums over frames the next global step needs.

    codes [.., T, C]; mask [.., T], True where a frame counts.
    """
    addresses = address(codes, state, prior, mask)
    return addresses, statistics(codes, addresses)


def sweep(codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None) -> tuple[MemoryState, Addresses]:
    """One iteration of a write: local step, global step."""
    addresses, sums = local_step(codes, state, prior, mask)
    return global_step(sums, state, prior), addresses


def advance(codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None) -> MemoryState:
    """An iteration whose addresses nobody asks for: a compiled one then has no gradients of them to carry."""
    return sweep(codes, state, prior, mask)[0]


def address(codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None) -> Addresses:
    """Theorem C.4, q(w|s) and then q(s):

        Sigma_h = (I + (R_h R_h' + C U_h) / sigma^2)^-1,   mu_th = Sigma_h R_h (z_t - b_h) / sigma^2
        log theta_th = log p(s=h) + mu_th' Sigma_h^-1 mu_th / 2 + log det Sigma_h / 2
                       + (z_t . b_h - |b_h|^2 / 2 - C v_h / 2) / sigma^2  + const

    which is the theorem's softmax at the optimal q(w|s). The quadratic term is mu_th . y_th / 2 with
    y_th = R_h (z_t - b_h) / sigma^2, so rows and locations meet the codes in a single product.
    """
    log_likelihood, weight_mean, weight_cov = _explain(codes, state, prior)
    assignment = prior.choice.assign(log_likelihood)
    if mask is not None:
        assignment = assignment * mask.unsqueeze(-2)
    return Addresses(assignment.mT, weight_mean.movedim(-1, -3), weight_cov)


def local_bounds(codes: Tensor, state: MemoryState, prior: Prior, code_var: Tensor | None = None) -> Tensor:
    """A lower bound on log p(z_t | s=h, memory) with the best q(w_t | s=h) for every frame and cluster, [.., H, T]:

        l_th = E log p(z_t | s=h, w, M, b) - KL(q(w|s=h) || p(w))

    which is the logarithm of theta_th before p(s) and the softmax. With `code_var` for codes z_t ~ N(z_t, code_var)
    instead, -KL(q(z_t) || p(z_t | s=h, w, M, b)) takes the place of the log-density.
    """
    log_likelihood, _, _ = _explain(codes, state, prior)
    size, squares = codes.shape[-1], codes.square().sum(-1)
    constant = -0.5 * size * (2 * math.pi * prior.noise_var).log()
    if code_var is not None:
        squares = squares + code_var.sum(-1)
        constant = constant + entropy(code_var)
    return log_likelihood + (constant - 0.5 * squares / prior.noise_var).unsqueeze(-2)


def entropy(code_var: Tensor) -> Tensor:
    """Of q(z) = N(., diag(code_var)): [.., C] -> [..]."""
    return 0.5 * (code_var.log().sum(-1) + code_var.shape[-1] * (1 + math.log(2 * math.pi)))


def _explain(codes: Tensor, state: MemoryState, prior: Prior) -> tuple[Tensor, Tensor, Tensor]:
    """How each cluster explains each frame: l_th [.., H, T] but for what all share, mu_w [.., H, K, T] and Sigma_w."""
    rows, loc = state.row_mean, state.loc_mean
    clusters, row_count, code_size = rows.shape[-3:]
    if prior.has_location:
        gram = small_matmul(rows, rows.mT)
        stacked = torch.cat([rows, loc.unsqueeze(-2)], dim=-2) / prior.noise_var
        products = (stacked.flatten(-3, -2) @ codes.mT).unflatten(-2, (clusters, row_count + 1))
        row_loc = (rows * loc.unsqueeze(-2)).sum(-1, keepdim=True) / prior.noise_var  # R b  [.., H, K, 1]
        projected = products[..., :-1, :] - row_loc  # y  [.., H, K, T]
    else:  # a single cluster: its rows meet the codes and themselves in one product
        both = torch.cat([codes.unsqueeze(-3).expand(*rows.shape[:-2], -1, -1), rows], dim=-2)
        projected, gram = (rows @ both.mT).split([codes.shape[-2], row_count], dim=-1)
        projected = projected / prior.noise_var
    identity = torch.eye(row_count, dtype=rows.dtype, device=rows.device)
    precision = identity + (gram + code_size * state.row_cov) / prior.noise_var
    weight_cov, logdet = inverse_and_logdet(precision, "the precision of the addressing weights")
    weight_mean = small_matmul(weight_cov, projected)  # [.., H, K, T]
    log_likelihood = 0.5 * ((weight_mean * projected).sum(-2) - logdet.unsqueeze(-1))
    if prior.has_location:
        norm = 0.5 * (loc.square().sum(-1) + code_size * state.loc_var) / prior.noise_var
        log_likelihood = log_likelihood + products[..., -1, :] - norm.unsqueeze(-1)
    return log_likelihood, weight_mean, weight_cov


def statistics(codes: Tensor, addresses: Addresses, code_var: Tensor | None = None) -> Statistics:
    """n, S_z, S_w, S_ww, S_wz, S_zz of the frames; see `Statistics`."""
    theta = addresses.assignment.mT  # [.., H, T]
    weights = addresses.weight_mean.movedim(-3, -1)  # [.., H, K, T]
    weighted = theta.unsqueeze(-2) * weights
    stacked = torch.cat([weighted, theta.unsqueeze(-2)], dim=-2)
    sums = (stacked.flatten(-3, -2) @ codes).unflatten(-2, stacked.shape[-3:-1])  # [.., H, K + 1, C]
    count, squares = theta.sum(-1), codes.square().sum(-1)
    if code_var is not None:
        squares = squares + code_var.sum(-1)
    return Statistics(
        count=count,
        code_sum=sums[..., -1, :],
        weight_sum=weighted.sum(-1),
        weight_outer=small_matmul(weighted, weights.mT) + count[..., None, None] * addresses.weight_cov,
        weight_code=sums[..., :-1, :],
        code_square=(addresses.assignment.sum(-1) * squares).sum(-1),
    )


def global_step(sums: Statistics, state: MemoryState, prior: Prior) -> MemoryState:
    """Theorem C.4, q(b) and then q(M), from the statistics and the prior:

        v_b = (1/v_b0 + n/sigma^2)^-1,       mu_b = v_b (mu_b0/v_b0 + (S_z - R' S_w) / sigma^2)
        U   = (U_0^-1 + S_ww/sigma^2)^-1,    R    = U (U_0^-1 R_0 + (S_wz - S_w mu_b') / sigma^2)

    Without locations the first line falls away.
    """
    noise_var, rows = prior.noise_var, state.row_mean
    loc_mean, loc_var, weight_code = state.loc_mean, state.loc_var, sums.weight_code
    if prior.has_location:
        total = noise_var + sums.count * prior.loc_var
        residual = sums.code_sum - (rows * sums.weight_sum.unsqueeze(-1)).sum(-2)
        loc_var = prior.loc_var * noise_var / total
        loc_mean = (noise_var * prior.loc_mean + prior.loc_var.unsqueeze(-1) * residual) / total.unsqueeze(-1)
        weight_code = weight_code - sums.weight_sum.unsqueeze(-1) * loc_mean.unsqueeze(-2)
    precision = prior.row_precision + sums.weight_outer / noise_var
    row_cov, _ = inverse_and_logdet(precision, "the precision of the memory rows")
    row_mean = small_matmul(row_cov, prior.row_natural + weight_code / noise_var)
    return MemoryState(row_mean, row_cov, loc_mean, loc_var)


def residual(sums: Statistics, state: MemoryState) -> Tensor:
    """E sum_t |z_t - M'w_t - b|^2 over the frames that the statistics are of, [..]:

    S_zz + sum_h  tr(G S_ww) - 2 tr(R (S_wz - S_w b')') + n (|b|^2 + C v_b) - 2 b . S_z,   G = R R' + C U
    """
    rows, loc = state.row_mean, state.loc_mean
    code_size = rows.shape[-1]
    gram = small_matmul(rows, rows.mT) + code_size * state.row_cov
    cross = sums.weight_code - sums.weight_sum.unsqueeze(-1) * loc.unsqueeze(-2)
    explained = (
        (gram * sums.weight_outer).sum((-1, -2))
        - 2 * (rows * cross).sum((-1, -2))
        - 2 * (loc * sums.code_sum).sum(-1)
        + sums.count * (loc.square().sum(-1) + code_size * state.loc_var)
    )
    return explained.sum(-1) + sums.code_square


def bound(sums: Statistics, state: MemoryState, addresses: Addresses, prior: Prior) -> Bound:
    """The evidence lower bound (paper, appendix A), every expectation in closed form; terms of shape [..].

    Holds for any state and addresses, optimal or not, with the statistics of those addresses.
    """
    row_count, code_size = state.row_mean.shape[-2:]
    numbers = sums.count.sum(-1) * code_size
    _, weight_logdet = inverse_and_logdet(addresses.weight_cov, "the covariance of the addressing weights")
    traces = sums.weight_outer.diagonal(dim1=-2, dim2=-1).sum(-1)
    return Bound(
        log_likelihood=-0.5
        * (residual(sums, state) / prior.noise_var + numbers * (2 * math.pi * prior.noise_var).log()),
        kl_codes=None,
        kl_assignments=prior.choice.kl(addresses.assignment),
        kl_weights=0.5 * (traces - sums.count * (weight_logdet + row_count)).sum(-1),
        kl_rows=_kl_rows(state, prior),
        kl_locations=_kl_locations(state, prior),
    )


def bound_of_codes(
    codes: Tensor, state: MemoryState, addresses: Addresses, prior: Prior, code_var: Tensor | None = None
) -> Bound:
    """The bound of codes [.., T, C] that are known exactly, or have the posterior variance `code_var`."""
    exact = bound(statistics(codes, addresses, code_var), state, addresses, prior)
    if code_var is None:
        return exact
    assert exact.log_likelihood is not None
    entropies = (addresses.assignment.sum(-1) * entropy(code_var)).sum(-1)
    return replace(exact, log_likelihood=None, kl_codes=-entropies - exact.log_likelihood)


def _kl_rows(state: MemoryState, prior: Prior) -> Tensor:
    """Sum over clusters of KL(q(M_h) || p(M_h)), paper D.1."""
    row_count, code_size = state.row_mean.shape[-2:]
    shift = state.row_mean - prior.row_mean
    trace = (prior.row_precision * state.row_cov).sum((-1, -2))
    quadratic = (shift * (prior.row_precision @ shift)).sum((-1, -2))
    _, logdet = inverse_and_logdet(state.row_cov, "the covariance of the memory rows")
    return 0.5 * (code_size * (trace - row_count - logdet + prior.row_logdet) + quadratic).sum(-1)


def _kl_locations(state: MemoryState, prior: Prior) -> Tensor:
    """Sum over clusters of KL(q(b_h) || p(b_h))."""
    if not prior.has_location:
        return torch.zeros_like(state.loc_var).sum(-1)
    ratio = state.loc_var / prior.loc_var
    quadratic = (state.loc_mean - prior.loc_mean).square().sum(-1) / prior.loc_var
    return 0.5 * (state.loc_mean.shape[-1] * (ratio - 1 - ratio.log()) + quadratic).sum(-1)


def recall(state: MemoryState, addresses: Addresses) -> Tensor:
    """E[M'w + b] = sum_h theta_h (R_h' mu_h + b_h) for every frame, [.., T, C]."""
    theta = addresses.assignment
    weighted = theta.unsqueeze(-1) * addresses.weight_mean  # [.., T, H, K]
    return weighted.flatten(-2) @ state.row_mean.flatten(-3, -2) + theta @ state.loc_mean


def log_densities(codes: Tensor, state: MemoryState, prior: Prior) -> Tensor:
    """log N(z; b_h, R_h'R_h + (sigma^2 + v_h + tr U_h) I) for every cluster and frame, [.., H, T].

    Given w, integrating q(M) and q(b) out is exact: N(z; R'w + b, (sigma^2 + v + w'Uw) I). Integrating w ~ N(0, I) out
    of a variance that depends on it is not Gaussian; the Gaussian with the same mean and covariance stands in for it.
    Exact for K=0 and where U = 0.
    """
    rows, loc = state.row_mean, state.loc_mean
    clusters, row_count, code_size = rows.shape[-3:]
    var = prior.noise_var + state.loc_var + state.row_cov.diagonal(dim1=-2, dim2=-1).sum(-1)  # [.., H]
    identity = torch.eye(row_count, dtype=rows.dtype, device=rows.device)
    inverse, logdet = inverse_and_logdet(identity + rows @ rows.mT / var[..., None, None], "the predictive covariance")
    stacked = torch.cat([rows, loc.unsqueeze(-2)], dim=-2)
    products: Tensor = (stacked.flatten(-3, -2) @ codes.mT).unflatten(-2, (clusters, row_count + 1))
    projected = products[..., :-1, :] - (rows * loc.unsqueeze(-2)).sum(-1, keepdim=True)  # R (z - b)  [.., H, K, T]
    explained = ((inverse @ projected) * projected).sum(-2) / var.unsqueeze(-1)
    squares = codes.square().sum(-1).unsqueeze(-2) - 2 * products[..., -1, :] + loc.square().sum(-1).unsqueeze(-1)
    quadratic = (squares - explained) / var.unsqueeze(-1)
    logdet = logdet + code_size * (2 * math.pi * var).log()
    return -0.5 * (quadratic + logdet.unsqueeze(-1))


def draw(
    addresses: Addresses, generator: torch.Generator | None = None, *, sample: bool = True
) -> tuple[Tensor, Tensor]:
    """s ~ q(s) and w ~ q(w|s) of every frame: clusters [.., T], weights [.., T, K]. Without `sample`, the most
    probable cluster and its mean weights."""
    theta, means = addresses.assignment, addresses.weight_mean
    clusters = draw_clusters(theta, generator) if sample else theta.argmax(-1)
    weights = means.gather(-2, clusters[..., None, None].expand(*clusters.shape, 1, means.shape[-1])).squeeze(-2)
    if sample and means.shape[-1] > 0:
        factors = cholesky(addresses.weight_cov, "the covariance of the addressing weights").flatten(-2)  # [.., H, KK]
        chosen = factors.gather(-2, clusters.unsqueeze(-1).expand(*clusters.shape, factors.shape[-1]))
        noise = torch.empty_like(weights).normal_(generator=generator)
        weights = weights + (chosen.unflatten(-1, (means.shape[-1], -1)) @ noise.unsqueeze(-1)).squeeze(-1)
    return clusters, weights


def emit(
    state: MemoryState,
    prior: Prior,
    clusters: Tensor,
    weights: Tensor,
    generator: torch.Generator | None = None,
    *,
    sample: bool = True,
) -> Tensor:
    """z ~ p(z | s, w, M, b) with a fresh M, b ~ q for every code: clusters [.., n], weights [.., n, K] -> [.., n, C].

    Given s=h and w, M'w + b + noise is N(R_h'w + b_h, (w'U_h w + v_h + sigma^2) I), so M itself is never drawn.
    Without `sample`, its mean.
    """
    batch = clusters.shape[:-1]

    def chosen(per_cluster: Tensor) -> Tensor:  # [.., H, *rest] -> [.., n, *rest]
        rest = per_cluster.shape[len(batch) + 1 :]
        index = clusters.reshape(*clusters.shape, *(1 for _ in rest)).expand(*clusters.shape, *rest)
        return per_cluster.gather(len(batch), index)

    mean = (weights.unsqueeze(-2) @ chosen(state.row_mean)).squeeze(-2) + chosen(state.loc_mean)
    if not sample:
        return mean
    spread = (weights.unsqueeze(-2) @ chosen(state.row_cov) @ weights.unsqueeze(-1)).squeeze(-1)
    var = spread + chosen(state.loc_var).unsqueeze(-1) + prior.noise_var
    return mean + var.sqrt() * torch.empty_like(mean).normal_(generator=generator)
