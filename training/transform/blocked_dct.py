"""Blocked DCT: the 64 x 64 blocks of a flat vector in the DCT basis, without copying them out first.

Room: training (pure). Each tensor is transformed where it lies; the vectors, which share
blocks, are laid out first. A block's bits are those that it has alone.

Shape suffixes: P = parameters, N = blocks, S = 64, C = 4096, B = blocks given.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIDE as S
from assay.protocol.params import BLOCK_SIZE
from assay.training import parallel
from assay.training.compiled import DOUBLE, FILL_DOUBLE_1, READ_1, READ_2, compiled, floats
from assay.training.layout import Layout, to_blocks
from assay.training.transform.dct import block_spectra

# By tensor: the factors of its rows and of its columns, float32; a vector is one row.
Scale = tuple[NDArray[np.float32], NDArray[np.float32]]
Scales = list[Scale]
Piece = tuple[NDArray[np.float32], NDArray[np.float32], "Scale | None"]

LANES = 64  # sums that a length is added up in


def transformed_blocks(
    layout: Layout,
    flat_P: NDArray[np.float32],
    factor: float,
    into_NC: NDArray[np.float32] | None = None,
    scales: Scales | None = None,
) -> NDArray[np.float32]:
    """DCT of the flat vector's blocks, times a factor. Shape (N, C), float32.

    Args:
        layout: Order and shapes of the parameters.
        flat_P: Shape (P,), float32; not modified.
        factor: On every coefficient.
        into_NC: Filled and returned; fresh memory if left out, which the kernel has to clear first.
        scales: Every entry is multiplied by its row's, then by its column's, before it is transformed.
    """
    out_NC = np.empty((layout.blocks, BLOCK_SIZE), np.float32) if into_NC is None else into_NC
    if out_NC.shape != (layout.blocks, BLOCK_SIZE):
        raise ValueError(f"room of shape {out_NC.shape} for {layout.blocks} blocks")
    if layout.is_packed:
        packed = to_blocks(layout, scaled(layout, flat_P, scales) if scales else flat_P).reshape(-1, S)
        parallel.each(
            lambda piece: block_spectra(piece[0], factor, *piece[1:]), _pieces(packed, out_NC, None)
        )
        return out_NC
    at, block = 0, 0
    vectors, shapes, pieces = [], [], []
    for tensor, (name, shape) in enumerate(zip(layout.names, layout.shapes, strict=True)):
        size = math.prod(shape)
        part = flat_P[at : at + size]
        at += size
        scale = scales[tensor] if scales else None
        if len(shape) == 1:
            vectors.append(part * scale[0] * scale[1] if scale else part)
            shapes.append((name, shape))
            continue
        count = -(-shape[0] // S) * -(-shape[1] // S)
        pieces += _pieces(part.reshape(shape), out_NC[block : block + count], scale)
        block += count
    if vectors:
        rest = Layout(tuple(n for n, _ in shapes), tuple(s for _, s in shapes))
        pieces += _pieces(to_blocks(rest, np.concatenate(vectors)).reshape(-1, S), out_NC[block:], None)
    parallel.each(lambda piece: block_spectra(piece[0], factor, *piece[1:]), pieces)
    return out_NC


def scaled(layout: Layout, flat_P: NDArray[np.float32], scales: Scales) -> NDArray[np.float32]:
    """Every entry times its row's factor, rounded, times its column's. Shape (P,)."""
    out_P = np.empty_like(flat_P)
    for (at, shape), (row_R, column_K) in zip(layout.offsets().values(), scales, strict=True):
        where = slice(at, at + math.prod(shape))
        out_P[where] = (flat_P[where].reshape(shape) * row_R[:, None] * column_K).reshape(-1)
    return out_P


def _pieces(matrix_RW: NDArray[np.float32], out_BC: NDArray[np.float32], scale: Scale | None) -> list[Piece]:
    """A matrix, the blocks to fill and its factors, divided between rows of blocks."""
    high, wide = -(-matrix_RW.shape[0] // S), -(-matrix_RW.shape[1] // S)
    found: list[Piece] = []
    for part in parallel.parts(high, -(-parallel.LEAST // wide)):
        rows = slice(part.start * S, part.stop * S)
        factors = scale and (scale[0][rows], scale[1])
        found.append((matrix_RW[rows], out_BC[part.start * wide : part.stop * wide], factors))
    return found


def spectra(blocks_BSS: NDArray[np.float32]) -> NDArray[np.float32]:
    """DCT of blocks that were cut out. Shape (B, C), float32."""
    out_BC = np.empty((len(blocks_BSS), BLOCK_SIZE), np.float32)
    block_spectra(blocks_BSS.reshape(-1, S), 1.0, out_BC)
    return out_BC


def length(flat_P: NDArray[np.float32]) -> float:
    """Euclidean length of a vector: squares, exact in float64, are added in one order, on one thread."""
    lane = np.zeros(LANES)
    return math.sqrt(_squares(floats(flat_P), lane))


def row_lengths(rows_BC: NDArray[np.float32]) -> NDArray[np.float64]:
    """`length` of every row. Shape (B,), float64."""
    square_B, rows_BC = np.empty(len(rows_BC)), floats(rows_BC)
    parallel.each(lambda rows: _row_squares(rows_BC[rows], square_B[rows]), parallel.parts(len(rows_BC)))
    return np.sqrt(square_B)


@compiled(DOUBLE, READ_1, FILL_DOUBLE_1)
def _squares(flat_P: NDArray[np.float32], lane: NDArray[np.float64]) -> float:
    whole = len(flat_P) // LANES * LANES
    for at in range(0, whole, LANES):
        for i in range(LANES):
            one = np.float64(flat_P[at + i])
            lane[i] += one * one
    for at in range(whole, len(flat_P)):
        one = np.float64(flat_P[at])
        lane[at - whole] += one * one
    total = 0.0
    for i in range(LANES):
        total += lane[i]
    return total


@compiled(None, READ_2, FILL_DOUBLE_1)
def _row_squares(rows_BC: NDArray[np.float32], square_B: NDArray[np.float64]) -> None:
    lane = np.empty(LANES)
    for row in range(len(rows_BC)):
        lane[:] = 0.0
        square_B[row] = _squares(rows_BC[row], lane)
