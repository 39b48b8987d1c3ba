"""DCT: the two-dimensional DCT of 64 x 64 blocks by a fast algorithm, with equal bits on every machine.

Room: training (pure). The orthonormal DCT-II of 64 numbers is 249 operations on two of them at a time:
sums and differences, and turns by a known angle (Plonka & Tasche, "Fast and numerically stable
algorithms for discrete cosine transforms", Linear Algebra and its Applications 394, 2005). Halves
of a DCT-II are a DCT-II and a DCT-IV, of a DCT-IV two DCT-II:

    DCT-II  n:  sums x[j] + x[n-1-j]        -> DCT-II n/2 -> even frequencies
                differences                 -> DCT-IV n/2 -> odd frequencies
    DCT-IV  n:  (x[j], x[n-1-j]) turned by (2j+1) pi / 4n -> two DCT-II n/2 -> sums and differences

All 64 columns of a block go through an operation together, then the block is transposed, twice. Each
number meets the same rounded operations wherever its block lies and whatever lies beside it.
The factor 2^-6 of an orthonormal transform goes with the caller's, in one rounding at the end.

Shape suffixes: S = 64, C = 4096, B = blocks, R = rows, W = columns, P = columns filled up to whole blocks.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from assay.protocol.params import BLOCK_SIDE as S
from assay.protocol.params import BLOCK_SIZE
from assay.training.compiled import FILL_2, FLOAT, READ_1, READ_2, compiled, floats

# (first, second) <- (a * first + b * second, c * first + d * second); order: where each frequency lies then.
Operation = tuple[int, int, float, float, float, float]
_BESIDE = 8  # blocks of 16 KiB, which lie in a core's own cache
_NONE = np.empty(0, np.float32)  # factors of rows, where nothing is scaled
TABLE_SHA256 = "6c9e82283f3189c02772f41fe51811bd9fcc2c2a88c511eaa38ebaca6edf8f0d"


def _second(rows: list[int], operations: list[Operation]) -> list[int]:
    """DCT-II of the numbers at these positions, times sqrt(n); returns the positions of its frequencies."""
    half = len(rows) // 2
    if not half:
        return rows
    operations += [(rows[j], rows[-1 - j], 1.0, 1.0, 1.0, -1.0) for j in range(half)]
    even = _second(rows[:half], operations)
    odd = _fourth([rows[-1 - j] for j in range(half)], operations)
    return [place for pair in zip(even, odd, strict=True) for place in pair]


def _fourth(rows: list[int], operations: list[Operation]) -> list[int]:
    """DCT-IV of the numbers at these positions, times sqrt(n); returns the positions of its frequencies."""
    count, half = len(rows), len(rows) // 2
    if not half:
        return rows
    for j in range(half):
        angle, sign = (2 * j + 1) * math.pi / (4 * count), (-1.0) ** j
        cosine, sine = math.cos(angle), math.sin(angle)
        operations.append((rows[j], rows[-1 - j], cosine, sine, -sine * sign, cosine * sign))
    low = _second(rows[:half], operations)
    high = _second([rows[-1 - j] for j in range(half)], operations)
    operations.append((low[0], high[0], math.sqrt(2), 0.0, 0.0, -math.sqrt(2)))
    operations += [(low[k], high[half - k], 1.0, 1.0, 1.0, -1.0) for k in range(1, half)]
    inner = [place for k in range(1, half) for place in (high[half - k], low[k])]
    return [low[0], *inner, high[0]]


_operations: list[Operation] = []
ORDER = np.array(_second(list(range(S)), _operations), np.int64)
PLACES = np.array([one[:2] for one in _operations], np.int64)
FACTORS = np.array([one[2:] for one in _operations], np.float32)
IS_SUM = (np.array([1, 1, 1, -1], np.float32) == FACTORS).all(axis=1)
_table = ORDER.astype("<i8").tobytes() + PLACES.astype("<i8").tobytes() + FACTORS.astype("<f4").tobytes()
if hashlib.sha256(_table).hexdigest() != TABLE_SHA256:
    raise AssertionError(
        "this machine's table of angles differs from the protocol's: its results would diverge"
    )


def block_spectra(
    matrix_RW: NDArray[np.float32],
    factor: float,
    out_BC: NDArray[np.float32],
    scale: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
) -> None:
    """DCT of a matrix cut into 64 x 64 blocks row by row, times a factor.

    Args:
        matrix_RW: Any two-dimensional float32 array; the last blocks are filled up with zeros. Not modified.
        factor: On every coefficient; with the transform's own it is rounded once, to float32.
        out_BC: Filled; one row per block, contiguous float32.
        scale: Shapes (R,) and (W,), float32: every entry is multiplied by its row's and then by its
            column's, each product rounded, before it is transformed.
    """
    high, wide = -(-matrix_RW.shape[0] // S), -(-matrix_RW.shape[1] // S)
    if out_BC.shape != (high * wide, BLOCK_SIZE):
        raise ValueError(f"coefficients of shape {out_BC.shape} for a matrix of shape {matrix_RW.shape}")
    row_R, column_W = scale or (_NONE, _NONE)
    if scale and (len(row_R), len(column_W)) != matrix_RW.shape:
        sizes = f"{len(row_R)} rows and {len(column_W)} columns"
        raise ValueError(f"factors of {sizes} for a matrix of shape {matrix_RW.shape}")
    column_P = np.zeros(wide * S, np.float32)
    column_P[: len(column_W)] = column_W
    _spectra(floats(matrix_RW), floats(row_R), column_P, np.float32(factor / S), out_BC)


@compiled(None, FILL_2, FLOAT, FILL_2)
def _turned(block_SS: NDArray[np.float32], factor: np.float32, out_SS: NDArray[np.float32]) -> None:
    """DCT of every column, in place, and its transpose times a factor."""
    for n in range(len(PLACES)):
        i, j = PLACES[n, 0], PLACES[n, 1]
        if IS_SUM[n]:
            for column in range(S):
                x, y = block_SS[i, column], block_SS[j, column]
                block_SS[i, column] = x + y
                block_SS[j, column] = x - y
        else:
            a, b, c, d = FACTORS[n, 0], FACTORS[n, 1], FACTORS[n, 2], FACTORS[n, 3]
            for column in range(S):
                x, y = block_SS[i, column], block_SS[j, column]
                block_SS[i, column] = a * x + b * y
                block_SS[j, column] = c * x + d * y
    for at in range(0, S, 8):  # 32 bytes at a time: half a line of the cache
        for column in range(S):
            for i in range(8):
                out_SS[column, at + i] = block_SS[ORDER[at + i], column] * factor


@compiled(None, READ_2, READ_1, READ_1, FLOAT, FILL_2)
def _spectra(
    matrix_RW: NDArray[np.float32],
    row_R: NDArray[np.float32],
    column_P: NDArray[np.float32],
    factor: np.float32,
    out_BC: NDArray[np.float32],
) -> None:
    """The blocks of a matrix, a few beside each other at a time: so memory is read and written in order.

    Entries are scaled if there are factors of rows; those of columns go to the end of the last block.
    """
    rows, columns = matrix_RW.shape
    wide = (columns + S - 1) // S
    tiles, turned_SS = np.zeros((min(wide, _BESIDE), S, S), np.float32), np.empty((S, S), np.float32)
    for top in range(0, rows, S):
        for first in range(0, wide, _BESIDE):
            beside = min(_BESIDE, wide - first)
            height, last = min(S, rows - top), min(S, columns - (first + beside - 1) * S)
            if height < S or last < S:
                tiles[:] = 0
            for row in range(height):
                for i in range(beside):
                    left = (first + i) * S
                    for column in range(S if i < beside - 1 else last):
                        tiles[i, row, column] = matrix_RW[top + row, left + column]
            if len(row_R):
                for i in range(beside):
                    column_S = column_P[(first + i) * S : (first + i + 1) * S]
                    for row in range(height):
                        scale = row_R[top + row]
                        for column in range(S):
                            tiles[i, row, column] = (tiles[i, row, column] * scale) * column_S[column]
            for i in range(beside):
                block = top // S * wide + first + i
                _turned(tiles[i], np.float32(1), turned_SS)
                _turned(turned_SS, factor, tiles[i])
                for row in range(S):
                    for column in range(S):
                        out_BC[block, S * row + column] = tiles[i, row, column]
