"""Blob server: serves a host's blobs to peers that pull them.

Room: network (edge: trio, libp2p streams, disk through BlobSource in threads). The
puller sets the pace (fetch.py). Nothing is served that does not match its digest
at the moment it is sent.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import trio

from assay.network import frames, limits
from assay.network.blob_store import BlobSource
from assay.network.cpu_time import CpuTime
from assay.network.fetch import blaming
from assay.network.frames import Kind
from assay.network.guard import reset_quietly
from assay.protocol.encoding.blob import ChunkList, chunk_list_bytes, encode_chunk_list, span_of
from assay.protocol.encoding.blob import chunk_count as count_chunks
from assay.protocol.errors import MalformedMessage, PeerFault, Unavailable
from assay.protocol.types import Digest, PeerId

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Place:
    """One stream that is served: it ends with its scope."""

    scope: trio.CancelScope
    waits_since_s: float = math.inf  # for a request


class BlobServer:
    """Serves the pulls of one host's blobs, with bounds per peer and in all."""

    def __init__(
        self,
        *,
        blobs: BlobSource,
        may_read: Callable[[PeerId, Digest], bool] = lambda _peer, _digest: True,
        on_fault: Callable[[PeerFault], None],
        cpu_time: CpuTime,
        timing: limits.Timing,
    ) -> None:
        self._blobs = blobs
        self._may_read = may_read
        self._on_fault = on_fault
        self._cpu_time = cpu_time
        self._timing = timing
        self._lists: OrderedDict[Digest, ChunkList] = OrderedDict()
        self._serving: dict[PeerId, list[_Place]] = {}  # by puller, oldest first

    async def serve(self, peer: PeerId, stream: Any) -> None:
        """Answer one puller until it leaves; whatever it sends ends only this stream."""
        if not self._has_room_for(peer):
            await reset_quietly(stream)
            return
        with trio.CancelScope() as scope:
            place = _Place(scope)
            self._serving.setdefault(peer, []).append(place)
            try:
                await blaming(peer, self._serve_chunks, peer, stream, place)
            except PeerFault as fault:
                self._on_fault(fault)
            except Unavailable as error:
                log.debug("blob stream ended", extra={"peer": peer.hex()[:8], "error": str(error)})
            finally:
                self._leave(peer, place)
                await reset_quietly(stream)

    def _has_room_for(self, peer: PeerId) -> bool:
        """Whether this peer may have one more stream, for which another may end."""
        own_count = len(self._serving.get(peer, ()))
        if own_count >= limits.BLOB_STREAMS_PER_PEER_MAX:
            return self._ends_idle([peer])
        if sum(map(len, self._serving.values())) < limits.BLOB_STREAMS_MAX or self._ends_idle(self._serving):
            return True
        # Few peers could otherwise keep every place, and all others from reading anything.
        greedy = max(self._serving, key=lambda one: len(self._serving[one]))
        if len(self._serving[greedy]) <= own_count + 1:
            return False
        self._end(greedy, self._serving[greedy][0])
        return True

    def _ends_idle(self, peers: Iterable[PeerId]) -> bool:
        """End the stream of these peers that has waited longest for a request, if that is long enough."""
        places = [(place.waits_since_s, peer, place) for peer in peers for place in self._serving[peer]]
        since_s, peer, place = min(places, key=lambda one: one[0])
        if trio.current_time() - since_s < self._timing.give_place_s:
            return False
        self._end(peer, place)
        return True

    def _end(self, peer: PeerId, place: _Place) -> None:
        self._leave(peer, place)
        place.scope.cancel()

    def _leave(self, peer: PeerId, place: _Place) -> None:
        places = self._serving.get(peer, [])
        if place in places:
            places.remove(place)
        if not places:
            self._serving.pop(peer, None)

    async def _serve_chunks(self, peer: PeerId, stream: Any, place: _Place) -> None:
        """Serve until the puller closes the stream.

        Raises:
            EOFError: the puller closed the stream.
        """
        digest: Digest | None = None
        chunks: ChunkList | None = None
        while True:
            place.waits_since_s = trio.current_time()
            with trio.fail_after(self._timing.serve_idle_s):
                kind, body = await frames.read_frame(stream, (Kind.GET, Kind.WANT_CHUNK))
            place.waits_since_s = math.inf
            if kind is Kind.GET:
                if len(body) != 32:
                    raise MalformedMessage(f"digest of {len(body)} bytes")
                digest = Digest(body)
                chunks = await self._list_of(peer, digest)
                if chunks is None:
                    await frames.write_frame(stream, Kind.MISSING)
                else:
                    await frames.write_frame(stream, Kind.CHUNKS, encode_chunk_list(chunks))
                continue
            if chunks is None or digest is None:
                raise MalformedMessage("WANT_CHUNK before a GET that was answered")
            index, _ = frames.unpack_id(body)
            if index >= len(chunks.hashes):
                raise MalformedMessage(f"chunk {index} of {len(chunks.hashes)}")
            try:
                chunk = await self._cpu_time.in_thread(peer, self._read_verified, digest, chunks, index)
            except Unavailable:
                self._lists.pop(digest, None)
                raise
            await frames.write_frame(stream, Kind.CHUNK, frames.pack_id(index, chunk))

    async def _list_of(self, peer: PeerId, digest: Digest) -> ChunkList | None:
        if not self._may_read(peer, digest):
            return None
        known = self._lists.get(digest)
        if known is not None:
            self._lists.move_to_end(digest)
            return known
        chunks = await self._cpu_time.in_thread(peer, self._hash_stored, digest)
        if chunks is not None:
            self._lists[digest] = chunks
            if len(self._lists) > limits.CHUNK_LISTS_CACHED:
                self._lists.popitem(last=False)
        return chunks

    def _hash_stored(self, digest: Digest) -> ChunkList | None:
        """The chunk list of a stored blob, or None if it is absent or damaged. Blocks."""
        size = self._blobs.size(digest)
        if size is None or chunk_list_bytes(size) > limits.CHUNK_LIST_BYTES_MAX:
            return None
        try:
            hashes = tuple(
                hashlib.sha256(self._blobs.read(digest, *span_of(index, size))).digest()
                for index in range(count_chunks(size))
            )
        except Unavailable as error:
            log.warning("blob not readable", extra={"digest": digest.hex(), "error": str(error)})
            return None
        chunks = ChunkList(size=size, hashes=hashes)
        if chunks.digest() != digest:
            self._blobs.discard_damaged(digest)
            return None
        return chunks

    def _read_verified(self, digest: Digest, chunks: ChunkList, index: int) -> bytes:
        """One chunk as it should be. Blocks.

        Raises:
            Unavailable: the store gives something else; the peer gets nothing rather than that.
        """
        chunk = self._blobs.read(digest, *chunks.span(index))
        try:
            chunks.verify(index, chunk)
        except MalformedMessage as error:
            self._blobs.discard_damaged(digest)
            raise Unavailable(f"blob {digest.hex()[:8]} is damaged: {error}") from error
        return chunk
