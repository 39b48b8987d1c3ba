"""Low rank: the best two thin matrices for a block, by power iteration with equal bits on every machine.

Room: training (pure). PowerSGD (Vogels, Karimireddy & Jaggi, arXiv:1905.13727) on 64 x 64
blocks. It starts from a public matrix, not from the last round's factors: a warm
start would be one more private state to commit. Two iterations make up for it.

Matrix products are exact: whole numbers below 2^53 in float64, in any order of summation.
All else is by element or a fixed sum, so any subset of blocks has the bits of all.

Shape suffixes: B = blocks given, S = 64, R = rank, C = 4096.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from assay.protocol.update_rule import BLOCK_SIDE as S
from assay.protocol.update_rule import RANK_MAX
from assay.training.codec.factors import EXPONENT_MAX, FACTOR_MAX, Factors, product
from assay.training.codec.values import EXPONENT_MIN, tree_sum

Floats = NDArray[np.float64]

ITERATIONS = 2
_BLOCK_BITS, _SIDE_BITS = 20, 14  # of whole numbers: 64 * 2^20 * 2^14 = 2^40
assert 6 + _BLOCK_BITS + _SIDE_BITS < 53, "sums of 64 products must be exact in float64"
_DEPENDENT = 2.0**-20  # of a column's length: less than that left over is rounding, not a direction

_bits = np.unpackbits(
    np.frombuffer(hashlib.shake_256(b"assay/lowrank/1").digest(S * RANK_MAX // 8), np.uint8)
)
_START_SR = _bits.reshape(RANK_MAX, S).T.astype(np.float64) * 2 - 1


def compress_lowrank(moved_BC: NDArray[np.float32], rank: int) -> tuple[Factors, NDArray[np.float32]]:
    """Factors near the best ones of this rank, and what a receiver decodes.

    Args:
        moved_BC: The coefficients to send. Shape (B, C), float32; not modified.
        rank: 1 to 8.

    Returns:
        Factors, whose `blocks_B` are positions within the blocks given; and their product, shape
        (B, C), float32, exact. As in `training/codec/values.py` a block is dead, and sends
        nothing, if it is zero, too small or not finite; above the window it saturates.
    """
    largest_B = np.abs(moved_BC).max(axis=1, initial=0).astype(np.float64)  # NaN if any is
    live_B = np.flatnonzero(np.isfinite(largest_B))  # a block of zeros comes out as factors of zeros
    unit_B = np.frexp(largest_B[live_B])[1].astype(np.int64) - _BLOCK_BITS
    whole_BSS = np.rint(_times_power(moved_BC[live_B].astype(np.float64), -unit_B)).reshape(-1, S, S)
    turned_BSS = whole_BSS.transpose(0, 2, 1)
    left_BSR = _orthonormal(np.matmul(whole_BSS, _START_SR[:, :rank]))
    for _ in range(ITERATIONS - 1):
        right_BSR = np.matmul(turned_BSS, np.rint(left_BSR * 2**_SIDE_BITS))
        left_BSR = _orthonormal(np.matmul(whole_BSS, _whole(right_BSR, _SIDE_BITS)))
    # never 0: a live block has a direction
    size_B11 = np.abs(left_BSR).max(axis=(1, 2), keepdims=True, initial=0)
    left_BSR = np.rint(left_BSR / np.where(size_B11 > 0, size_B11, 1.0) * FACTOR_MAX)
    # The rounding of the left factor is compensated: each column by its own length.
    square_B1R = np.maximum(_over_rows(left_BSR * left_BSR), 1.0)[:, None]
    right_BSR = np.matmul(turned_BSS, left_BSR) / square_B1R
    part_B, shift_B = np.frexp(np.abs(right_BSR).max(axis=(1, 2), initial=0))
    shift_B = shift_B.astype(np.int64) - 7 + (np.rint(part_B * 128) > FACTOR_MAX)
    shift_B = np.minimum(shift_B, EXPONENT_MAX - unit_B)
    scaled_BSR = _times_power(right_BSR.reshape(-1, S * rank), -shift_B).reshape(-1, S, rank)
    right_BSR = np.clip(np.rint(scaled_BSR), -FACTOR_MAX, FACTOR_MAX)
    exponent_B = unit_B + shift_B
    kept = (exponent_B >= EXPONENT_MIN) & left_BSR.any(axis=(1, 2)) & right_BSR.any(axis=(1, 2))
    factors = Factors(
        live_B[kept], left_BSR[kept].astype(np.int8), right_BSR[kept].astype(np.int8), exponent_B[kept]
    )
    sent_BC = np.zeros_like(moved_BC)
    sent_BC[factors.blocks_B] = np.ldexp(product(factors), factors.exponent_B.astype(np.int32)[:, None])
    return factors, sent_BC


def _orthonormal(columns_BSR: Floats) -> Floats:
    """Columns made orthonormal one after another (modified Gram-Schmidt); dependent ones become 0."""
    done_BSR = np.zeros_like(columns_BSR)
    for r in range(columns_BSR.shape[2]):
        column_BS = columns_BSR[:, :, r]
        before_B = np.sqrt(tree_sum(column_BS * column_BS))
        for j in range(r):
            onto_BS = done_BSR[:, :, j]
            column_BS = column_BS - tree_sum(column_BS * onto_BS)[:, None] * onto_BS
        length_B = np.sqrt(tree_sum(column_BS * column_BS))
        is_new_B = length_B > before_B * _DEPENDENT
        safe_B = np.where(is_new_B, length_B, 1.0)
        done_BSR[:, :, r] = np.where(is_new_B[:, None], column_BS / safe_B[:, None], 0.0)
    return done_BSR


def _whole(part_BSR: Floats, bits: int) -> Floats:
    """Blocks scaled by powers of two to integers of at most 2^bits."""
    flat_BX = part_BSR.reshape(len(part_BSR), S * part_BSR.shape[2])
    exponent_B = np.frexp(np.abs(flat_BX).max(axis=1, initial=0))[1].astype(np.int64)
    return np.rint(_times_power(flat_BX, bits - exponent_B)).reshape(part_BSR.shape)


def _over_rows(part_BSR: Floats) -> Floats:
    """Sum over the 64 rows of whole numbers: exact."""
    sums_BR: Floats = part_BSR.sum(axis=1)
    return sums_BR


def _times_power(rows_BX: Floats, exponent_B: NDArray[np.int64]) -> Floats:
    scaled_BX: Floats = rows_BX * np.ldexp(1.0, exponent_B.astype(np.int32))[:, None]
    return scaled_BX
