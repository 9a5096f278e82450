"""The density of a code under each cluster, with the uncertainty of rows and location integrated out.

A cluster holds q(M~) = MN(R~, U~, Psi/s), its location the last row. Given the weights w~ = (w, 1) of a code, M~ can be
integrated out exactly. What remains is an integral over the K weights:

    p(z) = E_w N(z; R~'w~, t(w) Psi),      t(w) = 1 + w~'(U~/s)w~,      w ~ N(0, I_K)

Were t a number, it would be Gaussian. So hold t(w) to a number t by a multiplier l, and integrate over both:

    p(z) = 1/(2 pi i) int int e^f(l, t) dl dt,      f(l, t) = log E_w e^(l (t(w) - t)) N(z; R~'w~, t Psi)

This is exact, f has a closed form, and its saddle point gives the integral. In a basis of the weights that is found
once per cluster, f is a sum over the K weights, but for the terms that `_off_diagonal` adds; so all that is done per
frame is elementwise, [.., H, K, T], in float64.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vbmem.linalg import common_basis, may_wait

SEARCH_STEPS = 20  # for t, at most; about 10 are needed
CLOSE = 0.0003  # a step after which the search is over
SLACK = 0.03  # by which a step may leave the bracket
POLISHING_STEPS = 2  # for both together
MULTIPLIER_STEPS = 4  # for l given t: Newton's, from the side on which it cannot overshoot


def log_densities(
    codes: Tensor, row_mean: Tensor, row_cov: Tensor, noise_var: Tensor, noise_scale: Tensor, located: bool
) -> Tensor:
    """log p(z_t | h) = log E_w N(z_t; R~_h'w~, t_h(w) Psi_h) of every frame and cluster, [.., H, T].

    Exact for K=0 and where the rows are certain (U_ww = 0), otherwise a saddle point: at the paper's size off by 0.03
    to 0.07 nats in the mean (benchmarks/densities.py). Codes ten standard deviations and more from a cluster whose RR'
    and U_ww do not commute can be off by some nats, up to a few percent of their log density.

    Args:
        codes: [.., T, C].
        row_mean: R~ [.., H, J, C], the location as its last row if there is one.
        row_cov: U~ [.., H, J, J].
        noise_var: the diagonal of Psi, [], [.., 1, C] or [.., H, C].
        noise_scale: s, [].
        located: whether the last row is a location (J = K + 1) or not (J = K).
    """
    noise = noise_var.double().expand(torch.broadcast_shapes(noise_var.shape, (1, codes.shape[-1])))  # [.., 1 or H, C]
    scaled = row_mean.double() / noise.sqrt().unsqueeze(-2)
    cluster = _reduce(scaled @ scaled.mT, row_cov.double() / noise_scale.double(), located)
    frames = _meet(codes.double(), scaled, noise, cluster)
    with torch.no_grad():
        root = _search(frames)
    saddle = _evaluate(frames, *_newton(frames, _evaluate(frames, *root)))  # a step with gradients, from a root without
    integral = saddle.value - 0.5 * saddle.det.log()
    constant = cluster.logdet + (2 * math.pi * noise * cluster.unit.unsqueeze(-1)).log().sum(-1)
    return (integral + _off_diagonal(cluster, saddle) - 0.5 * constant.unsqueeze(-1)).to(codes.dtype)


class _Cluster(NamedTuple):
    """Clusters in units of their noise. With c = U_ww^-1 U_wb the square in t(w) is complete,

        t(w) / t_0 = 1 + (w + c)'(U_ww / t_0)(w + c),     t_0 = 1 + U_bb - U_bw c,

    and w + c = V x, V'(I + RR' / (1 + U_bb))V = I, V'U_ww V = diag(e). Of the three matrices in f, I, RR' and U_ww, a
    basis can make two diagonal, and the third then nearly is in a memory that was written.
    """

    basis: Tensor  # [.., H, K, K]  V
    centre: Tensor  # [.., H, K, 1]  c
    unit: Tensor  # [.., H]        t_0
    usual: Tensor  # [.., H]        (1 + U_bb) / t_0
    prior: Tensor  # [.., H, K, 1]  p, the diagonal of V'V
    spread: Tensor  # [.., H, K, 1]  e / t_0
    gram: Tensor  # [.., H, K, K]  G = V'RR'V / t_0
    shift: Tensor  # [.., H, K, 1]  a = V'c
    loc: Tensor  # [.., H, K, 1]  V'R b', b' = b - R'c
    loc_square: Tensor  # [.., H]        |b'|^2
    logdet: Tensor  # [.., H]        log det(I + RR' / (1 + U_bb)) + |c|^2


class _Frames(NamedTuple):
    """What f needs of the codes, y = (z - b') / sqrt(t_0), beside the cluster and the diagonal g of its G."""

    cluster: _Cluster
    gram: Tensor  # [.., H, K, 1]  g
    projected: Tensor  # [.., H, K, T]  V'R y / sqrt(t_0)
    square: Tensor  # [.., H, T]     |y|^2
    code_size: int


class _Point(NamedTuple):
    """f at some l and t, and its derivatives by l and t, [.., H, T]; q(x) = N(mean, 1 / precision), [.., H, K, T]."""

    multiplier: Tensor  # l
    excess: Tensor  # t - 1
    precision: Tensor
    mean: Tensor
    value: Tensor
    up: Tensor  # E |y - R'Vx|^2 / 2 t^2, what pulls t up: f_t = up - C / 2t - l
    up_l: Tensor  # its derivatives
    up_t: Tensor
    by_l: Tensor
    by_t: Tensor
    ll: Tensor
    lt: Tensor
    tt: Tensor

    @property
    def det(self) -> Tensor:
        """Of minus the second derivatives; positive at a saddle point."""
        return (self.lt.square() - self.ll * self.tt).clamp(min=torch.finfo(self.lt.dtype).eps)


def _reduce(gram: Tensor, cov: Tensor, located: bool) -> _Cluster:
    """From R~ Psi^-1 R~' and U~ / s, both [.., H, J, J]."""
    count = gram.shape[-1] - located
    rows, loc, loc_square = _blocks(gram, count)
    row_cov, cross, loc_var = _blocks(cov, count)
    identity = torch.eye(count, dtype=gram.dtype, device=gram.device)
    usual = 1 + loc_var
    basis, spread, logdet = common_basis(identity + rows / usual[..., None, None], row_cov)
    spread, along = spread.unsqueeze(-1), basis.mT @ cross
    ratio = along / spread.clamp(min=torch.finfo(spread.dtype).eps)  # V^-1 c
    centre = basis @ ratio
    unit = usual - (along * ratio).sum((-1, -2))
    return _Cluster(
        basis,
        centre,
        unit,
        usual=usual / unit,
        prior=basis.square().sum(-2).unsqueeze(-1),
        spread=spread / unit[..., None, None],
        gram=basis.mT @ rows @ basis / unit[..., None, None],
        shift=basis.mT @ centre,
        loc=basis.mT @ (loc - rows @ centre),
        loc_square=loc_square + (centre * (rows @ centre - 2 * loc)).sum((-1, -2)),
        logdet=logdet + centre.square().sum((-1, -2)),
    )


def _blocks(matrix: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """A_ww [.., K, K], A_wb [.., K, 1] and A_bb [..] of A over rows and location; 0 where there is no location."""
    upper, lower = matrix[..., :count, :], matrix[..., count:, count:]
    return upper[..., :count], upper[..., count:].sum(-1, keepdim=True), lower.sum((-1, -2))


def _meet(codes: Tensor, rows: Tensor, noise: Tensor, cluster: _Cluster) -> _Frames:
    """All that has the size of the codes: one product with the rows and location, one of squares."""
    count = cluster.basis.shape[-1]
    stacked = rows / noise.sqrt().unsqueeze(-2)
    products = (stacked.flatten(-3, -2) @ codes.mT).unflatten(-2, rows.shape[-3:-1])  # R~ z  [.., H, J, T]
    squares = (1 / noise) @ codes.square().mT
    along = products[..., :count, :]
    loc = products[..., count:, :].sum(-2) - (cluster.centre * along).sum(-2)  # z . b'
    return _Frames(
        cluster,
        gram=cluster.gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-1),
        projected=(cluster.basis.mT @ along - cluster.loc) / cluster.unit[..., None, None],
        square=(squares - 2 * loc + cluster.loc_square.unsqueeze(-1)) / cluster.unit.unsqueeze(-1),
        code_size=codes.shape[-1],
    )


def _evaluate(frames: _Frames, multiplier: Tensor, excess: Tensor) -> _Point:
    """2 f(l, t) = sum_k (D m^2 - log D) - |y|^2 / t - C log t - 2 l (t - 1), without what `_off_diagonal` adds,

    D = p - 2 l e + g / t,     m = (a + V'R y / t) / D,

    and its derivatives: by l, E t(w) - t; by t, those of the expected squared distance E |y - R'Vx|^2.
    """
    spread, gram, projected, code_size = frames.cluster.spread, frames.gram, frames.projected, frames.code_size
    scale = 1 / (1 + excess)
    precision = _precision(frames, multiplier, excess)
    natural = frames.cluster.shift + scale.unsqueeze(-2) * projected
    var = 1 / precision
    mean = natural * var
    rest = projected - gram * mean
    distance = frames.square + (gram * var - (projected + rest) * mean).sum(-2)
    by_scale = (0.5 * (gram * var).square() + rest.square() * var).sum(-2)  # second derivative by 1 / t
    crossed = (spread * var * (2 * mean * rest - gram * var)).sum(-2)
    up, up_l = 0.5 * scale.square() * distance, -scale.square() * crossed
    up_t = scale.pow(3) * (scale * by_scale - distance)
    return _Point(
        multiplier,
        excess,
        precision,
        mean,
        value=0.5 * ((natural * mean - precision.log()).sum(-2) - frames.square * scale - code_size * excess.log1p())
        - multiplier * excess,
        up=up,
        up_l=up_l,
        up_t=up_t,
        by_l=(spread * (var + mean.square())).sum(-2) - excess,
        by_t=up - 0.5 * code_size * scale - multiplier,
        ll=(spread.square() * var * (2 * var + 4 * mean.square())).sum(-2),
        lt=up_l - 1,
        tt=up_t + 0.5 * code_size * scale.square(),
    )


def _precision(frames: _Frames, multiplier: Tensor, excess: Tensor) -> Tensor:
    """D = p - 2 l e + g / t, [.., H, K, T]."""
    cluster = frames.cluster
    return cluster.prior - 2 * multiplier.unsqueeze(-2) * cluster.spread + frames.gram / (1 + excess).unsqueeze(-2)


def _newton(frames: _Frames, point: _Point) -> tuple[Tensor, Tensor]:
    """l and t - 1 a step closer to where both derivatives vanish, unless it is a long one or leaves D > 0."""
    multiplier = point.multiplier + (point.tt * point.by_l - point.lt * point.by_t) / point.det
    excess = point.excess + (point.ll * point.by_t - point.lt * point.by_l) / point.det
    inside = ((excess - point.excess).abs() <= 1.001 * point.excess) & (_precision(frames, multiplier, excess) > 0).all(
        -2
    )
    return torch.where(inside, multiplier, point.multiplier), torch.where(inside, excess, point.excess)


def _off_diagonal(cluster: _Cluster, at: _Point) -> Tensor:
    """What O, the off-diagonal part of A = V'(I - 2 l U + RR'/t)V = D + O, adds to f: [.., H, T].

    To log det A, -|D^-1/2 O D^-1/2|^2 / 2; to h'A^-1 h, -m'Om and a step of conjugate gradients from m = D^-1 h. For
    codes so far off that D nearly vanishes O may be the larger; the correction then fades.
    """
    gram = cluster.gram - torch.diag_embed(cluster.gram.diagonal(dim1=-2, dim2=-1))
    var = 1 / at.precision
    factor = (1 / (1 + at.excess) - 1 / cluster.usual.unsqueeze(-1)).unsqueeze(-2)
    pull = factor * (gram @ at.mean)
    step = pull * var
    gain, stiffness = (pull * step).sum(-2), (step * factor * (gram @ step)).sum(-2)
    gain = gain.square() / (gain + stiffness.maximum(-0.5 * gain) + torch.finfo(gain.dtype).tiny)
    size = (factor.square() * var * (gram.square() @ var)).sum(-2)
    return 0.5 * (gain - (pull * at.mean).sum(-2) + 0.5 * size) / (1 + size.square())


def _search(frames: _Frames) -> tuple[Tensor, Tensor]:
    """l and t - 1 at the saddle point, [.., H, T]: for every t the l where f is least, and the t where that is most.

    Newton's steps for log(t - 1) on the logarithm of what pulls t up over what pulls it down, nearly a straight line;
    where one leaves the bracket, that is halved instead. l >= -C / 2t at the saddle point bounds t - 1 from below. Most
    pairs of a cluster and a frame take three or four steps; those that take more go on by themselves.
    """
    cluster, size = frames.cluster, frames.code_size
    if cluster.spread.shape[-2] == 0:
        return torch.zeros_like(frames.square), torch.zeros_like(frames.square)
    spread = cluster.spread.clamp(min=10 * torch.finfo(cluster.spread.dtype).eps)
    every = frames = frames._replace(cluster=cluster._replace(spread=spread))
    low = (spread / (cluster.prior + frames.gram + size * spread)).amax(-2).log().expand_as(frames.square)
    most = (cluster.shift.abs() + frames.projected.abs()) / cluster.prior
    high = ((spread * (1 / cluster.prior + most.square())).sum(-2) + frames.square.abs() + 1).log()
    start = _evaluate(frames, torch.zeros_like(low), torch.zeros_like(low))
    position = (2 * start.up / size - 1).maximum(start.by_l).log().clamp(low, high)  # of the t that would suit it
    found, pairs = position, None  # of every pair, and which of them are still sought
    for _ in range(SEARCH_STEPS):
        excess = position.exp()
        point = _evaluate(frames, _multiplier(frames, excess), excess)
        scale = 1 / (1 + excess)
        up, down = point.up, 0.5 * size * scale + point.multiplier  # df/dt = up - down
        low, high = torch.where(up > down, position, low), torch.where(up > down, high, position)
        curve = -point.lt / point.ll  # dl/dt where f_l stays 0
        down_slope, up_slope = curve - 0.5 * size * scale.square(), point.up_t + curve * point.up_l
        step = (up / down).log() / (excess * (up_slope / up - down_slope / down))
        inside = (position - step > low - SLACK) & (position - step < high + SLACK)
        step = torch.where(inside, step, position - 0.5 * (low + high))
        position = position - step
        found = position if pairs is None else found.flatten().index_copy(0, pairs, position[0]).view_as(found)
        if not may_wait(step):
            continue
        left = (step.abs() > CLOSE).flatten().nonzero().squeeze(-1)
        if len(left) == 0:
            break
        if 2 * len(left) < step.numel():
            pairs = left if pairs is None else pairs[left]
            frames = _of_pairs(frames, left)
            low, high, position = (tensor.flatten()[left].unsqueeze(0) for tensor in (low, high, position))
    excess = found.exp()
    root = _multiplier(every, excess), excess
    for _ in range(POLISHING_STEPS):
        root = _newton(every, _evaluate(every, *root))
    return root


def _of_pairs(frames: _Frames, pairs: Tensor) -> _Frames:
    """What a search needs of some pairs of a cluster and a frame, int64 [P], as if they were frames of one cluster."""
    shape = frames.projected.shape

    def picked(tensor: Tensor) -> Tensor:  # [.., H, K, T or 1] -> [1, K, P]
        return tensor.expand(shape).movedim(-2, 0).flatten(1)[:, pairs].unsqueeze(0)

    cluster = frames.cluster
    cluster = cluster._replace(prior=picked(cluster.prior), spread=picked(cluster.spread), shift=picked(cluster.shift))
    square = frames.square.flatten()[pairs].unsqueeze(0)
    return _Frames(cluster, picked(frames.gram), picked(frames.projected), square, frames.code_size)


def _multiplier(frames: _Frames, excess: Tensor) -> Tensor:
    """l where S(l) = E t(w) - 1 is t - 1. S^-1/2 is concave, so Newton's steps on it come down to the root from above.

    The k-th term of S alone, e / D + e h^2 / D^2, is no greater than t - 1: the start.
    """
    spread, scale, excess = frames.cluster.spread, 1 / (1 + excess.unsqueeze(-2)), excess.unsqueeze(-2)
    free = frames.cluster.prior + scale * frames.gram
    natural_square = (frames.cluster.shift + scale * frames.projected).square()
    least = (spread + (spread.square() + 4 * excess * spread * natural_square).sqrt()) / (2 * excess)
    twice = 2 * spread
    multiplier = ((free - least) / twice).amin(-2, keepdim=True)
    for _ in range(MULTIPLIER_STEPS):
        var = 1 / (free - multiplier * twice)
        share = twice * var
        square = natural_square * var
        total = (share * (1 + square)).sum(-2, keepdim=True)  # 2 S
        slope = (share.square() * (0.5 + square)).sum(-2, keepdim=True)  # S'
        multiplier = multiplier + total / slope * (1 - (0.5 * total / excess).sqrt())
    return multiplier.squeeze(-2)
