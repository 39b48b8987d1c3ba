"""Two factors in place of a block: near the best there are, the same bits everywhere, strict on the wire."""

from __future__ import annotations

import hashlib
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.errors import MalformedMessage
from assay.protocol.params import BLOCK_SIDE, BLOCK_SIZE
from assay.training.codec.factors import (
    EXPONENT_MAX,
    Factors,
    decode_factors,
    encode_factors,
    factor_bytes_max,
    factors_to_update,
)
from assay.training.codec.values import EXPONENT_MIN
from assay.training.transform.low_rank import compress_lowrank

RANKS = st.integers(1, 8)


def some(seed: int, blocks: int, decay: float = 0.7) -> np.ndarray:
    """Blocks of very different sizes whose singular values fall off by `decay`."""
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(rng.standard_normal((blocks, BLOCK_SIDE, BLOCK_SIDE)))
    right, _ = np.linalg.qr(rng.standard_normal((blocks, BLOCK_SIDE, BLOCK_SIDE)))
    values = decay ** np.arange(BLOCK_SIDE) * np.exp2(rng.uniform(-12, 0, (blocks, 1)))
    return np.einsum("bir,br,bjr->bij", left, values, right).reshape(blocks, -1).astype(np.float32)


def some_factors(seed: int, blocks: int, rank: int, live: float = 0.6) -> Factors:
    rng = np.random.default_rng(seed)
    at = np.flatnonzero(rng.random(blocks) < live)
    left, right = rng.integers(-127, 128, (2, len(at), BLOCK_SIDE, rank)).astype(np.int8)
    return Factors(at, left, right, rng.integers(EXPONENT_MIN, EXPONENT_MAX + 1, len(at)))


def equal(one: Factors, other: Factors) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in one.__slots__)


# ---- compression ----


@pytest.mark.parametrize(("rank", "name"), [(1, "7d39780aa2b675d6"), (4, "7a56fa02ee3767c7")])
def test_the_bits_are_those_of_every_version(rank: int, name: str):
    """From the frozen start, of blocks large and small: an auditor makes a message again bit for bit."""
    drawn = np.frombuffer(hashlib.shake_256(b"blocks").digest(6 * BLOCK_SIZE * 2), np.int16)
    size_B = np.exp2(np.array([-40, -15, -13, -1, 0, 20]))
    moved_BC = (drawn.reshape(6, BLOCK_SIZE) * size_B[:, None]).astype(np.float32)

    factors, decoded_BC = compress_lowrank(moved_BC, rank)

    made = b"".join(getattr(factors, one).tobytes() for one in factors.__slots__) + decoded_BC.tobytes()
    assert hashlib.sha256(made).hexdigest()[:16] == name


@pytest.mark.parametrize("rank", [1, 2, 4, 8])
def test_the_error_is_near_the_least_that_this_rank_allows(rank):
    moved = some(1, 40)

    _, sent = compress_lowrank(moved, rank)

    values = np.linalg.svd(moved.reshape(-1, 64, 64).astype(float), compute_uv=False)
    least = np.sqrt((values[:, rank:] ** 2).sum(axis=1))
    assert np.median(np.linalg.norm(moved - sent, axis=1) / least) < 1.2


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_a_block_of_that_rank_is_sent_but_for_the_rounding_of_its_factors(rank):
    rng = np.random.default_rng(2)
    moved = (rng.standard_normal((20, 64, rank)) @ rng.standard_normal((20, rank, 64))).astype(
        np.float32
    ) / 64
    moved = moved.reshape(20, -1)

    _, sent = compress_lowrank(moved, rank)

    assert np.linalg.norm(sent - moved) < 0.02 * np.linalg.norm(moved)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), RANKS)
def test_what_is_sent_is_what_the_receiver_reads_exactly(seed, rank):
    moved = some(seed, 3, decay=0.9)

    factors, sent = compress_lowrank(moved, rank)
    update = factors_to_update(decode_factors(encode_factors(factors, 3), 3, rank))

    assert update.blocks_B.tolist() == [0, 1, 2]
    assert update.mantissa_B is None and np.abs(update.value_BK).max() < 2**17
    left, right = factors.left_BSR.astype(int), factors.right_BSR.astype(int)
    assert np.array_equal(update.value_BK.reshape(-1, 64, 64), np.einsum("bir,bjr->bij", left, right))
    for at in (0, 77, BLOCK_SIZE - 1):
        value, exponent = int(update.value_BK[1, at]), int(update.exponent_B[1])
        assert Fraction(float(sent[1, at])) == Fraction(value) * Fraction(2) ** exponent


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), RANKS, st.lists(st.integers(0, 8), min_size=1, max_size=9, unique=True))
def test_any_subset_of_blocks_in_any_order_gives_the_same_bits(seed, rank, chosen):
    moved = some(seed, 9, decay=0.95)
    moved[1], moved[2, 3], moved[4] = 0, np.nan, moved[4] * np.float32(1e-16)

    _, every = compress_lowrank(moved, rank)
    _, part = compress_lowrank(moved[chosen], rank)

    assert np.array_equal(every[chosen], part)


@pytest.mark.parametrize("rank", [1, 8])
def test_blocks_of_zeros_and_blocks_that_are_not_finite_are_dead(rank):
    moved = some(5, 6)
    moved[0], moved[2, 3], moved[3, 1], moved[4, 6] = 0, np.nan, np.inf, -np.inf

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factors, sent = compress_lowrank(moved, rank)

    assert factors.blocks_B.tolist() == [1, 5]
    assert not sent[[0, 2, 3, 4]].any() and sent[1].any()


