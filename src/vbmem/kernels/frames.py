"""Frames meet the clusters of a memory: assignments, and sums over frames, without leaving [H, T] in memory.

A frame z and the K + 1 rows of cluster h, of which the last is e_h (see `vbmem.memory.blocks`), with z~ = (z, 1):

    x_hj = row_hj . z~,    s_h = e_h . z~ + log2(e) / 2 sum_j x_hj^2,    theta_h = omega exp2(s_h) / sum_h' exp2(s_h')
    S_hj = sum_t theta_h x_hj z~',    S_h = sum_t theta_h z~'

As attention is computed: a first kernel goes through all clusters for log2 sum_h exp2(s_h) of every frame, a second one
makes the same products again, with the frames as its inner loop, and adds up the sums of its clusters in registers.
Both make s by the same code from tiles of the same size, so that theta adds up to 1 to rounding, however large s is.

Products have the accuracy of float32 on tensor cores for half precision: a number is the sum of two halves of 11 bits,
and of the four products of halves the smallest is left out. Powers of two keep all numbers in the range of a half:
codes are scaled by feature, rows each by itself. The sums of a tile are added up outside of the tensor cores, which
cut off what they cannot hold instead of rounding it.
"""

from dataclasses import dataclass
from typing import Self

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor
from torch.nn.functional import pad

SPAN = 2.0**10  # of codes and rows once they are scaled
LARGEST_HALF = 2.0**15
NEVER = -1e30  # s of a cluster that only fills a tile up
HALF_IN_BITS = 0.7213475204444817  # log2(e) / 2
WIDEST = 256  # features of a tile
PART = 128  # of those of a wider code, of which the loops hold several tiles at a time
LEAST = 16  # numbers along a side of a tile


@dataclass(frozen=True)
class Tiles:
    """How much a program takes at a time."""

    frames: int
    columns: int  # rows of clusters: of some clusters all rows, filled up to a power of two
    warps: int = 4
    stages: int = 2
    longest: int = 2**14  # frames that are added up in float32
    programs: int = 1024  # that should be kept busy

    @classmethod
    def of(cls, rows: int, clusters: int, code_size: int, frames: int) -> Self:
        """For K + 1 rows of H clusters, and T frames.

        Tiles of 64 frames and 64 rows, of which two programs of four warps share a processor, one of them computing
        while the other waits. On an H200 (C = 128, H = 1024) larger ones are level at K = 6 (46 ms a million codes
        against 45 to 51) and slower at K = 0 (11 ms against 14 to 16); a third stage leaves room for one program only.
        """
        columns = max(min(_power(rows) * _power(clusters), 64), _power(rows), LEAST)
        return cls(min(max(_power(frames), LEAST), 64), columns, 4 if _width(code_size) * columns <= 2**13 else 8)


def local_sums(
    codes: Tensor, rows: Tensor, counts: Tensor | None = None, tiles: Tiles | None = None
) -> tuple[Tensor, Tensor]:
    """All that is to be known of frames whose assignments are the best for these clusters.

    Args:
        codes: z, [B, T, C] in float32.
        rows: [B, K + 1, H, C + 1], the last of them e_h in bits.
        counts: omega, how much every frame counts, [B, T]; by default 1.
        tiles: chosen by the sizes unless given.

    Returns:
        S_hj and below them S_h, [B, K + 1, H, C + 1], and sum_t sum_h theta log2(theta / omega), [B], in float64.
    """
    tiles = tiles or Tiles.of(*rows.shape[1:3], *codes.shape[:0:-1])
    clusters = _Clusters(codes, rows, tiles)
    if counts is None:
        counts = codes.new_ones(codes.shape[:-1])
    return clusters.restored(*clusters.meet(codes, counts), counts)


