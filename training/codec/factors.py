"""Factors: codec of an update as two thin matrices per block, in canonical bytes.

Room: training (pure, without torch: the network's processes read these). A block is
left * right^T * 2^exponent with int8 factors of 64 x rank, so it costs rank / 4 bits a
coefficient and 8 bits. Like every coefficient (`training/codec/values.py`) those of a block are multiples of
2^-51 below 2^4. The decoder is strict: one byte string per content.

    factors = live flags | exponents | left | right

Shape suffixes: N = blocks of the layout, B = live blocks, S = 64, R = rank, K = 4096.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import BLOCK_SIDE as S
from assay.protocol.params import BLOCK_SIZE
from assay.training.codec.rice import pack_bits, unpack_bits
from assay.training.codec.values import COEFFICIENT_BITS, EXPONENT_MIN
from assay.training.codec.wire import Update

FACTOR_MAX = 127
EXPONENT_MAX = COEFFICIENT_BITS - 17  # 8 products of 127 * 127 stay below 2^17


@dataclass(frozen=True, slots=True)
class Factors:
    """The message of a rule with a rank: B live blocks.

    blocks_B: block numbers, ascending. left_BSR, right_BSR: int8, magnitude <= 127, neither of them
    all zeros in a block. exponent_B: EXPONENT_MIN to EXPONENT_MAX.
    """

    blocks_B: NDArray[np.int64]
    left_BSR: NDArray[np.int8]
    right_BSR: NDArray[np.int8]
    exponent_B: NDArray[np.int64]


def factors_to_update(factors: Factors) -> Update:
    """Every coefficient of the live blocks; indices are a read-only view and there is no mantissa."""
    index_BK = np.broadcast_to(np.arange(BLOCK_SIZE), (len(factors.blocks_B), BLOCK_SIZE))
    return Update(factors.blocks_B, index_BK, product(factors).astype(np.int32), factors.exponent_B)


def product(factors: Factors) -> NDArray[np.float32]:
    """left * right^T, whole numbers below 2^17: exact in float32 in any order. Shape (B, K)."""
    left_BSR, right_BRS = factors.left_BSR.astype(np.float32), factors.right_BSR.transpose(0, 2, 1)
    both: NDArray[np.float32] = np.matmul(left_BSR, right_BRS.astype(np.float32)).reshape(-1, BLOCK_SIZE)
    return both


def factor_bytes_max(block_count: int, rank: int) -> int:
    """Upper bound in bytes of any legal message."""
    return -(-block_count // 8) + block_count * (1 + 2 * S * rank)


def encode_factors(factors: Factors, block_count: int) -> bytes:
    """The canonical bytes of these factors."""
    flags = np.zeros(block_count, np.uint8)
    flags[factors.blocks_B] = 1
    exponents = factors.exponent_B.astype(np.int8)
    parts = (exponents, factors.left_BSR, factors.right_BSR)
    return pack_bits(flags) + b"".join(part.tobytes() for part in parts)


def decode_factors(data: bytes, block_count: int, rank: int) -> Factors:
    """The factors these bytes encode, as read-only views of them.

    Raises:
        MalformedMessage: not canonical, not `block_count` blocks of this rank, an exponent beyond its
            window, an entry of -128, or a live block with a factor of zeros.
    """
    head = -(-block_count // 8)
    blocks_B = np.flatnonzero(unpack_bits(data[:head], block_count, "live flags"))
    side = len(blocks_B) * S * rank
    size = head + len(blocks_B) + 2 * side
    if len(data) != size:
        raise MalformedMessage(f"factors: {len(data)} bytes, expected {size}")
    entries = np.frombuffer(data, np.int8, offset=head)
    exponent_B = entries[: len(blocks_B)].astype(np.int64)
    least, most = int(exponent_B.min(initial=EXPONENT_MAX)), int(exponent_B.max(initial=EXPONENT_MIN))
    if least < EXPONENT_MIN or most > EXPONENT_MAX:
        wrong = least if least < EXPONENT_MIN else most
        raise MalformedMessage(f"factors: an exponent of {wrong}, expected {EXPONENT_MIN} to {EXPONENT_MAX}")
    left_BSR, right_BSR = entries[len(blocks_B) :].reshape(2, len(blocks_B), S, rank)
    for name, part_BSR in (("left", left_BSR), ("right", right_BSR)):
        if int(part_BSR.min(initial=0)) < -FACTOR_MAX:
            raise MalformedMessage(f"factors: an entry of -128 in a {name} factor")
        is_zero_B = ~part_BSR.any(axis=(1, 2))
        if is_zero_B.any():
            block = int(blocks_B[np.argmax(is_zero_B)])
            raise MalformedMessage(f"factors: block {block} is live and its {name} factor all zeros")
    return Factors(blocks_B, left_BSR, right_BSR, exponent_B)
