"""Memory blobs: a blob store without a disk."""

from __future__ import annotations

import threading

from assay.protocol.encoding.blob import blob_digest
from assay.protocol.errors import Unavailable
from assay.protocol.types import Digest


class MemoryBlobs:
    """Blobs in memory; evicts the oldest first above `bytes_max`."""

    def __init__(self, *, bytes_max: int = 1 << 30) -> None:
        self._bytes_max = bytes_max
        self._blobs: dict[Digest, bytes] = {}
        self._held_bytes = 0
        self._lock = threading.Lock()

    def size(self, digest: Digest) -> int | None:
        """Size in bytes, or None if it is not here."""
        blob = self._blobs.get(digest)
        return None if blob is None else len(blob)

    def read(self, digest: Digest, offset: int, length: int) -> bytes:
        """Bytes of the blob.

        Raises:
            Unavailable: it is not here.
        """
        blob = self._blobs.get(digest)
        if blob is None:
            raise Unavailable(f"blob {digest.hex()[:8]} is not in the store")
        return blob[offset : offset + length]

    def discard_damaged(self, digest: Digest) -> None:
        """Forget a blob."""
        with self._lock:
            self._held_bytes -= len(self._blobs.pop(digest, b""))

    def put(self, data: bytes) -> Digest:
        """Keep these bytes, evicting older blobs if needed.

        Raises:
            Unavailable: the blob alone is above `bytes_max`.
        """
        if len(data) > self._bytes_max:
            raise Unavailable(f"blob of {len(data)} bytes, room for {self._bytes_max}")
        digest = blob_digest(data)
        with self._lock:
            if digest not in self._blobs:
                self._blobs[digest] = bytes(data)
                self._held_bytes += len(data)
            while self._held_bytes > self._bytes_max:
                oldest = next(iter(self._blobs))
                self._held_bytes -= len(self._blobs.pop(oldest))
        return digest
