"""Mask: which tokens of a batch a model is trained to predict.

Room: training (pure). A token t that is not predicted is written ~t (that is -1 - t) in a batch, and with the
top bit set in a shard. A model reads it like any other; the loss is the mean over the targets that are not
masked. Data sets without a mask have no such tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def visible(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """What a model reads: every token without its mask. Any shape."""
    return np.where(tokens < 0, ~tokens, tokens)


def target_count(tokens: NDArray[np.int64]) -> int:
    """Tokens that a batch trains on; the first of a sequence is never one. Shape (sequences, context + 1)."""
    return int(np.count_nonzero(tokens[:, 1:] >= 0))


def from_stored(tokens: NDArray[Any]) -> NDArray[np.int64]:
    """Tokens of a masked data set's shard as a batch has them. Unsigned integers, any shape."""
    top = 8 * tokens.dtype.itemsize - 1
    values = tokens.astype(np.int64)
    return np.where(values >> top, ~(values & ((1 << top) - 1)), values)


def to_stored(tokens: NDArray[np.int64], kind: np.dtype[Any]) -> NDArray[Any]:
    """The inverse of `from_stored`; every token must fit one bit less than `kind` has."""
    top = 1 << (8 * kind.itemsize - 1)
    return np.where(tokens < 0, ~tokens | top, tokens).astype(kind)
