"""Mean-field variational Bayes for the one model behind every memory (paper, theorems C.1 to C.5):

    z | s=h, w  ~  N( M_h' w~ ,  Psi_h ),     s ~ p(s),   w ~ N(0, I_K),   w~ = (w, 1)

with M_h ~ MN(R_0, U_0, Psi_h / s): K factor rows, and a location as the last, whose weight is always 1. Gaussian
memory: H=1, no location, w~ = w. Categorical: K=0. Tree: the partitions are a batch dimension.

Pure functions over the records of `state`. A write alternates `local_step` (q(w|s), then q(s), then their sufficient
statistics) and `global_step` (q(M)); each raises the bound. Nothing of shape [.., T, H, C] is ever built. Inside,
frames are the last dimension, [.., H, K, T], so that every product is a plain matrix product.
"""

import math

import torch
from torch import Tensor

from vbmem.linalg import cholesky, inverse_and_logdet, small_matmul
from vbmem.memory.choice import draw_clusters
from vbmem.memory.state import Addresses, Bound, MemoryState, Prior, Statistics, below, block_diagonal

WEIGHT_PRECISION = "the precision of the addressing weights"


def local_step(
    codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None
) -> tuple[Addresses, Statistics]:
    """Optimal q(y_t) of every frame given the memory, and the sums over frames the next global step needs.

    codes [.., T, C]; mask [.., T], True where a frame counts, or how much it counts.
    """
    addresses = address(codes, state, prior, mask)
    return addresses, statistics(codes, addresses, prior)


def sweep(codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None) -> tuple[MemoryState, Addresses]:
    """One iteration of a write: local step, global step."""
    addresses, sums = local_step(codes, state, prior, mask)
    return global_step(sums, state, prior), addresses


def advance(codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None) -> MemoryState:
    """An iteration whose addresses nobody asks for: a compiled one then has no gradients of them to carry."""
    return sweep(codes, state, prior, mask)[0]


def address(codes: Tensor, state: MemoryState, prior: Prior, mask: Tensor | None = None) -> Addresses:
    """Theorem C.4, q(w|s) and then q(s). With G_h = R_h Psi_h^-1 R_h' + C U_h / s = E[M_h Psi_h^-1 M_h'], in it G_ww of
    the factors, G_wb of them with the location, and G_bb:

        Sigma_h = (I + G_ww)^-1,   y_th = R_h Psi_h^-1 z_t - G_wb,   mu_th = Sigma_h y_th
        log theta_th = log p(s=h) + mu_th . y_th / 2 + log det Sigma_h / 2
                       + b_h' Psi_h^-1 z_t - G_bb / 2 - (z_t' Psi_h^-1 z_t + log det Psi_h) / 2  + const

    which is the theorem's softmax at the optimal q(w|s). Rows and locations meet the codes in a single product.
    """
    log_likelihood, weight_mean, weight_cov = _explain(codes, state, prior)
    if prior.noise_var.shape[-2] > 1:
        log_likelihood = log_likelihood + _log_noise(codes.square(), prior)
    assignment = prior.choice.assign(log_likelihood)
    if mask is not None:
        assignment = assignment * mask.unsqueeze(-2)
    return Addresses(assignment.mT, weight_mean.movedim(-1, -3), weight_cov)


def local_bounds(codes: Tensor, state: MemoryState, prior: Prior, code_var: Tensor | None = None) -> Tensor:
    """A lower bound on log p(z_t | s=h, memory) with the best q(w_t | s=h) for every frame and cluster, [.., H, T]:

        l_th = E log p(z_t | s=h, w, M) - KL(q(w|s=h) || p(w))

    which is the logarithm of theta_th before p(s) and the softmax. With `code_var` for codes z_t ~ N(z_t, code_var)
    instead, -KL(q(z_t) || p(z_t | s=h, w, M)) takes the place of the log-density.
    """
    log_likelihood, _, _ = _explain(codes, state, prior)
    if code_var is None:
        return log_likelihood + _log_noise(codes.square(), prior)
    return log_likelihood + _log_noise(codes.square() + code_var, prior) + entropy(code_var).unsqueeze(-2)


def entropy(code_var: Tensor) -> Tensor:
    """Of q(z) = N(., diag(code_var)): [.., C] -> [..]."""
    return 0.5 * (code_var.log().sum(-1) + code_var.shape[-1] * (1 + math.log(2 * math.pi)))


