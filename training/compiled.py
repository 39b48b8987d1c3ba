"""Compiled: decorator that compiles a function with numba so that its bits equal those of its Python text.

Room: training (edge: the folder of compiled code). numba, with nothing that could change a bit: no fast-math,
so no sum is reordered and no product is fused into an addition; a call runs on one thread. Elementwise
operations then have the same bits with and without vectors (tests/training/test_same_steps.py). One loop is
not Python text but LLVM instructions, under the same rules (reference/product.py).

A function is compiled at its first call, so that processes which only speak of training need no compiler;
`compile_all` does it before work whose time is watched. A file's compiled code is cached where Python keeps
its bytecode, by processor, Python and numba, and is rebuilt when the file has changed: a compiled function
calls only functions of its own file, and a change of `OPTIONS` needs the cache deleted by hand. Write access
there allows code execution anyway, as with bytecode. If neither that folder nor the user's cache folder is
writable, every process compiles anew, in two seconds.

Compiled code checks no sizes: a wrong shape would read and write foreign memory. The Python around a compiled
function checks shapes, and passes contiguous arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Kind:
    """Type of an argument or a result: a number, or an array of `dims` dimensions."""

    dtype: str
    dims: int = 0
    is_filled: bool = False  # what is only read may be a read-only array
    is_contiguous: bool = True

    def of_numba(self) -> Any:
        """The same as numba's type."""
        from numba import types

        dtype, layout = getattr(types, self.dtype), "C" if self.is_contiguous else "A"
        return types.Array(dtype, self.dims, layout, readonly=not self.is_filled) if self.dims else dtype


READ_1, READ_2 = (Kind("float32", dims) for dims in (1, 2))
FILL_1, FILL_2 = (Kind("float32", dims, is_filled=True) for dims in (1, 2))
FILL_BOOL_1 = Kind("boolean", 1, is_filled=True)
FILL_INT32_1 = Kind("int32", 1, is_filled=True)
FILL_UINT64_1 = Kind("uint64", 1, is_filled=True)
FILL_INT64_1, FILL_INT64_2 = (Kind("int64", dims, is_filled=True) for dims in (1, 2))
READ_INT64_1, READ_INT64_2 = (Kind("int64", dims) for dims in (1, 2))
READ_DOUBLE_1, FILL_DOUBLE_1 = Kind("float64", 1), Kind("float64", 1, is_filled=True)
BOOL, FLOAT, DOUBLE, INT = Kind("boolean"), Kind("float32"), Kind("float64"), Kind("int64")


# Written out, so that no default and no operator's environment changes a bit.
OPTIONS = {"fastmath": False, "parallel": False, "boundscheck": False, "error_model": "python", "nogil": True}
_made: list[Compiled] = []
_compiling = threading.RLock()  # one function's compilation compiles those that it calls


class Compiled:
    """A function that runs as machine code, without the GIL.

    Args:
        function: Its text, of numbers and arrays.
        returns: The result's kind; None for none.
        arguments: Kinds of the arguments.
    """

    def __init__(
        self, function: Callable[..., Any], returns: Kind | None, arguments: tuple[Kind, ...]
    ) -> None:
        update_wrapper(self, function)
        self.text, self._returns, self._arguments = function, returns, arguments
        self._code: Callable[..., Any] | None = None
        _made.append(self)

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code, which is made or loaded first where it is not there yet.

        Raises:
            TypeError: an argument of another kind.
        """
        return (self._code or self.code)(*arguments)

    @property
    def code(self) -> Any:
        """numba's function."""
        with _compiling:
            if self._code is None:
                self._code = self._compile()
        return self._code

    def _compile(self) -> Any:
        from numba import njit, types

        function = self.text
        called = {
            name: one.code
            for name in function.__code__.co_names
            if isinstance(one := function.__globals__.get(name), Compiled)
        }
        text = FunctionType(function.__code__, {**function.__globals__, **called}, function.__name__)
        update_wrapper(text, function)
        returns = types.void if self._returns is None else self._returns.of_numba()
        signature = returns(*(kind.of_numba() for kind in self._arguments))
        try:
            return njit(signature, cache=True, **OPTIONS)(text)
        except RuntimeError as error:
            if "no locator" not in str(error):  # numba's text where it finds no folder that it can write
                raise
            return njit(signature, **OPTIONS)(text)


class Instructions(Compiled):
    """A function of LLVM instructions, which compiled functions call and nobody else.

    Args:
        typed: What numba's `intrinsic` takes: from types to a signature and what writes the instructions.
    """

    def __init__(self, typed: Callable[..., Any]) -> None:
        super().__init__(typed, None, ())

    def _compile(self) -> Any:
        from numba.extending import intrinsic

        return intrinsic(self.text)


@Instructions
def lowest_bit(typing_context: Any, bits: Any) -> Any:
    """How many zeros a number that is not zero has below its lowest one. May be called from any file."""
    from numba import types

    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.int64(types.uint64), write


def compiled(returns: Kind | None, *arguments: Kind) -> Callable[[Callable[..., Any]], Compiled]:
    """Compile a function for these kinds of arguments, at its first call."""
    return lambda function: Compiled(function, returns, arguments)


def compile_all() -> None:
    """Compile what the modules imported so far define, so that no later call waits for it."""
    for one in tuple(_made):
        _ = one.code


def floats(array: NDArray[np.float32]) -> NDArray[np.float32]:
    """The array itself if compiled code can read it, else a copy that it can."""
    return np.require(array, np.float32, ["C", "A"])
