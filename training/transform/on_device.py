"""On device: the transforms from a gradient to a message by torch, where the gradient lies; the host's bits.

Room: training (pure). The host's text says in which order everything is rounded. Here are the same operations
in the same order, each a kernel of its own, so that no compiler fuses two of them: sums, differences and
products by element, and no library's reductions, whose order differs between devices. What lies in lanes or
rows is added side by side; what the host adds one after another is as many additions here. The butterflies
are the host's list (`transform/dct.py`).

Two chains are too long for that: the length that clipping needs, and those of columns. But their factors are
rounded to float32, which a sum in any order decides for all but one gradient in some hundreds, and all but a
few columns; these the host adds up, as `transform/inverse.py` decides signs. What is small is computed by the
host's text: factors of rows and columns, shares of the error, and the values of a message. So what crosses
the bus is k numbers of a block.

It covers rules that send the k largest coefficients of a gradient's DCT. On CUDA, torch's kernels for single
operations round as IEEE 754 says, quotients and numbers below the smallest normal one too.

Shape suffixes: P = parameters, N = blocks, C = 4096, S = 64, B = blocks given, K = sent per block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.protocol.params import BLOCK_SIDE as S
from assay.protocol.types import Digest
from assay.protocol.update_rule import BLOCK_SIZE, PPM, CompressSpec, RuleSpec, Transform
from assay.training.codec.values import quantise
from assay.training.codec.wire import Update
from assay.training.layout import Layout
from assay.training.transform.blocked_dct import LANES, length
from assay.training.transform.compress import GROUP_BLOCKS, clipped, signed_sums, update_of
from assay.training.transform.dct import FACTORS, IS_SUM, ORDER, PLACES
from assay.training.transform.equalise import LANES as ROW_LANES
from assay.training.transform.equalise import matrix_factors, vector_factors
from assay.training.transform.top_k import INFINITY

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Scales = list[tuple[Tensor, Tensor]]

_ENTRIES = {"cpu": 1 << 18, "cuda": 1 << 25}  # at a time: a core's cache; so much that launches cost little
_CHUNK = 1 << 16  # squares of a length that are added up in any order
_ULP = 2.0**-53  # what a rounding to float64 adds at most, relatively
_PLACE_BITS = BLOCK_SIZE.bit_length() - 1
_OPERATIONS = [
    (i, j, *factors, is_sum)
    for (i, j), factors, is_sum in zip(PLACES.tolist(), FACTORS.tolist(), IS_SUM.tolist(), strict=True)
]


def covers(rule: RuleSpec) -> bool:
    """Whether a rule's steps can be compressed here."""
    compress = rule.compress
    is_sparse = not compress.rank and compress.k < BLOCK_SIZE and rule.fragments == 1
    return rule.is_gradient and compress.transform is Transform.DCT and is_sparse


def gradient_blocks(rule: RuleSpec, layout: Layout, gradient_P: Tensor, lr: np.float32) -> Tensor:
    """`compress.gradient_blocks` of a gradient on a device, there. Shape (N, C), float32."""
    out_NC = gradient_P.new_empty((layout.blocks, BLOCK_SIZE))
    factor, at = _factor(rule, gradient_P, lr), 0
    scales = equalising(layout, gradient_P) if rule.local.equalises else None
    for blocks_BSS in _together(_blocks(layout, gradient_P, scales), _most(gradient_P, BLOCK_SIZE)):
        out_NC[at : at + len(blocks_BSS)] = _spectra(blocks_BSS, factor)
        at += len(blocks_BSS)
    return out_NC


def row_lengths(rows_BC: Tensor) -> Doubles:
    """`blocked_dct.row_lengths` of rows of whole lanes. Shape (B,), float64."""
    found = []
    for part in _parts(rows_BC, _most(rows_BC, rows_BC.shape[1])):
        lane = _chain(part.view(len(part), -1, LANES).double().square_().unbind(1))
        found.append(_chain(lane.unbind(1)))
    return np.sqrt(torch.cat(found).cpu().numpy()) if found else np.zeros(0)


