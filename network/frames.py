"""Frames: length-prefixed, typed frames on a stream; a length above its type's cap is refused unread.

Room: network (pure; the reader takes any object with libp2p's `read(n)`).

    u32 length of what follows | u8 type | body

A type belongs to exactly one protocol state, so the reader names the
types it expects and any other input ends the stream.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from enum import IntEnum
from typing import Protocol

from assay.network import limits
from assay.protocol.encoding.blob import CHUNK_BYTES
from assay.protocol.errors import MalformedMessage

_HEAD = struct.Struct(">IB")
_ID = struct.Struct(">I")


class Kind(IntEnum):
    """Frame types; the numbers are on the wire and never change their meaning."""

    NOTIFICATION = 1  # payload
    PING = 2  # u32 nonce
    PONG = 3  # u32 nonce
    REQUEST = 4  # u32 id | u8 length of method | method | body
    ANSWER = 5  # u32 id | body
    REFUSAL = 6  # u32 id | u8 1 if only busy | reason, UTF-8
    GET = 16  # digest
    CHUNKS = 17  # encoded chunk list
    MISSING = 18  # empty: the blob is not here
    WANT_CHUNK = 19  # u32 index
    CHUNK = 20  # u32 index | bytes


BODY_BYTES_MAX: dict[Kind, int] = {
    Kind.NOTIFICATION: limits.NOTIFICATION_BYTES_MAX,
    Kind.PING: 4,
    Kind.PONG: 4,
    Kind.REQUEST: limits.REQUEST_BYTES_MAX + limits.FRAME_OVERHEAD_BYTES,
    Kind.ANSWER: limits.RESPONSE_BYTES_MAX + limits.FRAME_OVERHEAD_BYTES,
    Kind.REFUSAL: 5 + 4 * limits.REASON_CHARS_MAX,
    Kind.GET: 32,
    Kind.CHUNKS: limits.CHUNK_LIST_BYTES_MAX,
    Kind.MISSING: 0,
    Kind.WANT_CHUNK: 4,
    Kind.CHUNK: 4 + CHUNK_BYTES,
}


class CutShort(MalformedMessage):
    """The stream ended inside a frame: the peer may have crashed, so this alone is no fault."""


class Reader(Protocol):
    """The half of a libp2p stream that frames are read from."""

    async def read(self, n: int) -> bytes:
        """Up to `n` bytes; empty or an exception at the end."""


class Writer(Protocol):
    """The half of a libp2p stream that frames are written to."""

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for the peer's window."""


def encode_frame(kind: Kind, body: bytes = b"") -> bytes:
    """The bytes of one frame.

    Raises:
        ValueError: the body is above its type's cap (our own mistake).
    """
    if len(body) > BODY_BYTES_MAX[kind]:
        raise ValueError(f"{kind.name} of {len(body)} bytes, at most {BODY_BYTES_MAX[kind]} allowed")
    return _HEAD.pack(1 + len(body), kind) + body


def decode_head(head: bytes, expected: Collection[Kind]) -> tuple[Kind, int]:
    """Type and body length of a frame, from its first five bytes.

    Raises:
        MalformedMessage: unknown or unexpected type, or a length above its cap.
    """
    length, number = _HEAD.unpack(head)
    try:
        kind = Kind(number)
    except ValueError:
        raise MalformedMessage(f"frame type {number} is not known") from None
    if kind not in expected:
        raise MalformedMessage(f"frame {kind.name} is not expected here")
    if not 1 <= length <= 1 + BODY_BYTES_MAX[kind]:
        raise MalformedMessage(f"{kind.name} of {length - 1} bytes, at most {BODY_BYTES_MAX[kind]} allowed")
    return kind, length - 1


