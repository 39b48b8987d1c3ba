"""The wire codecs: one byte string per content, and decoders that cost what they were sent."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import MalformedMessage
from protocol.params import BLOCK_SIZE
from training.exact import VALUE_MAX
from training.rice import (
    pack_bits,
    pack_gaps,
    pack_numbers,
    rice_bits,
    unpack_bits,
    unpack_gaps,
    unpack_numbers,
)
from training.wire import (
    Aggregate,
    Update,
    aggregate_bytes_max,
    decode_aggregate,
    decode_update,
    encode_aggregate,
    encode_update,
    update_bytes_max,
)
from verifier.aggregation import mean_over_senders

VECTORS = Path(__file__).parents[1] / "vectors" / "wire.json"
SPANS = ((0, BLOCK_SIZE), (0, 600), (BLOCK_SIZE - 600, BLOCK_SIZE))  # where in a block indices lie
KS = st.integers(1, 64) | st.sampled_from([128, 512])


def an_update(seed: int, blocks: int, k: int, live: float = 0.7, span: tuple[int, int] = SPANS[0]) -> Update:
    rng = np.random.default_rng(seed)
    chosen = np.flatnonzero(rng.random(blocks) < live)
    rows = [np.sort(rng.choice(np.arange(*span), k, replace=False)) for _ in chosen]
    index = np.array(rows, np.int64).reshape(len(chosen), k)
    return Update(chosen, index, rng.choice(np.array([-1, 1], np.int8), index.shape))


def an_aggregate(seed: int, blocks: int, share: float, distinct: int) -> Aggregate:
    rng = np.random.default_rng(seed)
    at = np.flatnonzero(rng.random(blocks * BLOCK_SIZE) < share)
    values = np.unique(rng.integers(-VALUE_MAX, VALUE_MAX + 1, distinct))
    return Aggregate(at // BLOCK_SIZE, at % BLOCK_SIZE, rng.choice(values, len(at)).astype(np.int32))


updates = st.builds(
    lambda seed, blocks, k, live, span: (an_update(seed, blocks, k, live, span), blocks, k),
    st.integers(0, 2**32), st.integers(1, 12), KS, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(SPANS),
)  # fmt: skip
aggregates = st.builds(
    lambda seed, blocks, share, distinct: (an_aggregate(seed, blocks, share, distinct), blocks),
    st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0.0, 0.0005, 0.01, 0.3, 1.0]),
    st.integers(1, 300),
)  # fmt: skip


def equal(one: Update | Aggregate, other: Update | Aggregate) -> bool:
    return type(one) is type(other) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__
    )


def mutated(data: st.DataObject, raw: bytes) -> bytes:
    """The bytes with one to three changes of any kind."""
    body = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.sampled_from(["flip", "set", "insert", "cut", "append"])):
            case "flip" if body:
                body[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set" if body:
                body[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
            case "insert":
                body[at:at] = data.draw(st.binary(min_size=1, max_size=4))
            case "cut":
                del body[at : at + data.draw(st.integers(1, 4))]
            case _:
                body += data.draw(st.binary(min_size=1, max_size=4))
    return bytes(body)


# ---- updates ----


@given(updates)
def test_decoding_an_update_inverts_encoding_it(case):
    update, blocks, k = case

    assert equal(decode_update(encode_update(update, blocks, k), blocks, k), update)


@given(updates)
def test_no_update_is_longer_than_what_a_receiver_makes_room_for(case):
    update, blocks, k = case

    assert len(encode_update(update, blocks, k)) <= update_bytes_max(blocks, k)


@settings(max_examples=400)
@given(updates, st.data())
def test_a_mutated_update_is_refused_or_is_the_one_encoding_of_another(case, data):
    update, blocks, k = case
    raw = mutated(data, encode_update(update, blocks, k))
    try:
        other = decode_update(raw, blocks, k)
    except MalformedMessage:
        return
    assert encode_update(other, blocks, k) == raw


@given(st.binary(max_size=200), st.integers(1, 9), KS)
def test_any_bytes_whatever_are_no_update_or_the_one_encoding_of_it(raw, blocks, k):
    try:
        update = decode_update(raw, blocks, k)
    except MalformedMessage:
        return
    assert encode_update(update, blocks, k) == raw
    assert update.index_BK.shape == (len(update.blocks_B), k)
    assert np.all(np.diff(update.index_BK, axis=1) > 0)
    assert np.all((update.index_BK >= 0) & (update.index_BK < BLOCK_SIZE))
    assert set(np.unique(update.value_BK)) <= {-1, 1}


def test_every_single_bit_of_an_update_matters():
    blocks, k = 5, 4
    raw = encode_update(an_update(3, blocks, k), blocks, k)
    first = decode_update(raw, blocks, k)

    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = decode_update(bytes(flipped), blocks, k)
        except MalformedMessage:
            continue
        assert not equal(first, other)


def test_an_update_one_byte_short_or_long_is_refused():
    raw = encode_update(an_update(3, 5, 4), 5, 4)

    for wrong in (raw[:-1], raw + b"\0", raw + b"\1", b"\0" + raw, b""):
        with pytest.raises(MalformedMessage):
            decode_update(wrong, 5, 4)


def test_an_index_beyond_its_block_is_refused():
    inside = Update(np.array([0]), np.array([[0, BLOCK_SIZE - 1]]), np.array([[1, -1]], np.int8))
    outside = Update(np.array([0]), np.array([[0, BLOCK_SIZE]]), np.array([[1, -1]], np.int8))

    assert equal(decode_update(encode_update(inside, 1, 2), 1, 2), inside)
    with pytest.raises(MalformedMessage, match="index 4096 in a block of 4096"):
        decode_update(encode_update(outside, 1, 2), 1, 2)


def test_an_update_with_no_live_block_is_its_flags_alone():
    nothing = Update(np.zeros(0, np.int64), np.zeros((0, 4), np.int64), np.zeros((0, 4), np.int8))

    assert encode_update(nothing, 12, 4) == b"\0\0"
    assert equal(decode_update(b"\0\0", 12, 4), nothing)


def test_more_bytes_than_any_update_are_refused_unread():
    with pytest.raises(MalformedMessage, match="at most"):
        decode_update(bytes(update_bytes_max(5, 4) + 1), 5, 4)


def test_random_positions_cost_about_nine_and_a_half_bits_at_32_of_4096():
    update = an_update(1, 200, 32, live=1.0)

    bits = 8 * len(encode_update(update, 200, 32)) / update.index_BK.size

    assert 9.3 < bits < 9.6


# ---- aggregates ----


@given(aggregates)
def test_decoding_an_aggregate_inverts_encoding_it(case):
    aggregate, blocks = case
    raw = encode_aggregate(aggregate, blocks)

    assert equal(decode_aggregate(raw, blocks), aggregate)
    assert len(raw) <= aggregate_bytes_max(blocks, BLOCK_SIZE, 1)


@settings(max_examples=300)
@given(aggregates, st.data())
def test_a_mutated_aggregate_is_refused_or_is_the_one_encoding_of_another(case, data):
    aggregate, blocks = case
    raw = mutated(data, encode_aggregate(aggregate, blocks))
    try:
        other = decode_aggregate(raw, blocks)
    except MalformedMessage:
        return
    assert encode_aggregate(other, blocks) == raw


@given(st.binary(max_size=100), st.integers(1, 8))
def test_any_bytes_whatever_are_no_aggregate_or_the_one_encoding_of_it(raw, blocks):
    for body in (raw, bytes(2 * blocks) + raw, bytes(2 * blocks + 4) + raw):
        try:
            aggregate = decode_aggregate(body, blocks)
        except MalformedMessage:
            continue
        assert encode_aggregate(aggregate, blocks) == body


def test_every_single_bit_of_an_aggregate_matters():
    raw = encode_aggregate(an_aggregate(3, 2, 0.002, 5), 2)
    first = decode_aggregate(raw, 2)

    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = decode_aggregate(bytes(flipped), 2)
        except MalformedMessage:
            continue
        assert not equal(first, other)


def test_values_reach_to_their_bound_and_no_further():
    for value in (VALUE_MAX, -VALUE_MAX, VALUE_MAX + 1, -VALUE_MAX - 1, -(2**31), 2**31 - 1):
        raw = encode_aggregate(Aggregate(np.array([0]), np.array([9]), np.array([value], np.int32)), 1)
        if abs(value) <= VALUE_MAX:
            assert decode_aggregate(raw, 1).value_T.tolist() == [value]
        else:
            with pytest.raises(MalformedMessage, match="a value beyond"):
                decode_aggregate(raw, 1)


def test_a_table_that_is_unsorted_unused_or_repeated_is_refused():
    """Each would be a second encoding of the same content."""
    good = Aggregate(np.array([0, 0]), np.array([3, 9]), np.array([-5, 7], np.int32))
    raw = encode_aggregate(good, 1)
    table = slice(6, 14)
    assert np.frombuffer(raw[table], "<i4").tolist() == [-5, 7]

    for values in ([7, -5], [7, 7], [-5, -5]):
        wrong = raw[: table.start] + np.array(values, "<i4").tobytes() + raw[table.stop :]
        with pytest.raises(MalformedMessage, match="not in canonical form"):
            decode_aggregate(wrong, 1)


@pytest.mark.parametrize("blocks", [1, 1000, 20_000])
def test_claims_of_giant_content_are_refused_without_giant_memory(blocks):
    """Two bytes a block can claim 4096 coefficients that need no bits but the unary stream's."""
    full = np.full(blocks, BLOCK_SIZE, "<u2").tobytes()
    claims = [
        full + (1).to_bytes(4, "little") + bytes(4),
        full + (2**32 - 1).to_bytes(4, "little") + bytes(64),
        full + (2 * VALUE_MAX + 1).to_bytes(4, "little") + bytes(64),
        b"\xff" * (2 * blocks + 4),
    ]
    tracemalloc.start()
    for raw in claims:
        with pytest.raises(MalformedMessage):
            decode_aggregate(raw, blocks)
    for k in (32, 2048):
        with pytest.raises(MalformedMessage):
            decode_update(b"\xff" * (blocks // 8) + b"\x01", blocks, k)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 100_000 + 100 * blocks


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 64), st.integers(1, 6))
def test_no_aggregate_of_n_nodes_is_longer_than_what_a_receiver_makes_room_for(seed, blocks, k, nodes):
    sent = {bytes([n]) * 32: an_update(seed + n, blocks, k, live=1.0) for n in range(nodes)}
    aggregate = mean_over_senders(sent, blocks)

    assert len(encode_aggregate(aggregate, blocks)) <= aggregate_bytes_max(blocks, k, nodes)


