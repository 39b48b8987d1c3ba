"""Blob: content-addressed bulk data in 256 KiB chunks, each of which can be verified alone.

Room: protocol (pure). A blob of any size has one digest, over its size and the
SHA-256 of each chunk. With the chunk list (32 bytes per chunk) a receiver
checks any chunk before using it, so one bad chunk blames exactly one sender.

    digest = SHA-256(TAG | size u64 | SHA-256(chunk 0) | SHA-256(chunk 1) | ...)

Rules: docs/protocol.md, "Blobs". One content has one chunk list: every chunk but
the last is full, and an empty blob has no chunks.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from assay.protocol.errors import MalformedMessage
from assay.protocol.types import Digest

TAG = b"assay/blob/1"
CHUNK_BYTES = 256 * 1024
BLOB_BYTES_MAX = 1 << 40  # a chunk list of this size is 128 MiB; readers pass their own, smaller bound
_HASH_BYTES = 32
_SIZE = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkList:
    """A blob's size in bytes and the SHA-256 of each chunk, in order.

    Raises:
        ValueError: the number of hashes does not follow from the size.
    """

    size: int
    hashes: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.size <= BLOB_BYTES_MAX:
            raise ValueError(f"blob of {self.size} bytes, 0 to {BLOB_BYTES_MAX} expected")
        if len(self.hashes) != chunk_count(self.size):
            raise ValueError(f"{len(self.hashes)} hashes, {chunk_count(self.size)} expected")
        if any(len(item) != _HASH_BYTES for item in self.hashes):
            raise ValueError("a chunk hash is not 32 bytes")

    def digest(self) -> Digest:
        """The blob's digest."""
        return Digest(hashlib.sha256(TAG + _SIZE.pack(self.size) + b"".join(self.hashes)).digest())

    def span(self, index: int) -> tuple[int, int]:
        """Offset and length, in bytes, of one chunk.

        Raises:
            IndexError: the blob has no such chunk.
        """
        if not 0 <= index < len(self.hashes):
            raise IndexError(f"chunk {index} of {len(self.hashes)}")
        return span_of(index, self.size)

    def verify(self, index: int, chunk: bytes | memoryview) -> None:
        """Return only if `chunk` is exactly the chunk at `index`.

        Raises:
            MalformedMessage: wrong index, length or content.
        """
        if not 0 <= index < len(self.hashes):
            raise MalformedMessage(f"chunk {index} of a blob with {len(self.hashes)}")
        if len(chunk) != self.span(index)[1]:
            raise MalformedMessage(f"chunk {index}: {len(chunk)} bytes, {self.span(index)[1]} expected")
        if hashlib.sha256(chunk).digest() != self.hashes[index]:
            raise MalformedMessage(f"chunk {index}: content does not match its hash")


def chunk_count(size: int) -> int:
    """How many chunks a blob of `size` bytes has."""
    return -(-size // CHUNK_BYTES)


def span_of(index: int, size: int) -> tuple[int, int]:
    """Offset and length, in bytes, of chunk `index` of a blob of `size` bytes."""
    offset = index * CHUNK_BYTES
    return offset, min(CHUNK_BYTES, size - offset)


def chunk_list_of(data: bytes | memoryview) -> ChunkList:
    """The chunk list of these bytes."""
    view = memoryview(data)
    return ChunkList(
        size=len(view),
        hashes=tuple(
            hashlib.sha256(view[offset : offset + CHUNK_BYTES]).digest()
            for offset in range(0, len(view), CHUNK_BYTES)
        ),
    )


def blob_digest(data: bytes | memoryview) -> Digest:
    """The blob digest of these bytes."""
    return chunk_list_of(data).digest()


def encode_chunk_list(chunks: ChunkList) -> bytes:
    """Size as big-endian u64, then the hashes."""
    return _SIZE.pack(chunks.size) + b"".join(chunks.hashes)


def decode_chunk_list(data: bytes, *, size_max: int) -> ChunkList:
    """The chunk list that `data` encodes; its cost is bounded by `size_max`.

    Args:
        data: As `encode_chunk_list` returns it; untrusted.
        size_max: The largest blob the reader would accept, in bytes.

    Raises:
        MalformedMessage: truncated, trailing bytes, or a blob above `size_max`.
    """
    if len(data) < _SIZE.size:
        raise MalformedMessage(f"chunk list of {len(data)} bytes, at least {_SIZE.size} expected")
    (size,) = _SIZE.unpack_from(data)
    if size > min(size_max, BLOB_BYTES_MAX):
        raise MalformedMessage(f"chunk list of a {size}-byte blob, at most {size_max} expected")
    expected = _SIZE.size + _HASH_BYTES * chunk_count(size)
    if len(data) != expected:
        raise MalformedMessage(f"chunk list of {len(data)} bytes, {expected} expected for {size} bytes")
    return ChunkList(
        size=size,
        hashes=tuple(data[at : at + _HASH_BYTES] for at in range(_SIZE.size, expected, _HASH_BYTES)),
    )


def chunk_list_bytes(size: int) -> int:
    """Length of the encoded chunk list of a blob of `size` bytes."""
    return _SIZE.size + _HASH_BYTES * chunk_count(size)
