"""Iterations of many short episodes, whose clusters fit into one tile: three kernels an iteration, one program for
every cluster or episode. The equations are those of `vbmem.memory.projection` and `vbmem.memory.engine`, in float32.

Letters as there: K factor rows and, below them, one more row of e, of the location or of nothing, make K + 1.
"""

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

MOST_COLUMNS = 128  # rows of all clusters of an episode together, filled up to powers of two
MOST_PRODUCTS = 2**15  # of a number of each of two rows with each other, for all pairs of rows of a cluster
BITS = tl.constexpr(1.4426950408889634)  # in a nat


def fits(rows: int, clusters: int, code_size: int) -> bool:
    """Whether K + 1 rows of H clusters and codes of size C do."""
    depth = triton.next_power_of_2(rows)
    return (
        depth * triton.next_power_of_2(clusters) <= MOST_COLUMNS
        and depth**2 * triton.next_power_of_2(code_size) <= MOST_PRODUCTS
    )


def prepare(
    row_mean: Tensor, row_cov: Tensor, noise_var: Tensor, scale: Tensor, log_prior: Tensor, located: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A memory made ready to meet codes: V and below it e, whose constants are in bits.

    Args:
        row_mean: [B, H, J, C].
        row_cov: [B, H, J, J].
        noise_var: [B, H, C], of any strides.
        scale: s, [].
        log_prior: log p(s) and all that does not depend on a frame, [B, H], of any strides.
        located: the last row is a location.

    Returns:
        Rows [B, H, K + 1, C], their constants [B, H, K + 1], and L'^-1 [B, H, K + 1, K + 1], of which the last row and
        column are 0.
    """
    batch, clusters, count, size = row_mean.shape
    rows = count - located + 1
    met, constant = row_mean.new_empty(batch, clusters, rows, size), row_mean.new_empty(batch, clusters, rows)
    back = row_mean.new_empty(batch, clusters, rows, rows)
    _prepare[(batch * clusters,)](
        row_mean.contiguous(), row_cov.contiguous(), noise_var, scale, log_prior, met, constant, back,
        *noise_var.stride(), *log_prior.stride(), clusters, size, rows, count,
        triton.next_power_of_2(rows), triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip
    return met, constant, back


def meet(
    codes: Tensor, counts: Tensor | None, rows: Tensor, constant: Tensor, halved: Tensor | None = None,
    kept: tuple[Tensor, Tensor] | None = None, features: int = 32, warps: int = 4,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Frames meet the clusters: sums over frames of theta v z' and below them of theta z', and of theta v and theta.

    Args:
        codes: [B, T, C].
        counts: how much every frame counts, [B, T]; by default 1.
        rows: [B, H, K + 1, C], as `prepare` gives them.
        constant: [B, H, K + 1].
        halved: -Psi^-1 / 2 in bits where clusters have a noise of their own, [B, H, C], of any strides.
        kept: room for theta [B, T, H] and v [B, T, H, K].
        features: of a tile.
        warps: of a program.

    Returns:
        [B, H, K + 1, C] and [B, H, K + 1].
    """
    batch, clusters, number, size = rows.shape
    sums, totals = torch.empty_like(rows), torch.empty_like(constant)
    depth, across = triton.next_power_of_2(number), triton.next_power_of_2(clusters)
    across = max(across, 16 if halved is not None else 16 // depth)
    strides = (0, 0, 0) if halved is None else halved.stride()
    assignment, weights = kept or (None, None)
    block = min(max(triton.next_power_of_2(codes.shape[1]), 16), 64)
    _meet[(batch,)](
        codes.contiguous(), counts, rows, constant, halved, sums, totals, assignment, weights, *strides, codes.shape[1],
        clusters, size, number, depth, across, block, features, num_warps=warps,
    )  # fmt: skip
    return sums, totals


def update(
    sums: Tensor, totals: Tensor, rows: Tensor, constant: Tensor, back: Tensor, precision: Tensor, natural: Tensor,
    scale: Tensor, located: bool, factors: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The global step, from what frames left.

    Args:
        sums: [B, H, K + 1, C], of `meet`.
        totals: [B, H, K + 1], of `meet`.
        rows: [B, H, K + 1, C], of `prepare`, as the rest.
        constant: [B, H, K + 1].
        back: [B, H, K + 1, K + 1].
        precision: U_0^-1, [B, H, J, J], of any strides.
        natural: U_0^-1 R_0, [B, H, J, C], of any strides.
        scale: s, [].
        located: the last row is a location.
        factors: of a factorised memory, its rows before the step, [B, H, J, C].

    Returns:
        R [B, H, J, C], U [B, H, J, J] and S_ww [B, H, J, J].
    """
    batch, clusters, number, size = rows.shape
    count = number - 1 + located
    row_mean = rows.new_empty(batch, clusters, count, size)
    row_cov, outer = (rows.new_empty(batch, clusters, count, count) for _ in range(2))
    _update[(batch * clusters,)](
        sums, totals, rows, constant, back, precision, natural, scale, factors, row_mean, row_cov, outer,
        *precision.stride(), *natural.stride(), clusters, size, number, count,
        triton.next_power_of_2(number), triton.next_power_of_2(size), num_warps=4,
    )  # fmt: skip
    return row_mean, row_cov, outer


@triton.jit
def _times(a, b):  # type: ignore[no-untyped-def]
    """A B, where A is small."""
    return tl.sum(a[:, :, None] * b[None, :, :], 1)


@triton.jit
def _gram(a, b):  # type: ignore[no-untyped-def]
    """A B' of matrices with few rows."""
    return tl.sum(a[:, None, :] * b[None, :, :], 2)


@triton.jit  # type: ignore[untyped-decorator]
def _inverse_factor(a, rows, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """L^-1 and log det L of A = L L', which is the identity from `rows` on; NaN where it is not positive definite.
    Elimination: of A, in which the column under every pivot goes, and in step with it of the identity."""
    line = tl.arange(0, size)
    i, j = line[:, None], line[None, :]
    inverse = tl.where(i == j, 1.0, 0.0)
    pivots = tl.full((size,), 1.0, tl.float32)
    for k in range(rows):
        column = tl.sum(tl.where(j == k, a, 0.0), 1)
        pivot = tl.sum(tl.where(line == k, column, 0.0), 0)
        pivot = tl.where(pivot > 0, pivot, float("nan"))
        pivots = tl.where(line == k, pivot, pivots)
        multiplier = tl.where(line > k, column / pivot, 0.0)
        row = tl.sum(tl.where(i == k, inverse, 0.0), 0)
        a -= multiplier[:, None] * column[None, :]
        inverse -= multiplier[:, None] * row[None, :]
    return inverse / tl.sqrt(pivots)[:, None], 0.5 * tl.sum(tl.log(pivots), 0)


@triton.jit  # type: ignore[untyped-decorator]
def _inverse(a, rows, size: tl.constexpr):  # type: ignore[no-untyped-def]
    """A^-1 of one that is the identity from `rows` on."""
    factor, _ = _inverse_factor(a, rows, size)
    return tl.sum(factor[:, :, None] * factor[:, None, :], 0)


@triton.jit  # type: ignore[untyped-decorator]
def _prepare(  # type: ignore[no-untyped-def]
    row_mean, row_cov, noise_var, scale, log_prior, met, constant, back,
    noise_by_episode, noise_by_cluster, noise_by_feature, prior_by_episode, prior_by_cluster,
    clusters: tl.constexpr, features: tl.constexpr, rows: tl.constexpr, count: tl.constexpr, size: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """Of one cluster. `rows` is K + 1, `count` J."""
    program = tl.program_id(0).to(tl.int64)
    episode, cluster = program // clusters, program % clusters
    line, feature = tl.arange(0, size), tl.arange(0, width)
    i, j, c = line[:, None], line[None, :], feature[None, :]
    noise = noise_var + episode * noise_by_episode + cluster * noise_by_cluster
    noise = tl.load(noise + feature * noise_by_feature, mask=feature < features, other=1.0)
    mean = tl.load(
        row_mean + program * count * features + i * features + c, mask=(i < count) & (c < features), other=0.0
    )
    cov = tl.load(row_cov + program * count * count + i * count + j, mask=(i < count) & (j < count), other=0.0)
    precise = mean / noise[None, :]
    gram = _gram(precise, mean) + cov * (features / tl.load(scale))
    weights = (i < rows - 1) & (j < rows - 1)
    factor, logdet = _inverse_factor(tl.where(weights, gram, 0.0) + tl.where(i == j, 1.0, 0.0), rows - 1, size)
    factor = tl.where(weights, factor, 0.0)
    cross = tl.sum(tl.where(j == rows - 1, gram, 0.0), 1)  # G_wb, and G_bb; without locations 0, as all of the last row
    own = tl.sum(tl.where(line == rows - 1, cross, 0.0), 0)
    last = log_prior + episode * prior_by_episode + cluster * prior_by_cluster
    last = BITS * (tl.load(last) - logdet - 0.5 * own)
    evidence = tl.where((i == rows - 1) & (i == j), BITS, 0.0)
    inside = (i < rows) & (c < features)
    tl.store(met + program * rows * features + i * features + c, _times(factor + evidence, precise), mask=inside)
    shift = tl.where(line == rows - 1, last, -tl.sum(factor * tl.where(line < rows - 1, cross, 0.0)[None, :], 1))
    tl.store(constant + program * rows + line, shift, mask=line < rows)
    tl.store(back + program * rows * rows + j * rows + i, factor, mask=(i < rows) & (j < rows))


@triton.jit  # type: ignore[untyped-decorator]
def _meet(  # type: ignore[no-untyped-def]
    codes, counts, rows, constant, halved, sums, totals, assignment, v,
    halved_by_episode, halved_by_cluster, halved_by_feature, frames, clusters: tl.constexpr, features: tl.constexpr,
    number: tl.constexpr, depth: tl.constexpr, across: tl.constexpr, block: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Of one episode."""
    episode = tl.program_id(0).to(tl.int64)
    columns: tl.constexpr = depth * across
    line, column, feature = tl.arange(0, block), tl.arange(0, columns), tl.arange(0, width)
    row, cluster = column // across, column % across
    present = (row < number) & (cluster < clusters)
    place = cluster * number + row  # within the episode, so that 32 bits are enough
    rows += episode * clusters * number * features
    sums += episode * clusters * number * features
    constant += episode * clusters * number
    totals += episode * clusters * number
    codes += episode * frames * features
    nothing = tl.where((row == number - 1) & (cluster >= clusters), -1e30, 0.0)
    shift = tl.load(constant + place, mask=present, other=0.0) + nothing
    total = tl.zeros((columns,), tl.float32)
    for first in range(0, frames, block):
        products = tl.zeros((block, columns), tl.float32)
        inside = first + line < frames
        offset = (first + line)[:, None] * features
        for c in range(0, features, width):
            f = c + feature
            z = tl.load(codes + (offset + f[None, :]), mask=inside[:, None] & (f < features)[None, :], other=0.0)
            known = present[:, None] & (f < features)[None, :]
            r = tl.load(rows + (place[:, None] * features + f[None, :]), mask=known, other=0.0)
            products = tl.dot(z, tl.trans(r), products, input_precision="tf32x3")
        x = products + shift[None, :]
        last = (row == number - 1)[None, :]
        terms = x * tl.where(last, 1.0, 0.5 * BITS * x)
        s = tl.sum(tl.reshape(terms, (block, depth, across)), 1)
        if halved is not None:
            of = tl.arange(0, across)[:, None]
            noise = halved + episode * halved_by_episode + of * halved_by_cluster
            for c in range(0, features, width):
                f = c + feature
                z = tl.load(codes + (offset + f[None, :]), mask=inside[:, None] & (f < features)[None, :], other=0.0)
                own = tl.load(
                    noise + f[None, :] * halved_by_feature, mask=(of < clusters) & (f < features)[None, :], other=0.0
                )
                s = tl.dot(z * z, tl.trans(own), s, input_precision="tf32x3")
        theta = tl.exp2(s - tl.max(s, 1)[:, None])
        weight = 1.0 / tl.sum(theta, 1)
        if counts is not None:
            weight *= tl.load(counts + episode * frames + first + line, mask=inside, other=0.0)
        theta *= tl.where(inside, weight, 0.0)[:, None]
        if assignment is not None:
            frame, to = (episode * frames + first + line)[:, None], tl.arange(0, across)[None, :]
            tl.store(assignment + frame * clusters + to, theta, mask=inside[:, None] & (to < clusters))
            given = inside[:, None] & (present & (row < number - 1))[None, :]
            tl.store(v + (frame * clusters + cluster[None, :]) * (number - 1) + row[None, :], x, mask=given)
        x = tl.where(last, 1.0, x)
        weights = tl.reshape(tl.reshape(x, (block, depth, across)) * theta[:, None, :], (block, columns))
        total += tl.sum(weights, 0)
        weights = tl.trans(weights)
        for c in range(0, features, width):
            f = c + feature
            z = tl.load(codes + (offset + f[None, :]), mask=inside[:, None] & (f < features)[None, :], other=0.0)
            known = present[:, None] & (f < features)[None, :]
            there = sums + (place[:, None] * features + f[None, :])
            before = tl.load(there, mask=known & (first > 0), other=0.0)
            tl.store(there, before + tl.dot(weights, z, input_precision="tf32x3"), mask=known)
    tl.store(totals + place, total, mask=present)


@triton.jit  # type: ignore[untyped-decorator]
def _update(  # type: ignore[no-untyped-def]
    sums, totals, rows, constant, back, precision, natural, scale, factors, row_mean, row_cov, outer,
    precision_by_episode, precision_by_cluster, precision_by_row, precision_by_column, natural_by_episode,
    natural_by_cluster, natural_by_row, natural_by_feature, clusters: tl.constexpr, features: tl.constexpr,
    number: tl.constexpr, count: tl.constexpr, size: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Of one cluster. `number` is K + 1, `count` J."""
    program = tl.program_id(0).to(tl.int64)
    episode, cluster = program // clusters, program % clusters
    line, feature = tl.arange(0, size), tl.arange(0, width)
    i, j, c = line[:, None], line[None, :], feature[None, :]
    wide = (i < number) & (c < features)
    place = program * number * features + i * features + c
    by_row = tl.load(sums + place, mask=wide, other=0.0)
    v = tl.load(rows + place, mask=wide & (i < number - 1), other=0.0)
    shift = tl.load(constant + program * number + line, mask=line < number - 1, other=0.0)
    total = tl.load(totals + program * number + line, mask=line < number, other=0.0)
    n = tl.sum(tl.where(line == number - 1, total, 0.0), 0)
    small = program * number * number + i * number + j
    turn = tl.load(back + small, mask=(i < number) & (j < number), other=0.0)  # L'^-1
    corner = (i == number - 1) & (j == number - 1)
    turn_back = turn + tl.where(corner, 1.0, 0.0)  # w~ = turn_back (v, 1)
    square = _gram(by_row, v) + total[:, None] * shift[None, :]  # S_vv, and below it S_v
    square = tl.where(j == number - 1, total[:, None], square)
    square = tl.where((i == number - 1) & (j < number - 1), total[None, :], square)
    square = 0.5 * (square + tl.trans(square))
    second = _times(_times(turn_back, square), tl.trans(turn_back)) + n * _gram(turn, turn)
    kept = (i < count) & (j < count)
    tl.store(outer + program * count * count + i * count + j, second, mask=kept)
    s = tl.load(scale)
    known = precision + episode * precision_by_episode + cluster * precision_by_cluster
    known = tl.load(known + i * precision_by_row + j * precision_by_column, mask=kept, other=0.0)
    p = tl.where(kept, known + second / s, tl.where(i == j, 1.0, 0.0))
    known = natural + episode * natural_by_episode + cluster * natural_by_cluster
    inside = (i < count) & (c < features)
    known = tl.load(known + i * natural_by_row + c * natural_by_feature, mask=inside, other=0.0)
    target = known + _times(turn_back, by_row) / s
    there = row_mean + program * count * features + i * features + c
    if factors is None:
        cov = _inverse(p, count, size)
        tl.store(there, _times(cov, target), mask=inside)
    else:  # the location given the factors, then the factors given the location
        before = tl.load(
            factors + program * count * features + i * features + c, mask=inside & (i < count - 1), other=0.0
        )
        cross = tl.sum(tl.where(j == count - 1, p, 0.0), 1)
        variance = 1.0 / tl.sum(tl.where(line == count - 1, cross, 0.0), 0)
        cross = tl.where(line < count - 1, cross, 0.0)
        location = tl.sum(tl.where(i == count - 1, target, 0.0), 0) - tl.sum(cross[:, None] * before, 0)
        location *= variance
        block = (i < count - 1) & (j < count - 1)
        cov = _inverse(tl.where(block, p, tl.where(i == j, 1.0, 0.0)), count - 1, size)
        cov = tl.where(block, cov, 0.0)
        mean = _times(cov, target - cross[:, None] * location[None, :])
        tl.store(there, tl.where(i == count - 1, location[None, :], mean), mask=inside)
        cov += tl.where((i == count - 1) & (i == j), variance, 0.0)
    tl.store(row_cov + program * count * count + i * count + j, cov, mask=kept)