# ---- rice ----


@given(st.lists(st.integers(0, 5000), max_size=50), st.integers(0, 12))
def test_gaps_come_back_from_both_streams(gaps, bits):
    low, unary = pack_gaps(np.array(gaps, np.int64), bits)

    assert unpack_gaps(low, unary, len(gaps), bits).tolist() == gaps


@given(st.binary(max_size=20), st.binary(max_size=20), st.integers(0, 30), st.integers(0, 6))
def test_streams_that_were_not_packed_this_way_are_refused(low, unary, count, bits):
    try:
        gaps = unpack_gaps(low, unary, count, bits)
    except MalformedMessage:
        return
    assert pack_gaps(gaps, bits) == (low, unary)


@given(
    st.integers(0, 16).flatmap(
        lambda w: st.tuples(st.just(w), st.lists(st.integers(0, 2**w - 1), max_size=40))
    )
)
def test_numbers_come_back_at_any_width(case):
    width, numbers = case
    data = pack_numbers(np.array(numbers, np.int64), width)

    assert unpack_numbers(data, len(numbers), width, "x").tolist() == numbers


def test_the_first_bit_is_the_lowest():
    assert pack_bits(np.array([1, 0, 0, 0, 0, 0, 0, 0, 0, 1], np.uint8)) == b"\x01\x02"


