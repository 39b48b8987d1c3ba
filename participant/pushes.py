"""Pushes: bulk bytes that a peer sends unasked, so that nobody waits for a pull's round trips.

Room: participant (edge: host). What is pushed is worth nothing until its receiver knows the digest from
elsewhere: a node from a certified manifest, a verifier from a signed commit. Each sender has room for one
blob of bounded size; whatever does not come whole and in time is pulled, as if nothing had been pushed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import trio

from assay.network.host import Host
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import PeerFault, Unavailable
from assay.protocol.messages import PIECE_BYTES_MAX, BlobPiece
from assay.protocol.types import Digest, PeerId

log = logging.getLogger(__name__)
BEGUN_S = 0.25  # a first piece may be behind the message that names its blob
WHOLE_S = 3.0  # for the rest; a pull needs half a second more than a push that comes
MISTRUSTED = 32  # blobs for which nobody waits for a sender whose last push was false or late


@dataclass(eq=False, slots=True)
class _Incoming:
    """A blob that a peer is sending us."""

    blob: Digest
    size: int
    body: bytearray = field(default_factory=bytearray)

    @property
    def is_whole(self) -> bool:
        """Whether all of it has come."""
        return len(self.body) == self.size


class Pushes:
    """What peers have pushed to us, the newest blob of each."""

    def __init__(self, size_max: int) -> None:
        """
        Args:
            size_max: Of a blob, in bytes.
        """
        self._size_max = size_max
        self._incoming: dict[PeerId, _Incoming] = {}
        self._mistrusted: dict[PeerId, int] = {}
        self._news = trio.Event()

    def take(self, sender: PeerId, piece: BlobPiece) -> None:
        """Keep a piece. One out of order ends its blob: connections break, and frames may come twice.

        Raises:
            PeerFault: the blob is larger than any that we need.
        """
        if not 0 < piece.size <= self._size_max:
            raise PeerFault(sender, f"pushes {piece.size} bytes, at most {self._size_max} expected")
        one = self._incoming.get(sender)
        if piece.offset == 0:
            one = self._incoming[sender] = _Incoming(piece.blob, piece.size)
        if one is None or (one.blob, one.size) != (piece.blob, piece.size):
            return
        if piece.offset != len(one.body) or piece.offset + len(piece.piece) > one.size:
            del self._incoming[sender]
        else:
            one.body += piece.piece
        self._news.set()
        self._news = trio.Event()

    async def whole(self, blob: Digest) -> bytes | None:
        """A blob that is being pushed, checked; None if nobody pushes it, or it is false or late."""
        self._mistrusted = {peer: left - 1 for peer, left in self._mistrusted.items() if left > 1}
        with trio.move_on_after(BEGUN_S):
            while not self._senders(blob):
                await self._news.wait()
        with trio.move_on_after(WHOLE_S):
            while senders := self._senders(blob):
                whole = next((peer for peer in senders if self._incoming[peer].is_whole), None)
                if whole is None:
                    await self._news.wait()
                    continue
                body = bytes(self._incoming.pop(whole).body)
                if blob_digest(body) == blob:
                    return body
                self._mistrust(whole, "pushed bytes are not what they were called")
        for sender in self._senders(blob):
            self._mistrust(sender, "a pushed blob did not come in time")
        return None

    def _senders(self, blob: Digest) -> list[PeerId]:
        return [
            sender
            for sender, one in self._incoming.items()
            if one.blob == blob and sender not in self._mistrusted
        ]

    def _mistrust(self, sender: PeerId, reason: str) -> None:
        log.warning(reason, extra={"peer": sender.hex()[:8]})
        self._mistrusted[sender] = MISTRUSTED


async def push(host: Host, peer: PeerId, blob: Digest, body: bytes) -> None:
    """Send a blob to a peer that will need it; returns when it is written, or the peer does not take it."""
    try:
        for offset in range(0, len(body), PIECE_BYTES_MAX):
            piece = body[offset : offset + PIECE_BYTES_MAX]
            await host.send(peer, encode(BlobPiece(blob=blob, size=len(body), offset=offset, piece=piece)))
    except Unavailable as error:
        log.debug("not pushed", extra={"peer": peer.hex()[:8], "reason": str(error)})
