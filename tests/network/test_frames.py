"""Frames: what is written is read back, and a length is never believed above its cap."""

from __future__ import annotations

import struct

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from assay.network import frames, limits
from assay.network.frames import BODY_BYTES_MAX, Kind, encode_frame, read_frame
from assay.protocol.errors import MalformedMessage


class Pieces:
    """A stream that hands out its bytes in pieces of at most `size`, and counts what was asked."""

    def __init__(self, data: bytes, size: int = 1 << 30) -> None:
        self._data, self._size = data, size
        self.asked_max = 0

    async def read(self, n: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked_max = max(self.asked_max, n)
        piece, self._data = self._data[: min(n, self._size)], self._data[min(n, self._size) :]
        return piece


kinds = st.sampled_from(list(Kind))


@given(kind=kinds, body=st.binary(max_size=300), size=st.integers(1, 64), rest=st.binary(max_size=3))
def test_a_frame_is_read_back_however_it_is_cut(kind, body, size, rest):
    body = body[: BODY_BYTES_MAX[kind]]
    stream = Pieces(encode_frame(kind, body) + rest, size)

    assert trio.run(read_frame, stream, tuple(Kind)) == (kind, body)


@given(data=st.binary(max_size=40))
def test_any_bytes_give_a_frame_or_a_named_error(data):
    stream = Pieces(data)
    try:
        kind, body = trio.run(read_frame, stream, tuple(Kind))
    except (EOFError, MalformedMessage):
        return
    assert data.startswith(encode_frame(kind, body))


@pytest.mark.parametrize("kind", Kind)
def test_a_length_at_the_cap_is_read_and_one_above_is_refused_unread(kind):
    cap = BODY_BYTES_MAX[kind]
    assert frames.decode_head(struct.pack(">IB", 1 + cap, kind), (kind,)) == (kind, cap)

    stream = Pieces(struct.pack(">IB", 2 + cap, kind) + bytes(cap + 1))
    with pytest.raises(MalformedMessage, match="at most"):
        trio.run(read_frame, stream, (kind,))
    assert stream.asked_max == 5  # the head, and nothing of the body


@given(kind=kinds, body=st.binary(min_size=1, max_size=100), keep=st.integers(1, 104))
def test_half_a_frame_blames_nobody_and_is_no_frame(kind, body, keep):
    frame = encode_frame(kind, body[: BODY_BYTES_MAX[kind]])
    with pytest.raises(frames.CutShort):
        trio.run(read_frame, Pieces(frame[: min(keep, len(frame) - 1)]), tuple(Kind))


def test_a_known_frame_in_the_wrong_place_is_refused():
    with pytest.raises(MalformedMessage, match="not expected"):
        trio.run(read_frame, Pieces(encode_frame(Kind.NOTIFICATION, b"x")), (Kind.PING, Kind.PONG))


@given(number=st.integers(0, 2**32 - 1), method=st.text(min_size=1, max_size=16), body=st.binary(max_size=99))
def test_a_request_is_read_back(number, method, body):
    assert frames.unpack_request(frames.pack_request(number, method, body)) == (number, method, body)


@given(data=st.binary(max_size=90))
def test_any_bytes_are_a_request_or_malformed(data):
    try:
        number, method, body = frames.unpack_request(data)
    except MalformedMessage:
        return
    assert frames.pack_request(number, method, body) == data


@given(reason=st.text(max_size=400), raw=st.binary(max_size=900))
def test_what_a_peer_says_went_wrong_is_one_short_printable_line(reason, raw):
    _, text, is_busy = frames.unpack_refusal(frames.pack_refusal(1, reason, is_busy=True))
    assert is_busy
    for said in (text, frames.unpack_refusal(bytes(4) + b"\0" + raw)[1]):
        assert len(said) <= limits.REASON_CHARS_MAX
        assert said.isprintable()
