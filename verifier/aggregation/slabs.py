"""Slabs: a round's updates as small dense matrices over the coefficients that any node sent.

Room: verifier (pure). The transform is orthonormal, so norms, distances and Gram matrices of the messages are
those of the parameters, and a coefficient that no node sent is zero under every rule. A slab holds a few
blocks, so no rule builds the dense n x P matrix: memory is one slab's, whatever the model's size.

Shape suffixes: N = nodes, T = coefficients sent by anybody in the slab, B = blocks
of the slab, U = the most such coefficients in one of its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Aggregate, Update
from assay.training.exact import VALUE_MAX
from assay.verifier.aggregation.scales import Scaled

SLAB_BLOCKS = 64  # 64 blocks of 16 nodes at k = 32 take 2 MB; larger slabs leave the cache
_ENTRIES_MAX = 1 << 20  # of a slab's matrix, so that dense wires and many nodes stay in memory too
_BLOCK_BITS = BLOCK_SIZE.bit_length() - 1  # shifts are several times faster than divisions
_WORKING_BITS = 20  # sums of 4096 products of values this wide stay below 2^53

Ints = NDArray[np.int64]
Part = tuple[Ints, Ints] | tuple[Ints, Ints, Ints]  # position and value; with amplitude, exponent too


@dataclass(frozen=True, slots=True)
class Slab:
    """Some blocks of all updates as dense arrays.

    at_T: block * 4096 + index over the whole layout, ascending.
    block_T, rank_T: block within the slab, and rank among that block's coefficients.
    value_BNU: nodes by ascending peer id. -1, 0 or 1, float32, on a sign wire; else whole numbers
        in units of 2^grid, int64. Zero also where a block has fewer than U.
    is_sent_BNU: with amplitudes, which nodes sent a coefficient, even if zero. None on a sign wire.
    grid: None on a sign wire.
    """

    at_T: Ints
    block_T: Ints
    rank_T: Ints
    value_BNU: NDArray[Any]
    is_sent_BNU: NDArray[np.bool_] | None = None
    grid: int | None = None

    @property
    def bits(self) -> Ints:
        """Bits of the largest value of each block; 1 on a sign wire. Shape (B,)."""
        if self.grid is None:
            return np.ones(len(self.value_BNU), np.int64)
        return bit_lengths(np.abs(self.value_BNU).max(axis=(1, 2), initial=0))

    def working(self, drop_B: Ints) -> NDArray[Any]:
        """`value >> drop_B` toward zero, as floats that hold it exactly."""
        if self.grid is None:
            return self.value_BNU
        size_BNU = np.abs(self.value_BNU) >> drop_B[:, None, None]
        floats: NDArray[np.float64] = np.copysign(size_BNU.astype(np.float64), self.value_BNU)
        return floats


def gram_of(value_BNU: NDArray[Any]) -> Ints:
    """Inner products of all pairs of nodes, block by block.

    Signs: sums over at most 4096 positions stay below 2^24, so float32 holds every partial sum
    exactly. Values of 20 bits: below 2^52 in float64. The order in which BLAS adds does not matter.
    """
    product = np.matmul(value_BNU, value_BNU.transpose(0, 2, 1))
    gram: Ints = product.astype(np.int64)
    return gram


def working_drop(bits_B: Ints) -> Ints:
    """Low bits to drop from values this wide, for `Slab.working`."""
    drop_B: Ints = np.maximum(bits_B - _WORKING_BITS, 0)
    return drop_B


def slabs(
    updates: Mapping[PeerId, Update],
    block_count: int,
    slab_blocks: int = SLAB_BLOCKS,
    scaled: Mapping[PeerId, Scaled] | None = None,
) -> Iterator[Slab]:
    """All slabs that hold a coefficient, in the order of their blocks.

    Args:
        updates: Decoded, checked updates by node, in any order.
        block_count: Blocks of the layout.
        slab_blocks: Blocks at a time, at most; changes the memory and no result.
        scaled: How values count; None for signs alone, of any wire.
    """
    ordered = [(update, scaled[peer] if scaled else None) for peer, update in sorted(updates.items())]
    width = min(BLOCK_SIZE, sum(update.index_BK.shape[1] for update in updates.values()))
    slab_blocks = max(1, min(slab_blocks, _ENTRIES_MAX // max(len(ordered) * width, 1)))
    grid = ordered[0][1].grid if ordered and ordered[0][1] else None
    for first in range(0, block_count, slab_blocks):
        count = min(slab_blocks, block_count - first)
        places = [places_of(update, scale, first, count) for update, scale in ordered]
        is_sent = np.zeros(count * BLOCK_SIZE, bool)
        for where, _ in places:
            is_sent[where] = True
        at_T = np.flatnonzero(is_sent)
        if not len(at_T):
            continue
        block_T = at_T >> _BLOCK_BITS
        sizes = np.bincount(block_T, minlength=count)
        rank_T = np.arange(len(at_T)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        shape = (count, len(ordered), int(sizes.max()))
        value_BNU: NDArray[Any] = np.zeros(shape, np.float32 if grid is None else np.int64)
        is_sent_BNU = None if grid is None else np.zeros(shape, bool)
        rank_of = np.zeros(count * BLOCK_SIZE, np.int64)
        rank_of[at_T] = rank_T
        for node, (where, values) in enumerate(places):
            # One flat index per value is cheaper than three.
            flat = (where >> _BLOCK_BITS) * (len(ordered) * shape[2])
            flat += rank_of[where]
            flat += node * shape[2]
            value_BNU.reshape(-1)[flat] = values
            if is_sent_BNU is not None:
                is_sent_BNU.reshape(-1)[flat] = True
        yield Slab(at_T + first * BLOCK_SIZE, block_T, rank_T, value_BNU, is_sent_BNU, grid)


def aggregate_of(parts: Iterable[Part], block_count: int) -> Aggregate:
    """One aggregate from (position, value) of successive slabs; zeros are left out.

    With an exponent per value, the same throughout a block, values are brought to 14 bits: by the
    shift that the block's largest needs, truncated toward zero.
    """
    kept: list[tuple[Ints, Ints]] = []
    exponent_N: Ints | None = None
    for part in parts:
        at_T, value_T = part[0], part[1]
        if len(part) == 3:
            exponent_N = np.zeros(block_count, np.int64) if exponent_N is None else exponent_N
            value_T = _fourteen_bits(at_T, value_T, part[2], exponent_N)
        is_some = np.flatnonzero(value_T)
        kept.append((at_T[is_some], value_T[is_some]))
    at_T = np.concatenate([at for at, _ in kept]) if kept else np.zeros(0, np.int64)
    value_T = np.concatenate([value for _, value in kept]) if kept else np.zeros(0, np.int64)
    return Aggregate(at_T >> _BLOCK_BITS, at_T & BLOCK_SIZE - 1, value_T.astype(np.int32), exponent_N)


def bit_lengths(number: Ints) -> Ints:
    """Bits of each number's magnitude; 0 for 0. Exact up to 2^62."""
    size = np.abs(number)
    bits: Ints = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    # Above 2^53 the float may have been rounded up to a power of two.
    exact: Ints = bits - ((size > 0) & (size >> np.maximum(bits - 1, 0) == 0))
    return exact


