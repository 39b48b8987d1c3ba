"""Wire: a node's update and the network's aggregate as canonical bytes.

Room: training (pure). An update is k (index, sign) pairs of every block that is
not empty: 9.5 bits a pair at k = 32. Both decoders are strict (one byte string
per content) and know the largest legal size before they allocate anything.

    update    = empty flags | low bits | signs | unary stream
    aggregate = counts per block | value table | low bits | value codes | unary stream
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import MalformedMessage
from protocol.params import BLOCK_SIZE
from training.exact import VALUE_MAX
from training.rice import (
    pack_bits,
    pack_gaps,
    pack_numbers,
    rice_bits,
    unpack_bits,
    unpack_gaps,
    unpack_numbers,
)


@dataclass(frozen=True, slots=True)
class Update:
    """One node's message: B non-empty blocks, k coefficients each.

    blocks_B: block numbers, ascending. index_BK: ascending in each row, 0..4095.
    value_BK: whole numbers; a coefficient is value * 2^exponent of its block. -1 or 1 on a sign wire.
    exponent_B: None where no amplitude is sent (a sign wire): a block's scale is then free.
    mantissa_B: 128..255, what every value of the block is a multiple of; None on a sign wire.
    """

    blocks_B: NDArray[np.int64]
    index_BK: NDArray[np.int64]
    value_BK: NDArray[Any]
    exponent_B: NDArray[np.int64] | None = None
    mantissa_B: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What the network moves by: integer coefficients, by block and index ascending.

    block_T, index_T: positions. value_T: magnitude <= 2^14.
    exponent_N: by block of the layout, a coefficient is value * 2^exponent; None where a sign
        follows, so that the scale of a block is free.
    """

    block_T: NDArray[np.int64]
    index_T: NDArray[np.int64]
    value_T: NDArray[np.int32]
    exponent_N: NDArray[np.int64] | None = None


