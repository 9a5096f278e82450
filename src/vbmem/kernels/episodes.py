"""Iterations of many short episodes in coordinates of their frames: kernels with a program for every cluster or every
episode, for all that is not one large matrix product. Letters and equations as in `vbmem.memory.short`, in float32.

A cluster has K + 1 rows here, the last of them of e, of the location or of nothing. Logarithms of theta are in bits.
"""

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

DEEPEST = 8  # rows of a cluster
MOST_PRODUCTS = 2**12  # of pairs of rows of a cluster, frame by frame, that one warp holds in its registers
MOST_ROWS = 2**8  # of all clusters of an episode together
TILE = 2**13  # numbers of an episode that a program assigns at a time
BITS = tl.constexpr(1.4426950408889634)  # in a nat
SWEEPS = tl.constexpr(6)  # of rotations, after which nothing is left beside the diagonal of up to 8 x 8 numbers


def fits(rows: int, clusters: int, frames: int) -> bool:
    """Whether K + 1 rows of H clusters, and T frames, do: where a cluster is the work of a single warp. Several wait
    for each other in every step of an elimination, and took two to five times as long on an H200."""
    depth = _power(rows)
    few = depth <= DEEPEST and depth * _power(clusters) <= MOST_ROWS
    return few and depth**2 * _power(frames) <= MOST_PRODUCTS


