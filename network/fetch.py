"""Fetch: downloads one blob from several holders in parallel, verifying every chunk.

Room: network (edge: trio, libp2p streams, disk in threads).

    puller: GET digest         holder: CHUNKS list | MISSING
    puller: WANT_CHUNK i ...   holder: CHUNK i ...             (8 in flight)

The puller sets the rate. A wrong list or chunk blames only the peer that sent
it; the remaining chunks come from other holders. So do those that a slow holder
keeps back once no others are missing: two sessions may request the same chunk, and
take whichever comes first. A stream on which nothing is
outstanding is kept for the next blob: to open one takes two round trips more, and
most of what a small blob costs.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import trio

from assay.network import frames, limits
from assay.network.frames import Kind
from assay.network.guard import reset_quietly
from assay.protocol.encoding.blob import ChunkList, decode_chunk_list
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault, Unavailable
from assay.protocol.types import Digest, PeerId

T = TypeVar("T")
OpenStream = Callable[[PeerId], Awaitable[Any]]


class NotHere(Unavailable):
    """The holder answered that it does not have the blob; a retry would not help."""


class Threads:
    """A bounded thread pool for a host's hashing and disk access."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(limits.HASH_THREADS)

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """`call(*args)` in a thread."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._limiter)


class Pull:
    """One download, shared by the sessions with its holders. Only bytes that match the chunk list are kept.

    Each chunk is in exactly one state; `give_back` is by the last session that requests it:

        missing --take--> requested --accept--> present
           ^                  |
           +----give_back-----+
    """

    def __init__(self, digest: Digest, *, size_max: int, threads: Threads, path: Path | None = None) -> None:
        """Have nothing yet. The bytes go into a new file at `path`, or into `data` if there is none."""
        self.digest = digest
        self.size_max = size_max
        self.chunks: ChunkList | None = None
        self.data = bytearray()
        self.changed = trio.Event()
        self.threads = threads
        self._path = path
        self._file: BinaryIO | None = None
        self._missing: dict[int, None] = {}  # ordered, so holders read forward
        self._requested: dict[int, list[float]] = {}  # when, by each session that still requests it

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is present and verified."""
        return self.chunks is not None and not self._missing and not self._requested

    @property
    def present_count(self) -> int:
        """How many chunks are present."""
        return 0 if self.chunks is None else len(self.chunks.hashes) - self.lacking_count

    @property
    def lacking_count(self) -> int:
        """How many chunks of the list are not present."""
        return len(self._missing) + len(self._requested)

    def adopt(self, chunks: ChunkList) -> None:
        """Begin with this verified chunk list, if it is the first.

        Raises:
            Unavailable: the file cannot be made.
        """
        if self.chunks is None:
            if self._path is None:
                self.data = bytearray(chunks.size)
            else:
                try:
                    self._file = self._path.open("wb", buffering=0)
                except OSError as error:
                    raise Unavailable(f"{self._path} cannot be written ({error.strerror})") from None
            self.chunks = chunks
            self._missing = dict.fromkeys(range(len(chunks.hashes)))
            self.wake()

    def take(self, now_s: float, *, stalled_s: float = math.inf) -> int | None:
        """The next missing chunk's index, marked as requested at `now_s`.

        If none is missing, the last that was requested `stalled_s` ago or earlier, for its holder would send
        that one last; else None. A session that waits for no chunk of its own says how long that is.
        """
        index = next(iter(self._missing), None)
        if index is None:
            late = (i for i, asked in reversed(self._requested.items()) if asked[-1] + stalled_s <= now_s)
            index = next(late, None)
        if index is not None:
            self._missing.pop(index, None)
            self._requested.setdefault(index, []).append(now_s)
        return index

    def check(self, index: int, chunk: bytes) -> None:
        """Verify a chunk, and write it if there is a file. Blocks.

        Raises:
            MalformedMessage: it is another.
            Unavailable: it cannot be written.
        """
        assert self.chunks is not None
        self.chunks.verify(index, chunk)
        if self._file is not None:
            try:
                written = os.pwrite(self._file.fileno(), chunk, self.chunks.span(index)[0])
            except OSError as error:
                raise Unavailable(f"{self._path} cannot be written ({error.strerror})") from None
            if written != len(chunk):
                raise Unavailable(f"{self._path} cannot be written (disk full)")

    def close(self) -> None:
        """Nothing more is written."""
        if self._file is not None:
            self._file.close()

    def accept(self, index: int, chunk: bytes) -> None:
        """Keep a chunk that the caller has requested and checked, unless another session brought it."""
        if self._requested.pop(index, None) is None:
            return
        assert self.chunks is not None
        offset, length = self.chunks.span(index)
        assert len(chunk) == length
        if self._file is None:
            self.data[offset : offset + length] = chunk
        self.wake()

    def give_back(self, indices: Iterable[int]) -> None:
        """Request these chunks no more, so that those which no other session requests are missing again."""
        for index in sorted(indices):
            if index in self._requested:
                self._requested[index].pop()
                if not self._requested[index]:
                    del self._requested[index]
                    self._missing[index] = None
        self.wake()

    def wake(self) -> None:
        """Wake all tasks that wait for a change."""
        self.changed.set()
        self.changed = trio.Event()


