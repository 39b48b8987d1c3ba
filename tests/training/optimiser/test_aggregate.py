"""Aggregates written like a message: as near the mean as twice a message's bits come."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from assay.protocol.errors import MalformedMessage
from assay.protocol.update_rule import RuleSpec, Transform, Values, Wire
from assay.testing.members import peer
from assay.testing.signed import a_spec
from assay.testing.specs import a_rule
from assay.training.codec.contribution import aggregate_bytes_max, contribution_bytes_max, decode_contribution
from assay.training.codec.wire import Aggregate, encode_aggregate
from assay.training.exact import VALUE_MAX, initial_parameters
from assay.training.layout import layout_of
from assay.training.model.presets import gpt_spec
from assay.training.optimiser.aggregate import decode_round, encode_round
from assay.training.optimiser.outer import apply, start_public
from assay.training.optimiser.step import message
from assay.training.transform.compress import transition
from assay.verifier.aggregation.mean import mean_over_senders
from tests.training.places import placed

BLOCKS = 6
CASES = {
    "signs": {"values": Values.SIGN_MEAN},
    "two bits": {"values": Values.TWO_BIT},
    "powers of two": {"values": Values.E3M0},
    "bytes": {"values": Values.INT8},
    "words": {"values": Values.INT16},
    "rank 2": {"rank": 2},
    "rank 8": {"rank": 8},
}
# Of the square of a mean of 8 nodes' messages, at most; a rank is given matrices of twice that rank.
LOST = {"signs": 0.16, "two bits": 0.04, "powers of two": 1e-3, "bytes": 1e-3, "words": 1e-6, "rank 2": 1e-2}
every_case = pytest.mark.parametrize("name", CASES)


def a_wire(name: str, **choices) -> RuleSpec:
    return a_rule("diloco", wire=Wire.MESSAGE, transform=Transform.NONE, **CASES[name], **choices)


def a_mean(name: str, seed: int = 1) -> Aggregate:
    """Means of eight random messages; block 2 is one that nobody sent."""
    rng = np.random.default_rng(seed)
    if name.startswith("rank"):
        left, right = rng.standard_normal((2, BLOCKS, 64, 4))
        mean = (left @ right.transpose(0, 2, 1)).reshape(BLOCKS, 4096)
    elif name == "signs":
        mean = rng.choice([-1.0, 1.0], (8, BLOCKS, 4096)).mean(axis=0)
    else:
        mean = rng.standard_normal((BLOCKS, 4096))
    whole = (mean / np.abs(mean).max(axis=1, keepdims=True) * VALUE_MAX).astype(np.int32)
    whole[2] = 0
    block_T, index_T = np.nonzero(whole)
    exponent_N = rng.integers(-40, -20, BLOCKS)
    exponent_N[2] = 0
    return placed(BLOCKS, block_T, index_T, whole[block_T, index_T], exponent_N)


def dense(aggregate: Aggregate) -> np.ndarray:
    out = np.zeros((BLOCKS, 4096))
    assert aggregate.exponent_N is not None
    out[aggregate.blocks, aggregate.index_T] = np.ldexp(
        aggregate.value_T.astype(float), aggregate.exponent_N[aggregate.blocks].astype(np.int32)
    )
    return out


@every_case
def test_a_mean_costs_at_most_twice_the_bits_of_a_message(name):
    rule = a_wire(name)

    assert len(encode_round(rule, a_mean(name), BLOCKS)) <= 2 * contribution_bytes_max(rule, BLOCKS)


@every_case
def test_no_written_mean_is_above_the_bound_that_receivers_keep_room_for(name):
    rule = a_wire(name)
    for seed in range(3):
        body = encode_round(rule, a_mean(name, seed), BLOCKS)
        assert len(body) <= aggregate_bytes_max(replace(a_spec(), rule=rule, seats=8), BLOCKS)


@pytest.mark.parametrize("seats", [1, 3, 200])
@pytest.mark.parametrize("has_scale", [False, True])
def test_no_union_of_disjoint_messages_is_above_that_bound(seats, has_scale):
    spec, blocks, rng = a_spec(), 40, np.random.default_rng(seats)
    count = min(seats * spec.rule.compress.k, 4096)
    index_T = np.concatenate([np.sort(rng.choice(4096, count, replace=False)) for _ in range(blocks)])
    block_T = np.repeat(np.arange(blocks), count)
    value_T = rng.integers(1, VALUE_MAX + 1, len(index_T)).astype(np.int32) * rng.choice(
        [-1, 1], len(index_T)
    )
    exponent_N = np.full(blocks, -30) if has_scale else None
    union = placed(blocks, block_T, index_T, value_T, exponent_N)

    body = encode_aggregate(union, blocks, has_scale=has_scale)
    most = aggregate_bytes_max(replace(spec, seats=seats), blocks)
    assert most / 8 < len(body) <= most


@pytest.mark.parametrize("name", LOST)
def test_what_is_read_is_near_the_mean(name):
    rule, mean = a_wire(name), a_mean(name)

    read = dense(decode_round(rule, encode_round(rule, mean, BLOCKS), BLOCKS))

    true = dense(mean)
    for block in range(BLOCKS):
        assert np.sum((read[block] - true[block]) ** 2) <= LOST[name] * np.sum(true[block] ** 2)


@every_case
def test_bytes_too_many_or_too_few_are_refused(name):
    rule = a_wire(name)
    body = encode_round(rule, a_mean(name), BLOCKS)

    for wrong in (body + b"\0", body[:-1], b""):
        with pytest.raises(MalformedMessage):
            decode_round(rule, wrong, BLOCKS)


@every_case
def test_a_block_that_nobody_sent_does_not_move(name):
    rule = a_wire(name)

    assert not dense(decode_round(rule, encode_round(rule, a_mean(name), BLOCKS), BLOCKS))[2].any()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["muloco", "diloco"])
def test_a_dense_message_takes_few_bytes_a_parameter_beside_what_comes_of_it(method):
    """Where a model just fits, what messages need beside it decides who can take part."""
    model = gpt_spec(layers=4, width=256, heads=4, context=32)
    spec = a_spec(model=model, rule=a_rule(method, wire=Wire.MESSAGE))
    layout, rule, rng = layout_of(model), spec.rule, np.random.default_rng(1)
    error_NC, x_NC = rng.standard_normal((2, layout.blocks, 4096)).astype(np.float32) * np.float32(1e-3)
    theta_P = initial_parameters(1, layout.names, layout.shapes)
    public = start_public(spec, theta_P)
    taken: dict[str, float] = {}

    def held(name: str, work: Callable):
        work()  # compiles, and fills caches
        tracemalloc.start()
        try:
            made = work()
            taken[name] = tracemalloc.get_traced_memory()[1] / layout.parameters
        finally:
            tracemalloc.stop()
        return made

    sent = held("a node's transition", lambda: transition(rule.compress, error_NC, x_NC)).sent
    body = held("its message", lambda: message(spec, layout, sent))
    held("reading it", lambda: decode_contribution(spec, layout, 0, body))
    updates = {peer(f"node {n}"): sent for n in range(4)}
    mean = held("the mean", lambda: mean_over_senders(updates, layout.blocks))
    found = held("its bytes", lambda: encode_round(rule, mean, layout.blocks))
    held("applying it", lambda: apply(spec, layout, public, 0, found))

    print(f"{method}, bytes a parameter: {', '.join(f'{name} {size:.1f}' for name, size in taken.items())}")
    most = (8.5, 3, 3, 16, 6, 15.5)
    assert all(size < limit for size, limit in zip(taken.values(), most, strict=True)), taken
