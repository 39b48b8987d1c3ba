"""Rules: the rules of aggregation by name, as a run's spec names them.

Room: verifier (pure).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from protocol.rule import BLOCK_SIZE
from protocol.types import PeerId
from training.wire import Aggregate, Update
from verifier.aggregation import mean_over_senders

Rule = Callable[[Mapping[PeerId, Update], int], Aggregate]
RULE_NAMES = ("mean",)


def rule_of(name: str, f: int, seed: bytes) -> Rule:
    """The rule of this name, set up to stand f liars. `seed` is public and new in each round."""
    assert name == "mean"
    return _mean


def _mean(updates: Mapping[PeerId, Update], block_count: int) -> Aggregate:
    if next(iter(updates.values())).exponent_B is None:
        return mean_over_senders(updates, block_count)
    return _amplitudes(updates, block_count)


def _amplitudes(updates: Mapping[PeerId, Update], block_count: int) -> Aggregate:
    """Mean over senders of what has amplitudes: fixed point of 2^-51, then 14 bits and an exponent."""
    total = np.zeros((block_count, BLOCK_SIZE), np.int64)
    count = np.zeros((block_count, BLOCK_SIZE), np.int64)
    for _, update in sorted(updates.items()):
        assert update.exponent_B is not None
        whole = update.value_BK.astype(np.int64) << (update.exponent_B + 51)[:, None]
        total[update.blocks_B[:, None], update.index_BK] += whole
        count[update.blocks_B[:, None], update.index_BK] += 1
    mean = np.sign(total) * (np.abs(total) // np.maximum(count, 1))
    largest = np.abs(mean).max(axis=1)
    shift = np.maximum(np.array([int(x).bit_length() for x in largest], np.int64) - 14, 0)
    value = np.sign(mean) * (np.abs(mean) >> shift[:, None])
    block_T, index_T = np.nonzero(value)
    exponent = np.where(largest > 0, shift - 51, 0)
    return Aggregate(block_T, index_T, value[block_T, index_T].astype(np.int32), exponent)
