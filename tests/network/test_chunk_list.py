"""Chunk lists: one content has one list and one name; a stranger's list is bounded and exact."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.network.assembly import Assembly
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


@given(data=blobs, steps=st.lists(st.sampled_from(["take", "accept", "give back"]), max_size=40))
def test_every_chunk_of_an_assembly_is_in_one_state_and_only_arrives_once(data, steps):
    assembly = Assembly(chunk_list_of(data))
    count, asked, present = len(assembly.chunks.hashes), [], set()

    def bring(index):
        offset, length = assembly.chunks.span(index)
        assembly.accept(index, data[offset : offset + length])
        present.add(index)

    for step in steps:
        if step == "take":
            index = assembly.take()
            assert (index is None) == (len(asked) + len(present) == count)
            if index is not None:
                assert index not in present
                asked.append(index)
        elif asked and step == "accept":
            bring(asked.pop())
        elif asked:
            assembly.give_back([asked.pop(0)])
    while (index := assembly.take()) is not None:
        asked.append(index)
    for index in asked:
        assert not assembly.is_complete
        bring(index)
    assert assembly.is_complete
    assert bytes(assembly.data) == data
