"""Values: quantises the sent coefficients to small integers with one scale per block.

Room: training (pure). A coefficient is level * mantissa * 2^exponent: the level is encoded per coefficient,
mantissa (128 to 255) and exponent are the block's scale. Value = level * mantissa is what aggregation sums.
Every operation is by element, or by row in a fixed order, so any subset of blocks has the bits of all blocks,
on every machine.

Every coefficient is a multiple of 2^-51 and smaller than 2^4: fixed point, so that the sum of 128 nodes is
exact in an int64. A block that has no such representation is dead: it sends nothing, and its error stays
where it is. Dead are blocks of zeros, blocks whose exponent would lie under -51, and blocks with a value that
is not finite. Above, the scale is the largest there is, and the levels saturate: the excess stays in the
error.

Shape suffixes: B = blocks given, K = sent per block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import Values

MANTISSA_MIN, MANTISSA_MAX = 128, 255  # 8 bits, the highest always set
LEVEL_MAX = {
    Values.SIGN: 1, Values.SIGN_MEAN: 1, Values.TWO_BIT: 3, Values.E3M0: 64,
    Values.INT8: 127, Values.INT16: 32767,
}  # fmt: skip
# A level times a mantissa, in as few bytes as hold it: where all coefficients are sent, there are as many as
# parameters.
VALUE_KINDS: dict[Values, np.dtype[Any]] = dict.fromkeys(LEVEL_MAX, np.dtype(np.int16)) | {
    Values.SIGN: np.dtype(np.int8), Values.INT16: np.dtype(np.int32),
}  # fmt: skip
COEFFICIENT_BITS = 4  # every |coefficient| < 2^4
EXPONENT_MIN = -51  # 4 + 51 bits of a coefficient and 7 bits of 128 nodes leave an int64 its sign
_TWO_BIT_START = 0.75  # of the mean: within 7 % of the best error both for equal sizes and for a bell


@dataclass(frozen=True, slots=True)
class Quantised:
    """The encoded values of some blocks, and what a receiver decodes.

    is_live_B: False where a block is dead; its rows are then 0. value_BK: with SIGN -1 or 1, else level *
    mantissa, of the kind in VALUE_KINDS. sent_BK: value * 2^exponent, exactly, float32; with
    SIGN the sign times the mean magnitude, which only the sender knows.
    """

    is_live_B: NDArray[np.bool_]
    value_BK: NDArray[Any]
    mantissa_B: NDArray[np.int64] | None
    exponent_B: NDArray[np.int64] | None
    sent_BK: NDArray[np.float32]


def exponent_window(values: Values) -> tuple[int, int]:
    """Smallest and largest exponent of a live block: the largest still keeps every coefficient < 2^4."""
    value_bits = LEVEL_MAX[values].bit_length() + MANTISSA_MAX.bit_length()
    return EXPONENT_MIN, COEFFICIENT_BITS - value_bits


def quantise(values: Values, moved_BK: NDArray[np.float32]) -> Quantised:
    """The nearest levels to these coefficients, under the scale that the format prescribes.

    Args:
        values: How values are written. SIGN and SIGN_MEAN: the mean magnitude. TWO_BIT: the least
            squares scale of levels chosen at 1.5 times the mean. E3M0: the power of two that
            brings the largest nearest to level 64. INT8, INT16: the largest at the last level, so
            the mantissa is rounded up; else it is rounded to nearest, ties to even.
        moved_BK: The coefficients to send. Shape (B, K), float32; not modified.

    Returns:
        Levels to nearest; ties go to even (INT8, INT16) or away from 0 (TWO_BIT, E3M0). Exact
        zeros count as + where there is no level 0.
    """
    size_BK = np.abs(moved_BK)
    if values is Values.SIGN:
        mean_B = _mean(size_BK).astype(np.float32)
        is_live_B = np.isfinite(mean_B) & (mean_B > 0)
        sign_BK = np.where(moved_BK < 0, np.int8(-1), np.int8(1)) * is_live_B[:, None]
        sent_BK = sign_BK * np.where(is_live_B, mean_B, np.float32(0))[:, None]
        return Quantised(is_live_B, sign_BK, None, None, sent_BK)
    is_live_B, mantissa_B, exponent_B = _scales(values, size_BK)
    if not is_live_B.all():
        moved_BK = np.where(is_live_B[:, None], moved_BK, np.float32(0))
        size_BK = np.abs(moved_BK)
    scale_B1 = np.ldexp(mantissa_B.astype(np.float32), exponent_B.astype(np.int32))[:, None]
    level_BK = _levels(values, moved_BK, size_BK, scale_B1)
    if not is_live_B.all():
        level_BK *= is_live_B[:, None]
    sent_BK = level_BK.astype(np.float32) * scale_B1  # at most 15 bits times 8 bits: exact
    level_BK *= mantissa_B.astype(np.int32)[:, None]
    return Quantised(is_live_B, level_BK.astype(VALUE_KINDS[values]), mantissa_B, exponent_B, sent_BK)


def _scales(
    values: Values, size_BK: NDArray[np.float32]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Which blocks are live, and their mantissa and exponent. Dead ones have 128 and the lowest."""
    low, high = exponent_window(values)
    largest_B = size_BK.max(axis=1, initial=0).astype(np.float64)  # NaN if any is
    is_live_B = np.isfinite(largest_B) & (largest_B > 0)
    safe_B = np.where(is_live_B, largest_B, 1.0)
    if values is Values.E3M0:
        part_B, exponent_B = np.frexp(safe_B)  # in [1/2, 1); the largest comes to lie in [48, 96)
        exponent_B = exponent_B.astype(np.int64) - np.where(part_B < 0.75, 7, 6) - 7
        mantissa_B = np.full(len(safe_B), MANTISSA_MIN, np.int64)
        top = MANTISSA_MIN
    else:
        if values in (Values.INT8, Values.INT16):
            part_B, exponent_B = np.frexp(safe_B / LEVEL_MAX[values])
            mantissa_B = np.ceil(part_B * 256).astype(np.int64)
        else:
            scale_B = _mean(size_BK) if values is Values.SIGN_MEAN else _least_squares(size_BK)
            part_B, exponent_B = np.frexp(np.where(is_live_B, scale_B, 1.0))
            mantissa_B = np.rint(part_B * 256).astype(np.int64)
        exponent_B = exponent_B.astype(np.int64) - 8 + (mantissa_B == 256)
        mantissa_B[mantissa_B == 256] = MANTISSA_MIN
        top = MANTISSA_MAX
    mantissa_B[exponent_B > high] = top
    is_live_B &= exponent_B >= low
    mantissa_B[~is_live_B] = MANTISSA_MIN
    exponent_B = np.clip(exponent_B, low, high)
    exponent_B[~is_live_B] = low
    return is_live_B, mantissa_B, exponent_B