def leave(error_BC: Tensor, share_B: Floats) -> None:
    """`carry.leave`: of each block's error its share, in place."""
    less = torch.from_numpy(np.flatnonzero(share_B != 1)).to(error_BC.device)
    shares = torch.from_numpy(share_B).to(error_BC.device)
    error_BC[less] = error_BC[less] * shares[less, None]
    error_BC[torch.from_numpy(np.flatnonzero(share_B == 0)).to(error_BC.device)] = 0


def transition(compress: CompressSpec, error_NC: Tensor, x_NC: Tensor) -> Update:
    """`compress.transition` for the k largest: what is sent; `error_NC` becomes the error after the step."""
    if compress.keeps_error:
        error_NC.mul_(float(np.float32(compress.feedback_micro / PPM))).add_(x_NC)
    else:
        error_NC.copy_(x_NC)
    live_B, index_BK = _largest(error_NC, compress.k)
    at_BK, flat = live_B[:, None] * BLOCK_SIZE + index_BK, error_NC.view(-1)
    moved_BK = flat[at_BK].cpu().numpy()
    written = quantise(compress.values, moved_BK)
    flat[at_BK] = torch.from_numpy(moved_BK - written.sent_BK).to(flat.device)
    if not compress.keeps_error:
        error_NC.zero_()
    index = index_BK.to(torch.int16).cpu().numpy().astype(np.int64)
    return update_of(live_B.cpu().numpy(), index, written)


