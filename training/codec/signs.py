"""Signs: codec of a sign step, one bit per position of every block that moves.

Room: training (pure). For sign steps only. The union of all nodes' coefficients grows with the nodes; this
does not, and is shorter from about two dozen nodes on (`benchmarks/download.py`). It is also the only form
that a decoded rule's result has. `Wire.SIGNS` selects it. The price: verifiers compute the inverse transform,
and a round's aggregate no longer tells which coefficients moved.

    signs = live flags | count of zeros | sign bits | gaps between zeros: low bits, then unary

Shape suffixes: N = blocks, B = live blocks, S = 64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import BLOCK_SIDE, BLOCK_SIZE
from assay.training.codec.rice import pack_bits, pack_gaps, rice_bits, unpack_bits, unpack_gaps

_COUNT_BYTES = 8


def signs_bytes_max(block_count: int) -> int:
    """Upper bound in bytes of legal signs: every position a zero, with two bits of gap each."""
    return -(-block_count // 8) + _COUNT_BYTES + 3 * block_count * BLOCK_SIZE // 8 + 2


def encode_signs(signs_NSS: NDArray[np.int8]) -> bytes:
    """The canonical bytes of these signs: -1, 0 or 1 per position. A block of zeros is not written."""
    flat_NC = signs_NSS.reshape(-1, BLOCK_SIZE)
    live_N: NDArray[np.bool_] = np.any(flat_NC, axis=1)
    sign_T = flat_NC[live_N].reshape(-1)
    zero_at = np.flatnonzero(sign_T == 0)
    low, unary = pack_gaps(np.diff(zero_at, prepend=-1) - 1, rice_bits(len(sign_T), len(zero_at)))
    return b"".join(
        (
            pack_bits(live_N.astype(np.uint8)),
            len(zero_at).to_bytes(_COUNT_BYTES, "little"),
            pack_bits((sign_T > 0).astype(np.uint8)),
            low,
            unary,
        )
    )


def decode_signs(data: bytes, block_count: int) -> NDArray[np.int8]:
    """The signs these bytes encode. Shape (N, 64, 64), int8.

    Raises:
        MalformedMessage: not the canonical bytes of the signs of `block_count` blocks.
    """
    if len(data) > signs_bytes_max(block_count):
        raise MalformedMessage(f"signs: {len(data)} bytes, at most {signs_bytes_max(block_count)} expected")
    head = -(-block_count // 8)
    live_N = unpack_bits(data[:head], block_count, "live flags").astype(bool)
    size = int(np.count_nonzero(live_N)) * BLOCK_SIZE
    bits_end = head + _COUNT_BYTES + size // 8
    zeros = int.from_bytes(data[head : head + _COUNT_BYTES], "little")
    bits = rice_bits(size, zeros)
    low_end = bits_end + -(-zeros * bits // 8)
    if zeros > size or len(data) < low_end:
        raise MalformedMessage(f"signs: {len(data)} bytes for {size} positions, {zeros} of them zero")
    sign_T = unpack_bits(data[head + _COUNT_BYTES : bits_end], size, "signs").astype(np.int8) * 2 - 1
    gaps = unpack_gaps(data[bits_end:low_end], data[low_end:], zeros, bits)
    zero_at = np.cumsum(gaps + 1) - 1
    if zeros and int(zero_at[-1]) >= size:
        raise MalformedMessage(f"signs: a zero at {int(zero_at[-1])} of {size} positions")
    sign_T[zero_at] = 0
    signs_NC = np.zeros((block_count, BLOCK_SIZE), np.int8)
    signs_NC[live_N] = sign_T.reshape(-1, BLOCK_SIZE)
    signs_NSS = signs_NC.reshape(-1, BLOCK_SIDE, BLOCK_SIDE)
    if encode_signs(signs_NSS) != data:
        raise MalformedMessage("signs: not in canonical form")
    return signs_NSS
