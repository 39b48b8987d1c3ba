"""Aggregates of coefficients whose blocks are named one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.training.codec.wire import Aggregate


def placed(
    block_count: int,
    block_T: NDArray,
    index_T: NDArray,
    value_T: NDArray,
    exponent_N: NDArray | None = None,
) -> Aggregate:
    """These coefficients, by block and index ascending, of so many blocks."""
    count_N = np.bincount(block_T, minlength=block_count)
    return Aggregate(count_N, np.asarray(index_T, np.int16), np.asarray(value_T, np.int32), exponent_N)