class Streams:
    """Streams to holders of blobs, each kept for a while after its use."""

    def __init__(self, open_stream: OpenStream, end: Callable[[Any], None], timing: limits.Timing) -> None:
        """Keep none yet; `end` resets a stream, without waiting for it."""
        self._open, self._end, self._timing = open_stream, end, timing
        self._kept: dict[PeerId, list[tuple[float, Any]]] = {}  # since when, oldest first

    async def take(self, holder: PeerId) -> tuple[Any, bool]:
        """A stream to a holder, and whether it is a kept one, which may have ended since.

        Raises:
            Unavailable: there is none, and no new one can be opened.
        """
        self._end_old()
        kept = self._kept.get(holder)
        return (kept.pop()[1], True) if kept else (await self._open(holder), False)

    def keep(self, holder: PeerId, stream: Any) -> None:
        """Keep a stream on which nothing is outstanding, if there is room."""
        self._end_old()
        kept = self._kept.setdefault(holder, [])
        if len(kept) < limits.BLOB_STREAMS_KEPT:
            kept.append((trio.current_time(), stream))
        else:
            self._end(stream)

    def _end_old(self) -> None:
        until_s = trio.current_time() - self._timing.keep_stream_s
        for holder, kept in list(self._kept.items()):
            while kept and kept[0][0] < until_s:
                self._end(kept.pop(0)[1])
            if not kept:
                del self._kept[holder]


async def fetch(
    pull: Pull,
    *,
    holders: Sequence[PeerId],
    streams: Streams,
    on_fault: Callable[[PeerFault], None],
    timing: limits.Timing,
    deadline_s: float,
    at_once: int,
) -> bytes:
    """Download a blob from `holders`, best first, and verify it; `at_once` side by side while chunks come.

    Raises:
        PeerFault: every holder broke the protocol or sent wrong bytes.
        Unavailable: it was not complete within `deadline_s`.
    """
    name = pull.digest.hex()[:8]
    waiting = deque((holder, 1) for holder in dict.fromkeys(holders))
    faults: list[PeerFault] = []
    reasons: list[str] = []
    working_count = 0

    async def work() -> None:
        nonlocal working_count
        working_count += 1
        while waiting and not pull.is_complete:
            holder, attempt = waiting.popleft()
            try:
                await _pull_from(holder, pull, streams, timing)
            except PeerFault as fault:
                faults.append(fault)
                on_fault(fault)
            except NotHere as error:
                reasons.append(str(error))
            except Unavailable as error:
                reasons.append(str(error))
                if attempt < limits.HOLDER_ATTEMPTS:
                    await trio.sleep(timing.retry_s)
                    waiting.append((holder, attempt + 1))
        working_count -= 1
        if pull.is_complete or not working_count:
            workers.cancel_scope.cancel()  # other sessions may wait for silent holders

    with trio.move_on_after(deadline_s) as scope:
        async with trio.open_nursery() as workers:
            for _ in range(at_once):
                workers.start_soon(work)
            patience_s = timing.stalled_s  # doubled, for on a slow line further sessions slow each other down
            end_s = trio.current_time() + deadline_s
            while True:
                present_count = pull.present_count
                await trio.sleep(patience_s)
                came_count = pull.present_count - present_count
                needed_s = patience_s * pull.lacking_count / came_count if came_count else math.inf
                if waiting and needed_s > end_s - trio.current_time():
                    patience_s *= 2
                    workers.start_soon(work)
    if pull.is_complete:
        return bytes(pull.data)
    if scope.cancelled_caught:
        raise Unavailable(f"blob {name}: not fetched within {deadline_s} s")
    if faults and not reasons:
        raise faults[-1]
    raise Unavailable(f"blob {name}: {reasons[-1] if reasons else 'no holder was given'}")


