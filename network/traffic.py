"""Traffic: counts the bytes of messages and blobs that one host writes to and reads from its streams.

Room: network (edge: libp2p streams). What libp2p adds, its handshakes and headers, is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Traffic:
    """Bytes since the host was opened."""

    sent: int = 0
    received: int = 0


class CountedStream:
    """A stream whose bytes are counted; everything else is the stream's own."""

    def __init__(self, stream: Any, traffic: Traffic) -> None:
        self._stream, self._traffic = stream, traffic

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def write(self, data: bytes) -> None:
        """Write, and count what was written."""
        await self._stream.write(data)
        self._traffic.sent += len(data)

    async def read(self, n: int) -> bytes:
        """Read at most this many bytes, and count them."""
        data: bytes = await self._stream.read(n)
        self._traffic.received += len(data)
        return data
