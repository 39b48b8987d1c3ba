"""Tile: 6 rows by 16 columns of a matrix product, held in registers while k ascends.

Room: training (pure). The one place where compiled code is written as LLVM instructions in place of Python
text: from text, LLVM keeps no tile in registers, and the product takes twice as long. The instructions are
`fmul` and `fadd` on vectors of 16 float32 without any flag, so each product and each sum is rounded on its
own, on processors with narrower vectors too. In Python:

    for k in range(count):
        for i in range(ROWS):
            for j in range(COLUMNS):
                c[i * COLUMNS + j] += a[k * ROWS + i] * b[at + k * COLUMNS + j]
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

ROWS, COLUMNS = 6, 16  # 12 sums in vectors of 8, of 16 registers: two for b, one for a, one for a product

_LANE, _INDEX = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_LANE, COLUMNS)
_FLOAT_BYTES = 4


@intrinsic
def add_tile(typing_context: Any, a: Any, b: Any, at: Any, c: Any, count: Any) -> Any:
    """Add to tile `c` the product of `count` columns of `a` and as many rows of `b` from `at`; count > 0."""
    return types.void(a, b, at, c, count), _instructions


def _instructions(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    a, b, c = (
        context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in (0, 1, 3)
    )
    at, count = arguments[2], arguments[4]

    def vector(base: Any, index: Any) -> Any:
        return builder.bitcast(builder.gep(base, [index]), _VECTOR.as_pointer())

    places = [vector(c, _INDEX(row * COLUMNS)) for row in range(ROWS)]
    before, loop = builder.block, builder.function.append_basic_block("k")
    after = builder.function.append_basic_block("after")
    starts = [builder.load(place, align=_FLOAT_BYTES) for place in places]
    builder.branch(loop)

    builder.position_at_end(loop)
    k = builder.phi(_INDEX)
    k.add_incoming(_INDEX(0), before)
    sums = [builder.phi(_VECTOR) for _ in places]
    row_b = builder.load(
        vector(b, builder.add(at, builder.mul(k, _INDEX(COLUMNS)))), align=_FLOAT_BYTES
    )
    column_a = builder.mul(k, _INDEX(ROWS))
    for row, (total, start) in enumerate(zip(sums, starts, strict=True)):
        one = builder.load(builder.gep(a, [builder.add(column_a, _INDEX(row))]), align=_FLOAT_BYTES)
        total.add_incoming(start, before)
        total.add_incoming(builder.fadd(total, builder.fmul(_repeated(builder, one), row_b)), loop)
    above = builder.add(k, _INDEX(1))
    k.add_incoming(above, loop)
    builder.cbranch(builder.icmp_signed("<", above, count), loop, after)

    builder.position_at_end(after)
    for place, total in zip(places, sums, strict=True):
        builder.store(total.incomings[1][0], place, align=_FLOAT_BYTES)
    return context.get_dummy_value()


def _repeated(builder: Any, one: Any) -> Any:
    """A vector of one number."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, one, ir.IntType(32)(0))
    return builder.shuffle_vector(first, undefined, ir.VectorType(ir.IntType(32), COLUMNS)([0] * COLUMNS))