def _fourteen_bits(at_T: Ints, value_T: Ints, exponent_T: Ints, exponent_N: Ints) -> Ints:
    """Values of at most 14 bits; enters their blocks' exponents in `exponent_N`. `at_T` ascends."""
    if not len(at_T):
        return value_T
    start = np.flatnonzero(np.r_[True, np.diff(at_T // BLOCK_SIZE) > 0])
    largest = np.maximum.reduceat(np.abs(value_T), start)
    drop = np.maximum(bit_lengths(largest) - (VALUE_MAX.bit_length() - 1), 0)
    block = at_T[start] // BLOCK_SIZE
    exponent_N[block] = np.where(largest > 0, exponent_T[start] + drop, 0)
    drop_T = np.repeat(drop, np.diff(np.r_[start, len(at_T)]))
    kept_T: Ints = np.sign(value_T) * (np.abs(value_T) >> drop_T)
    return kept_T


def places_of(update: Update, scale: Scaled | None, first: int, count: int) -> tuple[Ints, NDArray[Any]]:
    """Position within the slab, and sign or scaled value, of all an update sends for these blocks."""
    low, high = np.searchsorted(update.blocks_B, (first, first + count))
    where = (update.blocks_B[low:high, None] - first) * BLOCK_SIZE + update.index_BK[low:high]
    value_BK = update.value_BK[low:high]
    if scale is not None:
        value_BK = scale.of(value_BK, slice(int(low), int(high)))
    elif update.exponent_B is not None:
        value_BK = np.sign(value_BK)
    return where.reshape(-1), value_BK.reshape(-1)