def work_sketch(pattern: Digest, x_NC: Tensor) -> bytes:
    """`compress.work_sketch` of the blocks on a device."""
    column_sums = torch.zeros(BLOCK_SIZE, dtype=torch.float64, device=x_NC.device)
    step = max(_most(x_NC, BLOCK_SIZE) // GROUP_BLOCKS, 1) * GROUP_BLOCKS
    for part in _parts(x_NC, step):
        whole = len(part) // GROUP_BLOCKS * GROUP_BLOCKS
        for groups in (part[:whole].view(-1, GROUP_BLOCKS, BLOCK_SIZE), part[None, whole:]):
            if groups.numel():
                for group in _chain(groups.unbind(1)).unbind():
                    column_sums += group
    return signed_sums(pattern, column_sums.cpu().numpy())


def equalising(layout: Layout, gradient_P: Tensor) -> Scales:
    """`equalise.equalising`: the factors of every tensor's rows and columns, on the device."""
    parts = list(layout.views(gradient_P).values())
    vectors = [at for at, part in enumerate(parts) if part.ndim == 1]
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for at, part in enumerate(parts):
        if part.ndim > 1:
            by_shape.setdefault(tuple(part.shape), []).append(at)
    flat = torch.cat([parts[at] for at in vectors]).cpu().numpy() if vectors else np.zeros(0, np.float32)
    ends = np.cumsum([len(parts[at]) for at in vectors])
    found = dict(zip(vectors, vector_factors(np.split(flat, ends[:-1]) if vectors else []), strict=True))
    for same in by_shape.values():
        rows_MR, columns_MK = _squares([parts[at] for at in same])
        for at, row_R, column_K in zip(same, rows_MR, columns_MK, strict=True):
            found[at] = _factors(parts[at], row_R, column_K)
    return [
        (torch.from_numpy(row_R).to(gradient_P.device), torch.from_numpy(column_K).to(gradient_P.device))
        for row_R, column_K in (found[at] for at in range(len(parts)))
    ]


def _most(like: Tensor, width: int) -> int:
    """How many rows of this width are worked on at a time."""
    return max(_ENTRIES[like.device.type] // width, 1)


def _parts(whole: Tensor, size: int) -> list[Tensor]:
    """The rows of a tensor, so many at a time."""
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _chain(parts: tuple[Tensor, ...]) -> Tensor:
    """The parts added up in float64, one after another from the first on, by element."""
    total = parts[0].double().clone()
    for part in parts[1:]:
        total += part
    return total


def _factors(matrix_RK: Tensor, row_R: Doubles, column_K: Doubles) -> tuple[Floats, Floats]:
    """The factors of a matrix's rows and columns, by `_squares`."""
    total = float(np.add.accumulate(row_R)[-1])  # from the first row on, as the host adds them
    doubt = _doubt(2 * len(row_R))
    least_K, most_K = (matrix_factors(total, row_R, column_K * (1 + by))[1] for by in (doubt, -doubt))
    unsure = np.flatnonzero(~(least_K == most_K))
    if len(unsure):
        few = matrix_RK[:, torch.from_numpy(unsure).to(matrix_RK.device)].cpu().numpy()
        column_K[unsure] = np.add.accumulate(np.square(few, dtype=np.float64))[-1]
    return matrix_factors(total, row_R, column_K)


def _doubt(additions: int) -> float:
    """By how much two sums of the same squares differ at most, in units of either.

    A sum of terms that are not negative errs by a rounding for each addition that a term goes through.
    additions: that a term goes through, in both.
    """
    return 1.01 * _ULP * (additions + 8)


def _squares(matrices: list[Tensor]) -> tuple[Doubles, Doubles]:
    """Sums of squares of every row and every column of M matrices of one shape: shapes (M, R) and (M, K).

    A row's are in the order of `equalise._squares`: lanes of every eighth entry, then the lanes. A column's
    are in any.
    """
    high, wide = matrices[0].shape
    column_MK = torch.zeros((len(matrices), wide), dtype=torch.float64, device=matrices[0].device)
    found, step = [], _most(matrices[0], len(matrices) * wide)
    for top in range(0, high, step):
        square_MRK = torch.stack([matrix[top : top + step] for matrix in matrices]).double().square_()
        column_MK += square_MRK.sum(dim=1)
        whole = torch.nn.functional.pad(
            square_MRK, (0, -wide % ROW_LANES)
        )  # a sum of squares plus 0 is that sum
        lane = _chain(whole.view(*whole.shape[:2], -1, ROW_LANES).unbind(2))
        found.append(_chain(lane.unbind(2)))
    return torch.cat(found, dim=1).cpu().numpy(), column_MK.cpu().numpy()


def _factor(rule: RuleSpec, gradient_P: Tensor, lr: np.float32) -> np.float32:
    """What the transform multiplies by: of the clipped gradient's factor, with the transform's own."""
    if not rule.local.clip_micro:
        return np.float32(float(lr) / S)
    shorter, longer = (np.float32(clipped(rule, lr, one) / S) for one in _lengths(gradient_P))
    if shorter == longer:
        return shorter
    return np.float32(clipped(rule, lr, length(gradient_P.cpu().numpy())) / S)


def _lengths(gradient_P: Tensor) -> tuple[float, float]:
    """Between which `blocked_dct.length` of a vector lies; infinite or NaN where an entry is.

    Squares are exact, and added up in any order in chunks, whose sums are added exactly.
    """
    sums: list[float] = []
    for part in _parts(gradient_P, _most(gradient_P, _CHUNK) * _CHUNK):
        whole = len(part) // _CHUNK * _CHUNK
        for chunks in (part[:whole].view(-1, _CHUNK), part[None, whole:]):
            sums += chunks.double().square_().sum(dim=1).tolist()
    total = math.fsum(sums)
    doubt = _doubt(_CHUNK + len(gradient_P) // LANES + LANES)
    return math.sqrt(total * (1 - doubt)), math.sqrt(total * (1 + doubt))


def _blocks(layout: Layout, flat_P: Tensor, scales: Scales | None) -> Iterator[Tensor]:
    """The layout's blocks in order, scaled, so many at a time as are worked on. Shapes (B, S, S)."""
    parts = list(layout.views(flat_P).values())
    factors: Sequence[tuple[Tensor, Tensor] | None] = scales or [None] * len(parts)
    if layout.is_packed:
        scaled = [_scaled(part, scale).reshape(-1) for part, scale in zip(parts, factors, strict=True)]
        flat = torch.cat(scaled)
        whole = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK_SIZE)).view(-1, S, S)
        yield from _parts(whole, _most(flat_P, BLOCK_SIZE))
        return
    rows = []
    for part, scale in zip(parts, factors, strict=True):
        if part.ndim == 1:
            vector = _scaled(part[None], scale)[0]
            rows.append(torch.nn.functional.pad(vector, (0, -len(vector) % S)).view(-1, S))
            continue
        step = _most(part, S * S * -(-part.shape[1] // S)) * S
        for top in range(0, len(part), step):
            yield _tiles(_scaled(part[top : top + step], scale and (scale[0][top : top + step], scale[1])))
    if rows:
        yield from _parts(_tiles(torch.cat(rows)), _most(flat_P, BLOCK_SIZE))


def _together(parts: Iterator[Tensor], most: int) -> Iterator[Tensor]:
    """The same in larger parts, of about so many: a part costs a thousand kernels, however small it is."""
    held: list[Tensor] = []
    for part in parts:
        if held and sum(map(len, held)) + len(part) > most:
            yield torch.cat(held)
            held = []
        held.append(part)
    if held:
        yield torch.cat(held)


def _scaled(matrix_RW: Tensor, scale: tuple[Tensor, Tensor] | None) -> Tensor:
    return matrix_RW if scale is None else matrix_RW * scale[0][:, None] * scale[1]


def _tiles(matrix_RW: Tensor) -> Tensor:
    """A matrix cut into blocks row by row, filled up with zeros. Shape (B, S, S)."""
    high, wide = matrix_RW.shape
    padded = torch.nn.functional.pad(matrix_RW, (0, -wide % S, 0, -high % S))
    return padded.view(len(padded) // S, S, -1, S).transpose(1, 2).reshape(-1, S, S)


def _spectra(blocks_BSS: Tensor, factor: np.float32) -> Tensor:
    """`dct.block_spectra` of blocks that were cut out; `factor` has the transform's own. Shape (B, C).

    The blocks lie beside each other along the last side, so that both sides of all go through an operation
    without being turned.
    """
    count = len(blocks_BSS)
    beside_SSB = blocks_BSS.reshape(count, BLOCK_SIZE).t().contiguous().view(S, S, count)
    spectra_SSB = _turned(_turned(beside_SSB, 0), 1) * float(factor)
    return spectra_SSB.view(BLOCK_SIZE, count).t()


def _turned(numbers_SSB: Tensor, side: int) -> Tensor:
    """DCT along a side, by the host's list of operations on two lines at a time."""
    line = list(numbers_SSB.unbind(side))
    for i, j, a, b, c, d, is_sum in _OPERATIONS:
        x, y = line[i], line[j]
        line[i], line[j] = (x + y, x - y) if is_sum else (a * x + b * y, c * x + d * y)
    return torch.stack([line[at] for at in ORDER.tolist()], side)


def _largest(moved_BC: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`top_k.largest`: live blocks, and the positions of the k largest in each, ascending; int64.

    The bits of a float without its sign order as sizes do; the place follows them in one number, lower first.
    """
    last = BLOCK_SIZE - 1
    place_C = torch.arange(last, -1, -1, device=moved_BC.device)
    keys = []
    for part in _parts(moved_BC, _most(moved_BC, BLOCK_SIZE)):
        size = part.view(torch.int32) & 0x7FFFFFFF
        size = size.masked_fill_(size > INFINITY, 0).long()
        keys.append(((size << _PLACE_BITS) | place_C).topk(k, dim=1).values)
    key_BK = torch.cat(keys)
    live_B = (key_BK[:, -1] >> _PLACE_BITS).nonzero()[:, 0]
    return live_B, (last - (key_BK[live_B] & last)).sort(dim=1).values