def update_bytes_max(block_count: int, k: int) -> int:
    """No legal update is longer. It bounds what a receiver stores for a stranger."""
    bits = rice_bits(BLOCK_SIZE, k)
    per_block = k * bits + k + k + (BLOCK_SIZE >> bits)
    return -(-block_count // 8) + -(-block_count * per_block // 8) + 3


def encode_update(update: Update, block_count: int, k: int) -> bytes:
    """The one byte string for this update."""
    flags = np.zeros(block_count, np.uint8)
    flags[update.blocks_B] = 1
    bits = rice_bits(BLOCK_SIZE, k)
    gaps = (np.diff(update.index_BK, axis=1, prepend=-1) - 1).reshape(-1)
    low, unary = pack_gaps(gaps, bits)
    signs = pack_bits((update.value_BK.reshape(-1) > 0).astype(np.uint8))
    return pack_bits(flags) + low + signs + unary


def decode_update(data: bytes, block_count: int, k: int) -> Update:
    """The update these bytes stand for.

    Raises:
        MalformedMessage: not canonical, not `block_count` blocks, or an index beyond its block.
    """
    if len(data) > update_bytes_max(block_count, k):
        raise MalformedMessage(
            f"update: {len(data)} bytes, at most {update_bytes_max(block_count, k)} expected"
        )
    bits = rice_bits(BLOCK_SIZE, k)
    head = -(-block_count // 8)
    flags = unpack_bits(data[:head], block_count, "empty flags")
    blocks_B = np.flatnonzero(flags)
    count = len(blocks_B) * k
    low_end = head + -(-count * bits // 8)
    sign_end = low_end + -(-count // 8)
    if len(data) < sign_end:
        raise MalformedMessage(f"update: {len(data)} bytes, at least {sign_end} expected")
    gaps = unpack_gaps(data[head:low_end], data[sign_end:], count, bits)
    signs = unpack_bits(data[low_end:sign_end], count, "signs")
    index_BK = np.cumsum(gaps.reshape(-1, k) + 1, axis=1) - 1
    if count and int(index_BK[:, -1].max()) >= BLOCK_SIZE:
        raise MalformedMessage(f"update: index {int(index_BK.max())} in a block of {BLOCK_SIZE}")
    return Update(blocks_B, index_BK, (signs.astype(np.int8) * 2 - 1).reshape(-1, k))


def aggregate_bytes_max(block_count: int, k: int, node_count: int) -> int:
    """No aggregate of this many nodes is longer."""
    union = min(BLOCK_SIZE, k * node_count)
    return block_count * (2 + union * 5 + BLOCK_SIZE // 8) + 4 * (2 * VALUE_MAX + 1) + 16


def encode_aggregate(aggregate: Aggregate, block_count: int) -> bytes:
    """The one byte string for this aggregate."""
    counts = np.bincount(aggregate.block_T, minlength=block_count)
    table, codes = np.unique(aggregate.value_T, return_inverse=True)
    total = len(aggregate.value_T)
    bits = rice_bits(BLOCK_SIZE * block_count, total)
    first = np.r_[True, aggregate.block_T[1:] != aggregate.block_T[:-1]] if total else np.zeros(0, bool)
    before = np.where(first, -1, np.r_[0, aggregate.index_T[:-1]]) if total else np.zeros(0, np.int64)
    low, unary = pack_gaps(aggregate.index_T - before - 1, bits)
    return b"".join(
        (
            counts.astype("<u2").tobytes(),
            len(table).to_bytes(4, "little"),
            table.astype("<i4").tobytes(),
            low,
            pack_numbers(codes.astype(np.int64).reshape(-1), _width(len(table))),
            unary,
        )
    )


def decode_aggregate(data: bytes, block_count: int) -> Aggregate:
    """The aggregate these bytes stand for.

    Raises:
        MalformedMessage: not the canonical bytes of an aggregate of `block_count` blocks.
    """
    head = 2 * block_count + 4
    if len(data) < head:
        raise MalformedMessage(f"aggregate: {len(data)} bytes, at least {head} expected")
    counts = np.frombuffer(data[: head - 4], "<u2").astype(np.int64)
    if int(counts.max(initial=0)) > BLOCK_SIZE:
        raise MalformedMessage(f"aggregate: {int(counts.max())} coefficients in a block of {BLOCK_SIZE}")
    total, distinct = int(counts.sum()), int.from_bytes(data[head - 4 : head], "little")
    if distinct > min(2 * VALUE_MAX + 1, total):
        raise MalformedMessage(f"aggregate: a table of {distinct} values for {total} coefficients")
    bits, width = rice_bits(BLOCK_SIZE * block_count, total), _width(distinct)
    table_end = head + 4 * distinct
    low_end = table_end + -(-total * bits // 8)
    code_end = low_end + -(-total * width // 8)
    if len(data) < code_end:
        raise MalformedMessage(f"aggregate: {len(data)} bytes, at least {code_end} expected")
    table = np.frombuffer(data[head:table_end], "<i4").astype(np.int32)
    if int(np.abs(table.astype(np.int64)).max(initial=0)) > VALUE_MAX:
        raise MalformedMessage(f"aggregate: a value beyond {VALUE_MAX}")
    gaps = unpack_gaps(data[table_end:low_end], data[code_end:], total, bits)
    codes = unpack_numbers(data[low_end:code_end], total, width, "value codes")
    if total and int(codes.max()) >= distinct:
        raise MalformedMessage("aggregate: a code beyond its table")
    if total and int(gaps.max()) >= BLOCK_SIZE:
        raise MalformedMessage(f"aggregate: a gap beyond a block of {BLOCK_SIZE}")
    block_T = np.repeat(np.arange(block_count), counts)
    running = np.cumsum(gaps + 1)
    starts = np.r_[0, np.cumsum(counts)[:-1]]
    offset = np.where(starts > 0, np.r_[0, running][starts], 0)
    index_T = running - np.repeat(offset, counts) - 1
    if total and int(index_T.max()) >= BLOCK_SIZE:
        raise MalformedMessage(f"aggregate: index {int(index_T.max())} in a block of {BLOCK_SIZE}")
    aggregate = Aggregate(block_T, index_T, table[codes])
    if encode_aggregate(aggregate, block_count) != data:
        raise MalformedMessage("aggregate: not in canonical form")
    return aggregate


def _width(distinct: int) -> int:
    return max(distinct - 1, 0).bit_length()
