"""Exchange: a host's blobs as its peers see them: served when pulled, offered and taken by push.

Room: network (edge: trio, libp2p streams, disk through BlobSource in threads).

    pusher: OFFER digest size   receiver: WANT | HAVE | BUSY
    then the receiver pulls on the same stream at its own pace, and says DONE

Nothing is served that does not match its digest at the moment it is sent.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

import trio

from assay.network import frames, limits
from assay.network.blob_store import BlobSource
from assay.network.fetch import OpenStream, Pull, Threads, blaming, pull_on
from assay.network.frames import Kind
from assay.network.guard import reset_quietly
from assay.protocol.encoding.blob import ChunkList, chunk_list_bytes, encode_chunk_list, span_of
from assay.protocol.encoding.blob import chunk_count as count_chunks
from assay.protocol.errors import MalformedMessage, PeerFault, Unavailable
from assay.protocol.types import Digest, PeerId

log = logging.getLogger(__name__)

AcceptPush = Callable[[PeerId, Digest, int], bool]
_OFFER = struct.Struct(">32sQ")


class PushAnswer(Enum):
    """What became of an offered blob."""

    DONE = "done"  # the receiver pulled and verified it
    HAVE = "have"  # the receiver had it already
    BUSY = "busy"  # the receiver does not want it now


class Exchange:
    """Serves pulls and pushes of one host, with bounds per peer and in all."""

    def __init__(
        self,
        *,
        blobs: BlobSource,
        open_push: OpenStream,
        accept_push: AcceptPush,
        on_fault: Callable[[PeerFault], None],
        threads: Threads,
        timing: limits.Timing,
    ) -> None:
        self._blobs = blobs
        self._open_push = open_push
        self._accept_push = accept_push
        self._on_fault = on_fault
        self._threads = threads
        self._timing = timing
        self._lists: OrderedDict[Digest, ChunkList] = OrderedDict()
        self._serving: dict[PeerId, int] = {}  # streams that each peer opened to us
        self._receiving: dict[Digest, int] = {}  # bytes of the blobs being pushed to us

    async def serve_pull(self, peer: PeerId, stream: Any) -> None:
        """Answer one puller until it leaves; whatever it sends ends only this stream."""
        await self._serve(peer, stream, self._answer_puller)

    async def serve_push(self, peer: PeerId, stream: Any) -> None:
        """Take or refuse one offered blob; whatever the peer sends ends only this stream."""
        await self._serve(peer, stream, self._answer_pusher)

    async def push(self, peer: PeerId, digest: Digest) -> PushAnswer:
        """Offer a blob of ours to a peer and let it pull.

        Raises:
            Unavailable: we do not have it, the peer is not reachable, or it stopped midway.
            PeerFault: the peer broke the protocol.
        """
        size = await self._threads.run(self._blobs.size, digest)
        if size is None:
            raise Unavailable(f"blob {digest.hex()[:8]} is not here")
        stream = await self._open_push(peer)
        try:
            return await blaming(peer, self._offer, stream, digest, size)
        finally:
            await reset_quietly(stream)

    async def _offer(self, stream: Any, digest: Digest, size: int) -> PushAnswer:
        await frames.write_frame(stream, Kind.OFFER, _OFFER.pack(digest, size))
        with trio.fail_after(self._timing.offer_s):
            kind, _ = await frames.read_frame(stream, (Kind.WANT, Kind.HAVE, Kind.BUSY))
        if kind is not Kind.WANT:
            return PushAnswer.HAVE if kind is Kind.HAVE else PushAnswer.BUSY
        with trio.fail_after(self._timing.push_s):
            await self._serve_chunks(stream)
        return PushAnswer.DONE

    async def _serve(self, peer: PeerId, stream: Any, answer: Callable[..., Awaitable[None]]) -> None:
        total = sum(self._serving.values())
        if self._serving.get(peer, 0) >= limits.BLOB_STREAMS_PER_PEER_MAX or total >= limits.BLOB_STREAMS_MAX:
            await reset_quietly(stream)
            return
        self._serving[peer] = self._serving.get(peer, 0) + 1
        try:
            await blaming(peer, answer, peer, stream)
        except PeerFault as fault:
            self._on_fault(fault)
        except Unavailable as error:
            log.debug("blob stream ended", extra={"peer": peer.hex()[:8], "error": str(error)})
        finally:
            self._serving[peer] -= 1
            if not self._serving[peer]:
                del self._serving[peer]
            await reset_quietly(stream)

    async def _answer_puller(self, _peer: PeerId, stream: Any) -> None:
        await self._serve_chunks(stream)

    async def _serve_chunks(self, stream: Any) -> None:
        """Serve until the puller says DONE.

        Raises:
            EOFError: it closed without saying so, which is how a plain pull ends.
        """
        digest: Digest | None = None
        chunks: ChunkList | None = None
        while True:
            with trio.fail_after(self._timing.serve_idle_s):
                kind, body = await frames.read_frame(stream, (Kind.GET, Kind.WANT_CHUNK, Kind.DONE))
            if kind is Kind.DONE:
                return
            if kind is Kind.GET:
                if len(body) != 32:
                    raise MalformedMessage(f"digest of {len(body)} bytes")
                digest = Digest(body)
                chunks = await self._list_of(digest)
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
            chunk = await self._threads.run(self._read_verified, digest, chunks, index)
            await frames.write_frame(stream, Kind.CHUNK, frames.pack_id(index, chunk))

    async def _answer_pusher(self, peer: PeerId, stream: Any) -> None:
        with trio.fail_after(self._timing.first_frame_s):
            _, body = await frames.read_frame(stream, (Kind.OFFER,))
        if len(body) != _OFFER.size:
            raise MalformedMessage(f"offer of {len(body)} bytes")
        name, size = _OFFER.unpack(body)
        digest = Digest(name)
        if await self._list_of(digest) is not None:  # a damaged copy is as good as none
            await self._say_last(stream, Kind.HAVE)
        elif not self._has_room(digest, size) or not self._accept_push(peer, digest, size):
            await self._say_last(stream, Kind.BUSY)
        else:
            self._receiving[digest] = size
            try:
                await self._take(peer, stream, digest, size)
            finally:
                del self._receiving[digest]

    async def _take(self, peer: PeerId, stream: Any, digest: Digest, size: int) -> None:
        await frames.write_frame(stream, Kind.WANT)
        pull = Pull(digest, size_max=size, threads=self._threads, partial=None)
        with trio.fail_after(self._timing.push_s):
            await pull_on(stream, pull, self._timing)
        data = await pull.finish()
        if len(data) != size:
            raise PeerFault(peer, f"offered {size} bytes, sent {len(data)}")
        stored = await self._threads.run(self._blobs.put, data)
        assert stored == digest, "the store names blobs differently"
        await self._say_last(stream, Kind.DONE)

    def _has_room(self, digest: Digest, size: int) -> bool:
        held = sum(self._receiving.values())
        return (
            digest not in self._receiving
            and size <= limits.BLOB_PUSH_BYTES_MAX
            and held + size <= limits.IN_FLIGHT_BYTES_MAX
        )

    async def _say_last(self, stream: Any, kind: Kind) -> None:
        # A reset would overtake the frame; so wait, for a while, until the peer has left.
        await frames.write_frame(stream, kind)
        with trio.move_on_after(self._timing.offer_s):
            await stream.read(1)

    async def _list_of(self, digest: Digest) -> ChunkList | None:
        known = self._lists.get(digest)
        if known is not None:
            self._lists.move_to_end(digest)
            return known
        chunks = await self._threads.run(self._hash_stored, digest)
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
            log.error("blob damaged", extra={"digest": digest.hex()})
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
            raise Unavailable(f"blob {digest.hex()[:8]} is damaged: {error}") from error
        return chunk
