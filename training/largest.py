"""Largest: the k largest sizes of every block, exactly, without sorting the block.

Room: training (pure). The k-th largest of many group maxima is a size that at least k elements
reach; few others do, so what has to be ordered is about k elements of 4096. The
outcome is that of a full sort in which ties go to the lower index.

Shape suffixes: B = blocks given, C = 4096, K = chosen of each, X = candidates of all blocks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GROUPS_PER_CHOSEN = 4  # then about 1.15 k elements reach the bound, if the large ones lie anyhow
_LEAST = np.float32(1e-45)  # the smallest size that is not 0


def largest(size_BC: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which blocks have k sizes that are not 0, and where in them the k largest are, ascending.

    Args:
        size_BC: Magnitudes. Shape (B, C), float32, contiguous, >= 0; not modified. NaN is never chosen.
        k: 1 to C.

    Returns:
        Positions of live blocks, and of the k largest of each; ties go to the lower index. Row by
        row, so any subset of blocks gives the same.
    """
    count, width = size_BC.shape
    groups = min(width, 1 << (_GROUPS_PER_CHOSEN * k - 1).bit_length())
    top_BG = size_BC.reshape(count, width // groups, groups).max(axis=1)  # strided groups: neighbours differ
    bound_B1 = np.maximum(_kth_largest(top_BG, k), _LEAST)[:, None]
    at_X = np.flatnonzero(size_BC >= bound_B1)
    found_B = np.diff(np.searchsorted(at_X, np.arange(count + 1) * width))
    live_B = np.flatnonzero(found_B >= k)
    if len(live_B) < count:
        at_X = at_X[np.repeat(found_B >= k, found_B)]
        found_B = found_B[live_B]
    size_X = size_BC.reshape(-1)[at_X]
    row_X = np.repeat(np.arange(len(live_B)), found_B)
    start_B = np.cumsum(found_B) - found_B
    few_BX = np.zeros((len(live_B), int(found_B.max(initial=k))), np.float32)
    few_BX[row_X, np.arange(len(at_X)) - start_B[row_X]] = size_X
    edge_X = _kth_largest(few_BX, k)[row_X]
    is_chosen_X = size_X >= edge_X
    if np.count_nonzero(is_chosen_X) != k * len(live_B):
        is_edge_X = size_X == edge_X
        above_B = np.bincount(row_X[size_X > edge_X], minlength=len(live_B))
        before_X = np.cumsum(is_edge_X) - is_edge_X
        rank_X = before_X - before_X[start_B][row_X]  # of an edge among the edges of its block
        is_chosen_X &= ~is_edge_X | (rank_X < (k - above_B)[row_X])
    return live_B, at_X[is_chosen_X].reshape(-1, k) % width


def _kth_largest(size_BX: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """Of each row, which is left in another order. NaN counts as the largest."""
    at = size_BX.shape[1] - k
    size_BX.view(np.int32).partition(at, axis=1)  # sizes order as their bits do, and integers are faster
    return size_BX[:, at]
