"""Equalise: a gradient's rows and columns, brought half of the way to one size.

Room: training (pure). AdamW gives every parameter a size of its own. DeMo sends the largest coefficients
of a block, and one loud row fills them all: the quiet rows then move by its ripples. Dividing every entry
by the roots of its row's and its column's size lets the others be heard, without any state: an
auditor needs nothing more to repeat it.

    G'_ij = G_ij * m / sqrt(r_i * c_j)      r, c: root mean square of the row, the column; m: of the matrix

Half of the way is what Shampoo's exponents say of a diagonal. All vectors are one matrix here, as
in the layout, with rows of their own lengths and no columns.

Squares, exact in float64, are added up in one fixed order; roots, quotients and products are IEEE's. So what
follows from a gradient has the same bits on every machine.

Reference:
    Gupta, Koren & Singer, "Shampoo: Preconditioned Stochastic Tensor Optimization", ICML 2018,
    arXiv:1802.09568 (exponents of -1/4 on G G^T and on G^T G; ours are their diagonals, of one gradient).
Shape suffixes: P = parameters, R = rows, K = columns.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from training.compiled import DOUBLE, FILL_2, FILL_DOUBLE_1, READ_1, READ_2, compiled, floats
from training.forward import length
from training.layout import Layout

Floats = NDArray[np.float32]
Sizes = NDArray[np.float64]

QUIETEST = 2.0**-10  # of the matrix: below it a row counts as this loud, so that nothing grows over 2^10
_LANES = 8  # sums of a row that a processor may keep side by side


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
    out_P = np.empty_like(gradient_P)
    at = 0
    vectors: list[slice] = []
    for shape in layout.shapes:
        where = slice(at, at + math.prod(shape))
        at = where.stop
        if len(shape) == 1:
            vectors.append(where)
        else:
            _matrix(gradient_P[where].reshape(shape), out_P[where].reshape(shape))
    if vectors:
        lengths = [length(gradient_P[where]) for where in vectors]
        counts = [where.stop - where.start for where in vectors]
        whole = math.sqrt(sum(one * one for one in lengths) / sum(counts))
        for where, factor in zip(vectors, _factors(lengths / np.sqrt(counts), whole), strict=True):
            np.multiply(gradient_P[where], factor, out=out_P[where])
    return out_P


def _matrix(entries_RK: Floats, out_RK: Floats) -> None:
    """One matrix, its entries times the factor of their row, then of their column."""
    high, wide = entries_RK.shape
    row_R, column_K = np.zeros(high), np.zeros(wide)
    whole = math.sqrt(_squares(entries_RK, row_R, column_K, np.zeros(_LANES)) / (high * wide))
    _scaled(
        entries_RK, _factors(np.sqrt(row_R / wide), whole), _factors(np.sqrt(column_K / high), whole), out_RK
    )


@compiled(DOUBLE, READ_2, FILL_DOUBLE_1, FILL_DOUBLE_1, FILL_DOUBLE_1)
def _squares(entries_RK: Floats, row_R: Sizes, column_K: Sizes, lane: Sizes) -> float:
    """The sum of squares, and those of every row and column, which are zeros before."""
    high, wide = entries_RK.shape
    even = wide // _LANES * _LANES
    total = 0.0
    for row in range(high):
        for i in range(_LANES):
            lane[i] = 0.0
        for at in range(0, even, _LANES):
            for i in range(_LANES):
                one = np.float64(entries_RK[row, at + i])
                lane[i] += one * one
        for at in range(even, wide):
            one = np.float64(entries_RK[row, at])
            lane[at - even] += one * one
        for at in range(wide):
            one = np.float64(entries_RK[row, at])
            column_K[at] += one * one
        for i in range(_LANES):
            row_R[row] += lane[i]
        total += row_R[row]
    return total


@compiled(None, READ_2, READ_1, READ_1, FILL_2)
def _scaled(entries_RK: Floats, row_R: Floats, column_K: Floats, out_RK: Floats) -> None:
    """Every entry times its row's factor, rounded, times its column's."""
    for row in range(entries_RK.shape[0]):
        factor = row_R[row]
        for at in range(entries_RK.shape[1]):
            out_RK[row, at] = (entries_RK[row, at] * factor) * column_K[at]


def _factors(sizes: Sizes, whole: float) -> Floats:
    """sqrt(whole / size) for every size, in float32; 1 where there is nothing to scale."""
    if whole == 0:
        return np.ones(len(sizes), np.float32)
    return np.sqrt(whole / np.maximum(sizes, whole * QUIETEST)).astype(np.float32)
