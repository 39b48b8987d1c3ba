"""Signs: inner products, weighted sums and trimmed sums of a sign wire's messages, without their zeros.

Room: verifier (pure). Of 16 messages with k = 32 most coefficients have one sender, so that whole numbers
added sender by sender cost a fraction of products of dense matrices, and have the same bits as those.

Shape suffixes: B, N, T as in slabs.py; R, K = rows and columns of what was sent; M = mixtures of nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIZE
from assay.training.compiled import (
    BOOL,
    FILL_INT32_1,
    FILL_INT64_1,
    FILL_UINT64_1,
    INT,
    READ_INT64_1,
    READ_INT64_2,
    Kind,
    compiled,
    lowest_bit,
)
from assay.verifier.aggregation.gram import ONE, Ints
from assay.verifier.aggregation.slabs import Rows

_SIGNS, _INDICES = Kind("int8", 2), Kind("uint16", 2)
_WORDS = BLOCK_SIZE // 64  # in which a block's places are marked, a bit each
_PLACE_BITS = BLOCK_SIZE.bit_length() - 1
_FILL_INT64_3, _READ_INT64_3 = Kind("int64", 3, is_filled=True), Kind("int64", 3)

Found = tuple[Ints, Ints]  # places in the layout, ascending, and a sum of each


def gram_of_signs(rows: Rows) -> Ints:
    """Inner products of all pairs of nodes, block by block. Shape (B, N, N)."""
    count, nodes = rows.row_BN.shape
    gram_BNN = np.zeros((count, nodes, nodes), np.int64)
    _gram(rows.row_BN, rows.index_RK, rows.value_RK, gram_BNN)
    return gram_BNN


def weighted_signs(rows: Rows, weight_BN: Ints, unit: int) -> Found:
    """Sums of the nodes' signs under these weights, over `unit` and toward zero.

    There is one row of weights for all blocks, or one for each. Places whose sum is zero are left out.
    """
    at_T, sum_T = np.empty((2, rows.places_max), np.int64)
    weight_BN = np.ascontiguousarray(weight_BN)
    total = _weighted(rows.first, rows.row_BN, rows.index_RK, rows.value_RK, weight_BN, unit, at_T, sum_T)
    return at_T[:total], sum_T[:total]


def trimmed_mixtures(rows: Rows, mix_BMN: Ints, trim: int) -> Found:
    """Sums of the mixtures' values but for the `trim` largest and smallest of each coefficient.

    Args:
        rows: Signs.
        mix_BMN: Mixing matrices, whole numbers of sum at most 2^10 a row, one for all blocks or one for each.
        trim: Below half of M.
    """
    assert 0 <= 2 * trim < mix_BMN.shape[1]
    at_T, sum_T = np.empty((2, rows.places_max), np.int64)
    mix_BMN = np.ascontiguousarray(mix_BMN)
    total = _trimmed_mixtures(
        rows.first, rows.row_BN, rows.index_RK, rows.value_RK, mix_BMN, trim, at_T, sum_T
    )
    return at_T[:total], sum_T[:total]


def trimmed_signs(net_T: Ints, sent_T: Ints, *, f: int, nodes: int, is_median: bool) -> Ints:
    """Means of signs that are left after trimming, in units of 2^-14: counting them is enough.

    Args:
        net_T: Sum of a coefficient's signs.
        sent_T: How many sent it.
        f: Trimmed on each side, at most down to the median.
        nodes: Who counts, with zeros; 0 for the senders alone.
        is_median: Trim all but the middle value, or the middle two.
    """
    value_T = np.empty(len(net_T), np.int64)
    _trimmed_signs(net_T, sent_T, f, nodes, is_median, value_T)
    return value_T


@compiled(None, READ_INT64_2, _INDICES, _SIGNS, _FILL_INT64_3)
def _gram(row_BN: Ints, index_RK: NDArray[np.uint16], sign_RK: NDArray[np.int8], gram_BNN: Ints) -> None:
    """Each place's senders are a list, the last first: of most places it has one entry."""
    nodes, width = row_BN.shape[1], index_RK.shape[1]
    last_C, before_S = np.empty(BLOCK_SIZE, np.int32), np.empty(nodes << _PLACE_BITS, np.int32)
    every = len(index_RK) == 1
    for block in range(len(row_BN)):
        last_C[:] = -1
        for node in range(nodes):
            row, norm = row_BN[block, node], 0
            if row >= 0:
                at = 0 if every else row
                for k in range(width):
                    sign, other = sign_RK[row, k], last_C[index_RK[at, k]]
                    before_S[(node << _PLACE_BITS) + k] = other
                    last_C[index_RK[at, k]] = (node << _PLACE_BITS) + k
                    norm += sign * sign
                    while other >= 0:
                        its = row_BN[block, other >> _PLACE_BITS]
                        gram_BNN[block, node, other >> _PLACE_BITS] += (
                            sign * sign_RK[its, other & BLOCK_SIZE - 1]
                        )
                        other = before_S[other]
            gram_BNN[block, node, node] = norm
        for node in range(nodes):
            for other in range(node):
                gram_BNN[block, other, node] = gram_BNN[block, node, other]