class _Clusters:
    """Rows of clusters, scaled, in halves and in tiles."""

    def __init__(self, codes: Tensor, rows: Tensor, tiles: Tiles) -> None:
        self.given, self.tiles = rows, tiles
        _, self.rows, self.clusters, wide = rows.shape
        self.width = _width(wide - 1)
        self.parts = triton.cdiv(wide - 1, self.width)
        self.depth = _power(self.rows)  # rows of a cluster in a tile
        self.across = tiles.columns // self.depth  # clusters of a tile
        self.number = triton.cdiv(self.clusters, self.across)  # of tiles
        self.lift = LARGEST_HALF / _power(wide)  # what is summed is at most C + 1
        least, most = codes.aminmax(dim=-2)
        self.code_scale = _power_of_two(torch.maximum(most, -least)) / SPAN  # [B, C]
        scaled, constant = rows[..., :-1] * self.code_scale[:, None, None], rows[..., -1:]
        largest = torch.maximum(scaled.abs().amax(-1) * SPAN, constant.squeeze(-1).abs()).amax(-1)  # [B, K + 1]
        weights, evidence = largest.split([self.rows - 1, 1], -1)
        if self.rows > 1:  # one scale for all v
            weights = weights.amax(-1, keepdim=True).expand_as(weights)
        scale = _power_of_two(torch.cat([weights, evidence], -1))
        self.row_scale = scale[..., None, None]  # [B, K + 1, 1, 1]
        self.units = torch.stack([HALF_IN_BITS * scale[:, 0].square(), scale[:, -1]], -1)  # of x^2 and of x in s
        self.halves = _halves(self._tiled(scaled * (SPAN**2 / self.row_scale), self.width * self.parts))
        self.constant = self._tiled(constant / self.row_scale, 1)
        last = self.clusters - (self.number - 1) * self.across  # clusters of the last tile
        self.constant[:, -1, self.rows - 1, last:] = NEVER / self.row_scale[:, -1]

    def _tiled(self, tensor: Tensor, width: int) -> Tensor:
        """[B, K + 1, H, C] -> [B, tiles, rows, clusters of a tile, C], filled up with zeros."""
        _, rows, clusters, size = tensor.shape
        missing = self.number * self.across - clusters
        filled = pad(tensor, (0, width - size, 0, missing, 0, self.depth - rows))
        return filled.unflatten(2, (self.number, self.across)).transpose(1, 2).contiguous()

    def meet(self, codes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of scaled codes, rows and counts, of every split of the frames: sums [B, splits, tiles, rows, clusters, C],
        those of the constant, [B, splits, tiles, clusters], and bits, [B, splits, tiles]."""
        tiles, (batch, frames, size) = self.tiles, codes.shape
        blocks = triton.cdiv(frames, tiles.frames)
        splits = max(triton.cdiv(tiles.programs, batch * self.number * self.parts), triton.cdiv(frames, tiles.longest))
        each = triton.cdiv(blocks, min(splits, blocks))
        splits = triton.cdiv(blocks, each)
        halves = [
            codes.new_empty(batch, blocks * tiles.frames, self.width * self.parts, dtype=torch.half) for _ in range(2)
        ]
        _split[(batch * blocks, self.parts)](
            codes, 1 / self.code_scale, *halves, *codes.stride(), blocks, frames, size, tiles.frames, self.width
        )
        weights = pad(counts / _power_of_two(counts.amax(-1, keepdim=True)), (0, blocks * tiles.frames - frames))
        normal = torch.empty_like(weights)
        sums = codes.new_empty(batch, splits, self.number, self.depth, self.across, self.width * self.parts)
        totals, bits = sums.new_empty(batch, splits, self.number, self.across), sums.new_empty(sums.shape[:3])
        memory = *self.halves, self.constant, self.units
        sizes = {"rows": self.rows, "depth": self.depth, "across": self.across, "width": self.width}
        sizes |= {"parts": self.parts, "block": tiles.frames, "num_warps": tiles.warps, "num_stages": tiles.stages}
        if self.number > 1:
            _normalise[(batch * blocks,)](*halves, *memory, normal, blocks, self.number, **sizes)
        _sum[(batch * splits * self.parts * self.number,)](
            *halves, *memory, weights, normal, sums, totals, bits, blocks, each, splits, self.number, self.lift,
            alone=self.number == 1, **sizes,
        )  # fmt: skip
        return sums, totals, bits

    def restored(self, sums: Tensor, totals: Tensor, bits: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The splits added up, the tiles laid out again, and the scales undone."""
        count_scale = _power_of_two(counts.amax(-1)).double()
        of_frames = (self.code_scale / self.lift)[:, None, None] * count_scale[:, None, None, None]
        added = sums.sum(1, dtype=torch.float64).transpose(1, 2).flatten(2, 3)
        added = added[:, : self.rows, : self.clusters, : self.code_scale.shape[-1]] * of_frames
        added[:, :-1] *= self.row_scale[:, :-1]
        total = totals.sum(1, dtype=torch.float64).flatten(1)[:, : self.clusters] * count_scale[:, None]
        constant = total[:, None, :, None].expand(-1, self.rows, -1, -1)
        whole = torch.cat([added, constant], -1)
        # As x is linear in z~, so are the sums of theta x in those of theta z~.
        whole[:, :-1, :, -1] = (self.given[:, :-1] * whole[:, -1:]).sum(-1)
        return whole, bits.sum((1, 2), dtype=torch.float64) * count_scale


def _width(code_size: int) -> int:
    """Features of a tile."""
    return max(_power(code_size), LEAST) if code_size <= WIDEST else PART


def _power(number: int) -> int:
    power: int = triton.next_power_of_2(number)
    return power


def _power_of_two(numbers: Tensor) -> Tensor:
    """The least that is larger than each."""
    return torch.ldexp(torch.ones_like(numbers), torch.frexp(numbers).exponent)


def _halves(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Two of half precision that add up to each."""
    high = numbers.half()
    return high, (numbers - high).half()


@triton.jit  # type: ignore[untyped-decorator]
def _split(  # type: ignore[no-untyped-def]
    codes, scale, high, low, by_episode, by_frame, by_feature, blocks, frames, size, block: tl.constexpr,
    width: tl.constexpr,
):  # fmt: skip
    """Scaled codes in halves, filled up with zeros."""
    program = tl.program_id(0).to(tl.int64)
    episode, first = program // blocks, (program % blocks) * block
    line, feature = tl.arange(0, block)[:, None], tl.program_id(1) * width + tl.arange(0, width)[None, :]
    inside = (first + line < frames) & (feature < size)
    place = episode * by_episode + (first + line) * by_frame + feature * by_feature
    unit = tl.load(scale + episode * size + feature, mask=feature < size, other=1.0)
    code = tl.load(codes + place, mask=inside, other=0.0) * unit
    code_high = code.to(tl.float16)
    result = (program * block + line) * (tl.num_programs(1) * width) + feature
    tl.store(high + result, code_high)
    tl.store(low + result, (code - code_high.to(tl.float32)).to(tl.float16))


@triton.jit
def _product(high, low, other_high, other_low, start):  # type: ignore[no-untyped-def]
    """A B + start of matrices in halves, the smallest terms first."""
    product = tl.dot(low, other_high, start)
    product = tl.dot(high, other_low, product)
    return tl.dot(high, other_high, product)


@triton.jit  # type: ignore[untyped-decorator]
def _tile(high, low, first, width, offset, tall: tl.constexpr, wide: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of some lines of a matrix, a part of their width."""
    place = (first + tl.arange(0, tall))[:, None] * width + offset + tl.arange(0, wide)[None, :]
    return tl.load(high + place), tl.load(low + place)


@triton.jit  # type: ignore[untyped-decorator]
def _logarithms(  # type: ignore[no-untyped-def]
    products, constant, units, rows: tl.constexpr, depth: tl.constexpr, across: tl.constexpr, block: tl.constexpr
):
    """x in units of its row, [T, columns], and s, [T, clusters]."""
    line = tl.arange(0, depth * across)
    x = products * (1 / 1048576) + tl.load(constant + line)[None, :]
    square, linear = tl.load(units), tl.load(units + 1)
    if depth == 1:
        return x, x * linear
    else:
        terms = x * tl.where((line >= (rows - 1) * across)[None, :], linear, square * x)
        return x, tl.sum(tl.reshape(terms, (block, depth, across)), 1)


@triton.jit(do_not_specialize=["blocks", "number"])  # type: ignore[untyped-decorator]
def _normalise(  # type: ignore[no-untyped-def]
    codes_high, codes_low, rows_high, rows_low, constant, units, normal, blocks, number,
    rows: tl.constexpr, depth: tl.constexpr, across: tl.constexpr, width: tl.constexpr, parts: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """log2 sum_h exp2(s_h) of the frames of a block."""
    program = tl.program_id(0).to(tl.int64)
    episode, first = program // blocks, program * block
    columns: tl.constexpr = depth * across
    wide: tl.constexpr = width * parts
    most = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    if parts == 1:
        high, low = _tile(codes_high, codes_low, first, wide, 0, block, width)
    for tile in range(number):
        column = (episode * number + tile) * columns
        products = tl.zeros((block, columns), tl.float32)
        if parts == 1:
            row_high, row_low = _tile(rows_high, rows_low, column, wide, 0, columns, width)
            products = _product(high, low, tl.trans(row_high), tl.trans(row_low), products)
        else:
            for part in range(parts):
                high, low = _tile(codes_high, codes_low, first, wide, part * width, block, width)
                row_high, row_low = _tile(rows_high, rows_low, column, wide, part * width, columns, width)
                products = _product(high, low, tl.trans(row_high), tl.trans(row_low), products)
        _, s = _logarithms(products, constant + column, units + episode * 2, rows, depth, across, block)
        larger = tl.maximum(most, tl.max(s, 1))
        total = total * tl.exp2(most - larger) + tl.sum(tl.exp2(s - larger[:, None]), 1)
        most = larger
    tl.store(normal + first + tl.arange(0, block), most + tl.log2(total))


@triton.jit(do_not_specialize=["blocks", "each", "splits", "number"])  # type: ignore[untyped-decorator]
def _sum(  # type: ignore[no-untyped-def]
    codes_high, codes_low, rows_high, rows_low, constant, units, counts, normal, sums, totals, entropies,
    blocks, each, splits, number, lift,
    rows: tl.constexpr, depth: tl.constexpr, across: tl.constexpr, width: tl.constexpr, parts: tl.constexpr,
    block: tl.constexpr, alone: tl.constexpr,
):  # fmt: skip
    """Sums over a split of the frames for the clusters of a tile; of a wide code, for a part of its features."""
    program = tl.program_id(0).to(tl.int64)
    tile, program = program % number, program // number
    part, program = program % parts, program // parts
    split, episode = program % splits, program // splits
    columns: tl.constexpr = depth * across
    wide: tl.constexpr = width * parts
    column = (episode * number + tile) * columns
    line = tl.arange(0, columns)
    if parts == 1:
        row_high, row_low = _tile(rows_high, rows_low, column, wide, 0, columns, width)
        row_high, row_low = tl.trans(row_high), tl.trans(row_low)
    result = tl.zeros((width, columns), tl.float32)
    total = tl.zeros((block // 16, 8, across), tl.float32)  # theta of lines that one thread holds anyway, added up
    entropy = tl.zeros((block,), tl.float32)
    for step in range(split * each, tl.minimum(split * each + each, blocks)):
        first = (episode * blocks + step) * block
        products = tl.zeros((block, columns), tl.float32)
        if parts == 1:
            high, low = _tile(codes_high, codes_low, first, wide, 0, block, width)
            products = _product(high, low, row_high, row_low, products)
        else:
            for other in range(parts):
                high, low = _tile(codes_high, codes_low, first, wide, other * width, block, width)
                row_high, row_low = _tile(rows_high, rows_low, column, wide, other * width, columns, width)
                products = _product(high, low, tl.trans(row_high), tl.trans(row_low), products)
            high, low = _tile(codes_high, codes_low, first, wide, part * width, block, width)
        x, s = _logarithms(products, constant + column, units + episode * 2, rows, depth, across, block)
        if alone:
            most = tl.max(s, 1)
            logarithm = s - (most + tl.log2(tl.sum(tl.exp2(s - most[:, None]), 1)))[:, None]
        else:
            logarithm = s - tl.load(normal + first + tl.arange(0, block))[:, None]
        theta = tl.exp2(logarithm) * tl.load(counts + first + tl.arange(0, block))[:, None]
        entropy += tl.sum(theta * logarithm, 1)
        total += tl.sum(tl.reshape(theta, (block // 16, 2, 8, across)), 1)
        if depth == 1:
            weights = theta * lift
        else:
            x = tl.where((line >= (rows - 1) * across)[None, :], 1.0, x)
            weights = tl.reshape(tl.reshape(x, (block, depth, across)) * (theta * lift)[:, None, :], (block, columns))
        weights_high = weights.to(tl.float16)
        weights_low = (weights - weights_high.to(tl.float32)).to(tl.float16)
        nothing = tl.zeros((width, columns), tl.float32)
        result += _product(tl.trans(high), tl.trans(low), weights_high, weights_low, nothing)
    place = (episode * splits + split) * number + tile
    lines = (place * columns + line)[None, :] * wide + part * width + tl.arange(0, width)[:, None]
    tl.store(sums + lines, result)
    if part == 0:
        tl.store(totals + place * across + tl.arange(0, across), tl.sum(tl.sum(total, 1), 0))
        tl.store(entropies + place, tl.sum(entropy, 0))