def _log_noise(squares: Tensor, prior: Prior) -> Tensor:
    """-(z' Psi^-1 z + log det 2 pi Psi) / 2 of squares [.., T, C]: [.., 1 or H, T]."""
    logdet = (2 * math.pi * prior.noise_var).log().sum(-1)
    return -0.5 * ((1 / prior.noise_var) @ squares.mT + logdet.unsqueeze(-1))


def second_moments(state: MemoryState, prior: Prior) -> tuple[Tensor, Tensor]:
    """R Psi^-1, [.., H, J, C], and G = E[M Psi^-1 M'] = R Psi^-1 R' + C U / s, [.., H, J, J]."""
    precise = state.row_mean / prior.noise_var.unsqueeze(-2)
    spread = (state.row_mean.shape[-1] / prior.noise_scale) * state.row_cov
    return precise, small_matmul(precise, state.row_mean.mT) + spread


def _explain(codes: Tensor, state: MemoryState, prior: Prior) -> tuple[Tensor, Tensor, Tensor]:
    """How each cluster explains each frame: l_th [.., H, T] but for `_log_noise`, mu_w [.., H, K, T] and Sigma_w."""
    precise, gram = second_moments(state, prior)
    products = (precise.flatten(-3, -2) @ codes.mT).unflatten(-2, precise.shape[-3:-1])  # [.., H, J, T]
    rows = state.rows
    projected = products[..., :rows, :]  # y  [.., H, K, T]
    if prior.located:
        projected = projected - gram[..., :rows, -1:]
    weight_cov, logdet = _weight_cov(gram, rows)
    weight_mean = small_matmul(weight_cov, projected)  # [.., H, K, T]
    log_likelihood = 0.5 * ((weight_mean * projected).sum(-2) - logdet.unsqueeze(-1))
    if prior.located:
        log_likelihood = log_likelihood + products[..., -1, :] - 0.5 * gram[..., -1, -1:]
    return log_likelihood, weight_mean, weight_cov


def weight_cov(state: MemoryState, prior: Prior) -> Tensor:
    """Sigma_h = (I + G_ww)^-1, [.., H, K, K], of the weights of every frame."""
    return _weight_cov(second_moments(state, prior)[1], state.rows)[0]


