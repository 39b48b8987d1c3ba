"""Compiled: decorator that compiles a function with numba so that its bits equal those of its Python text.

Room: training (edge: the folder of compiled code). numba, with nothing that could change a bit: no fast-math,
so no sum is reordered and no product is fused into an addition; a call runs on one thread. Elementwise
operations then have the same bits with and without vectors (tests/training/test_same_steps.py). One loop is
not Python text but LLVM instructions, under the same rules (reference/product.py).

A file's compiled code is cached where Python keeps its bytecode, by processor, Python and numba, and is
rebuilt when the file has changed: a compiled function calls only functions of its own file, and a change of
`OPTIONS` needs the cache deleted by hand. Write access there allows code execution anyway, as with bytecode.
If neither that folder nor the user's cache folder is writable, every process compiles anew, in two seconds.

Compiled code checks no sizes: a wrong shape would read and write foreign memory. The Python around a compiled
function checks shapes, and passes contiguous arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

# Argument types: arrays that are only read (also read-only ones), and arrays that are filled.
READ_1, READ_2 = (types.Array(types.float32, dims, "C", readonly=True) for dims in (1, 2))
FILL_1, FILL_2 = (types.Array(types.float32, dims, "C") for dims in (1, 2))
FILL_BOOL_1 = types.Array(types.boolean, 1, "C")
FILL_INT32_1 = types.Array(types.int32, 1, "C")
FILL_INT64_1, FILL_INT64_2 = (types.Array(types.int64, dims, "C") for dims in (1, 2))
READ_INT64_1, READ_INT64_2 = (types.Array(types.int64, dims, "C", readonly=True) for dims in (1, 2))
FILL_DOUBLE_1 = types.Array(types.float64, 1, "C")
BOOL, FLOAT, DOUBLE, INT = types.boolean, types.float32, types.float64, types.int64


# Written out, so that no default and no operator's environment changes a bit.
OPTIONS = {"fastmath": False, "parallel": False, "boundscheck": False, "error_model": "python", "nogil": True}


def compiled(returns: Any, *arguments: Any) -> Callable[[Function], Function]:
    """Compile a function for these types when its file is imported. It runs without the GIL."""

    def make(function: Function) -> Function:
        signature = (returns or types.void)(*arguments)
        try:
            made: Function = njit(signature, cache=True, **OPTIONS)(function)
        except RuntimeError as error:
            if "no locator" not in str(error):  # numba's text where it finds no folder that it can write
                raise
            made = njit(signature, **OPTIONS)(function)
        return made

    return make


def floats(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """The array itself if compiled code can read it, else a copy that it can."""
    return np.require(array, np.float32, ["C", "A"])
