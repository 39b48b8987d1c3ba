"""Inverse: the signs of the inverse DCT of integer coefficients, exact, in the time of a fast DCT.

Room: training (pure). The protocol defines them by whole numbers and a cosine table of 14 bits
(`training/exact.py`): the first stage, along rows, is rounded once; the sign of the second counts. Messages
are sparse, so the first stage adds up rows of the table. The second is estimated by the transposed operations
of `transform/dct.py` in float32. For a column of whole numbers x, in units of the table,

    |estimate - exact| <= sum |x| / 2        the table's rounding: half a unit an entry
                        + sum |x| / 250      float32's, 9 operations deep (tests/training/test_inverse.py)

so an estimate of more than 3/4 of the sum has the exact sign. The others, about one in five hundred, are
added up in whole numbers.

Shape suffixes: T = coefficients, N = blocks, S = 64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIDE as S
from assay.protocol.params import BLOCK_SIZE
from assay.training import parallel
from assay.training.compiled import READ_INT64_1, Kind, compiled
from assay.training.exact import BASIS_BITS, BASIS_SS, VALUE_MAX
from assay.training.transform.dct import FACTORS, IS_SUM, ORDER, PLACES

# The orthonormal transform's operations come without its factor of 1/8, the table with one of 2^14.
_CERTAIN = np.float32(0.75 * 8 / (1 << BASIS_BITS))
_HALF, _UNIT = float(1 << (BASIS_BITS - 1)), 2.0**-BASIS_BITS
_TABLE_SS = np.ascontiguousarray(BASIS_SS)
_TURNED_SS = np.ascontiguousarray(BASIS_SS.T)
_INDEX, _VALUE, _SIGNS = Kind("int16", 1), Kind("int32", 1), Kind("int8", 3, is_filled=True)


def inverse_signs(
    count_N: NDArray[np.int64], index_T: NDArray[np.int16], value_T: NDArray[np.int32]
) -> NDArray[np.int8]:
    """Sign of the inverse DCT of integer coefficients, the same on every machine.

    Args:
        count_N: Coefficients of each block of the layout; theirs follow each other.
        index_T: Place in the block: 64 times the frequency along columns, plus that along rows.
        value_T: Integers, magnitude <= 2^14.

    Returns:
        -1, 0 or 1 per position. Shape (N, 64, 64), int8. A block of zeros gives zeros.
    """
    ends_N = np.r_[0, np.cumsum(count_N)]
    assert ends_N[-1] == len(index_T) == len(value_T) and count_N.min(initial=0) >= 0
    if len(index_T):
        assert index_T.min() >= 0 and index_T.max() < BLOCK_SIZE
        assert int(value_T.max()) <= VALUE_MAX and int(value_T.min()) >= -VALUE_MAX
    signs_NSS = np.zeros((len(count_N), S, S), np.int8)
    index_T, value_T = (
        np.require(index_T, np.int16, ["C", "A"]), np.require(value_T, np.int32, ["C", "A"])
    )  # fmt: skip

    def work(blocks: slice) -> None:
        _signs(ends_N[blocks.start : blocks.stop + 1], index_T, value_T, signs_NSS[blocks])

    parallel.each(work, parallel.parts(len(count_N)))
    return signs_NSS


@compiled(None, READ_INT64_1, _INDEX, _VALUE, _SIGNS)
def _signs(
    ends_N: NDArray[np.int64],
    index_T: NDArray[np.int16],
    value_T: NDArray[np.int32],
    signs_NSS: NDArray[np.int8],
) -> None:
    first_SS, rough_SS = np.zeros((S, S)), np.zeros((S, S), np.float32)
    has_S, sum_S, limit_S = np.zeros(S, np.bool_), np.zeros(S), np.zeros(S, np.float32)
    for block in range(len(signs_NSS)):
        at, end = ends_N[block], ends_N[block + 1]
        if at == end:
            continue
        first_SS[:] = 0
        has_S[:] = False
        for one in range(at, end):
            row, along, value = index_T[one] // S, index_T[one] % S, np.float64(value_T[one])
            has_S[row] = True
            for j in range(S):
                first_SS[row, j] += value * _TABLE_SS[along, j]
        sum_S[:] = 0
        rough_SS[:] = 0
        for row in range(S):
            if has_S[row]:
                place = ORDER[row]
                for j in range(S):
                    whole = np.floor((first_SS[row, j] + _HALF) * _UNIT)
                    first_SS[row, j] = whole
                    rough_SS[place, j] = np.float32(whole)
                    sum_S[j] += abs(whole)
        for j in range(S):
            limit_S[j] = np.float32(sum_S[j]) * _CERTAIN
        for n in range(len(PLACES) - 1, -1, -1):  # transposed, last operation first
            i, k = PLACES[n, 0], PLACES[n, 1]
            if IS_SUM[n]:
                for j in range(S):
                    x, y = rough_SS[i, j], rough_SS[k, j]
                    rough_SS[i, j] = x + y
                    rough_SS[k, j] = x - y
            else:
                a, b, c, d = FACTORS[n, 0], FACTORS[n, 1], FACTORS[n, 2], FACTORS[n, 3]
                for j in range(S):
                    x, y = rough_SS[i, j], rough_SS[k, j]
                    rough_SS[i, j] = a * x + c * y
                    rough_SS[k, j] = b * x + d * y
        for i in range(S):
            unsure = 0
            for j in range(S):
                sign = np.int8(rough_SS[i, j] > limit_S[j]) - np.int8(rough_SS[i, j] < -limit_S[j])
                signs_NSS[block, i, j] = sign
                unsure += sign == 0
            if unsure:
                for j in range(S):
                    if signs_NSS[block, i, j] == 0:
                        exact = 0.0
                        for row in range(S):
                            if has_S[row]:
                                exact += _TURNED_SS[i, row] * first_SS[row, j]
                        signs_NSS[block, i, j] = np.int8(exact > 0) - np.int8(exact < 0)