def _levels(
    values: Values, moved_BK: NDArray[np.float32], size_BK: NDArray[np.float32], scale_B1: NDArray[np.float32]
) -> NDArray[np.int32]:
    if values in (Values.INT8, Values.INT16):
        most = np.float32(LEVEL_MAX[values])
        ratio_BK = moved_BK / scale_B1
        np.rint(ratio_BK, out=ratio_BK)
        np.clip(ratio_BK, -most, most, out=ratio_BK)
        return ratio_BK.astype(np.int32)
    if values is Values.SIGN_MEAN:
        return np.where(moved_BK < 0, np.int32(-1), np.int32(1))
    if values is Values.TWO_BIT:
        size_level_BK = np.where(size_BK >= 2 * scale_B1, np.int32(3), np.int32(1))
    else:
        ratio_BK = np.minimum(size_BK / scale_B1, np.float32(64))  # exact: a power of two
        # A float's bits are its binary logarithm, linearly interpolated: half an octave rounds it at 1.5.
        power_BK = ((ratio_BK.view(np.int32) + (1 << 22)) >> 23) - 127
        size_level_BK = (np.int32(1) << np.maximum(power_BK, 0)) * (ratio_BK >= 0.5)
    return np.where(moved_BK < 0, -size_level_BK, size_level_BK)


def _least_squares(size_BK: NDArray[np.float32]) -> NDArray[np.float64]:
    """Scale of levels 1 and 3 with the smallest error, for levels chosen at a first guess of it."""
    first_B = _mean(size_BK) * _TWO_BIT_START
    is_large_BK = size_BK >= 2 * first_B[:, None]
    large_B = np.count_nonzero(is_large_BK, axis=1)
    product_B = tree_sum(size_BK.astype(np.float64) * np.where(is_large_BK, 3.0, 1.0))
    least_B: NDArray[np.float64] = product_B / (size_BK.shape[1] + 8 * large_B)  # 1 or 9 each
    return least_B


def _mean(size_BK: NDArray[np.float32]) -> NDArray[np.float64]:
    mean_B: NDArray[np.float64] = tree_sum(size_BK.astype(np.float64)) / size_BK.shape[1]
    return mean_B


def tree_sum(part_BK: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of each row as a fixed tree: the same bits on every machine and for any subset of rows."""
    width = part_BK.shape[1]
    while width > 1:
        half = width // 2
        head_BK = part_BK[:, :half] + part_BK[:, half : 2 * half]
        part_BK = np.concatenate([head_BK, part_BK[:, 2 * half :]], axis=1) if width % 2 else head_BK
        width = part_BK.shape[1]
    return part_BK[:, 0]