def assign(met: Tensor, counts: Tensor | None) -> Tensor:
    """theta v, and below it theta, of frames that meet clusters.

    Args:
        met: v, and below it e, [B, H, K + 1, T].
        counts: how much every frame counts, [B, T]; by default 1.

    Returns:
        [B, H, K + 1, T].
    """
    batch, clusters, rows, frames = met.shape
    weighted = torch.empty_like(met)
    depth, across = _power(rows), _power(clusters)
    block = min(max(TILE // (depth * across), 1), _power(frames))
    _assign[(batch, triton.cdiv(frames, block))](
        met, counts, weighted, frames, clusters, rows, depth, across, block, num_warps=4
    )
    return weighted


def update(
    weighted: Tensor, back: Tensor, precision: Tensor, scale: Tensor, located: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The global step: A, U and S_ww.

    Args:
        weighted: theta v and theta, [B, H, K + 1, T].
        back: L'^-1 of the memory that the frames met, [B, H, K + 1, K + 1], its last row and column 0.
        precision: U_0^-1, [B, H, J, J], of any strides.
        scale: s, [].
        located: the last row is a location.

    Returns:
        A [B, H, K + 1, T], of which rows from J on are 0, U [B, H, J, J], and S_ww of w~ = (w, 1) even where there are
        no locations, [B, H, K + 1, K + 1].
    """
    batch, clusters, rows, frames = weighted.shape
    count = rows - 1 + located
    coefficients, outer = torch.empty_like(weighted), torch.empty_like(back)
    row_cov = weighted.new_empty(batch, clusters, count, count)
    _update[(batch * clusters,)](
        weighted, back, precision, scale, coefficients, row_cov, outer, *precision.stride(), clusters, frames, rows,
        count, _power(rows), _power(frames), num_warps=1,
    )  # fmt: skip
    return coefficients, row_cov, outer


def begin(met: Tensor, gram: Tensor, log_prior: Tensor, offset: Tensor | None, located: bool) -> tuple[Tensor, Tensor]:
    """Frames meet the memory that a write begins with.

    Args:
        met: R Psi^-1 Z', [B, H, K + 1, T], where it ends in a row of zeros if there are no locations; overwritten.
        gram: G, [B, H, J, J].
        log_prior: log p(s) and all that depends neither on a frame nor on the memory, [B, H], of any strides.
        offset: what of log theta in bits depends on the frame and the cluster alone, [B, H, T], of any strides.
        located: the last row is a location.

    Returns:
        v and below it e, [B, H, K + 1, T], and L'^-1 as `update` takes it.
    """
    return _met(met, log_prior, offset, located, gram=gram)


def meet(
    met: Tensor, coefficients: Tensor, row_cov: Tensor, outer: Tensor, known: Tensor, known_gram: Tensor,
    precision: Tensor, scale: Tensor, log_prior: Tensor, offset: Tensor | None, code_size: int, located: bool,
    shift: bool, turn: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Frames meet the memory of a global step, once this is moved and turned for the best bound.

    Args:
        met: A Z Psi^-1 Z', [B, H, K + 1, T]; overwritten.
        coefficients: A, [B, H, K + 1, T], of `update`, as the next two.
        row_cov: U, [B, H, J, J].
        outer: S_ww, [B, H, K + 1, K + 1].
        known: N_0 Psi^-1 Z', [B, H, J, T], of any strides.
        known_gram: N_0 Psi^-1 N_0', [B, H, J, J], of any strides.
        precision: U_0^-1, [B, H, J, J], of any strides.
        scale: s, [].
        log_prior: [B, H], as for `begin`.
        offset: [B, H, T], as for `begin`.
        code_size: C.
        located: the last row is a location.
        shift: move w (see `expansion.best_shift`).
        turn: rotate and scale w (see `expansion.best_rotation`).

    Returns:
        As `begin`.
    """
    memory = coefficients, row_cov, outer, known, known_gram, precision, scale
    return _met(met, log_prior, offset, located, memory, code_size, shift, turn)


def _met(
    met: Tensor, log_prior: Tensor, offset: Tensor | None, located: bool, memory: tuple[Tensor, ...] = (),
    code_size: int = 0, shift: bool = False, turn: bool = False, gram: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, clusters, rows, frames = met.shape
    back = met.new_empty(batch, clusters, rows, rows)
    known, known_gram, precision = memory[3:6] or (None,) * 3
    strides = [(0,) * 4 if x is None else x.stride() for x in (known, known_gram, precision)]
    offsets = (0, 0, 0) if offset is None else offset.stride()
    _meet[(batch * clusters,)](
        met, back, log_prior, offset, gram, *(memory or (None,) * 7), *log_prior.stride(), *offsets, *strides[0],
        *strides[1], *strides[2], clusters, code_size, frames, rows, rows - 1 + located, shift, turn, _power(rows),
        _power(frames), num_warps=1,
    )  # fmt: skip
    return met, back


def _power(number: int) -> int:
    power: int = triton.next_power_of_2(number)
    return power


@triton.jit
def _times(a, b):  # type: ignore[no-untyped-def]
    """A B, where A is small."""
    return tl.sum(a[:, :, None] * b[None, :, :], 1)


@triton.jit
def _gram(a, b):  # type: ignore[no-untyped-def]
    """A B' of matrices with few rows."""
    return tl.sum(a[:, None, :] * b[None, :, :], 2)


@triton.jit  # type: ignore[untyped-decorator]
def _factors(a, rows, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """L, L^-1 and log det L of A = L L', which is the identity from `rows` on; NaN where it is not positive definite.
    Elimination: of A, in which the column under every pivot goes, and in step with it of the identity."""
    line = tl.arange(0, size)
    i, j = line[:, None], line[None, :]
    inverse = tl.where(i == j, 1.0, 0.0)
    factor = inverse
    pivots = tl.full((size,), 1.0, tl.float32)
    for k in range(rows):
        column = tl.sum(tl.where(j == k, a, 0.0), 1)
        pivot = tl.sum(tl.where(line == k, column, 0.0), 0)
        pivot = tl.where(pivot > 0, pivot, float("nan"))
        pivots = tl.where(line == k, pivot, pivots)
        factor = tl.where(j == k, tl.where(line >= k, column / tl.sqrt(pivot), 0.0)[:, None], factor)
        multiplier = tl.where(line > k, column / pivot, 0.0)
        row = tl.sum(tl.where(i == k, inverse, 0.0), 0)
        a -= multiplier[:, None] * column[None, :]
        inverse -= multiplier[:, None] * row[None, :]
    return factor, inverse / tl.sqrt(pivots)[:, None], 0.5 * tl.sum(tl.log(pivots), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _inverse(a, rows, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """A^-1 of one that is the identity from `rows` on."""
    _, factor, _ = _factors(a, rows, size)
    return tl.sum(factor[:, :, None] * factor[:, None, :], 0)


@triton.jit  # type: ignore[untyped-decorator]
def _eigen(a, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eigenvalues and vectors of a symmetric matrix, by Jacobi's rotations: of i and i ^ r for all i at a time."""
    line = tl.arange(0, size)
    i, j = line[:, None], line[None, :]
    vectors = tl.where(i == j, 1.0, 0.0)
    for step in range((SWEEPS if size <= 8 else SWEEPS + 3) * (size - 1)):
        r = 1 + step % (size - 1)
        partner = j == (i ^ r)
        own = tl.sum(tl.where(i == j, a, 0.0), 0)
        other = tl.sum(tl.where(partner, own[:, None], 0.0), 0)
        beside = tl.sum(tl.where(partner, a, 0.0), 0)
        ratio = (other - own) / tl.where(beside == 0, 1.0, 2 * beside)
        sign = tl.where(ratio == 0, tl.where(line < (line ^ r), 1.0, -1.0), tl.where(ratio > 0, 1.0, -1.0))
        ratio = tl.minimum(tl.abs(ratio), 1e15)  # whose square is still a number
        tangent = sign / (ratio + tl.sqrt(1 + ratio * ratio))
        tangent = tl.where(beside == 0, 0.0, tangent)
        cosine = 1 / tl.sqrt(1 + tangent * tangent)
        sine = tangent * cosine
        rotation = tl.where(i == j, cosine[None, :], tl.where(partner, -sine[None, :], 0.0))
        a = _times(a, rotation)
        a = tl.sum(rotation[:, :, None] * a[:, None, :], 0)
        a = 0.5 * (a + tl.trans(a))
        vectors = _times(vectors, rotation)
    return tl.sum(tl.where(i == j, a, 0.0), 0), vectors


@triton.jit  # type: ignore[untyped-decorator]
def _best_change(  # type: ignore[no-untyped-def]
    outer, gram, loc_precision, row_precision, features, rows, shift: tl.constexpr, turn: tl.constexpr,
    size: tl.constexpr,
):  # fmt: skip
    """D^-1 of `expansion.best_change`, where `rows` is K."""
    line = tl.arange(0, size)
    i, j = line[:, None], line[None, :]
    factors, identity = (i < rows) & (j < rows), tl.where(i == j, 1.0, 0.0)
    back = identity
    total = tl.sum(tl.where(j == rows, outer, 0.0), 1)  # S_w, and below it n
    count = tl.sum(tl.where(line == rows, total, 0.0), 0)
    total = tl.where(line < rows, total, 0.0)
    if shift:
        cross = tl.where(line < rows, tl.sum(tl.where(j == rows, gram, 0.0), 1), 0.0)
        curvature = tl.where(factors, loc_precision * gram + count * identity, identity)
        move = tl.sum(_inverse(curvature, rows, size) * (total - loc_precision * cross)[None, :], 1)
        outer += count * move[:, None] * move[None, :] - move[:, None] * total[None, :] - total[:, None] * move[None, :]
        back += tl.where(j == rows, move[:, None], 0.0)
    if turn:
        factor, inverse, _ = _factors(tl.where(factors, gram, identity), rows, size)
        inner = _times(tl.where(factors, outer, 0.0), factor)
        inner = tl.sum(factor[:, :, None] * inner[:, None, :], 0)
        values, vectors = _eigen(0.5 * (inner + tl.trans(inner)), size)
        values = tl.maximum(values, 0.0)
        surplus = features - count
        root = tl.sqrt(surplus * surplus + 4 * row_precision * values)
        values = tl.where(
            surplus > 0, (surplus + root) / (2 * row_precision), 2 * values / tl.maximum(root - surplus, 1e-37)
        )
        half = tl.sum(inverse[:, :, None] * vectors[:, None, :], 0) * tl.sqrt(tl.maximum(values, 1e-37))[None, :]
        factor, _, _ = _factors(tl.where(factors, _gram(half, half), identity), rows, size)
        back = tl.where(factors, factor, back)
    return back


@triton.jit  # type: ignore[untyped-decorator]
def _assign(  # type: ignore[no-untyped-def]
    met, counts, weighted, frames, clusters: tl.constexpr, rows: tl.constexpr, depth: tl.constexpr,
    across: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Some frames of an episode."""
    episode = tl.program_id(0).to(tl.int64)
    cluster, row = tl.arange(0, across)[:, None, None], tl.arange(0, depth)[None, :, None]
    frame = tl.program_id(1) * block + tl.arange(0, block)
    inside = (cluster < clusters) & (row < rows) & (frame < frames)[None, None, :]
    place = episode * clusters * rows * frames + (cluster * rows + row) * frames + frame[None, None, :]
    x = tl.load(met + place, mask=inside, other=0.0)
    last = row == rows - 1
    s = tl.sum(x * tl.where(last, 1.0, 0.5 * BITS * x), 1)
    s = tl.where(tl.arange(0, across)[:, None] < clusters, s, -1e30)
    theta = tl.exp2(s - tl.max(s, 0)[None, :])
    share = 1 / tl.sum(theta, 0)
    if counts is not None:
        share *= tl.load(counts + episode * frames + frame, mask=frame < frames, other=0.0)
    theta *= share[None, :]
    tl.store(weighted + place, tl.where(last, 1.0, x) * theta[:, None, :], mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _update(  # type: ignore[no-untyped-def]
    weighted, back, precision, scale, coefficients, row_cov, outer, precision_by_episode, precision_by_cluster,
    precision_by_row, precision_by_column, clusters: tl.constexpr, frames: tl.constexpr, rows: tl.constexpr,
    count: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Of one cluster. `rows` is K + 1, `count` J."""
    program = tl.program_id(0).to(tl.int64)
    episode, cluster = program // clusters, program % clusters
    line, frame = tl.arange(0, size), tl.arange(0, width)
    i, j, t = line[:, None], line[None, :], frame[None, :]
    wide = (i < rows) & (t < frames)
    place = program * rows * frames + i * frames + t
    v = tl.load(weighted + place, mask=wide, other=0.0)
    theta = tl.sum(tl.where(i == rows - 1, v, 0.0), 0)
    half = v / tl.sqrt(tl.maximum(theta, 1e-30))[None, :]
    square = _gram(half, half)  # S_vv, and around it S_v and n
    n = tl.sum(tl.where((i == rows - 1) & (j == rows - 1), square, 0.0))
    small = program * rows * rows + i * rows + j
    turn = tl.load(back + small, mask=(i < rows) & (j < rows), other=0.0)  # L'^-1
    turn_back = turn + tl.where((i == rows - 1) & (j == rows - 1), 1.0, 0.0)  # w~ = turn_back (v, 1)
    second = _gram(_times(turn_back, square), turn_back) + n * _gram(turn, turn)
    second = 0.5 * (second + tl.trans(second))
    tl.store(outer + small, second, mask=(i < rows) & (j < rows))
    kept = (i < count) & (j < count)
    s = tl.load(scale)
    known = precision + episode * precision_by_episode + cluster * precision_by_cluster
    known = tl.load(known + i * precision_by_row + j * precision_by_column, mask=kept, other=0.0)
    p = tl.where(kept, known + second / s, tl.where(i == j, 1.0, 0.0))
    cov = tl.where(kept, _inverse(p, count, size), 0.0)
    tl.store(row_cov + program * count * count + i * count + j, cov, mask=kept)
    tl.store(coefficients + place, _times(_times(cov, turn_back) / s, v), mask=wide)


@triton.jit  # type: ignore[untyped-decorator]
def _meet(  # type: ignore[no-untyped-def]
    met, back, log_prior, offset, given, coefficients, row_cov, outer, known, known_gram, precision, scale,
    prior_by_episode, prior_by_cluster, offset_by_episode, offset_by_cluster, offset_by_frame,
    known_by_episode, known_by_cluster, known_by_row, known_by_frame,
    gram_by_episode, gram_by_cluster, gram_by_row, gram_by_column,
    precision_by_episode, precision_by_cluster, precision_by_row, precision_by_column,
    clusters: tl.constexpr, features: tl.constexpr, frames: tl.constexpr, rows: tl.constexpr, count: tl.constexpr,
    shift: tl.constexpr, turn: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Of one cluster. `rows` is K + 1, `count` J."""
    program = tl.program_id(0).to(tl.int64)
    episode, cluster = program // clusters, program % clusters
    line, frame = tl.arange(0, size), tl.arange(0, width)
    i, j, t = line[:, None], line[None, :], frame[None, :]
    wide, kept = (i < rows) & (t < frames), (i < count) & (j < count)
    last = rows - 1
    place = program * rows * frames + i * frames + t
    small = program * count * count + i * count + j
    x = tl.load(met + place, mask=wide, other=0.0)
    if given is not None:
        gram = tl.load(given + small, mask=kept, other=0.0)
    else:
        a = tl.load(coefficients + place, mask=wide, other=0.0)
        u = tl.load(row_cov + small, mask=kept, other=0.0)
        p = known + episode * known_by_episode + cluster * known_by_cluster + i * known_by_row + t * known_by_frame
        p = tl.load(p, mask=(i < count) & (t < frames), other=0.0)
        q = known_gram + episode * gram_by_episode + cluster * gram_by_cluster
        q = tl.load(q + i * gram_by_row + j * gram_by_column, mask=kept, other=0.0)
        s = tl.load(scale)
        x += _times(u, p)  # R Psi^-1 Z'
        prior = _times(u, q) + _gram(a, p)  # R Psi^-1 N_0'
        gram = _times(prior, u) + _gram(x, a)
        gram = 0.5 * (gram + tl.trans(gram)) + u * (features / s)
        if shift or turn:
            precise = precision + episode * precision_by_episode + cluster * precision_by_cluster
            of_row = tl.load(precise)
            own, centred = 1.0, gram
            if count == rows:  # the location around the mean of its prior
                own = tl.load(precise + last * (precision_by_row + precision_by_column))
                mean = tl.sum(tl.where(j == last, prior, 0.0), 1) / own  # R Psi^-1 b_0
                square = tl.sum(tl.where((i == last) & (j == last), q, 0.0)) / (own * own)
                centred -= tl.where(i == last, mean[None, :], 0.0) + tl.where(j == last, mean[:, None], 0.0)
                centred += tl.where((i == last) & (j == last), square, 0.0)
            second = tl.load(outer + program * rows * rows + i * rows + j, mask=(i < rows) & (j < rows), other=0.0)
            change = _best_change(second, centred * s, own, of_row, features, last, shift, turn, size)
            gram = tl.sum(change[:, :, None] * _times(gram, change)[:, None, :], 0)
            x = _times(tl.trans(change), x)
    weights = (i < last) & (j < last)
    _, factor, logdet = _factors(tl.where(weights, gram, 0.0) + tl.where(i == j, 1.0, 0.0), last, size)
    factor = tl.where(weights, factor, 0.0)
    cross = tl.sum(tl.where(j == last, gram, 0.0), 1)  # G_wb, and G_bb; without locations 0, as all of the last row
    own_gram = tl.sum(tl.where(line == last, cross, 0.0), 0)
    constant = tl.load(log_prior + episode * prior_by_episode + cluster * prior_by_cluster)
    constant = BITS * (constant - logdet - 0.5 * own_gram)
    moved = tl.where(line == last, constant, -tl.sum(factor * tl.where(line < last, cross, 0.0)[None, :], 1))
    evidence = tl.where((i == last) & (j == last), BITS, 0.0)
    x = _times(factor + evidence, x) + moved[:, None]
    if offset is not None:
        own_offset = offset + episode * offset_by_episode + cluster * offset_by_cluster + frame * offset_by_frame
        x += tl.where(i == last, tl.load(own_offset, mask=frame < frames, other=0.0)[None, :], 0.0)
    tl.store(met + place, x, mask=wide)
    tl.store(back + program * rows * rows + j * rows + i, factor, mask=(i < rows) & (j < rows))
