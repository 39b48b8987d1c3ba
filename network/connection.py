"""Connection: sends notifications, requests and pings to one peer over one long-lived control stream.

Room: network (edge: trio and one libp2p stream at a time). Frames leave through a bounded
queue per peer, so a slow peer delays no other. The stream is opened when the queue is not
empty and the peer is connected, and opened again after a failure; posted notifications
survive that, and may then arrive twice.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from assay.network import frames, limits
from assay.network.frames import Kind
from assay.network.guard import reset_quietly
from assay.protocol.errors import AssayError, MalformedMessage, PeerFault, Unavailable
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)

OpenStream = Callable[[PeerId], Awaitable[Any]]
_REPLIES = (Kind.PONG, Kind.ANSWER, Kind.REFUSAL)


class RemoteError(PeerFault):
    """A peer answered a request with an error; its text is bounded and printable."""


@dataclass(eq=False, slots=True)
class _Outgoing:
    frame: bytes
    is_notification: bool = False
    written: trio.Event | None = None  # set when this frame is written, if a caller waits
    is_lost: bool = False


@dataclass(eq=False, slots=True)
class _Waiting:
    done: trio.Event = field(default_factory=trio.Event)
    body: bytes | None = None
    error: AssayError | None = None


class Connection:
    """Outgoing half of the control stream to one peer. `run` must be running in the host's nursery."""

    def __init__(
        self,
        peer: PeerId,
        *,
        open_stream: OpenStream,
        is_connected: Callable[[PeerId], bool],
        timing: limits.Timing,
    ) -> None:
        self.peer = peer
        self._open_stream = open_stream
        self._is_connected = is_connected
        self._timing = timing
        self._queue: deque[_Outgoing] = deque()
        self._queued_bytes = 0
        self._waiting: dict[int, _Waiting] = {}
        self._pings: dict[int, trio.Event] = {}
        self.latency_s: float | None = None  # of the newest answered ping
        self._numbers = itertools.count()
        self._news = trio.Event()

    def wake(self) -> None:
        """Signal `run` that a frame was queued or the peer connected."""
        self._news.set()

    def post(self, payload: bytes) -> None:
        """Queue a notification; if the queue is full, its oldest notification is dropped and counted.

        Raises:
            ValueError: the payload is above `limits.NOTIFICATION_BYTES_MAX` (our own mistake).
        """
        self._enqueue(_Outgoing(frames.encode_frame(Kind.NOTIFICATION, payload), is_notification=True))

    async def send(self, payload: bytes) -> None:
        """Return once the notification is written to the peer's stream.

        Raises:
            Unavailable: not connected, or not written within `Timing.send_s`.
            ValueError: the payload is above `limits.NOTIFICATION_BYTES_MAX` (our own mistake).
        """
        await self._write_through(
            frames.encode_frame(Kind.NOTIFICATION, payload), within_s=self._timing.send_s
        )

    async def request(self, method: str, body: bytes, *, timeout_s: float) -> bytes:
        """Send a request and return the peer's response.

        Raises:
            RemoteError: the peer answered with an error.
            Unavailable: not connected, busy, or no answer within `timeout_s`.
            ValueError: method or body above their bounds (our own mistake).
        """
        if len(self._waiting) >= limits.PENDING_REQUESTS_MAX:
            raise Unavailable(f"{limits.PENDING_REQUESTS_MAX} requests to this peer wait already")
        number = next(self._numbers) % 2**32
        frame = frames.encode_frame(Kind.REQUEST, frames.pack_request(number, method, body))
        waiting = self._waiting[number] = _Waiting()
        try:
            with trio.move_on_after(timeout_s):
                await self._write_through(frame, within_s=timeout_s)
                await waiting.done.wait()
        finally:
            del self._waiting[number]
        if waiting.error is not None:
            raise waiting.error
        if waiting.body is None:
            raise Unavailable(f"peer {self.peer.hex()[:8]}: no answer to {method} within {timeout_s} s")
        return waiting.body

    async def ping(self, *, timeout_s: float) -> bool:
        """Whether the peer answered a ping within `timeout_s`."""
        number = next(self._numbers) % 2**32
        answered = self._pings[number] = trio.Event()
        outgoing = _Outgoing(frames.encode_frame(Kind.PING, frames.pack_id(number)))
        began_s = trio.current_time()
        try:
            with trio.move_on_after(timeout_s):
                self._queue.appendleft(outgoing)  # a ping must not wait behind 2 MiB of notifications
                self._queued_bytes += len(outgoing.frame)
                self.wake()
                await answered.wait()
                self.latency_s = trio.current_time() - began_s
                return True
            return False
        finally:
            del self._pings[number]
            self._remove(outgoing)

    async def run(self) -> None:
        """Keep the stream open while it is needed; ends only by cancellation."""
        while True:
            while not (self._queue and self._is_connected(self.peer)):
                if not self._is_connected(self.peer):
                    self._lose("not connected")
                self._news = trio.Event()
                await self._news.wait()
            try:
                stream = await self._open_stream(self.peer)
            except Unavailable as error:
                self._lose(str(error))
                await trio.sleep(self._timing.redial_min_s)
                continue
            reason = await self._converse(stream)
            log.info("connection ended", extra={"peer": self.peer.hex()[:8], "reason": reason})
            await reset_quietly(stream)
            self._lose(reason)
            # A peer that resets at once must not be redialled in a loop.
            await trio.sleep(self._timing.redial_min_s)

    async def _converse(self, stream: Any) -> str:
        reasons: list[str] = []

        async def until_it_fails(part: Callable[[Any], Awaitable[None]]) -> None:
            try:
                await part(stream)
            except Exception as error:  # supervision: the stream is opened again
                reasons.append(frames.printable(f"{type(error).__name__}: {error}"))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(until_it_fails, self._read)
            nursery.start_soon(until_it_fails, self._write)
        return reasons[0] if reasons else "closed"

    async def _write(self, stream: Any) -> None:
        while True:
            while not self._queue:
                self._news = trio.Event()
                await self._news.wait()
            outgoing = self._queue.popleft()
            self._queued_bytes -= len(outgoing.frame)
            try:
                await frames.write_pieces(stream, outgoing.frame)
            except BaseException:
                self._queue.appendleft(outgoing)
                self._queued_bytes += len(outgoing.frame)
                raise
            if outgoing.written is not None:
                outgoing.written.set()

    async def _read(self, stream: Any) -> None:
        while True:
            kind, body = await frames.read_frame(stream, _REPLIES)
            if kind is Kind.PONG:
                number, _ = frames.unpack_id(body)
                answered = self._pings.get(number)
                if answered is not None:
                    answered.set()
            elif kind is Kind.ANSWER:
                number, answer = frames.unpack_id(body)
                if len(answer) > limits.RESPONSE_BYTES_MAX:
                    raise MalformedMessage(f"answer of {len(answer)} bytes")
                self._finish(number, body=answer)
            else:
                number, reason, is_busy = frames.unpack_refusal(body)
                self._finish(
                    number,
                    error=Unavailable(f"peer {self.peer.hex()[:8]}: {reason}")
                    if is_busy
                    else RemoteError(self.peer, reason),
                )

    def _finish(self, number: int, *, body: bytes | None = None, error: AssayError | None = None) -> None:
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done.is_set():
            return  # it timed out here, or the peer answered twice
        waiting.body, waiting.error = body, error
        waiting.done.set()

    async def _write_through(self, frame: bytes, *, within_s: float) -> None:
        if not self._is_connected(self.peer):
            raise Unavailable(f"peer {self.peer.hex()[:8]}: not connected")
        outgoing = _Outgoing(frame, written=trio.Event())
        self._enqueue(outgoing)
        assert outgoing.written is not None
        try:
            with trio.move_on_after(within_s):
                await outgoing.written.wait()
            if outgoing.is_lost or not outgoing.written.is_set():
                raise Unavailable(f"peer {self.peer.hex()[:8]}: could not be written to")
        finally:
            self._remove(outgoing)

    def _enqueue(self, outgoing: _Outgoing) -> None:
        self._queue.append(outgoing)
        self._queued_bytes += len(outgoing.frame)
        while len(self._queue) > limits.OUTBOX_FRAMES_MAX or self._queued_bytes > limits.OUTBOX_BYTES_MAX:
            oldest = next((item for item in self._queue if item.is_notification), self._queue[0])
            self._remove(oldest)
            if oldest.written is not None:
                oldest.is_lost = True
                oldest.written.set()
        self.wake()

    def _remove(self, outgoing: _Outgoing) -> None:
        try:
            self._queue.remove(outgoing)
        except ValueError:
            return
        self._queued_bytes -= len(outgoing.frame)

    def _lose(self, reason: str) -> None:
        """Fail all waiters on this stream; posted notifications stay queued for the next one."""
        for outgoing in [item for item in self._queue if item.written is not None]:
            self._remove(outgoing)
            outgoing.is_lost = True
            assert outgoing.written is not None
            outgoing.written.set()
        for number in list(self._waiting):
            self._finish(number, error=Unavailable(f"peer {self.peer.hex()[:8]}: {reason}"))