def _weight_cov(gram: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Of G: Sigma, and log det Sigma^-1, [.., H]."""
    identity = torch.eye(rows, dtype=gram.dtype, device=gram.device)
    return inverse_and_logdet(identity + gram[..., :rows, :rows], WEIGHT_PRECISION)


def statistics(codes: Tensor, addresses: Addresses, prior: Prior, code_var: Tensor | None = None) -> Statistics:
    """n, S_ww, S_wz, S_zz of the frames; see `Statistics`."""
    theta = addresses.assignment.mT  # [.., H, T]
    weights = addresses.weight_mean.movedim(-3, -1)  # w  [.., H, K, T]
    count, spread = theta.sum(-1), addresses.weight_cov
    if prior.located:
        weights = below(weights, torch.ones_like(theta))  # w~  [.., H, J, T]
        spread = block_diagonal(spread, torch.zeros_like(count))
    weighted = theta.unsqueeze(-2) * weights
    squares = codes.square() if code_var is None else codes.square() + code_var
    shares = theta if prior.noise_var.shape[-2] > 1 else theta.sum(-2, keepdim=True)
    return Statistics(
        count=count,
        weight_outer=small_matmul(weighted, weights.mT) + count[..., None, None] * spread,
        weight_code=(weighted.flatten(-3, -2) @ codes).unflatten(-2, weighted.shape[-3:-1]),
        code_square=shares @ squares,
    )


def global_step(sums: Statistics, state: MemoryState, prior: Prior) -> MemoryState:
    """The optimal q(M) given the statistics, all rows together:

        U = P^-1,   P = U_0^-1 + S_ww / s,      R = U N,   N = U_0^-1 R_0 + S_wz / s

    or, factorised, block by block as theorem C.4 has it: the location given the factors of `state`, then the factors
    given the location; for a block B and the other rows O,  U_B = P_BB^-1,  R_B = U_B (N_B - P_BO R_O).
    """
    precision = prior.row_precision + sums.weight_outer / prior.noise_scale
    natural = prior.row_natural + sums.weight_code / prior.noise_scale
    if not (prior.located and prior.factorised):
        row_cov, _ = inverse_and_logdet(precision, "the precision of the memory rows")
        return MemoryState(small_matmul(row_cov, natural), row_cov, prior.located)
    rows = state.rows
    cross, loc_var = precision[..., :rows, -1:], 1 / precision[..., -1, -1]  # P_wb  [.., H, K, 1]
    loc_mean = loc_var.unsqueeze(-1) * (natural[..., -1, :] - (cross * state.factor_mean).sum(-2))
    factor_cov, _ = inverse_and_logdet(precision[..., :rows, :rows], "the precision of the memory rows")
    factor_mean = small_matmul(factor_cov, natural[..., :rows, :] - cross * loc_mean.unsqueeze(-2))
    return MemoryState.of(factor_mean, factor_cov, loc_mean, loc_var)


def residual(sums: Statistics, state: MemoryState, prior: Prior) -> Tensor:
    """sum_t theta E_q(w) (z_t - R'w~_t)^2 at the mean rows, by feature, [.., 1 or H, C], over all clusters or in each:

    S_zz + sum_j R_j ((S_ww R)_j - 2 (S_wz)_j)
    """
    rows = state.row_mean
    explained = (rows * (small_matmul(sums.weight_outer, rows) - 2 * sums.weight_code)).sum(-2)  # [.., H, C]
    if prior.noise_var.shape[-2] == 1:
        explained = explained.sum(-2, keepdim=True)
    return sums.code_square + explained


def log_likelihood(sums: Statistics, state: MemoryState, prior: Prior) -> Tensor:
    """E log p(z | y, M) of the frames that the statistics are of, [..]."""
    # What the uncertainty of the rows adds to the squared error is in units of the noise.
    spread = state.row_mean.shape[-1] * (state.row_cov * sums.weight_outer).sum((-1, -2)).sum(-1) / prior.noise_scale
    logdet = (sums.count * (2 * math.pi * prior.noise_var).log().sum(-1)).sum(-1)
    error = (residual(sums, state, prior) / prior.noise_var).sum((-1, -2))
    return -0.5 * (error + spread + logdet)


def bound(sums: Statistics, state: MemoryState, addresses: Addresses, prior: Prior) -> Bound:
    """The evidence lower bound (paper, appendix A), every expectation in closed form; terms of shape [..].

    Holds for any state and addresses, optimal or not, with the statistics of those addresses.
    """
    return bound_of_sums(sums, state, prior.choice.kl(addresses.assignment), addresses.weight_cov, prior)


def bound_of_sums(
    sums: Statistics,
    state: MemoryState,
    kl_assignments: Tensor,
    weight_cov: Tensor,
    prior: Prior,
    entropies: Tensor | None = None,
) -> Bound:
    """`bound` from what it needs of the addresses: sum_t KL(q(s_t) || p(s)), [..], and Sigma_w, [.., H, K, K]; and of
    codes with a posterior variance, which is in the statistics: sum_t H(q(z_t)), [..]."""
    rows, clusters = state.rows, state.row_mean.shape[-3]
    _, weight_logdet = inverse_and_logdet(weight_cov, "the covariance of the addressing weights")
    traces = sums.weight_outer.diagonal(dim1=-2, dim2=-1)[..., :rows].sum(-1)
    kl_rows, kl_locations = kl_memory(state, prior)
    explained = log_likelihood(sums, state, prior)
    return Bound(
        log_likelihood=explained if entropies is None else None,
        kl_codes=None if entropies is None else -entropies - explained,
        kl_assignments=kl_assignments + prior.choice.divergence(clusters, sums.count),
        kl_weights=0.5 * (traces - sums.count * (weight_logdet + rows)).sum(-1),
        kl_rows=kl_rows,
        kl_locations=kl_locations,
    )


def bound_of_codes(
    codes: Tensor, state: MemoryState, addresses: Addresses, prior: Prior, code_var: Tensor | None = None
) -> Bound:
    """The bound of codes [.., T, C] that are known exactly, or have the posterior variance `code_var`."""
    sums, kl_assignments, entropies = sums_of_codes(codes, addresses, prior, code_var)
    return bound_of_sums(sums, state, kl_assignments, addresses.weight_cov, prior, entropies)


def sums_of_codes(
    codes: Tensor, addresses: Addresses, prior: Prior, code_var: Tensor | None = None
) -> tuple[Statistics, Tensor, Tensor | None]:
    """All that the bound needs of the frames, as `bound_of_sums` takes it: sums over them."""
    entropies = None if code_var is None else (addresses.assignment.sum(-1) * entropy(code_var)).sum(-1)
    return statistics(codes, addresses, prior, code_var), prior.choice.kl(addresses.assignment), entropies


def kl_memory(state: MemoryState, prior: Prior) -> tuple[Tensor, Tensor]:
    """KL(q(M) || p(M)) summed over clusters (paper, D.1), in two parts: of the factors given the locations, and of the
    locations."""
    row_count, code_size = state.row_mean.shape[-2:]
    shift = state.row_mean - prior.row_mean
    scale = prior.noise_scale / prior.noise_var  # 1, where the noise is the same in all features
    trace = (prior.row_precision * state.row_cov).sum((-1, -2))
    quadratic = (shift * (prior.row_precision @ shift) * scale.unsqueeze(-2)).sum((-1, -2))
    _, logdet = inverse_and_logdet(state.row_cov, "the covariance of the memory rows")
    whole = 0.5 * (code_size * (trace - row_count - logdet + prior.row_logdet) + quadratic).sum(-1)
    if not prior.located:
        return whole, torch.zeros_like(whole)
    ratio = state.loc_var * prior.row_precision[..., -1, -1]
    square = (shift[..., -1, :].square() * scale).sum(-1) * prior.row_precision[..., -1, -1]
    locations = 0.5 * (code_size * (ratio - 1 - ratio.log()) + square).sum(-1)
    return whole - locations if state.rows else torch.zeros_like(whole), locations


def recall(state: MemoryState, addresses: Addresses) -> Tensor:
    """E[M'w~] = sum_h theta_h (R_h' mu_h + b_h) for every frame, [.., T, C]."""
    theta = addresses.assignment
    weights = addresses.weight_mean  # [.., T, H, K]
    if state.located:
        weights = torch.cat([weights, torch.ones_like(theta).unsqueeze(-1)], dim=-1)
    weighted = theta.unsqueeze(-1) * weights
    return weighted.flatten(-2) @ state.row_mean.flatten(-3, -2)


def draw(
    addresses: Addresses, generator: torch.Generator | None = None, *, sample: bool = True
) -> tuple[Tensor, Tensor]:
    """s ~ q(s) and w ~ q(w|s) of every frame: clusters [.., T], weights [.., T, K]. Without `sample`, the most
    probable cluster and its mean weights."""
    theta, means = addresses.assignment, addresses.weight_mean
    clusters = draw_clusters(theta, generator) if sample else theta.argmax(-1)
    weights = means.gather(-2, clusters[..., None, None].expand(*clusters.shape, 1, means.shape[-1])).squeeze(-2)
    if sample and means.shape[-1] > 0:
        factors = cholesky(addresses.weight_cov, "the covariance of the addressing weights")
        noise = torch.empty_like(weights).normal_(generator=generator)
        weights = weights + (of_each(factors, clusters) @ noise.unsqueeze(-1)).squeeze(-1)
    return clusters, weights


def of_each(per_cluster: Tensor, clusters: Tensor) -> Tensor:
    """What the cluster of every code has: [.., H, *rest] and int64 [.., n] -> [.., n, *rest]."""
    rest = per_cluster.shape[clusters.ndim :]
    index = clusters.reshape(*clusters.shape, *(1 for _ in rest)).expand(*clusters.shape, *rest)
    return per_cluster.gather(clusters.ndim - 1, index)


def emit(
    state: MemoryState,
    prior: Prior,
    clusters: Tensor,
    weights: Tensor,
    generator: torch.Generator | None = None,
    *,
    sample: bool = True,
) -> Tensor:
    """z ~ p(z | s, w, M) with a fresh M ~ q for every code: clusters [.., n], weights [.., n, K] -> [.., n, C].

    Given s=h and w, M'w~ + noise is N(R_h'w~, (1 + w~'U_h w~ / s) Psi_h), so M itself is never drawn. Without `sample`,
    its mean.
    """
    if prior.located:
        weights = torch.cat([weights, weights.new_ones(*clusters.shape, 1)], dim=-1)
    mean = (weights.unsqueeze(-2) @ of_each(state.row_mean, clusters)).squeeze(-2)
    if not sample:
        return mean
    spread = (weights.unsqueeze(-2) @ of_each(state.row_cov, clusters) @ weights.unsqueeze(-1)).squeeze(-1)
    noise_var = of_each(prior.noise_var.expand(*clusters.shape[:-1], state.row_mean.shape[-3], -1), clusters)
    var = (1 + spread / prior.noise_scale) * noise_var
    return mean + var.sqrt() * torch.empty_like(mean).normal_(generator=generator)
