"""Product: matrix products whose sums have one order, whatever the sizes, the processor and the blocking.

Room: training (pure). Element (i, j) of a product is the sum over k of a[i, k] * b[k, j] in float32, k
ascending, each product and each sum rounded on its own, begun from zero or from what is there:

    c = 0;  for k: c = round(c + round(a[i, k] * b[k, j]))

Blocks only decide when an element's sum is continued. Where one factor or the result is triangular, as
in causal attention, tiles that are zero throughout are left out: a sum that began from +0 is never -0, so
adding a zero does not change it.

The innermost loop is written as LLVM instructions and not as Python text: from text, LLVM keeps no tile of
sums in registers, and the product takes twice as long. They are `fmul` and `fadd` without any flag on vectors
of 16, so each is rounded on its own, also by processors whose vectors are shorter.

Shape suffixes: G = products, M, K, N = their sizes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.compiled import FILL_1, INT, Instructions, Kind, compiled

Floats = NDArray[np.float32]

# Of a tile: 12 sums in vectors of 8, of 16 registers; b takes two, a and a product one each.
ROWS, COLUMNS = 6, 16
# Of a block of b: 16 KiB a strip of 16 columns, 512 KiB together, in a core's own caches.
_DEEP, _WIDE = 256, 512
_READ_2, _READ_3 = (Kind("float32", dims, is_contiguous=False) for dims in (2, 3))
_FILL_3 = Kind("float32", 3, is_filled=True, is_contiguous=False)


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
        c_GMN: Filled; shares no memory with a or b, and each row's elements are next to each other.
        shape: Which part is zero or not meant.
        adds: Whether the sums begin from c.
    """
    if not (a_GMK.dtype == b_GKN.dtype == c_GMN.dtype == np.float32):
        raise ValueError(f"factors of {a_GMK.dtype} and {b_GKN.dtype} for {c_GMN.dtype}, expected float32")
    (products, rows, depth), wide = a_GMK.shape, b_GKN.shape[2]
    if b_GKN.shape != (products, depth, wide) or c_GMN.shape != (products, rows, wide):
        raise ValueError(f"product of shapes {a_GMK.shape} and {b_GKN.shape} for {c_GMN.shape}")
    if wide > 1 and c_GMN.strides[2] != c_GMN.itemsize:
        raise ValueError(f"rows of a result in steps of {c_GMN.strides[2]} bytes, expected 4")
    if not adds:
        c_GMN[...] = 0
    _multiply(a_GMK, b_GKN, c_GMN, int(shape))


@Instructions
def _add_tile(typing_context: Any, a: Any, b: Any, at: Any, c: Any, count: Any) -> Any:
    """Add to a tile the product of `count` > 0 columns of a and as many rows of b.

    for k in range(count):
        for i in range(ROWS):
            for j in range(COLUMNS):
                c[i, j] += a[k * ROWS + i] * b[at + k * COLUMNS + j]
    """
    from numba import types

    return types.void(a, b, at, c, count), _emit


def _emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    from llvmlite import ir
    from numba.core import cgutils

    vector, index = ir.VectorType(ir.FloatType(), COLUMNS), ir.IntType(64)
    a, b, c = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 3))
    at, count = arguments[2], arguments[4]

    def vector_at(base: Any, place: Any) -> Any:
        return builder.bitcast(builder.gep(base, [place]), vector.as_pointer())

    stride = builder.udiv(cgutils.unpack_tuple(builder, c.strides, 2)[0], index(4))
    places = [vector_at(c.data, builder.mul(stride, index(i))) for i in range(ROWS)]
    before = builder.block
    loop, after = (builder.function.append_basic_block(name) for name in ("loop", "after"))
    starts = [builder.load(place, align=4) for place in places]
    builder.branch(loop)

    builder.position_at_end(loop)
    k, sums = builder.phi(index), [builder.phi(vector) for _ in places]
    row_b = builder.load(vector_at(b.data, builder.add(at, builder.mul(k, index(COLUMNS)))), align=4)
    ends = []
    for i, total in enumerate(sums):
        one = builder.load(builder.gep(a.data, [builder.add(builder.mul(k, index(ROWS)), index(i))]))
        ends.append(builder.fadd(total, builder.fmul(_repeated(builder, one, vector), row_b)))
    above = builder.add(k, index(1))
    for value, start, end in zip((k, *sums), (index(0), *starts), (above, *ends), strict=True):
        value.add_incoming(start, before)
        value.add_incoming(end, loop)
    builder.cbranch(builder.icmp_signed("<", above, count), loop, after)

    builder.position_at_end(after)
    for place, end in zip(places, ends, strict=True):
        builder.store(end, place, align=4)
    return context.get_dummy_value()


def _repeated(builder: Any, one: Any, vector: Any) -> Any:
    """A vector of one number."""
    from llvmlite import ir

    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, one, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.VectorType(ir.IntType(32), COLUMNS)([0] * COLUMNS))


@compiled(None, _READ_2, INT, FILL_1)
def _pack(part_KX: Floats, width: int, out: Floats) -> None:
    """Lay rows one after another, each filled up to `width` with zeros."""
    depth, filled = part_KX.shape
    for k in range(depth):
        for x in range(filled):
            out[k * width + x] = part_KX[k, x]
        for x in range(filled, width):
            out[k * width + x] = 0


@compiled(None, _READ_3, _READ_3, _FILL_3, INT)
def _multiply(a_GMK: Floats, b_GKN: Floats, c_GMN: Floats, shape: int) -> None:
    products, rows, depth = a_GMK.shape
    wide = b_GKN.shape[2]
    a = np.empty(ROWS * _DEEP, np.float32)
    b = np.empty(_DEEP * _WIDE, np.float32)
    edge = np.zeros((ROWS, COLUMNS), np.float32)
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
                        at = strip * COLUMNS * _DEEP + (begin - first) * COLUMNS
                        tile = c_GMN[g, row : row + high, column : column + across]
                        if high == ROWS and across == COLUMNS:
                            _add_tile(a, b, at, tile, end - begin)
                            continue
                        for i in range(high):
                            for j in range(across):
                                edge[i, j] = tile[i, j]
                        _add_tile(a, b, at, edge, end - begin)
                        for i in range(high):
                            for j in range(across):
                                tile[i, j] = edge[i, j]