@compiled(INT, INT, READ_INT64_2, _INDICES, _SIGNS, READ_INT64_2, INT, FILL_INT64_1, FILL_INT64_1)
def _weighted(
    first: int,
    row_BN: Ints,
    index_RK: NDArray[np.uint16],
    sign_RK: NDArray[np.int8],
    weight_BN: Ints,
    unit: int,
    at_T: Ints,
    sum_T: Ints,
) -> int:
    sum_C, place_C = np.zeros(BLOCK_SIZE, np.int32), np.empty(BLOCK_SIZE, np.int32)
    seen_W = np.zeros(_WORDS, np.uint64)
    every, total = len(index_RK) == 1, 0
    for block in range(len(row_BN)):
        for node in range(row_BN.shape[1]):
            row = row_BN[block, node]
            if row >= 0:
                at, weight = 0 if every else row, weight_BN[block % len(weight_BN), node]
                for k in range(index_RK.shape[1]):
                    place = index_RK[at, k]
                    seen_W[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
                    sum_C[place] += weight * sign_RK[row, k]
        found = _taken(seen_W, place_C)
        for i in range(found):
            whole, sum_C[place_C[i]] = sum_C[place_C[i]], 0
            if unit > 1:
                whole = abs(whole) // unit if whole > 0 else -(abs(whole) // unit)
            at_T[total] = (first + block) * BLOCK_SIZE + place_C[i]
            sum_T[total] = whole
            total += whole != 0
    return total


@compiled(INT, INT, READ_INT64_2, _INDICES, _SIGNS, _READ_INT64_3, INT, FILL_INT64_1, FILL_INT64_1)
def _trimmed_mixtures(
    first: int,
    row_BN: Ints,
    index_RK: NDArray[np.uint16],
    sign_RK: NDArray[np.int8],
    mix_BMN: Ints,
    trim: int,
    at_T: Ints,
    sum_T: Ints,
) -> int:
    """A place of one sender has the sum of the node's own column of the mixing matrix, or less that.

    So each node has a column, and each place of several senders. A pass carries the largest and the smallest
    that are left to the ends, in all columns at once.
    """
    sent_C, place_C = np.empty(BLOCK_SIZE, np.int32), np.empty(BLOCK_SIZE, np.int32)
    column_C, sign_C = np.empty(BLOCK_SIZE, np.int32), np.empty(BLOCK_SIZE, np.int32)
    (nodes, mixtures), width = (row_BN.shape[1], mix_BMN.shape[1]), index_RK.shape[1]
    whole_S = np.empty(mixtures * (nodes + BLOCK_SIZE), np.int32)
    seen_W = np.zeros(_WORDS, np.uint64)
    every, total = len(index_RK) == 1, 0
    for block in range(len(row_BN)):
        mix = block % len(mix_BMN)
        sent_C[:] = 0
        for node in range(nodes):
            row = row_BN[block, node]
            if row >= 0:
                for k in range(width):
                    at = index_RK[0 if every else row, k]
                    seen_W[at >> 6] |= np.uint64(1) << np.uint64(at & 63)
                    sent_C[at] += 1
                    column_C[at], sign_C[at] = node, sign_RK[row, k]
        found, columns = _taken(seen_W, place_C), nodes
        for i in range(found):
            at = place_C[i]
            if sent_C[at] > 1:
                column_C[at], sign_C[at] = columns, 1
                columns += 1
        whole_S[: mixtures * columns] = 0
        for node in range(nodes):
            for m in range(mixtures):
                whole_S[m * columns + node] = mix_BMN[mix, m, node]
            row = row_BN[block, node]
            if row >= 0 and columns > nodes:
                for k in range(width):
                    column = column_C[index_RK[0 if every else row, k]]
                    if column >= nodes:
                        for m in range(mixtures):
                            whole_S[m * columns + column] += mix_BMN[mix, m, node] * sign_RK[row, k]
        for low in range(trim):
            high = mixtures - 1 - low
            for m in range(low, high):
                _order(whole_S[m * columns : (m + 1) * columns], whole_S[(m + 1) * columns :])
            for m in range(high - 1, low, -1):
                _order(whole_S[(m - 1) * columns : m * columns], whole_S[m * columns :])
        for m in range(trim + 1, mixtures - trim):
            for column in range(columns):
                whole_S[trim * columns + column] += whole_S[m * columns + column]
        for i in range(found):
            at = place_C[i]
            at_T[total + i] = (first + block) * BLOCK_SIZE + at
            sum_T[total + i] = sign_C[at] * whole_S[trim * columns + column_C[at]]
        total += found
    return total


@compiled(None, FILL_INT32_1, FILL_INT32_1)
def _order(low_T: NDArray[np.int32], high_T: NDArray[np.int32]) -> None:
    """Smaller values into one row, larger ones into the other."""
    for i in range(len(low_T)):
        low, high = low_T[i], high_T[i]
        low_T[i], high_T[i] = min(low, high), max(low, high)


@compiled(INT, FILL_UINT64_1, FILL_INT32_1)
def _taken(seen_W: NDArray[np.uint64], place_C: NDArray[np.int32]) -> int:
    """Places of a block that are marked, ascending, and their number. The marks are taken away. As that of
    slabs.py: a compiled function calls only those of its own file.
    """
    found, one = 0, np.uint64(1)
    for word in range(len(seen_W)):
        bits = seen_W[word]
        seen_W[word] = 0
        while bits:
            place_C[found] = (word << 6) + lowest_bit(bits)
            bits &= bits - one
            found += 1
    return found


@compiled(None, READ_INT64_1, READ_INT64_1, INT, INT, BOOL, FILL_INT64_1)
def _trimmed_signs(net_T: Ints, sent_T: Ints, f: int, nodes: int, is_median: bool, value_T: Ints) -> None:
    for t in range(len(net_T)):
        size = nodes if nodes else sent_T[t]
        most = (size - 1) >> 1
        trim = most if is_median else min(f, most)
        left, plus = size - 2 * trim, (sent_T[t] + net_T[t]) >> 1
        kept = min(max(plus - trim, 0), left) - min(max(sent_T[t] - plus - trim, 0), left)
        value = ONE if abs(kept) == left else abs(kept) * ONE // left
        value_T[t] = value if kept > 0 else -value
