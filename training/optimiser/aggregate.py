"""Aggregate: the bytes of a round's aggregate, for any method.

Room: training (pure, without torch: the network's processes read these). Three wires: coefficients
(`codec/wire.py`), the step itself (`codec/signs.py`), or the mean compressed as if it were one more node's
message, with twice the bits. A node's own message: training/codec/contribution.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.protocol.update_rule import BLOCK_SIDE, BLOCK_SIZE, RANK_MAX, RuleSpec, Transform, Values, Wire
from assay.training.codec.factors import decode_factors, encode_factors, factors_to_update
from assay.training.codec.signs import decode_signs, encode_signs
from assay.training.codec.values import quantise
from assay.training.codec.wire import (
    Aggregate,
    decode_aggregate,
    decode_update,
    encode_aggregate,
    encode_update,
)
from assay.training.transform.compress import dense_update
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
    if rule.compress.transform is Transform.DCT:
        return inverse_signs(aggregate.count_N, aggregate.index_T, aggregate.value_T)
    sign_NC = np.empty((block_count, BLOCK_SIZE), np.int8)
    for some, value_NC in aggregate.dense():
        sign_NC[some] = np.sign(value_NC)
    return sign_NC.reshape(-1, BLOCK_SIDE, BLOCK_SIDE)


def _encode_mean(rule: RuleSpec, aggregate: Aggregate, block_count: int) -> bytes:
    """An aggregate as a message; what its bits cannot say is lost, alike for everybody."""
    if rule.compress.rank:
        mean_NC = np.concatenate([_mean(aggregate, *part) for part in aggregate.dense()])
        factors, _ = compress_lowrank(mean_NC, _mean_rank(rule))
        return encode_factors(factors, block_count)
    values = _MEAN_VALUES[rule.compress.values]
    update = dense_update(
        (some, quantise(values, _mean(aggregate, some, value_NC))) for some, value_NC in aggregate.dense()
    )
    return encode_update(update, block_count, BLOCK_SIZE, values)


def _mean(aggregate: Aggregate, some: slice, value_NC: NDArray[np.int32]) -> NDArray[np.float32]:
    """Values of 14 bits times a power of two: exact in float32."""
    assert aggregate.exponent_N is not None
    mean_NC: NDArray[np.float32] = np.ldexp(value_NC.astype(np.float32), aggregate.exponent_N[some, None])
    return mean_NC


def _decode_mean(rule: RuleSpec, data: bytes, block_count: int) -> Aggregate:
    if rule.compress.rank:
        update = factors_to_update(decode_factors(data, block_count, _mean_rank(rule)))
    else:
        update = decode_update(data, block_count, BLOCK_SIZE, _MEAN_VALUES[rule.compress.values])
    assert update.exponent_B is not None
    count_N, exponent_N = np.zeros((2, block_count), np.int64)
    count_N[update.blocks_B], exponent_N[update.blocks_B] = BLOCK_SIZE, update.exponent_B
    index_T = np.tile(np.arange(BLOCK_SIZE, dtype=np.int16), len(update.blocks_B))
    return Aggregate(count_N, index_T, update.value_BK.reshape(-1).astype(np.int32), exponent_N)


def _mean_rank(rule: RuleSpec) -> int:
    return min(2 * rule.compress.rank, RANK_MAX)
