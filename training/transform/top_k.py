"""Top k: the k coefficients of every block that are largest in magnitude, exactly, without sorting the block.

Room: training (pure). The k-th largest of many group maxima is a size that at least k elements
reach; few others do, and only in groups whose maximum does, so what has to be ordered is about k
elements of 4096. The outcome is that of a full sort in which ties go to the lower index. Sizes
are compared as the bits of floats without their sign: as whole numbers they order as the sizes do.

Shape suffixes: B = blocks given, C = 4096, K = chosen of each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.training import parallel
from assay.training.compiled import (
    BOOL,
    FILL_2,
    FILL_BOOL_1,
    FILL_INT32_1,
    FILL_INT64_1,
    FILL_INT64_2,
    FLOAT,
    INT,
    READ_2,
    compiled,
    floats,
)

Chosen = tuple[NDArray[np.int64], NDArray[np.int64]]

_GROUPS_PER_CHOSEN = 4  # then about 1.15 k elements reach the bound, if the large ones lie anyhow
INFINITY = 0x7F800000  # the bits of infinity: above are those of NaN


def largest(moved_BC: NDArray[np.float32], k: int) -> Chosen:
    """The blocks with k non-zero coefficients, and the positions of the k largest in each, ascending.

    Args:
        moved_BC: Coefficients. Shape (B, C), float32, C a power of two; not modified. NaN is never chosen.
        k: 1 to C.

    Returns:
        Positions of live blocks, and of the k largest of each; ties go to the lower index. Row by
        row, so any subset of blocks gives the same.
    """
    count, width = moved_BC.shape
    is_live_B, index_BK = np.empty(count, np.bool_), np.empty((count, k), np.int64)
    moved_BC, groups = floats(moved_BC), _groups(width, k)

    def work(rows: slice) -> None:
        _choose_all(moved_BC[rows], k, groups, is_live_B[rows], index_BK[rows])

    parallel.each(work, parallel.parts(count))
    return _live(is_live_B, index_BK)


def add_and_choose(
    before_BC: NDArray[np.float32],
    x_BC: NDArray[np.float32],
    beta: np.float32,
    k: int,
    after_BC: NDArray[np.float32],
) -> Chosen:
    """Fill `after_BC` with beta * before + x, each operation rounded, and find what is `largest` in it.

    A block is chosen from while it lies in a core's nearest cache. `after_BC` is contiguous float32,
    and may be `before_BC`.
    """
    count, width = x_BC.shape
    if not before_BC.shape == x_BC.shape == after_BC.shape:
        raise ValueError(f"blocks of shapes {before_BC.shape}, {x_BC.shape} and {after_BC.shape}")
    is_live_B, index_BK = np.empty(count, np.bool_), np.empty((count, k), np.int64)
    before_BC, x_BC, groups = floats(before_BC), floats(x_BC), _groups(width, k)

    def work(rows: slice) -> None:
        parts = before_BC[rows], x_BC[rows], beta, k, groups, after_BC[rows]
        _add_and_choose(*parts, is_live_B[rows], index_BK[rows])

    parallel.each(work, parallel.parts(count))
    return _live(is_live_B, index_BK)


def _groups(width: int, k: int) -> int:
    """A power of two, at least k, that divides the width."""
    if not 1 <= k <= width or width & (width - 1):
        raise ValueError(f"{k} of {width} coefficients: expected at most all, of a power of two")
    return min(width, 1 << (_GROUPS_PER_CHOSEN * k - 1).bit_length())


def _live(is_live_B: NDArray[np.bool_], index_BK: NDArray[np.int64]) -> Chosen:
    live_B = np.flatnonzero(is_live_B)
    return live_B, index_BK if len(live_B) == len(index_BK) else index_BK[live_B]


@compiled(INT, FILL_INT32_1, INT, INT)
def _kth_largest(size_X: NDArray[np.int32], count: int, k: int) -> int:
    """Of the first `count` numbers, at least k and none negative: bit by bit from the top."""
    found = 0
    for bit in range(30, -1, -1):
        candidate = np.int32(found | 1 << bit)
        reached = np.int32(0)
        for i in range(count):
            reached += np.int32(size_X[i] >= candidate)
        if reached >= k:
            found |= 1 << bit
    return found


@compiled(BOOL, FILL_INT32_1, INT, INT, FILL_INT32_1, FILL_INT64_1, FILL_INT32_1, FILL_INT64_1, FILL_INT64_1)
def _choose(
    size_C: NDArray[np.int32],
    k: int,
    groups: int,
    top_C: NDArray[np.int32],
    hit_C: NDArray[np.int64],
    few_C: NDArray[np.int32],
    at_C: NDArray[np.int64],
    index_K: NDArray[np.int64],
) -> bool:
    """Fill `index_K` for one block; whether it is live. The four arrays before it are room to work in."""
    top_C[:groups] = 0
    for start in range(0, len(size_C), groups):  # strided groups: neighbours differ
        part_G = size_C[start : start + groups]
        for i in range(groups):
            top_C[i] = part_G[i] if part_G[i] > top_C[i] else top_C[i]
    bound = max(_kth_largest(top_C, groups, k), 1)  # what is 0 is never sent
    hits = 0
    for i in range(groups):
        hit_C[hits] = i
        hits += top_C[i] >= bound
    count = 0
    for start in range(0, len(size_C), groups):
        for i in range(hits):
            at = start + hit_C[i]
            if size_C[at] >= bound:
                few_C[count], at_C[count] = size_C[at], at
                count += 1
    if count < k:
        return False
    edge = _kth_largest(few_C, count, k)
    room = k  # for those at the edge
    for i in range(count):
        room -= few_C[i] > edge
    chosen = 0
    for i in range(count):
        if few_C[i] > edge or (few_C[i] == edge and room > 0):
            room -= few_C[i] == edge
            index_K[chosen] = at_C[i]
            chosen += 1
    return True


@compiled(None, READ_2, INT, INT, FILL_BOOL_1, FILL_INT64_2)
def _choose_all(
    moved_BC: NDArray[np.float32],
    k: int,
    groups: int,
    is_live_B: NDArray[np.bool_],
    index_BK: NDArray[np.int64],
) -> None:
    width = moved_BC.shape[1]
    size_C, top_C, few_C = np.empty(width, np.int32), np.empty(width, np.int32), np.empty(width, np.int32)
    hit_C, at_C = np.empty(width, np.int64), np.empty(width, np.int64)
    for block in range(len(moved_BC)):
        bits_C = moved_BC[block].view(np.int32)
        for i in range(width):
            size = bits_C[i] & 0x7FFFFFFF
            size_C[i] = size if size <= INFINITY else 0
        is_live_B[block] = _choose(size_C, k, groups, top_C, hit_C, few_C, at_C, index_BK[block])


@compiled(None, READ_2, READ_2, FLOAT, INT, INT, FILL_2, FILL_BOOL_1, FILL_INT64_2)
def _add_and_choose(
    before_BC: NDArray[np.float32],
    x_BC: NDArray[np.float32],
    beta: np.float32,
    k: int,
    groups: int,
    after_BC: NDArray[np.float32],
    is_live_B: NDArray[np.bool_],
    index_BK: NDArray[np.int64],
) -> None:
    width = x_BC.shape[1]
    for block in range(len(x_BC)):
        for i in range(width):
            after_BC[block, i] = beta * before_BC[block, i] + x_BC[block, i]
        one = slice(block, block + 1)
        _choose_all(after_BC[one], k, groups, is_live_B[one], index_BK[one])
