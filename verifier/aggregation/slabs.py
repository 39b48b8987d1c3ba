"""Slabs: a round's updates as small dense matrices over the coefficients that any node sent.

Room: verifier (pure). The transform is orthonormal, so norms, distances and Gram matrices of the messages are
those of the parameters, and a coefficient that no node sent is zero under every rule. A slab holds a few
blocks, so no rule builds the dense n x P matrix: memory is one slab's, whatever the model's size.

Shape suffixes: N = nodes, T = coefficients sent by anybody in the slab, B = blocks
of the slab, U = the most such coefficients in one of its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIZE
from assay.protocol.types import PeerId
from assay.training.codec.wire import Aggregate, Update
from assay.training.compiled import (
    FILL_INT32_1,
    FILL_INT64_1,
    FILL_INT64_2,
    FILL_UINT64_1,
    INT,
    READ_INT64_1,
    READ_INT64_2,
    Kind,
    compiled,
    lowest_bit,
)
from assay.training.exact import VALUE_MAX
from assay.training.parallel import in_order
from assay.verifier.aggregation.scales import Scaled

SLAB_BLOCKS = 64  # 64 blocks of 16 nodes at k = 32 take 2 MB; larger slabs leave the cache
_ENTRIES_MAX = 1 << 20  # of a slab's matrix, so that dense wires and many nodes stay in memory too
_BLOCK_BITS = BLOCK_SIZE.bit_length() - 1  # shifts are several times faster than divisions
_SENDER_BITS = 12  # sums of signs of at most 128 nodes stay below half of it
_SENDER = 1 << _SENDER_BITS  # of a count in one number
_SIGNS, _VALUES, _INDICES = Kind("int8", 2), Kind("int32", 2), Kind("uint16", 2)
_WORDS = BLOCK_SIZE // 64  # in which a block's places are marked, a bit each
_WORKING_BITS = 20  # sums of 4096 products of values this wide stay below 2^53

_EVERY_1K = np.arange(BLOCK_SIZE, dtype=np.uint16)[None]

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
    grid = next(iter(scaled.values())).grid if scaled else None

    def counted(peer: PeerId, part: slice) -> NDArray[Any]:
        return scaled[peer].of(updates[peer].value_BK[part], part) if scaled else _signs(updates[peer], part)

    for cut in _cut(updates, block_count, slab_blocks, counted):
        rows = cut()
        count, nodes = rows.row_BN.shape
        rank_RK, at_T = np.empty(rows.value_RK.shape, np.int64), np.empty(rows.value_RK.size, np.int64)
        sizes_B = np.empty(count, np.int64)
        at_T = at_T[: _rank(rows.row_BN, rows.index_RK, rank_RK, at_T, sizes_B)]
        block_T = at_T >> _BLOCK_BITS
        shape = (count, nodes, int(sizes_B.max()))
        flat_RK = rank_RK
        flat_RK += rows.place_R[:, None] * shape[2]
        value_BNU: NDArray[Any] = np.zeros(shape, np.float32 if grid is None else np.int64)
        value_BNU.reshape(-1)[flat_RK] = rows.value_RK
        is_sent_BNU = None if grid is None else np.zeros(shape, bool)
        if is_sent_BNU is not None:
            is_sent_BNU.reshape(-1)[flat_RK] = True
        rank_T = np.arange(len(at_T)) - np.repeat(np.cumsum(sizes_B) - sizes_B, sizes_B)
        yield Slab(at_T + rows.first * BLOCK_SIZE, block_T, rank_T, value_BNU, is_sent_BNU, grid)


def tallies(
    updates: Mapping[PeerId, Update], block_count: int, scaled: Mapping[PeerId, Scaled] | None = None
) -> Iterator[tuple[Ints, Ints, Ints]]:
    """What the nodes' values add up to, a few blocks at a time.

    Args:
        updates: Decoded, checked updates by node, in any order.
        block_count: Blocks of the layout.
        scaled: How values count; None for signs alone, of any wire.

    Returns:
        Of every coefficient that was sent, ascending: its position in the layout, the sum of its values, and
        how many nodes sent it.
    """

    def sent(peer: PeerId, part: slice) -> NDArray[Any]:
        if scaled:
            return updates[peer].value_BK[part].astype(np.int32, copy=False)
        return _signs(updates[peer], part)

    def tally(cut: Cut) -> tuple[Ints, Ints, Ints]:
        rows = cut()
        found = at_T, sum_T, sent_T = np.empty((3, rows.places_max), np.int64)
        if scaled:
            ordered = [(scaled[peer], part) for peer, part in rows.parts]
            m_R = np.concatenate([one.m_B[part] for one, part in ordered])
            s_R = np.concatenate([one.s_B[part] for one, part in ordered])
            total = _sum(rows.first, rows.row_BN, rows.index_RK, rows.value_RK, m_R, s_R, *found)
        else:
            total = _tally(rows.first, rows.row_BN, rows.index_RK, rows.value_RK, *found)
        return at_T[:total], sum_T[:total], sent_T[:total]

    return in_order(tally, _cut(updates, block_count, SLAB_BLOCKS, sent))


@dataclass(frozen=True, slots=True)
class Rows:
    """All that was sent of some blocks. Shapes: R = one for each node and block, K = sent of each.

    first: the first of these blocks. parts: every node's blocks, by ascending peer id; the order of rows.
    row_BN: which row is a block's of a node; -1 where it sent none. place_R: a row's block times nodes, plus
    its node. index_RK: one row for all where every coefficient is sent. value_RK: what counts, a number of
    each index.
    """

    first: int
    parts: list[tuple[PeerId, slice]]
    row_BN: Ints
    place_R: Ints
    index_RK: NDArray[np.uint16]
    value_RK: NDArray[Any]

    @property
    def places_max(self) -> int:
        """At most so many coefficients were sent by anybody."""
        return min(self.value_RK.size, len(self.row_BN) * BLOCK_SIZE)


Cut = Callable[[], Rows]  # of a group of blocks, gathered by whoever calls


def sign_rows(updates: Mapping[PeerId, Update], block_count: int) -> Iterator[Cut]:
    """The signs of all nodes, of every group of blocks of which anything was sent."""
    return _cut(updates, block_count, SLAB_BLOCKS, lambda peer, part: _signs(updates[peer], part))


def _cut(
    updates: Mapping[PeerId, Update],
    block_count: int,
    slab_blocks: int,
    value_of: Callable[[PeerId, slice], NDArray[Any]],
) -> Iterator[Cut]:
    """Every group of blocks of which anything was sent. Groups can be gathered on several threads."""
    ordered = sorted(updates.items())
    width = min(BLOCK_SIZE, sum(update.index_BK.shape[1] for update in updates.values()))
    slab_blocks = max(1, min(slab_blocks, _ENTRIES_MAX // max(len(ordered) * width, 1)))
    edges = np.arange(0, block_count + slab_blocks, slab_blocks)
    ends = [np.searchsorted(update.blocks_B, edges).tolist() for _, update in ordered]
    for number, first in enumerate(edges[:-1].tolist()):
        parts = [slice(*end[number : number + 2]) for end in ends]
        if any(part.stop > part.start for part in parts):
            count = min(slab_blocks, block_count - first)
            yield partial(_gathered, ordered, parts, first, count, value_of)


def _gathered(
    ordered: list[tuple[PeerId, Update]],
    parts: list[slice],
    first: int,
    count: int,
    value_of: Callable[[PeerId, slice], NDArray[Any]],
) -> Rows:
    """The rows of `count` blocks. `parts`: which of each node's."""
    nodes, sizes = len(ordered), [part.stop - part.start for part in parts]
    cut = [(update, part) for (_, update), part in zip(ordered, parts, strict=True)]
    place_R = np.concatenate([update.blocks_B[part] for update, part in cut]) - first
    place_R *= nodes
    place_R += np.repeat(np.arange(nodes), sizes)
    row_BN = np.full((count, nodes), -1)
    row_BN.reshape(-1)[place_R] = np.arange(len(place_R))
    # A decoded array may lie column by column, and compiled code reads rows.
    index_RK = _EVERY_1K
    if ordered[0][1].index_BK.shape[1] < BLOCK_SIZE:
        index_BK = [update.index_BK[part] for update, part in cut]  # within 0..4095
        index_RK = np.ascontiguousarray(np.concatenate(index_BK, dtype=np.uint16, casting="unsafe"))
    named = [(peer, part) for (peer, _), part in zip(ordered, parts, strict=True)]
    value_RK = np.ascontiguousarray(np.concatenate([value_of(*one) for one in named]))
    return Rows(first, named, row_BN, place_R, index_RK, value_RK)