def test_a_block_under_the_window_is_dead_and_above_it_saturates_below_16():
    moved = some(6, 3)
    moved /= np.abs(moved).max(axis=1, keepdims=True)
    moved[0] *= np.float32(2.0**-50)
    moved[2] *= np.float32(2.0**20)

    factors, sent = compress_lowrank(moved, 2)

    assert factors.blocks_B.tolist() == [1, 2]
    assert factors.exponent_B[1] == EXPONENT_MAX and 1 < np.abs(sent[2]).max() < 16


def test_a_block_of_one_value_and_one_of_one_row_take_the_first_column_alone():
    moved = np.zeros((3, BLOCK_SIZE), np.float32)
    moved[0, 70], moved[1, 64:128], moved[2] = -0.5, 0.25, 0.125

    factors, sent = compress_lowrank(moved, 4)

    assert np.abs(sent - moved).max() < 0.02
    assert not factors.left_BSR[:, :, 1:].any() and not factors.right_BSR[:, :, 1:].any()


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_directions_that_a_block_does_not_have_are_not_made_of_rounding(rank):
    rng = np.random.default_rng(4)
    left, right = rng.integers(-9, 10, (2, 5, BLOCK_SIDE, rank))
    moved = (left @ right.transpose(0, 2, 1)).reshape(5, -1).astype(np.float32) / 1024  # exactly this rank

    factors, _ = compress_lowrank(moved, 8)

    assert not factors.left_BSR[:, :, rank:].any() and not factors.right_BSR[:, :, rank:].any()
    assert factors.left_BSR[:, :, :rank].any(axis=1).all()


def test_feeding_back_what_was_not_sent_loses_nothing_in_time():
    target = some(8, 4, decay=0.9)
    error, total = np.zeros_like(target), np.zeros_like(target)
    for _ in range(60):
        error += target
        _, sent = compress_lowrank(error, 2)
        error -= sent
        total += sent

    assert np.linalg.norm(total + error - 60 * target) < 1e-5 * np.linalg.norm(60 * target)
    assert np.linalg.norm(error) < 10 * np.linalg.norm(target)


# ---- the wire ----


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), RANKS, st.sampled_from([0.0, 0.5, 1.0]))
def test_decoding_factors_inverts_encoding_them_within_their_bound(seed, blocks, rank, live):
    factors = some_factors(seed, blocks, rank, live)
    raw = encode_factors(factors, blocks)

    assert equal(decode_factors(raw, blocks, rank), factors)
    assert len(raw) <= factor_bytes_max(blocks, rank)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 2**32), RANKS, st.data())
def test_mutated_factors_are_refused_or_are_the_one_encoding_of_others(seed, rank, data):
    raw = bytearray(encode_factors(some_factors(seed, 5, rank), 5))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw)))]
    try:
        other = decode_factors(bytes(raw), 5, rank)
    except MalformedMessage:
        return
    assert encode_factors(other, 5) == raw


@given(st.binary(max_size=400), st.integers(1, 12), RANKS)
def test_any_bytes_whatever_are_no_factors_or_the_one_encoding_of_them(raw, blocks, rank):
    try:
        factors = decode_factors(raw, blocks, rank)
    except MalformedMessage:
        return
    assert encode_factors(factors, blocks) == raw


def test_every_rule_of_the_wire_is_kept_to_its_last_byte():
    one, at = np.ones(BLOCK_SIDE, np.int8).tobytes(), EXPONENT_MAX & 255
    good = bytes([1, at]) + one + one
    assert decode_factors(good, 1, 1).exponent_B.tolist() == [EXPONENT_MAX]
    assert decode_factors(bytes([1, EXPONENT_MIN & 255]) + one + one, 1, 1).exponent_B.tolist() == [
        EXPONENT_MIN
    ]
    assert decode_factors(b"\0", 1, 1).blocks_B.tolist() == []

    for raw, words in (
        (bytes([1, at + 1 & 255]) + one + one, "an exponent of -12, expected -51 to -13"),
        (bytes([1, EXPONENT_MIN - 1 & 255]) + one + one, "an exponent of -52, expected -51 to -13"),
        (bytes([1, at]) + bytes(64) + one, "block 0 is live and its left factor all zeros"),
        (bytes([1, at]) + one + bytes(64), "block 0 is live and its right factor all zeros"),
        (bytes([1, at]) + b"\x80" + one[1:] + one, "an entry of -128 in a left factor"),
        (bytes([1, at]) + one + one[1:] + b"\x80", "an entry of -128 in a right factor"),
        (bytes([3, at]) + one + one, "live flags: padding is not zero"),
        (good[:-1], "factors: 129 bytes, expected 130"),
        (good + b"\0", "factors: 131 bytes, expected 130"),
        (b"", "live flags: 0 bytes, expected 1"),
    ):
        with pytest.raises(MalformedMessage, match=words):
            decode_factors(raw, 1, 1)


def test_a_rank_costs_a_quarter_of_a_bit_per_coefficient():
    for rank in (1, 2, 4, 8):
        raw = encode_factors(some_factors(1, 40, rank, live=1.0), 40)
        assert len(raw) == factor_bytes_max(40, rank)
        assert 0.25 * rank < 8 * len(raw) / (40 * BLOCK_SIZE) < 0.25 * rank + 0.003
