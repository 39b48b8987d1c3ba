"""Equalise: brings the rows and columns of a gradient's matrices half of the way to one size.

Room: training (pure). AdamW scales every parameter by itself. DeMo sends the largest coefficients of a block,
and one large row takes them all: the small rows then move only by its ripples. Dividing every entry by the
roots of its row's and its column's size lets the others be sent too, without any state: an auditor needs
nothing more to repeat it.

    G'_ij = G_ij * m / sqrt(r_i * c_j)      r, c: root mean square of the row, the column; m: of the matrix

Half of the way is what Shampoo's exponents say of a diagonal. All vectors are one matrix here, as
in the layout, with rows of their own lengths and no columns.

Squares, exact in float64, are added up in one fixed order (a row's in eight lanes, which a processor may keep
side by side, and those of several rows); roots, quotients and products are IEEE's. So what follows from a
gradient has the same bits on every machine. The DCT multiplies while it reads, so that nothing is copied.

Reference:
    Gupta, Koren & Singer, "Shampoo: Preconditioned Stochastic Tensor Optimization", ICML 2018,
    arXiv:1802.09568 (exponents of -1/4 on G G^T and on G^T G; ours are their diagonals, of one gradient).
Shape suffixes: P = parameters, R = rows, K = columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from assay.training import parallel
from assay.training.compiled import DOUBLE, FILL_DOUBLE_1, READ_2, compiled, floats
from assay.training.layout import Layout
from assay.training.transform.blocked_dct import Scale, Scales, length, scaled

Floats = NDArray[np.float32]
Sizes = NDArray[np.float64]

# of the matrix: smaller rows count as this large, so that nothing grows by more than 2^10
QUIETEST = 2.0**-10
LANES = 8  # sums that a row is added up in
_ROWS = 8  # that are added up side by side, so that a processor's vectors are full


def equalising(layout: Layout, gradient_P: Floats) -> Scales:
    """The factors of every tensor's rows and columns; the row's is applied first.

    Args:
        layout: Order and shapes of the parameters.
        gradient_P: Shape (P,), float32; not modified.

    Returns:
        By tensor: shapes (R,) and (K,), float32. A vector is one row, whose columns have the factor 1.
    """
    ends = np.cumsum([math.prod(shape) for shape in layout.shapes])
    flat = np.split(floats(gradient_P), ends[:-1])
    parts = [part.reshape(shape) for part, shape in zip(flat, layout.shapes, strict=True)]
    vectors = iter(vector_factors([part for part in parts if part.ndim == 1]))
    matrices = {i: part for i, part in enumerate(parts) if part.ndim > 1}
    found: dict[int, Scale] = {}

    def work(number: int) -> None:
        high, wide = matrices[number].shape
        row_R, column_K = np.zeros(high), np.zeros(wide)
        total = _squares(matrices[number], row_R, column_K)
        found[number] = matrix_factors(total, row_R, column_K)

    parallel.each(work, sorted(matrices, key=lambda number: -matrices[number].size))
    return [found[i] if i in found else next(vectors) for i in range(len(parts))]


def equalised(layout: Layout, gradient_P: Floats) -> Floats:
    """The gradient with rows and columns of every matrix, and all vectors, nearer to one size.

    No entry changes its sign, a matrix keeps its unit (twice the gradient gives twice the result), and no
    entry grows by more than a factor of 2^10.

    Args:
        layout: Order and shapes of the parameters.
        gradient_P: Shape (P,), float32; not modified.

    Returns:
        Shape (P,), float32. Tensors of zeros stay so.
    """
    gradient_P = floats(gradient_P)
    return scaled(layout, gradient_P, equalising(layout, gradient_P))


def vector_factors(parts: list[Floats]) -> Scales:
    """The factors of all vectors, which are the rows of one matrix."""
    if not parts:
        return []
    lengths, counts = [length(part) for part in parts], [len(part) for part in parts]
    square = 0.0
    for one in lengths:  # not sum(), which compensates for rounding from Python 3.12 on
        square += one * one
    whole = math.sqrt(square / sum(counts))
    row_R = _factors(lengths / np.sqrt(counts), whole)
    return [(row_R[i : i + 1], np.ones(count, np.float32)) for i, count in enumerate(counts)]


def matrix_factors(total: float, row_R: Sizes, column_K: Sizes) -> Scale:
    """The factors of one matrix's rows and columns, by the sums of its squares: of all, and of each."""
    high, wide = len(row_R), len(column_K)
    whole = math.sqrt(total / (high * wide))
    return _factors(np.sqrt(row_R / wide), whole), _factors(np.sqrt(column_K / high), whole)


@compiled(DOUBLE, READ_2, FILL_DOUBLE_1, FILL_DOUBLE_1)
def _squares(entries_RK: Floats, row_R: Sizes, column_K: Sizes) -> float:
    """The sum of squares, and those of every row and column, which are zeros before.

    A row's sum has lanes of every eighth entry, from the left; a column's goes from the top, and so do the
    rows'. The columns follow each group of rows, while it lies in a core's own cache.
    """
    high, wide = entries_RK.shape
    panel, lane = np.zeros(_ROWS * LANES, np.float32), np.empty(_ROWS * LANES)
    total = 0.0
    for top in range(0, high, _ROWS):
        rows = min(_ROWS, high - top)
        lane[:] = 0.0
        for left in range(0, wide, LANES):
            if rows == _ROWS and left + LANES <= wide:  # bounds that are known when this is compiled
                for row in range(_ROWS):
                    for i in range(LANES):
                        panel[row * LANES + i] = entries_RK[top + row, left + i]
            else:
                panel[:] = 0  # and a sum of squares plus 0 is that sum
                for row in range(rows):
                    for i in range(min(LANES, wide - left)):
                        panel[row * LANES + i] = entries_RK[top + row, left + i]
            for i in range(_ROWS * LANES):
                one = np.float64(panel[i])
                lane[i] += one * one
        for row in range(rows):
            for at in range(wide):
                one = np.float64(entries_RK[top + row, at])
                column_K[at] += one * one
        for row in range(rows):
            for i in range(LANES):
                row_R[top + row] += lane[row * LANES + i]
            total += row_R[top + row]
    return total


def _factors(sizes: Sizes, whole: float) -> Floats:
    """sqrt(whole / size) for every size, in float32; 1 where there is nothing to scale."""
    if whole == 0:
        return np.ones(len(sizes), np.float32)
    return np.sqrt(whole / np.maximum(sizes, whole * QUIETEST)).astype(np.float32)