def _signs(update: Update, part: slice) -> NDArray[np.int8]:
    value_BK = update.value_BK[part]
    sign_BK: NDArray[np.int8] = value_BK if update.exponent_B is None else np.sign(value_BK)
    return sign_BK.astype(np.int8, copy=False)


@compiled(INT, FILL_UINT64_1, FILL_INT32_1)
def _taken(seen_W: NDArray[np.uint64], place_C: NDArray[np.int32]) -> int:
    """Places of a block that are marked, ascending, and their number. The marks are taken away."""
    found, one = 0, np.uint64(1)
    for word in range(len(seen_W)):
        bits = seen_W[word]
        seen_W[word] = 0
        while bits:
            place_C[found] = (word << 6) + lowest_bit(bits)
            bits &= bits - one
            found += 1
    return found


@compiled(INT, READ_INT64_2, _INDICES, FILL_INT64_2, FILL_INT64_1, FILL_INT64_1)
def _rank(row_BN: Ints, index_RK: NDArray[np.uint16], rank_RK: Ints, at_T: Ints, sizes_B: Ints) -> int:
    """Each value's rank among the coefficients of its block that anybody sent; their places and number."""
    rank_C, place_C, total = np.empty(BLOCK_SIZE, np.int32), np.empty(BLOCK_SIZE, np.int32), 0
    seen_W = np.zeros(_WORDS, np.uint64)
    every = len(index_RK) == 1
    for block in range(len(row_BN)):
        for node in range(row_BN.shape[1]):
            row = row_BN[block, node]
            if row >= 0:
                at = 0 if every else row
                for k in range(index_RK.shape[1]):
                    place = index_RK[at, k]
                    seen_W[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
        found = _taken(seen_W, place_C)
        for i in range(found):
            rank_C[place_C[i]] = i
            at_T[total + i] = block * BLOCK_SIZE + place_C[i]
        total += found
        sizes_B[block] = found
        for node in range(row_BN.shape[1]):
            row = row_BN[block, node]
            if row >= 0:
                at = 0 if every else row
                for k in range(index_RK.shape[1]):
                    rank_RK[row, k] = rank_C[index_RK[at, k]]
    return total


@compiled(INT, INT, READ_INT64_2, _INDICES, _SIGNS, FILL_INT64_1, FILL_INT64_1, FILL_INT64_1)
def _tally(
    first: int,
    row_BN: Ints,
    index_RK: NDArray[np.uint16],
    sign_RK: NDArray[np.int8],
    at_T: Ints,
    net_T: Ints,
    sent_T: Ints,
) -> int:
    """Places, sums of signs and numbers of senders of all coefficients that anybody sent; their number."""
    both_C, place_C, total = np.zeros(BLOCK_SIZE, np.int32), np.empty(BLOCK_SIZE, np.int32), 0
    seen_W = np.zeros(_WORDS, np.uint64)
    every = len(index_RK) == 1
    for block in range(len(row_BN)):
        for node in range(row_BN.shape[1]):
            row = row_BN[block, node]
            if row >= 0:
                at = 0 if every else row
                for k in range(index_RK.shape[1]):
                    place = index_RK[at, k]
                    seen_W[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
                    both_C[place] += _SENDER + sign_RK[row, k]
        found = _taken(seen_W, place_C)
        for i in range(found):
            both, both_C[place_C[i]] = both_C[place_C[i]], 0
            sent = (both + _SENDER // 2) >> _SENDER_BITS
            at_T[total + i] = (first + block) * BLOCK_SIZE + place_C[i]
            net_T[total + i], sent_T[total + i] = both - sent * _SENDER, sent
        total += found
    return total


@compiled(
    INT,
    INT,
    READ_INT64_2,
    _INDICES,
    _VALUES,
    READ_INT64_1,
    READ_INT64_1,
    FILL_INT64_1,
    FILL_INT64_1,
    FILL_INT64_1,
)
def _sum(
    first: int,
    row_BN: Ints,
    index_RK: NDArray[np.uint16],
    value_RK: NDArray[np.int32],
    m_R: Ints,
    s_R: Ints,
    at_T: Ints,
    sum_T: Ints,
    sent_T: Ints,
) -> int:
    """As `_tally`, of values as `Scaled.of` counts them."""
    sum_C, sent_C, total = np.empty(BLOCK_SIZE, np.int64), np.empty(BLOCK_SIZE, np.int32), 0
    place_C, seen_W = np.empty(BLOCK_SIZE, np.int32), np.zeros(_WORDS, np.uint64)
    every = len(index_RK) == 1
    for block in range(len(row_BN)):
        sum_C[:] = 0
        sent_C[:] = 0
        for node in range(row_BN.shape[1]):
            row = row_BN[block, node]
            if row >= 0:
                at = 0 if every else row
                up, down = max(s_R[row], 0), min(max(-s_R[row], 0), 63)
                for k in range(index_RK.shape[1]):
                    product = value_RK[row, k] * m_R[row]
                    kept = abs(product) >> down << up
                    place = index_RK[at, k]
                    seen_W[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
                    sum_C[place] += kept if product > 0 else -kept
                    sent_C[place] += 1
        found = _taken(seen_W, place_C)
        for i in range(found):
            at_T[total + i] = (first + block) * BLOCK_SIZE + place_C[i]
            sum_T[total + i], sent_T[total + i] = sum_C[place_C[i]], sent_C[place_C[i]]
        total += found
    return total


def aggregate_of(parts: Iterable[Part], block_count: int, *, has_scale: bool) -> Aggregate:
    """One aggregate from (position, value) of successive slabs; zeros are left out.

    With `has_scale` every part has an exponent per value, the same throughout a block, and values are brought
    to 14 bits: by the shift that the block's largest needs, truncated toward zero. There may be no parts.
    """
    count_N = np.zeros(block_count, np.int64)
    kept_index, kept_value = [np.zeros(0, np.int16)], [np.zeros(0, np.int32)]
    exponent_N: Ints | None = np.zeros(block_count, np.int64) if has_scale else None
    for part in parts:
        at_T, value_T = part[0], part[1]
        if len(part) == 3:
            assert exponent_N is not None
            value_T = _fourteen_bits(at_T, value_T, part[2], exponent_N)
        index_T, whole_T = np.empty(len(at_T), np.int16), np.empty(len(at_T), np.int32)
        some = _keep(at_T, value_T, count_N, index_T, whole_T)
        kept_index.append(index_T[:some].copy())
        kept_value.append(whole_T[:some].copy())
    # Of a dense wire these are as many as parameters: the parts are not held beside the whole.
    whole_T = np.concatenate(kept_value)
    kept_value.clear()
    return Aggregate(count_N, np.concatenate(kept_index), whole_T, exponent_N)


@compiled(INT, READ_INT64_1, READ_INT64_1, FILL_INT64_1, Kind("int16", 1, is_filled=True), FILL_INT32_1)
def _keep(
    at_T: Ints, value_T: Ints, count_N: Ints, index_T: NDArray[np.int16], whole_T: NDArray[np.int32]
) -> int:
    """Indices and values of what is not zero, which are counted block by block; their number."""
    some = 0
    for t in range(len(at_T)):
        index_T[some], whole_T[some] = at_T[t] & BLOCK_SIZE - 1, value_T[t]
        count_N[at_T[t] >> _BLOCK_BITS] += value_T[t] != 0
        some += value_T[t] != 0
    return some


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
