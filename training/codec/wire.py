"""Wire: codec of a node's update and of the network's aggregate, in canonical bytes.

Room: training (pure). An update is k (index, value) pairs of every block that is not dead: 9.5 bits
a pair at k = 32 with a sign. With k = 4096 every coefficient is sent and no index is written.
Decoders are strict (one byte string per content) and allocate at most 50 bytes per bit of a message,
whose largest legal size is known beforehand.

    update           = live flags | scales | low bits | value codes | unary stream
    aggregate        = counts per block | value table | low bits | value codes | unary stream
    scaled aggregate = counts per block | exponents | width | low bits | value codes | unary stream

Shape suffixes: N = blocks of the layout, B = live blocks, K = sent per block, T = coefficients in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import BLOCK_SIZE, Values
from assay.training.codec.rice import (
    pack_bits,
    pack_gaps,
    pack_numbers,
    rice_bits,
    unpack_bits,
    unpack_gaps,
    unpack_numbers,
)
from assay.training.codec.values import LEVEL_MAX, MANTISSA_MIN, VALUE_KINDS, exponent_window
from assay.training.exact import VALUE_MAX

CODE_BITS = {
    Values.SIGN: 1, Values.SIGN_MEAN: 1, Values.TWO_BIT: 2, Values.E3M0: 4, Values.INT8: 8, Values.INT16: 16,
}  # fmt: skip
# A coefficient's level by its code. The wide kinds are two's complement, without the lowest number.
_E3M0 = (0, 1, 2, 4, 8, 16, 32, 64)
_LEVELS: dict[Values, NDArray[Any]] = {
    Values.SIGN: np.array([-1, 1], np.int8),
    Values.SIGN_MEAN: np.array([-1, 1], np.int8),
    Values.TWO_BIT: np.array([-1, 1, -3, 3], np.int8),
    Values.E3M0: np.array([*_E3M0, *(-level for level in _E3M0)], np.int8),
}
_ROWS = 64  # blocks coded at a time: of a dense message, what is held beside it is then little
_MINUS_ZERO = 8  # the code of E3M0 that is not used
_BIAS = 256  # of the 9 exponent bits of a scale
_WIDTH_MAX = 15  # of an aggregate's value: 2^14 sizes and a sign, without 0
# By which an aggregate's values of 14 bits are scaled: the mean over 128 nodes of multiples of 2^-51 fits.
AGGREGATE_EXPONENTS = (-80, 0)


@dataclass(frozen=True, slots=True)
class Update:
    """One node's decoded message: B non-empty blocks, k coefficients each.

    blocks_B: block numbers, ascending. index_BK: ascending in each row, 0..4095.
    value_BK: integers; a coefficient is value * 2^exponent of its block. -1 or 1 on a sign wire.
    exponent_B: None where no amplitude is sent (a sign wire): a block's scale is then arbitrary.
    mantissa_B: 128..255, a factor of every value of the block; None on a sign wire.
    """

    blocks_B: NDArray[np.int64]
    index_BK: NDArray[np.int64]
    value_BK: NDArray[Any]
    exponent_B: NDArray[np.int64] | None = None
    mantissa_B: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """The aggregate of a round: integer coefficients, by block and index ascending.

    count_N: coefficients of each block of the layout. index_T: their places in it. value_T: magnitude
    <= 2^14, below 2^23 where the wire is MESSAGE. Of a dense wire there are as many as parameters, so
    these are as narrow as they can be.
    exponent_N: by block of the layout, a coefficient is value * 2^exponent, and an empty block has 0;
    None where only the sign is used, so that a block's scale is arbitrary.
    """

    count_N: NDArray[np.int64]
    index_T: NDArray[np.int16]
    value_T: NDArray[np.int32]
    exponent_N: NDArray[np.int64] | None = None

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The block of each coefficient. Shape (T,)."""
        return np.repeat(np.arange(len(self.count_N)), self.count_N)

    def dense(self) -> Iterator[tuple[slice, NDArray[np.int32]]]:
        """A few blocks at a time, and all their coefficients, zeros included. Shape (blocks, 4096), int32."""
        end_N = np.r_[0, np.cumsum(self.count_N)]
        for some in _rows(len(self.count_N)):
            found = slice(end_N[some.start], end_N[some.stop])
            value_NC = np.zeros((some.stop - some.start, BLOCK_SIZE), np.int32)
            at_T = np.repeat(np.arange(0, value_NC.size, BLOCK_SIZE), self.count_N[some])
            value_NC.reshape(-1)[at_T + self.index_T[found]] = self.value_T[found]
            yield some, value_NC


