"""Product: matrix products whose sums have one order, whatever the sizes, the processor and the blocking.

Room: training (pure). Element (i, j) of a product is the sum over k of a[i, k] * b[k, j] in float32, k
ascending, each product and each sum rounded on its own, begun from zero or from what is there:

    c = 0;  for k: c = round(c + round(a[i, k] * b[k, j]))

Blocks only decide when an element's sum is continued. Where one factor or the result is triangular, as
in causal attention, tiles that are zero throughout are left out: a sum that began from +0 is never -0, so
adding a zero does not change it.

Shape suffixes: G = products, M, K, N = their sizes.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import types
from numpy.typing import NDArray

from assay.training.compiled import FILL_1, INT, compiled
from assay.training.reference.tile import COLUMNS, ROWS, add_tile

Floats = NDArray[np.float32]

_DEEP, _WIDE = 256, 512  # of a block of b: 16 KiB a strip, 512 KiB together, in a core's own caches
_READ_2 = types.Array(types.float32, 2, "A", readonly=True)
_READ = types.Array(types.float32, 3, "A", readonly=True)
_FILL = types.Array(types.float32, 3, "A")


class Shape(IntEnum):
    """What of a product is computed."""

    WHOLE = 0
    LOWER_RESULT = 1  # c above the diagonal is not meant, and left as zero or as it happens to be
    LOWER_FACTOR = 2  # a is zero above the diagonal
    UPPER_FACTOR = 3  # a is zero below it


def multiply(
    a_GMK: Floats, b_GKN: Floats, c_GMN: Floats, shape: Shape = Shape.WHOLE, *, adds: bool = False
) -> None:
    """Fill c with the products of a and b; with `adds` their sums go on from what c holds.

    Args:
        a_GMK: float32, finite, with any strides; so are the others.
        b_GKN: Second factors.
        c_GMN: Filled; shares no memory with a or b.
        shape: Which part is zero or not meant.
        adds: Whether the sums begin from c.
    """
    if not (a_GMK.dtype == b_GKN.dtype == c_GMN.dtype == np.float32):
        raise ValueError(f"factors of {a_GMK.dtype} and {b_GKN.dtype} for {c_GMN.dtype}, expected float32")
    (products, rows, depth), wide = a_GMK.shape, b_GKN.shape[2]
    if b_GKN.shape != (products, depth, wide) or c_GMN.shape != (products, rows, wide):
        raise ValueError(f"product of shapes {a_GMK.shape} and {b_GKN.shape} for {c_GMN.shape}")
    if not adds:
        c_GMN[...] = 0
    _multiply(a_GMK, b_GKN, c_GMN, int(shape))


@compiled(None, _READ_2, INT, FILL_1)
def _pack(part_KX: Floats, width: int, out: Floats) -> None:
    """Lay rows one after another, each filled up to `width` with zeros."""
    depth, filled = part_KX.shape
    for k in range(depth):
        for x in range(filled):
            out[k * width + x] = part_KX[k, x]
        for x in range(filled, width):
            out[k * width + x] = 0


@compiled(None, _READ, _READ, _FILL, INT)
def _multiply(a_GMK: Floats, b_GKN: Floats, c_GMN: Floats, shape: int) -> None:
    products, rows, depth = a_GMK.shape
    wide = b_GKN.shape[2]
    a = np.empty(ROWS * _DEEP, np.float32)
    b = np.empty(_DEEP * _WIDE, np.float32)
    c = np.zeros(ROWS * COLUMNS, np.float32)
    for g in range(products):
        for left in range(0, wide, _WIDE):
            strips = (min(_WIDE, wide - left) + COLUMNS - 1) // COLUMNS
            for first in range(0, depth, _DEEP):
                last = min(first + _DEEP, depth)
                for strip in range(strips):
                    column = left + strip * COLUMNS
                    part = b_GKN[g, first:last, column : column + COLUMNS]
                    _pack(part, COLUMNS, b[strip * COLUMNS * _DEEP :])
                for row in range(0, rows, ROWS):
                    begin, end = first, last
                    if shape == 2:
                        end = min(last, row + ROWS)
                    if shape == 3:
                        begin = max(first, row)
                    if begin >= end:
                        continue
                    high = min(ROWS, rows - row)
                    _pack(a_GMK[g, row : row + high, begin:end].T, ROWS, a)
                    for strip in range(strips):
                        column = left + strip * COLUMNS
                        if shape == 1 and column >= row + ROWS:
                            break
                        across = min(COLUMNS, wide - column)
                        tile = c_GMN[g, row : row + high, column : column + across]
                        for i in range(high):
                            for j in range(across):
                                c[i * COLUMNS + j] = tile[i, j]
                        at = strip * COLUMNS * _DEEP + (begin - first) * COLUMNS
                        add_tile(a, b, at, c, end - begin)
                        for i in range(high):
                            for j in range(across):
                                tile[i, j] = c[i * COLUMNS + j]
