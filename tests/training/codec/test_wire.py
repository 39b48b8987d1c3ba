"""The wire codecs: one byte string per content, and decoders that cost what they were sent."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import BLOCK_SIZE, Values
from assay.training.codec import wire
from assay.training.codec.rice import (
    pack_bits,
    pack_gaps,
    pack_numbers,
    rice_bits,
    unpack_bits,
    unpack_gaps,
    unpack_numbers,
)
from assay.training.codec.values import quantise
from assay.training.codec.wire import (
    AGGREGATE_EXPONENTS,
    Aggregate,
    Update,
    decode_aggregate,
    decode_update,
    encode_aggregate,
    encode_update,
    update_bytes_max,
)
from assay.training.exact import VALUE_MAX
from tests.training.places import placed

VECTORS = Path(__file__).parents[2] / "vectors" / "wire.json"
SPANS = ((0, BLOCK_SIZE), (0, 600), (BLOCK_SIZE - 600, BLOCK_SIZE))  # where in a block indices lie
KS = st.integers(1, 64) | st.sampled_from([128, 512])


def an_update(seed: int, blocks: int, k: int, live: float = 0.7, span: tuple[int, int] = SPANS[0]) -> Update:
    rng = np.random.default_rng(seed)
    chosen = np.flatnonzero(rng.random(blocks) < live)
    rows = [np.sort(rng.choice(np.arange(*span), k, replace=False)) for _ in chosen]
    index = np.array(rows, np.int64).reshape(len(chosen), k)
    return Update(chosen, index, rng.choice(np.array([-1, 1], np.int8), index.shape))


def an_amplitude_update(
    seed: int, blocks: int, k: int, values: Values, live: float = 0.7, span: tuple[int, int] = SPANS[0]
) -> Update:
    """What the quantiser makes of random blocks of very different sizes."""
    rng = np.random.default_rng(seed)
    at = an_update(seed, blocks, k, live, span)
    moved = rng.standard_normal(at.index_BK.shape) * np.exp2(rng.uniform(-12, 3, (len(at.blocks_B), 1)))
    written = quantise(values, moved.astype(np.float32))
    assert written.is_live_B.all()
    return Update(at.blocks_B, at.index_BK, written.value_BK, written.exponent_B, written.mantissa_B)


def a_scaled_aggregate(seed: int, blocks: int, share: float, most: int) -> Aggregate:
    rng = np.random.default_rng(seed)
    at = np.flatnonzero(rng.random(blocks * BLOCK_SIZE) < share)
    values = rng.integers(1, most + 1, len(at)) * rng.choice([-1, 1], len(at))
    is_filled = np.bincount(at // BLOCK_SIZE, minlength=blocks) > 0
    exponents = rng.integers(AGGREGATE_EXPONENTS[0], AGGREGATE_EXPONENTS[1] + 1, blocks) * is_filled
    return placed(blocks, at // BLOCK_SIZE, at % BLOCK_SIZE, values, exponents)


def an_aggregate(seed: int, blocks: int, share: float, distinct: int) -> Aggregate:
    rng = np.random.default_rng(seed)
    at = np.flatnonzero(rng.random(blocks * BLOCK_SIZE) < share)
    values = np.unique(rng.integers(-VALUE_MAX, VALUE_MAX + 1, distinct))
    return placed(blocks, at // BLOCK_SIZE, at % BLOCK_SIZE, rng.choice(values, len(at)))


updates = st.builds(
    lambda seed, blocks, k, live, span: (an_update(seed, blocks, k, live, span), blocks, k),
    st.integers(0, 2**32), st.integers(1, 12), KS, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(SPANS),
)  # fmt: skip
amplitude_updates = st.builds(
    lambda seed, blocks, k, values, live, span: (
        an_amplitude_update(seed, blocks, k, values, live, span if k < BLOCK_SIZE else SPANS[0]),
        blocks, k, values,
    ),
    st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 64) | st.sampled_from([512, BLOCK_SIZE]),
    st.sampled_from(list(Values)), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(SPANS),
)  # fmt: skip
scaled_aggregates = st.builds(
    lambda seed, blocks, share, most: (a_scaled_aggregate(seed, blocks, share, most), blocks),
    st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0.0, 0.0005, 0.01, 0.3, 0.97, 1.0]),
    st.sampled_from([1, 2, 3, 200, VALUE_MAX]),
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


# ---- updates with amplitudes, and dense ones ----


@settings(deadline=None)
@given(amplitude_updates)
def test_decoding_an_update_of_any_kind_inverts_encoding_it_within_its_bound(case):
    update, blocks, k, values = case
    raw = encode_update(update, blocks, k, values)

    assert equal(decode_update(raw, blocks, k, values), update)
    assert len(raw) <= update_bytes_max(blocks, k, values)


@pytest.mark.parametrize("values", list(Values))
def test_more_blocks_than_are_coded_at_a_time_come_back_as_they_were(values):
    made = an_update if values is Values.SIGN else partial(an_amplitude_update, values=values)
    update = made(3, 2 * wire._ROWS + 88, 3, live=1.0)

    assert equal(decode_update(encode_update(update, 600, 3, values), 600, 3, values), update)


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(amplitude_updates, st.data())
def test_a_mutated_update_of_any_kind_is_refused_or_is_the_one_encoding_of_another(case, data):
    update, blocks, k, values = case
    raw = mutated(data, encode_update(update, blocks, k, values))
    try:
        other = decode_update(raw, blocks, k, values)
    except MalformedMessage:
        return
    assert encode_update(other, blocks, k, values) == raw


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=200), st.integers(1, 9), KS | st.just(BLOCK_SIZE), st.sampled_from(list(Values)),
    st.integers(0, 9000),
)  # fmt: skip
def test_any_bytes_whatever_are_no_update_of_any_kind_or_the_one_encoding_of_it(raw, blocks, k, values, more):
    for body in (raw, raw + bytes(more), raw + b"\xff" * more):
        try:
            update = decode_update(body, blocks, k, values)
        except MalformedMessage:
            continue
        assert encode_update(update, blocks, k, values) == body
        assert update.value_BK.shape == (len(update.blocks_B), k)
        if values is not Values.SIGN:
            coefficients = np.abs(np.ldexp(update.value_BK.astype(float), update.exponent_B[:, None]))
            assert coefficients.max(initial=0) < 16
            assert np.all(coefficients * 2.0**51 == np.rint(coefficients * 2.0**51))


@pytest.mark.parametrize("values", list(Values))
@pytest.mark.parametrize("k", [3, BLOCK_SIZE])
def test_every_single_bit_of_an_update_of_any_kind_matters(k, values):
    blocks = 2
    raw = encode_update(an_amplitude_update(3, blocks, k, values, live=1.0), blocks, k, values)
    first = decode_update(raw, blocks, k, values)

    for bit in [*range(min(8 * len(raw), 200)), *range(200, 8 * len(raw), 997)]:
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = decode_update(bytes(flipped), blocks, k, values)
        except MalformedMessage:
            continue
        assert not equal(first, other)


@pytest.mark.parametrize(
    ("values", "bits"),
    [(Values.SIGN, 1), (Values.SIGN_MEAN, 1), (Values.TWO_BIT, 2), (Values.E3M0, 4), (Values.INT8, 8)],
)
def test_a_dense_update_costs_its_values_its_scales_and_nothing_else(values, bits):
    raw = encode_update(an_amplitude_update(1, 16, BLOCK_SIZE, values, live=1.0), 16, BLOCK_SIZE, values)

    assert len(raw) == 2 + (0 if values is Values.SIGN else 2 * 16) + 16 * BLOCK_SIZE * bits // 8


def one_scaled(values: Values, scale: int, codes: bytes) -> bytes:
    """A dense update of one block, by its parts."""
    return b"\1" + scale.to_bytes(2, "little") + codes


def test_an_exponent_reaches_to_its_window_and_no_further():
    codes = bytes([1] * BLOCK_SIZE)
    for exponent in (-51, -11):
        scale = (exponent + 256) << 7 | 5
        update = decode_update(one_scaled(Values.INT8, scale, codes), 1, BLOCK_SIZE, Values.INT8)
        assert (update.exponent_B.tolist(), update.mantissa_B.tolist()) == ([exponent], [133])
        assert set(update.value_BK[0].tolist()) == {133}
    for exponent in (-52, -10, -256, 255):
        scale = (exponent + 256) << 7 | 5
        with pytest.raises(MalformedMessage, match=f"an exponent of {exponent}, expected -51 to -11"):
            decode_update(one_scaled(Values.INT8, scale, codes), 1, BLOCK_SIZE, Values.INT8)


@pytest.mark.parametrize(
    ("values", "zeros", "wrong", "words"),
    [
        (Values.INT8, bytes(BLOCK_SIZE), b"\x80" + b"\1" * (BLOCK_SIZE - 1), "a level of -128"),
        (Values.INT16, bytes(2 * BLOCK_SIZE), b"\0\x80" + b"\1" * (2 * BLOCK_SIZE - 2), "a level of -32768"),
        (Values.E3M0, bytes(BLOCK_SIZE // 2), b"\x18" + b"\1" * (BLOCK_SIZE // 2 - 1), "a negative zero"),
    ],
)
def test_a_live_block_of_zeros_and_a_second_way_to_write_a_level_are_refused(values, zeros, wrong, words):
    scale = (-30 + 256) << 7

    with pytest.raises(MalformedMessage, match="block 0 is live and all zeros"):
        decode_update(one_scaled(values, scale, zeros), 1, BLOCK_SIZE, values)
    with pytest.raises(MalformedMessage, match=words):
        decode_update(one_scaled(values, scale, wrong), 1, BLOCK_SIZE, values)


@pytest.mark.parametrize("values", list(Values))
def test_claims_of_giant_updates_are_refused_without_giant_memory(values):
    blocks = 20_000
    tracemalloc.start()
    for k in (32, 2048, BLOCK_SIZE):
        for raw in (b"\xff" * (blocks // 8), b"\xff" * (blocks // 8) + b"\1" * 2 * blocks + b"\1"):
            with pytest.raises(MalformedMessage):
                decode_update(raw, blocks, k, values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 100_000 + 100 * blocks


@pytest.mark.slow
@pytest.mark.parametrize("values", list(Values))
@pytest.mark.parametrize("k", [1, 32, 512, BLOCK_SIZE])
def test_decoding_takes_at_most_50_bytes_a_bit(k, values):
    blocks = max(4, 20_000 // k)
    raw = encode_update(an_amplitude_update(1, blocks, k, values, live=1.0), blocks, k, values)
    noise = np.random.default_rng(k).bytes(len(raw))

    for body in (raw, raw[: blocks // 8] + noise[blocks // 8 :], b"\xff" * len(raw)):
        tracemalloc.start()
        with contextlib.suppress(MalformedMessage):
            decode_update(body, blocks, k, values)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20_000 + 50 * 8 * len(raw)


# ---- aggregates ----


@given(aggregates)
def test_decoding_an_aggregate_inverts_encoding_it(case):
    aggregate, blocks = case
    raw = encode_aggregate(aggregate, blocks)

    assert equal(decode_aggregate(raw, blocks), aggregate)


@pytest.mark.slow
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


def test_an_aggregates_coefficients_lie_where_they_belong_and_nowhere_else():
    at = np.array([0, 2, wire._ROWS, 599]), np.array([65, 4095, 0, 7])
    aggregate = placed(600, *at, np.array([7, -9, 11, -13]))

    parts = list(aggregate.dense())
    whole_NC = np.concatenate([value_NC for _, value_NC in parts])
    assert [part.start for part, _ in parts] == [*range(0, 600, wire._ROWS)] and parts[-1][0].stop == 600
    assert whole_NC[at].tolist() == [7, -9, 11, -13] and np.count_nonzero(whole_NC) == 4
    assert whole_NC.shape == (600, BLOCK_SIZE) and np.array_equal(aggregate.blocks, at[0])


def test_values_reach_to_their_bound_and_no_further():
    raw = encode_aggregate(placed(1, np.array([0]), np.array([9]), np.array([VALUE_MAX])), 1)
    table = slice(6, 10)
    assert np.frombuffer(raw[table], "<i4").tolist() == [VALUE_MAX]

    for value in (VALUE_MAX, -VALUE_MAX, VALUE_MAX + 1, -VALUE_MAX - 1, -(2**31), 2**31 - 1):
        other = raw[: table.start] + np.array([value], "<i4").tobytes() + raw[table.stop :]
        if abs(value) <= VALUE_MAX:
            assert decode_aggregate(other, 1).value_T.tolist() == [value]
        else:
            with pytest.raises(MalformedMessage, match="a value beyond"):
                decode_aggregate(other, 1)


def test_a_table_that_is_unsorted_unused_or_repeated_is_refused():
    """Each would be a second encoding of the same content."""
    good = placed(1, np.array([0, 0]), np.array([3, 9]), np.array([-5, 7]))
    raw = encode_aggregate(good, 1)
    table = slice(6, 14)
    assert np.frombuffer(raw[table], "<i4").tolist() == [-5, 7]

    for values in ([7, -5], [7, 7], [-5, -5]):
        wrong = raw[: table.start] + np.array(values, "<i4").tobytes() + raw[table.stop :]
        with pytest.raises(MalformedMessage, match="not in canonical form"):
            decode_aggregate(wrong, 1)


@pytest.mark.parametrize("has_scale", [False, True])
@pytest.mark.parametrize("indices", [[3000, BLOCK_SIZE], [BLOCK_SIZE + 7], [BLOCK_SIZE - 1]])
def test_an_index_of_an_aggregate_beyond_its_block_is_refused(indices, has_scale):
    """Even in the last block, where its bits would be those of nothing else."""
    at = np.full(len(indices), 1), np.array(indices), np.full(len(indices), 5)
    aggregate = placed(2, *at, np.array([0, -4]) if has_scale else None)
    raw = encode_aggregate(aggregate, 2, has_scale)

    if max(indices) < BLOCK_SIZE:
        assert equal(decode_aggregate(raw, 2, has_scale), aggregate)
        return
    with pytest.raises(MalformedMessage, match=f"index {max(indices)} in a block of 4096"):
        decode_aggregate(raw, 2, has_scale)


def test_a_table_with_a_value_that_nothing_takes_is_refused():
    good = placed(1, np.zeros(3, int), np.array([3, 9, 11]), np.array([-5, 7, 9]))
    raw = encode_aggregate(good, 1)
    at = 6 + 12 + 4  # counts and table size, table, 3 times 9 low bits
    assert raw[at] == 0 | 1 << 2 | 2 << 4

    with pytest.raises(MalformedMessage, match="not in canonical form"):
        decode_aggregate(raw[:at] + bytes([0 | 1 << 2 | 1 << 4]) + raw[at + 1 :], 1)


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


# ---- aggregates with a scale ----


@settings(deadline=None)
@given(scaled_aggregates)
def test_decoding_a_scaled_aggregate_inverts_encoding_it_within_its_bound(case):
    aggregate, blocks = case
    raw = encode_aggregate(aggregate, blocks, has_scale=True)

    assert equal(decode_aggregate(raw, blocks, has_scale=True), aggregate)


@settings(max_examples=400, deadline=None)
@given(scaled_aggregates, st.data())
def test_a_mutated_scaled_aggregate_is_refused_or_is_the_one_encoding_of_another(case, data):
    aggregate, blocks = case
    raw = mutated(data, encode_aggregate(aggregate, blocks, has_scale=True))
    try:
        other = decode_aggregate(raw, blocks, has_scale=True)
    except MalformedMessage:
        return
    assert encode_aggregate(other, blocks, has_scale=True) == raw


@given(st.binary(max_size=100), st.integers(1, 8))
def test_any_bytes_whatever_are_no_scaled_aggregate_or_the_one_encoding_of_it(raw, blocks):
    for body in (
        raw,
        bytes(2 * blocks) + raw,
        b"\1\0" * blocks + raw,
        b"\1\0" * blocks + bytes(blocks) + raw,
    ):
        try:
            aggregate = decode_aggregate(body, blocks, has_scale=True)
        except MalformedMessage:
            continue
        assert encode_aggregate(aggregate, blocks, has_scale=True) == body
        assert aggregate.value_T.all()
        assert int(np.abs(aggregate.value_T).max(initial=0)) <= VALUE_MAX


def test_every_single_bit_of_a_scaled_aggregate_matters():
    raw = encode_aggregate(a_scaled_aggregate(3, 2, 0.002, 100), 2, has_scale=True)
    first = decode_aggregate(raw, 2, has_scale=True)

    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            other = decode_aggregate(bytes(flipped), 2, has_scale=True)
        except MalformedMessage:
            continue
        assert not equal(first, other)


def one_value(value: int, exponent: int) -> Aggregate:
    return placed(1, np.array([0]), np.array([9]), np.array([value]), np.array([exponent]))


def test_a_scaled_value_takes_15_bits_at_most_and_an_exponent_keeps_its_window():
    least, most = AGGREGATE_EXPONENTS
    for value in (1, -1, VALUE_MAX, -VALUE_MAX):
        for exponent in (least, most):
            raw = encode_aggregate(one_value(value, exponent), 1, has_scale=True)
            assert equal(decode_aggregate(raw, 1, has_scale=True), one_value(value, exponent))
            assert raw[3] == (int(abs(value) - 1) * 2 + (value < 0)).bit_length() <= 15
    for exponent in (least - 1, most + 1):
        raw = encode_aggregate(one_value(1, exponent), 1, has_scale=True)
        with pytest.raises(MalformedMessage, match="an exponent that is not -80 to 0"):
            decode_aggregate(raw, 1, has_scale=True)


def test_a_scaled_value_in_more_bits_than_it_needs_is_refused():
    raw = encode_aggregate(one_value(1, -3), 1, has_scale=True)
    assert raw[3] == 0
    for width in (1, 16, 255):
        wider = raw[:3] + bytes([width]) + raw[4:6] + bytes(-(-width // 8)) + raw[6:]
        with pytest.raises(MalformedMessage, match="not in canonical form" if width == 1 else "at most 15"):
            decode_aggregate(wider, 1, has_scale=True)


def test_a_dense_scaled_aggregate_costs_16_bits_a_parameter():
    raw = encode_aggregate(a_scaled_aggregate(1, 20, 1.0, VALUE_MAX), 20, has_scale=True)

    assert 8 * len(raw) / (20 * BLOCK_SIZE) < 16.01


@pytest.mark.parametrize("blocks", [1, 1000, 20_000])
def test_claims_of_giant_scaled_content_are_refused_without_giant_memory(blocks):
    full = np.full(blocks, BLOCK_SIZE, "<u2").tobytes()
    tracemalloc.start()
    for raw in (full, full + bytes(blocks + 1), full + bytes(blocks) + b"\x0f\1", b"\xff" * 4 * blocks):
        with pytest.raises(MalformedMessage):
            decode_aggregate(raw, blocks, has_scale=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 100_000 + 100 * blocks


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
    scaled = a_scaled_aggregate(7, 3, 0.0005, 1000)
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
            "block": aggregate.blocks.tolist(),
            "index": aggregate.index_T.tolist(),
            "value": aggregate.value_T.tolist(),
            "encoding": encode_aggregate(aggregate, 2).hex(),
        },
        "amplitudes": {
            values.name: written(an_amplitude_update(7, 3, 4, values), values)
            for values in Values
            if values is not Values.SIGN
        },
        "scaled": {
            "blocks": 3,
            "block": scaled.blocks.tolist(),
            "index": scaled.index_T.tolist(),
            "value": scaled.value_T.tolist(),
            "exponent": scaled.exponent_N.tolist(),
            "encoding": encode_aggregate(scaled, 3, has_scale=True).hex(),
        },
    }


def written(update: Update, values: Values) -> dict:
    return {
        "blocks": 3,
        "k": 4,
        "live": update.blocks_B.tolist(),
        "index": update.index_BK.tolist(),
        "value": update.value_BK.tolist(),
        "exponent": update.exponent_B.tolist(),
        "mantissa": update.mantissa_B.tolist(),
        "encoding": encode_update(update, 3, 4, values).hex(),
    }


def test_updates_and_aggregates_still_have_their_frozen_bytes():
    frozen = json.loads(VECTORS.read_text())
    one, other = frozen["update"], frozen["aggregate"]
    update = Update(np.array(one["live"]), np.array(one["index"]), np.array(one["sign"], np.int8))
    at = np.array(other["block"]), np.array(other["index"]), np.array(other["value"])
    aggregate = placed(other["blocks"], *at)

    assert encode_update(update, one["blocks"], one["k"]).hex() == one["encoding"]
    assert equal(decode_update(bytes.fromhex(one["encoding"]), one["blocks"], one["k"]), update)
    assert encode_aggregate(aggregate, other["blocks"]).hex() == other["encoding"]
    assert equal(decode_aggregate(bytes.fromhex(other["encoding"]), other["blocks"]), aggregate)


@pytest.mark.parametrize("values", [values for values in Values if values is not Values.SIGN])
def test_updates_with_amplitudes_still_have_their_frozen_bytes(values):
    one = json.loads(VECTORS.read_text())["amplitudes"][values.name]
    names = ("live", "index", "value", "exponent", "mantissa")
    update = Update(*(np.array(one[name]) for name in names))

    assert encode_update(update, one["blocks"], one["k"], values).hex() == one["encoding"]
    assert equal(decode_update(bytes.fromhex(one["encoding"]), one["blocks"], one["k"], values), update)


def test_scaled_aggregates_still_have_their_frozen_bytes():
    one = json.loads(VECTORS.read_text())["scaled"]
    at = np.array(one["block"]), np.array(one["index"]), np.array(one["value"])
    aggregate = placed(one["blocks"], *at, np.array(one["exponent"]))

    assert encode_aggregate(aggregate, one["blocks"], has_scale=True).hex() == one["encoding"]
    assert equal(decode_aggregate(bytes.fromhex(one["encoding"]), one["blocks"], has_scale=True), aggregate)


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors()) + "\n")
