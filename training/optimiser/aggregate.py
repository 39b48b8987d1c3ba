"""Aggregate: the bytes of a round's aggregate, for any method.

Room: training (pure, without torch: the network's processes read these). Three wires: coefficients
(`codec/wire.py`), the step itself (`codec/signs.py`), or the mean compressed as if it were one more node's
message, with twice the bits. A node's own message: training/codec/contribution.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.protocol.update_rule import BLOCK_SIZE, RANK_MAX, RuleSpec, Transform, Values, Wire
from assay.training.codec.factors import decode_factors, encode_factors, factors_to_update
from assay.training.codec.signs import decode_signs, encode_signs
from assay.training.codec.values import quantise
from assay.training.codec.wire import (
    Aggregate,
    Update,
    decode_aggregate,
    decode_update,
    encode_aggregate,
    encode_update,
)
from assay.training.exact import scatter_values
from assay.training.transform.inverse import inverse_signs
from assay.training.transform.low_rank import compress_lowrank

# How a mean is written: the levels between those of the nodes need more bits than one node's.
_MEAN_VALUES = {
    Values.SIGN_MEAN: Values.TWO_BIT, Values.TWO_BIT: Values.E3M0, Values.E3M0: Values.INT8,
    Values.INT8: Values.INT8, Values.INT16: Values.INT16,
}  # fmt: skip


def encode_round(rule: RuleSpec, aggregate: Aggregate, block_count: int) -> bytes:
    """The bytes of a round's aggregate, in the format of the rule's wire."""
    if rule.aggregation.wire is Wire.SIGNS:
        return encode_signs(step_signs(rule, aggregate, block_count))
    if rule.aggregation.wire is Wire.MESSAGE:
        return _encode_mean(rule, aggregate, block_count)
    return encode_aggregate(aggregate, block_count, has_scale=rule.has_scale)


def decode_round(rule: RuleSpec, data: bytes, block_count: int) -> Aggregate:
    """The coefficients that an aggregate's bytes encode, for rules whose wire has them.

    Raises:
        MalformedMessage: they are not its canonical bytes.
    """
    if rule.aggregation.wire is Wire.MESSAGE:
        return _decode_mean(rule, data, block_count)
    assert rule.aggregation.wire is Wire.UNION
    return decode_aggregate(data, block_count, has_scale=rule.has_scale)


def decode_step(rule: RuleSpec, data: bytes, block_count: int) -> NDArray[np.int8]:
    """The sign step that an aggregate's bytes encode, for any wire. Shape (N, 64, 64), int8.

    Raises:
        MalformedMessage: they are not the canonical bytes of any step.
    """
    if rule.aggregation.wire is Wire.SIGNS:
        return decode_signs(data, block_count)
    return step_signs(rule, decode_round(rule, data, block_count), block_count)


def step_signs(rule: RuleSpec, aggregate: Aggregate, block_count: int) -> NDArray[np.int8]:
    """The sign at every position of every block that an aggregate moves. Shape (N, 64, 64), int8."""
    parts = (block_count, aggregate.block_T, aggregate.index_T, aggregate.value_T)
    if rule.compress.transform is Transform.DCT:
        return inverse_signs(*parts)
    return np.sign(scatter_values(*parts)).astype(np.int8)


def _encode_mean(rule: RuleSpec, aggregate: Aggregate, block_count: int) -> bytes:
    """An aggregate as a message; what its bits cannot say is lost, alike for everybody."""
    assert aggregate.exponent_N is not None
    whole = scatter_values(block_count, aggregate.block_T, aggregate.index_T, aggregate.value_T)
    # Values of 14 bits times a power of two: exact in float32.
    mean_NC = np.ldexp(whole.reshape(-1, BLOCK_SIZE).astype(np.float32), aggregate.exponent_N[:, None])
    if rule.compress.rank:
        factors, _ = compress_lowrank(mean_NC, _mean_rank(rule))
        return encode_factors(factors, block_count)
    values = _MEAN_VALUES[rule.compress.values]
    written = quantise(values, mean_NC)
    assert written.exponent_B is not None and written.mantissa_B is not None
    live_B = np.flatnonzero(written.is_live_B)
    index_BK = np.broadcast_to(np.arange(BLOCK_SIZE), (len(live_B), BLOCK_SIZE))
    scales = written.exponent_B[live_B], written.mantissa_B[live_B]
    return encode_update(
        Update(live_B, index_BK, written.value_BK[live_B], *scales), block_count, BLOCK_SIZE, values
    )


def _decode_mean(rule: RuleSpec, data: bytes, block_count: int) -> Aggregate:
    if rule.compress.rank:
        update = factors_to_update(decode_factors(data, block_count, _mean_rank(rule)))
    else:
        update = decode_update(data, block_count, BLOCK_SIZE, _MEAN_VALUES[rule.compress.values])
    assert update.exponent_B is not None
    exponent_N = np.zeros(block_count, np.int64)
    exponent_N[update.blocks_B] = update.exponent_B
    block_T = np.repeat(update.blocks_B, BLOCK_SIZE)
    value_T = update.value_BK.reshape(-1).astype(np.int32)
    return Aggregate(block_T, update.index_BK.reshape(-1), value_T, exponent_N)


def _mean_rank(rule: RuleSpec) -> int:
    return min(2 * rule.compress.rank, RANK_MAX)
