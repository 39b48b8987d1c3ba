"""The step's signs on the wire: one byte string per content, a bit per parameter, nothing else is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.errors import MalformedMessage
from assay.training.codec.signs import decode_signs, encode_signs, signs_bytes_max


def some_signs(seed: int, *, blocks: int = 5, zeros: float = 0.001, dead: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    signs = rng.choice(np.array([-1, 1], np.int8), (blocks, 64, 64))
    signs[rng.random(signs.shape) < zeros] = 0
    signs[rng.random(blocks) < dead] = 0
    return signs


@settings(deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1e-3, 0.3, 0.999, 1]), st.sampled_from([0, 0.5, 1]))
def test_decoding_inverts_encoding(seed, zeros, dead):
    signs = some_signs(seed, zeros=zeros, dead=dead)
    raw = encode_signs(signs)

    assert np.array_equal(decode_signs(raw, 5), signs)
    assert len(raw) <= signs_bytes_max(5)


def test_a_step_costs_a_bit_per_parameter():
    signs = some_signs(1, blocks=40, zeros=0, dead=0)

    assert len(encode_signs(signs)) <= signs.size // 8 + 16


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 2**32), st.data())
def test_other_bytes_are_other_signs_or_refused(seed, data):
    """No two byte strings stand for one content."""
    signs = some_signs(seed, blocks=2, dead=0.2)
    raw = bytearray(encode_signs(signs))
    at = data.draw(st.integers(0, min(len(raw), 40) - 1) | st.integers(max(0, len(raw) - 20), len(raw) - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))

    try:
        other = decode_signs(bytes(raw), 2)
    except MalformedMessage:
        return
    assert not np.array_equal(other, signs)
    assert encode_signs(other) == bytes(raw)


@pytest.mark.parametrize(
    "change", [lambda raw: raw + b"\0", lambda raw: raw[:-1], lambda raw: b"", lambda raw: raw * 9]
)
def test_bytes_too_many_or_too_few_are_refused(change):
    with pytest.raises(MalformedMessage):
        decode_signs(change(encode_signs(some_signs(3))), 5)


def test_a_live_block_of_zeros_is_refused():
    """Readable in every part, but the same content has shorter bytes."""
    forged = bytes([1]) + (4096).to_bytes(8, "little") + bytes(512) + b"\xff" * 512

    with pytest.raises(MalformedMessage, match="canonical"):
        decode_signs(forged, 1)


def test_a_sign_bit_under_a_zero_is_refused():
    signs = some_signs(4, blocks=1, dead=0)
    signs[0, 0, 0] = 0
    raw = bytearray(encode_signs(signs))
    raw[9] |= 1

    with pytest.raises(MalformedMessage, match="canonical"):
        decode_signs(bytes(raw), 1)


def test_a_count_beyond_all_memory_is_refused_before_anything_is_allocated():
    forged = bytes([1]) + (2**63).to_bytes(8, "little") + bytes(600)

    with pytest.raises(MalformedMessage, match="of them zero"):
        decode_signs(forged, 1)