def test_padding_that_is_not_zero_is_refused():
    assert unpack_bits(b"\x07", 3, "x").tolist() == [1, 1, 1]
    with pytest.raises(MalformedMessage, match="x: padding is not zero"):
        unpack_bits(b"\x0f", 3, "x")


@pytest.mark.parametrize(
    ("size", "count", "bits"), [(4096, 32, 6), (4096, 1, 11), (4096, 4096, 0), (4096, 0, 11)]
)
def test_the_rice_parameter_is_the_frozen_one(size, count, bits):
    assert rice_bits(size, count) == bits


# ---- frozen bytes ----


def vectors() -> dict:
    update, aggregate = an_update(7, 5, 4), an_aggregate(7, 2, 0.003, 4)
    return {
        "update": {
            "blocks": 5,
            "k": 4,
            "live": update.blocks_B.tolist(),
            "index": update.index_BK.tolist(),
            "sign": update.value_BK.tolist(),
            "encoding": encode_update(update, 5, 4).hex(),
        },
        "aggregate": {
            "blocks": 2,
            "block": aggregate.block_T.tolist(),
            "index": aggregate.index_T.tolist(),
            "value": aggregate.value_T.tolist(),
            "encoding": encode_aggregate(aggregate, 2).hex(),
        },
    }


def test_updates_and_aggregates_still_have_their_frozen_bytes():
    frozen = json.loads(VECTORS.read_text())
    one, other = frozen["update"], frozen["aggregate"]
    update = Update(np.array(one["live"]), np.array(one["index"]), np.array(one["sign"], np.int8))
    aggregate = Aggregate(
        np.array(other["block"]), np.array(other["index"]), np.array(other["value"], np.int32)
    )

    assert encode_update(update, one["blocks"], one["k"]).hex() == one["encoding"]
    assert equal(decode_update(bytes.fromhex(one["encoding"]), one["blocks"], one["k"]), update)
    assert encode_aggregate(aggregate, other["blocks"]).hex() == other["encoding"]
    assert equal(decode_aggregate(bytes.fromhex(other["encoding"]), other["blocks"]), aggregate)


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors()) + "\n")
