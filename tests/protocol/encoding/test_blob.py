"""Chunk lists: one content has one list and one name; a stranger's list is bounded and exact."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.encoding.blob import (
    CHUNK_BYTES,
    ChunkList,
    blob_digest,
    chunk_list_of,
    decode_chunk_list,
    encode_chunk_list,
)
from assay.protocol.errors import MalformedMessage

SIZE_MAX = 4 * CHUNK_BYTES
edges = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, SIZE_MAX]
blobs = st.builds(
    lambda size, salt: (hashlib.sha256(salt).digest() * (size // 32 + 1))[:size],
    st.sampled_from(edges),
    st.binary(max_size=4),
)


def test_the_name_of_a_blob_is_what_the_rules_say():
    data = bytes(CHUNK_BYTES) + b"tail"
    parts = hashlib.sha256(bytes(CHUNK_BYTES)).digest() + hashlib.sha256(b"tail").digest()
    expected = hashlib.sha256(b"assay/blob/1" + struct.pack(">Q", len(data)) + parts).digest()
    assert blob_digest(data) == expected
    assert blob_digest(b"").hex() == hashlib.sha256(b"assay/blob/1" + bytes(8)).hexdigest()


@given(data=blobs)
def test_decode_inverts_encode_and_keeps_the_name(data):
    chunks = chunk_list_of(data)
    again = decode_chunk_list(encode_chunk_list(chunks), size_max=SIZE_MAX)
    assert again == chunks
    assert again.digest() == blob_digest(data)


@given(data=st.binary(max_size=200) | blobs.map(lambda blob: encode_chunk_list(chunk_list_of(blob))[:-1]))
def test_any_bytes_are_the_one_encoding_or_malformed(data):
    try:
        chunks = decode_chunk_list(data, size_max=SIZE_MAX)
    except MalformedMessage:
        return
    assert encode_chunk_list(chunks) == data


def test_a_list_at_the_size_bound_is_read_and_one_above_is_refused():
    encoded = encode_chunk_list(chunk_list_of(bytes(1000)))
    assert decode_chunk_list(encoded, size_max=1000).size == 1000
    with pytest.raises(MalformedMessage, match="at most 999"):
        decode_chunk_list(encoded, size_max=999)


def test_a_giant_size_costs_nothing():
    with pytest.raises(MalformedMessage):
        decode_chunk_list(b"\xff" * 8, size_max=2**63)


@given(data=blobs.filter(bool), at=st.integers(0, SIZE_MAX), bit=st.integers(0, 7))
def test_one_flipped_bit_fails_exactly_its_chunk(data, at, bit):
    chunks = chunk_list_of(data)
    damaged = bytearray(data)
    at %= len(data)
    damaged[at] ^= 1 << bit
    for index in range(len(chunks.hashes)):
        offset, length = chunks.span(index)
        piece = bytes(damaged[offset : offset + length])
        if index == at // CHUNK_BYTES:
            with pytest.raises(MalformedMessage):
                chunks.verify(index, piece)
        else:
            chunks.verify(index, piece)


def test_a_chunk_in_another_place_or_of_another_length_is_refused():
    chunks = chunk_list_of(b"a" * CHUNK_BYTES + b"b" * CHUNK_BYTES)
    with pytest.raises(MalformedMessage):
        chunks.verify(0, b"b" * CHUNK_BYTES)
    with pytest.raises(MalformedMessage, match="bytes"):
        chunks.verify(0, b"a")
    with pytest.raises(MalformedMessage, match="chunk 2"):
        chunks.verify(2, b"")


def test_a_list_whose_length_does_not_follow_from_its_size_cannot_be_made():
    with pytest.raises(ValueError, match="expected"):
        ChunkList(size=CHUNK_BYTES + 1, hashes=(bytes(32),))


def test_a_chunk_outside_the_blob_has_no_span_and_no_content():
    chunks = chunk_list_of(bytes(CHUNK_BYTES + 1))
    assert [chunks.span(index) for index in (0, 1)] == [(0, CHUNK_BYTES), (CHUNK_BYTES, 1)]
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"chunk {index} of 2"):
            chunks.span(index)
        with pytest.raises(MalformedMessage, match=f"chunk {index} of a blob with 2"):
            chunks.verify(index, b"")


@pytest.mark.parametrize("size", [-1, (1 << 40) + 1])
def test_a_blob_above_a_tebibyte_or_below_nothing_cannot_be_named(size):
    with pytest.raises(ValueError, match=f"blob of {size} bytes, 0 to {1 << 40} expected"):
        ChunkList(size=size, hashes=())
