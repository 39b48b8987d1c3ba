"""Drift: detects a node whose audits deviate in one direction, each within tolerance (T5).

Room: verifier (pure). The noise between two machines points in a new direction in every step; a node that
uses the tolerance to steer does not. Two statistics over a node's audits detect it:

    bias    sum of residuals of unit length: noise grows as sqrt(n), a bias as n. It needs blocks that are
    drawn more than once, so it is for models of up to some hundred blocks.
    level   CUSUM (Page 1954) of the median distance over the profile of honest audits of this pair of
    classes, whatever the direction. It needs a measured pair.

`bias_memory` stores the state of each node. A detection is no fault: once more than f verifiers report one,
the node is put back on probation.

Shape suffixes: B = opened blocks, C = 4096, J = buckets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from assay.protocol.update_rule import BLOCK_SIZE
from assay.training.codec.values import tree_sum
from assay.verifier.audit.limits import Limit
from assay.verifier.audit.tolerance import Measured, median_of

BUCKETS = 512
MEMORY = 1 - 1 / 64  # of the old state, kept with each audit: the memory is about 64 audits
BIAS_MAX = 4.0  # |sum|^2 over its weight; 1 for noise, up to 1.8 for honest pairs that were measured
# times the profile that is still honest; detection threshold; most of one audit
SLACK, LEVEL_MAX, STEP_MAX = 1.2, 4.0, 1.0


@dataclass(frozen=True, slots=True)
class Drift:
    """Drift statistics of one node. sum_J: shape (512,), float64; weight: of its noise."""

    sum_J: NDArray[np.float64] = field(default_factory=lambda: np.zeros(BUCKETS))
    weight: float = 0.0
    level: float = 0.0

    @property
    def bias(self) -> float:
        """Squared length of the sum over its expectation under noise: 1, and up to 128 for one direction."""
        return float(tree_sum((self.sum_J * self.sum_J)[None])[0]) / self.weight if self.weight else 0.0


def observe(drift: Drift, measured: Measured, blocks: Sequence[int], limit: Limit) -> tuple[Drift, bool]:
    """The state after one more audit that was not a mismatch, and whether the node is biased.

    Args:
        drift: Before it.
        measured: The audit's distances and residuals.
        blocks: The opened blocks, ascending.
        limit: For this pair of classes; without a profile, `level` stays.

    Returns:
        The state, and whether the node is biased. After a detection the caller starts a fresh state.
    """
    folded_J = _folded(measured.residual_BC, blocks)
    length = float(np.sqrt(tree_sum((folded_J * folded_J)[None])[0]))
    level = drift.level
    if limit.profile:
        over = median_of(measured) * 1e9 / limit.profile - SLACK
        level = max(0.0, level + min(over, STEP_MAX))
    if length > 0 and np.isfinite(length):
        new = Drift(drift.sum_J * MEMORY + folded_J / length, drift.weight * MEMORY**2 + 1, level)
    else:
        new = Drift(drift.sum_J, drift.weight, level)
    return new, new.bias > BIAS_MAX or new.level > LEVEL_MAX


def _folded(residual_BC: NDArray[np.float64], blocks: Sequence[int]) -> NDArray[np.float64]:
    """Each coefficient added to one bucket with one sign, fixed per block: keeps inner products."""
    folded_J = np.zeros(BUCKETS)
    for block, residual_C in zip(blocks, residual_BC, strict=True):
        drawn = hashlib.shake_256(b"assay/drift/1" + int(block).to_bytes(8, "big")).digest(2 * BLOCK_SIZE)
        code_C = np.frombuffer(drawn, "<u2")
        signed_C = np.where(code_C & 0x8000, -residual_C, residual_C)
        folded_J += np.bincount(code_C % BUCKETS, weights=signed_C, minlength=BUCKETS)
    return folded_J