async def read_frame(stream: Reader, expected: Collection[Kind]) -> tuple[Kind, bytes]:
    """The next frame; at most its type's cap is ever buffered.

    Raises:
        EOFError: the stream ended between two frames.
        CutShort: the stream ended inside a frame.
        MalformedMessage: an unexpected type or a length above its cap.
    """
    head = await _read_exactly(stream, _HEAD.size, at_start=True)
    kind, length = decode_head(head, expected)
    return kind, await _read_exactly(stream, length, at_start=False)


async def write_frame(stream: Writer, kind: Kind, body: bytes = b"") -> None:
    """Write one frame in pieces, so that no write makes a large copy."""
    await write_pieces(stream, encode_frame(kind, body))


async def write_pieces(stream: Writer, data: bytes) -> None:
    """Write `data` in pieces of `limits.WRITE_BYTES`."""
    for offset in range(0, len(data), limits.WRITE_BYTES):
        await stream.write(data[offset : offset + limits.WRITE_BYTES])


async def _read_exactly(stream: Reader, length: int, *, at_start: bool) -> bytes:
    # libp2p's own read_exactly gives up after 101 reads, which a peer can force.
    parts = bytearray()
    while len(parts) < length:
        piece = await stream.read(min(limits.READ_BYTES, length - len(parts)))
        if not piece:
            if at_start and not parts:
                raise EOFError("the stream ended")
            raise CutShort(f"the stream ended {length - len(parts)} bytes inside a frame")
        parts += piece
    return bytes(parts)


def pack_id(number: int, rest: bytes = b"") -> bytes:
    """A u32 followed by `rest`."""
    return _ID.pack(number) + rest


def unpack_id(body: bytes) -> tuple[int, bytes]:
    """The u32 at the start of `body`, and the rest.

    Raises:
        MalformedMessage: fewer than four bytes.
    """
    if len(body) < _ID.size:
        raise MalformedMessage(f"body of {len(body)} bytes, a u32 expected at its start")
    return _ID.unpack_from(body)[0], body[_ID.size :]


def pack_request(number: int, method: str, body: bytes) -> bytes:
    """Body of a REQUEST frame.

    Raises:
        ValueError: the method name is empty or too long, or the body above its bound.
    """
    name = method.encode()
    if not 0 < len(name) <= limits.METHOD_BYTES_MAX:
        raise ValueError(f"method name of {len(name)} bytes, 1 to {limits.METHOD_BYTES_MAX} allowed")
    if len(body) > limits.REQUEST_BYTES_MAX:
        raise ValueError(f"request of {len(body)} bytes, at most {limits.REQUEST_BYTES_MAX} allowed")
    return pack_id(number, bytes((len(name),)) + name + body)


def unpack_request(body: bytes) -> tuple[int, str, bytes]:
    """Id, method name and body of a REQUEST frame.

    Raises:
        MalformedMessage: cut short, or a name that is not UTF-8.
    """
    number, rest = unpack_id(body)
    if not rest or not 0 < rest[0] <= limits.METHOD_BYTES_MAX or len(rest) < 1 + rest[0]:
        raise MalformedMessage("request without a whole method name")
    try:
        name = rest[1 : 1 + rest[0]].decode()
    except UnicodeDecodeError:
        raise MalformedMessage("request with a method name that is not UTF-8") from None
    return number, name, rest[1 + rest[0] :]


def pack_refusal(number: int, reason: str, *, is_busy: bool) -> bytes:
    """Body of a REFUSAL frame; the reason is cut to its bound."""
    return pack_id(number, bytes((is_busy,)) + printable(reason).encode())


def unpack_refusal(body: bytes) -> tuple[int, str, bool]:
    """Id, sanitised reason (printable and short) and whether the peer is only busy.

    Raises:
        MalformedMessage: cut short.
    """
    number, rest = unpack_id(body)
    if not rest:
        raise MalformedMessage("refusal without a flag")
    return number, printable(rest[1:].decode(errors="replace")), rest[0] == 1


def printable(text: str) -> str:
    """The text sanitised for a log: one line, printable, of bounded length."""
    return "".join(c if c.isprintable() else "?" for c in text[: limits.REASON_CHARS_MAX])