def update_bytes_max(block_count: int, k: int, values: Values = Values.SIGN) -> int:
    """Upper bound in bytes of any legal update. It bounds what a receiver stores for a peer."""
    per_block = k * CODE_BITS[values] + (0 if values is Values.SIGN else 16)
    if k < BLOCK_SIZE:
        bits = rice_bits(BLOCK_SIZE, k)
        per_block += k * bits + k + (BLOCK_SIZE >> bits)
    return -(-block_count // 8) + -(-block_count * per_block // 8) + 3


def encode_update(update: Update, block_count: int, k: int, values: Values = Values.SIGN) -> bytes:
    """The canonical bytes of this update."""
    flags = np.zeros(block_count, np.uint8)
    flags[update.blocks_B] = 1
    scales, codes = b"", []
    for some in _rows(len(update.value_BK)):
        level_BK = update.value_BK[some]
        if values is not Values.SIGN:
            assert update.mantissa_B is not None
            # Below 2^24 and a multiple: the float quotient is the exact one, and faster than an integer's.
            level_BK = level_BK.astype(np.float32) / update.mantissa_B[some].astype(np.float32)[:, None]
        codes.append(pack_numbers(_codes(level_BK.reshape(-1), values), CODE_BITS[values]))
    if values is not Values.SIGN:
        assert update.mantissa_B is not None and update.exponent_B is not None
        scale_B = update.mantissa_B - MANTISSA_MIN | update.exponent_B + _BIAS << 7
        scales = scale_B.astype("<u2").tobytes()
    low, unary = b"", b""
    if k < BLOCK_SIZE:
        gaps = (np.diff(update.index_BK, axis=1, prepend=-1) - 1).reshape(-1)
        low, unary = pack_gaps(gaps, rice_bits(BLOCK_SIZE, k))
    return b"".join((pack_bits(flags), scales, low, *codes, unary))


def decode_update(data: bytes, block_count: int, k: int, values: Values = Values.SIGN) -> Update:
    """The update these bytes encode. Dense indices are a read-only view.

    Raises:
        MalformedMessage: not canonical, not `block_count` blocks, an index beyond its block, a scale
            beyond its window, or a live block of zeros.
    """
    if len(data) > update_bytes_max(block_count, k, values):
        raise MalformedMessage(
            f"update: {len(data)} bytes, at most {update_bytes_max(block_count, k, values)} expected"
        )
    bits = rice_bits(BLOCK_SIZE, k) if k < BLOCK_SIZE else 0
    head = -(-block_count // 8)
    flags = unpack_bits(data[:head], block_count, "live flags")
    blocks_B = np.flatnonzero(flags)
    count = len(blocks_B) * k
    scale_end = head + (0 if values is Values.SIGN else 2 * len(blocks_B))
    low_end = scale_end + -(-count * bits // 8)
    code_end = low_end + -(-count * CODE_BITS[values] // 8)
    if len(data) < code_end:
        raise MalformedMessage(f"update: {len(data)} bytes, at least {code_end} expected")
    if k < BLOCK_SIZE:
        gaps = unpack_gaps(data[scale_end:low_end], data[code_end:], count, bits)
        index_BK = np.cumsum(gaps.reshape(-1, k) + 1, axis=1) - 1
        if count and int(index_BK[:, -1].max()) >= BLOCK_SIZE:
            raise MalformedMessage(f"update: index {int(index_BK.max())} in a block of {BLOCK_SIZE}")
    else:
        if len(data) != code_end:
            raise MalformedMessage(f"update: {len(data)} bytes, expected {code_end}")
        index_BK = np.broadcast_to(np.arange(BLOCK_SIZE), (len(blocks_B), BLOCK_SIZE))
    level_BK = np.empty((len(blocks_B), k), VALUE_KINDS[values])
    for some in _rows(len(blocks_B)):
        first, last = (low_end + -(-row * k * CODE_BITS[values] // 8) for row in (some.start, some.stop))
        level_BK[some] = _decode_levels(data[first:last], (some.stop - some.start) * k, values).reshape(-1, k)
    if values is Values.SIGN:
        return Update(blocks_B, index_BK, level_BK)
    if not level_BK.any(axis=1).all():
        block = int(blocks_B[np.argmin(level_BK.any(axis=1))])
        raise MalformedMessage(f"update: block {block} is live and all zeros")
    scale_B = np.frombuffer(data[head:scale_end], "<u2").astype(np.int64)
    mantissa_B, exponent_B = (scale_B & 127) + MANTISSA_MIN, (scale_B >> 7) - _BIAS
    least, most = exponent_window(values)
    beyond = (exponent_B < least) | (exponent_B > most)
    if beyond.any():
        wrong = int(exponent_B[np.argmax(beyond)])
        raise MalformedMessage(f"update: an exponent of {wrong}, expected {least} to {most}")
    level_BK *= mantissa_B.astype(level_BK.dtype)[:, None]
    return Update(blocks_B, index_BK, level_BK, exponent_B, mantissa_B)


def _rows(count: int) -> list[slice]:
    """All rows, a few at a time."""
    return [slice(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)]


def _codes(level_X: NDArray[Any], values: Values) -> NDArray[Any]:
    """Codes of levels. A level that the format does not have is a bug here."""
    most = LEVEL_MAX[values]
    assert not len(level_X) or (level_X.min() >= -most and level_X.max() <= most)
    if values in (Values.SIGN, Values.SIGN_MEAN):
        return level_X > 0
    if values is Values.INT8:
        return level_X.astype(np.int8).view(np.uint8)
    if values is Values.INT16:
        return level_X.astype(np.int16).view(np.uint16)
    table = np.full(2 * most + 1, 255, np.uint8)
    levels, codes = _LEVELS[values].astype(np.int64), np.arange(1 << CODE_BITS[values], dtype=np.uint8)
    table[levels[::-1] + most] = codes[::-1]
    code_X = table[level_X.astype(np.int32) + most]
    assert not len(code_X) or code_X.max() < 255
    return code_X


def _decode_levels(data: bytes, count: int, values: Values) -> NDArray[Any]:
    if values is Values.INT8 or values is Values.INT16:
        level_X: NDArray[Any] = np.frombuffer(data, np.int8 if values is Values.INT8 else "<i2")
        if count and int(level_X.min()) < -LEVEL_MAX[values]:
            raise MalformedMessage(f"update: a level of {int(level_X.min())}, below -{LEVEL_MAX[values]}")
        return level_X
    code_X = unpack_numbers(data, count, CODE_BITS[values], "value codes")
    if values is Values.E3M0 and bool((code_X == _MINUS_ZERO).any()):
        raise MalformedMessage("update: a negative zero")
    return _LEVELS[values][code_X]


def encode_aggregate(aggregate: Aggregate, block_count: int, has_scale: bool = False) -> bytes:
    """The canonical bytes of this aggregate.

    With `has_scale` no value is 0 (zeros are left out), and an empty block's exponent is 0.
    """
    value_T = aggregate.value_T
    counts = aggregate.count_N
    assert len(counts) == block_count
    index_T: NDArray[np.int64] = aggregate.index_T.astype(np.int64)
    gaps = np.diff(index_T, prepend=-1) - 1
    first = (np.cumsum(counts) - counts)[counts > 0]
    gaps[first] = index_T[first]
    low, unary = pack_gaps(gaps, rice_bits(BLOCK_SIZE * block_count, len(value_T)))
    assert not len(value_T) or (value_T.min() >= -VALUE_MAX and value_T.max() <= VALUE_MAX)
    head = counts.astype("<u2").tobytes()
    if has_scale:
        assert aggregate.exponent_N is not None
        code_T = _zigzag(value_T)
        width = int(code_T.max(initial=0)).bit_length()
        exponents = aggregate.exponent_N[counts > 0].astype(np.int8).tobytes()
        return head + exponents + bytes([width]) + low + pack_numbers(code_T, width) + unary
    seen = np.zeros(2 * VALUE_MAX + 1, np.int64)
    seen[value_T + VALUE_MAX] = 1
    table = np.flatnonzero(seen) - VALUE_MAX
    codes = pack_numbers((np.cumsum(seen) - 1)[value_T + VALUE_MAX], _width(len(table)))
    return head + len(table).to_bytes(4, "little") + table.astype("<i4").tobytes() + low + codes + unary


def decode_aggregate(data: bytes, block_count: int, has_scale: bool = False) -> Aggregate:
    """The aggregate these bytes encode.

    Raises:
        MalformedMessage: not the canonical bytes of an aggregate of `block_count` blocks.
    """
    head = 2 * block_count + (0 if has_scale else 4)
    if len(data) < head:
        raise MalformedMessage(f"aggregate: {len(data)} bytes, at least {head} expected")
    counts = np.frombuffer(data[: 2 * block_count], "<u2").astype(np.int64)
    if int(counts.max(initial=0)) > BLOCK_SIZE:
        raise MalformedMessage(f"aggregate: {int(counts.max())} coefficients in a block of {BLOCK_SIZE}")
    if has_scale:
        return _decode_scaled(data, block_count, counts)
    total, distinct = int(counts.sum()), int.from_bytes(data[head - 4 : head], "little")
    if distinct > min(2 * VALUE_MAX + 1, total):
        raise MalformedMessage(f"aggregate: a table of {distinct} values for {total} coefficients")
    table_end = head + 4 * distinct
    index_T, codes = _decode_places(data, table_end, counts, _width(distinct))
    table = np.frombuffer(data[head:table_end], "<i4").astype(np.int32)
    if int(np.abs(table.astype(np.int64)).max(initial=0)) > VALUE_MAX:
        raise MalformedMessage(f"aggregate: a value beyond {VALUE_MAX}")
    if total and int(codes.max()) >= distinct:
        raise MalformedMessage("aggregate: a code beyond its table")
    is_used = np.bincount(codes, minlength=distinct) > 0
    if not (is_used.all() and np.all(np.diff(table) > 0)):
        raise MalformedMessage(
            "aggregate: not in canonical form: its table is unsorted, or has unused values"
        )
    return Aggregate(counts, index_T, table[codes])


def _decode_scaled(data: bytes, block_count: int, counts: NDArray[np.int64]) -> Aggregate:
    exponent_end = 2 * block_count + int(np.count_nonzero(counts))
    if len(data) <= exponent_end:
        raise MalformedMessage(f"aggregate: {len(data)} bytes, at least {exponent_end + 1} expected")
    width = data[exponent_end]
    if width > _WIDTH_MAX:
        raise MalformedMessage(f"aggregate: values of {width} bits, at most {_WIDTH_MAX} expected")
    exponent_N = np.zeros(block_count, np.int64)
    exponent_N[counts > 0] = np.frombuffer(data[2 * block_count : exponent_end], np.int8)
    least, most = AGGREGATE_EXPONENTS
    if int(exponent_N.min(initial=0)) < least or int(exponent_N.max(initial=0)) > most:
        raise MalformedMessage(f"aggregate: an exponent that is not {least} to {most}")
    index_T, codes = _decode_places(data, exponent_end + 1, counts, width)
    if int(codes.max(initial=0)).bit_length() != width:
        raise MalformedMessage(f"aggregate: not in canonical form: {width} bits for values that need fewer")
    value_T = (np.where(codes & 1, -1, 1) * ((codes >> 1) + 1)).astype(np.int32)
    return Aggregate(counts, index_T, value_T, exponent_N)


def _decode_places(
    data: bytes, start: int, counts: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Index and value code of every coefficient: low bits, codes and unary stream from `start`."""
    total = int(counts.sum())
    bits = rice_bits(BLOCK_SIZE * len(counts), total)
    low_end = start + -(-total * bits // 8)
    code_end = low_end + -(-total * width // 8)
    if len(data) < code_end:
        raise MalformedMessage(f"aggregate: {len(data)} bytes, at least {code_end} expected")
    gaps = unpack_gaps(data[start:low_end], data[code_end:], total, bits)
    codes = unpack_numbers(data[low_end:code_end], total, width, "value codes")
    gaps += 1
    running = np.cumsum(gaps)
    ends = np.cumsum(counts)
    index_T = running - np.repeat(np.r_[0, running][ends - counts], counts) - 1
    if total and int(index_T.max()) >= BLOCK_SIZE:
        raise MalformedMessage(f"aggregate: index {int(index_T.max())} in a block of {BLOCK_SIZE}")
    return index_T.astype(np.int16), codes


def _zigzag(value_T: NDArray[np.int32]) -> NDArray[np.int64]:
    """1, -1, 2, -2 ... as 0, 1, 2, 3 ...: values up to 2^14 without 0 in 15 bits."""
    assert value_T.all()
    return (np.abs(value_T.astype(np.int64)) - 1) * 2 + (value_T < 0)


def _width(distinct: int) -> int:
    return max(distinct - 1, 0).bit_length()