async def _pull_from(holder: PeerId, pull: Pull, streams: Streams, timing: limits.Timing) -> None:
    while True:
        stream, is_kept = await streams.take(holder)
        is_idle = False
        try:
            is_idle = await blaming(holder, _pull_on, stream, pull, timing)
            return
        except NotHere:
            is_idle = True
            raise
        except Unavailable as error:  # who is silent on one stream is not asked again at once
            if not is_kept or isinstance(error.__cause__, trio.TooSlowError):
                raise
        finally:
            if is_idle:
                streams.keep(holder, stream)
            else:
                await reset_quietly(stream)


async def _pull_on(stream: Any, pull: Pull, timing: limits.Timing) -> bool:
    """Pull on one stream until the blob is complete, alongside other sessions; whether nothing is to come.

    Raises:
        NotHere: the holder does not have it.
        MalformedMessage: a wrong list or chunk.
        trio.TooSlowError: less than one chunk in `Timing.chunk_s`.
    """
    await frames.write_frame(stream, Kind.GET, pull.digest)
    with trio.fail_after(timing.first_frame_s):
        kind, body = await frames.read_frame(stream, (Kind.CHUNKS, Kind.MISSING))
    if kind is Kind.MISSING:
        raise NotHere("the holder does not have it")
    chunks = decode_chunk_list(body, size_max=pull.size_max)
    if chunks.digest() != pull.digest:
        raise MalformedMessage("the chunk list does not match the digest")
    pull.adopt(chunks)
    requested: set[int] = set()
    try:
        while not pull.is_complete:
            while len(requested) < limits.CHUNKS_IN_FLIGHT:
                stalled_s = math.inf if requested else timing.stalled_s
                index = pull.take(trio.current_time(), stalled_s=stalled_s)
                if index is None:
                    break
                requested.add(index)
                await frames.write_frame(stream, Kind.WANT_CHUNK, frames.pack_id(index))
            if not requested:
                with trio.move_on_after(timing.stalled_s / 4):
                    await pull.changed.wait()  # other sessions have requested the rest
                continue
            with trio.fail_after(timing.chunk_s):
                _, body = await frames.read_frame(stream, (Kind.CHUNK,))
            index, chunk = frames.unpack_id(body)
            if index not in requested:
                raise MalformedMessage(f"chunk {index} was not requested")
            await pull.threads.run(pull.check, index, chunk)
            requested.remove(index)
            pull.accept(index, chunk)
        return not requested
    finally:
        pull.give_back(requested)


async def blaming(peer: PeerId, call: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run one exchange with a peer, and map its failure to an error that says who is at fault.

    Raises:
        PeerFault: the peer sent malformed bytes.
        Unavailable: the stream broke or the peer was too slow, which proves no fault.
    """
    name = peer.hex()[:8]
    try:
        return await call(*args)
    except NotHere as error:
        raise NotHere(f"peer {name}: {error}") from error
    except (EOFError, frames.CutShort) as error:
        raise Unavailable(f"peer {name}: {error}") from error
    except MalformedMessage as error:
        raise PeerFault(peer, str(error)) from error
    except AssayError:
        raise
    except trio.TooSlowError as error:
        raise Unavailable(f"peer {name}: too slow") from error
    except Exception as error:  # libp2p's stream errors share no base class
        raise Unavailable(f"peer {name}: {frames.printable(repr(error))}") from error
