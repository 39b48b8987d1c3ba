"""Request server: serves peers' control streams: receives notifications, answers requests and pings.

Room: network (edge: trio and libp2p streams that peers opened to us). Bad input from a
peer ends at most its own stream. Reading waits for the peer's own rate limit and, like its handlers,
for its share of the processor (cpu_time.py), never for a disk, nor until another peer's handler ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import trio

from assay.network import frames, limits
from assay.network.cpu_time import CpuTime
from assay.network.frames import Kind
from assay.network.guard import reset_quietly
from assay.network.inbox import Inbox, Notification
from assay.protocol.errors import AssayError, MalformedMessage, Unavailable
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)

T = TypeVar("T")
Handler = Callable[[PeerId, bytes], Coroutine[Any, Any, bytes]]
_RATES = {
    Kind.NOTIFICATION: (limits.NOTIFICATIONS_PER_PEER_PER_S, limits.NOTIFICATIONS_PER_PEER_BURST),
    Kind.PING: (limits.PINGS_PER_PEER_PER_S, limits.PINGS_PER_PEER_BURST),
}
_EXPECTED = (Kind.NOTIFICATION, Kind.PING, Kind.REQUEST)


@dataclass(slots=True)
class _Rate:
    """Token bucket that limits what a peer sends."""

    per_s: float
    burst: float
    tokens: float
    at_s: float

    def wait_s(self, now_s: float) -> float:
        """Take one token; returns the seconds until it is available."""
        self.tokens = min(self.burst, self.tokens + (now_s - self.at_s) * self.per_s) - 1
        self.at_s = now_s
        return max(0.0, -self.tokens / self.per_s)


class RequestServer:
    """Serves every control stream of a host, with bounds per peer."""

    def __init__(
        self,
        *,
        handlers: Mapping[str, Handler],
        public: Collection[str],
        is_member: Callable[[PeerId], bool],
        inbox: Inbox,
        cpu_time: CpuTime,
        timing: limits.Timing,
    ) -> None:
        self._handlers, self._public, self._is_member = handlers, public, is_member
        self._inbox = inbox
        self._cpu_time = cpu_time
        self._timing = timing
        self._running: dict[PeerId, int] = {}  # handlers running and responses unsent
        self._rates: dict[tuple[PeerId, Kind], _Rate] = {}
        self._streams: dict[PeerId, list[trio.CancelScope]] = {}

    async def serve(self, peer: PeerId, stream: Any) -> None:
        """Serve one control stream until it ends; it runs in steps of its peer (peers.py)."""
        scopes = self._streams.setdefault(peer, [])
        with trio.CancelScope() as scope:
            scopes.append(scope)
            if len(scopes) > limits.CTL_STREAMS_PER_PEER_MAX:
                scopes[0].cancel()
            try:
                await self._converse(peer, stream)
            finally:
                scopes.remove(scope)
                if not scopes:
                    self._streams.pop(peer, None)
                await reset_quietly(stream)

    async def _converse(self, peer: PeerId, stream: Any) -> None:
        send, receive = trio.open_memory_channel[tuple[bytes, bool]](limits.REPLIES_MAX)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, peer, stream, receive, nursery.cancel_scope)
            try:
                while True:
                    kind, body = await frames.read_frame(stream, _EXPECTED)
                    if kind is Kind.NOTIFICATION:
                        await self._take(Notification(peer, body))
                    elif kind is Kind.PING:
                        if self._wait_s(peer, kind):
                            raise MalformedMessage(f"pings above {limits.PINGS_PER_PEER_PER_S} a second")
                        number, _ = frames.unpack_id(body)
                        send.send_nowait((frames.encode_frame(Kind.PONG, frames.pack_id(number)), False))
                    else:
                        self._start(peer, body, nursery, send)
            except Exception as error:  # supervision: this stream is over, nothing else
                log.debug("control stream ended", extra={"peer": peer.hex()[:8], "error": _error_text(error)})
            nursery.cancel_scope.cancel()
        # Responses that were queued but never written still hold their slots.
        while True:
            try:
                _, holds_place = receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                return
            if holds_place:
                self._leave(peer)

    async def _take(self, notification: Notification) -> None:
        if not self._is_member(notification.peer):
            raise MalformedMessage("a notification by a stranger")
        wait_s = self._wait_s(notification.peer, Kind.NOTIFICATION)
        if wait_s:
            await trio.sleep(wait_s)
        await self._inbox.offer_or_drop(notification, wait_s=self._timing.inbox_wait_s)

    def _start(
        self,
        peer: PeerId,
        body: bytes,
        nursery: trio.Nursery,
        send: trio.MemorySendChannel[tuple[bytes, bool]],
    ) -> None:
        number, method, request = frames.unpack_request(body)
        if self._running.get(peer, 0) >= limits.REQUESTS_PER_PEER_MAX:
            send.send_nowait((_refusal(number, "busy", is_busy=True), False))
            return
        self._running[peer] = self._running.get(peer, 0) + 1
        nursery.start_soon(self._answer, peer, number, method, request, send)

    async def _answer(
        self,
        peer: PeerId,
        number: int,
        method: str,
        request: bytes,
        send: trio.MemorySendChannel[tuple[bytes, bool]],
    ) -> None:
        try:
            frame = await self._frame_for(peer, number, method, request)
            send.send_nowait((frame, True))  # there is room: slots and pongs together are bounded
        except trio.WouldBlock:
            self._leave(peer)
        except BaseException:
            self._leave(peer)
            raise

    async def _frame_for(self, peer: PeerId, number: int, method: str, request: bytes) -> bytes:
        handler = self._handlers.get(method)
        if method not in self._public and not self._is_member(peer):
            return _refusal(number, "only members may ask that")
        if handler is None:
            return _refusal(number, f"no method {method}")
        try:
            with trio.fail_after(self._timing.handler_s):
                answer = await self._share(peer, handler(peer, request))
            if len(answer) > limits.RESPONSE_BYTES_MAX:
                raise ValueError(f"answer of {len(answer)} bytes to {method}")
            return frames.encode_frame(Kind.ANSWER, frames.pack_id(number, answer))
        except Unavailable as error:
            return _refusal(number, str(error), is_busy=True)
        except AssayError as error:
            return _refusal(number, str(error))
        except trio.TooSlowError:
            return _refusal(number, f"{method} took too long", is_busy=True)
        except Exception:  # supervision: our own mistake must not end the peer's other requests
            log.exception(
                "handler failed", extra={"peer": peer.hex()[:8], "method": frames.printable(method)}
            )
            return _refusal(number, "internal error")

    async def _write(
        self,
        peer: PeerId,
        stream: Any,
        receive: trio.MemoryReceiveChannel[tuple[bytes, bool]],
        scope: trio.CancelScope,
    ) -> None:
        async for frame, holds_place in receive:
            try:
                await self._share(peer, frames.write_pieces(stream, frame))
            except Exception as error:  # supervision: the peer does not read, or is gone
                log.debug("answer not written", extra={"peer": peer.hex()[:8], "error": _error_text(error)})
                scope.cancel()
                return
            finally:
                if holds_place:
                    self._leave(peer)

    async def _share(self, peer: PeerId, work: Coroutine[Any, Any, T]) -> T:
        return await self._cpu_time.share(self._cpu_time.payer(peer), work)

    def _wait_s(self, peer: PeerId, kind: Kind) -> float:
        """Take a token of the peer's rate for this kind; returns the seconds until it is available."""
        payer, now_s = self._cpu_time.payer(peer), trio.current_time()
        rate = self._rates.get((payer, kind))
        if rate is None:
            per_s, burst = _RATES[kind]
            rate = self._rates[payer, kind] = _Rate(per_s, burst, tokens=burst, at_s=now_s)
        return rate.wait_s(now_s)

    def _leave(self, peer: PeerId) -> None:
        self._running[peer] -= 1
        if not self._running[peer]:
            del self._running[peer]


def _refusal(number: int, reason: str, *, is_busy: bool = False) -> bytes:
    return frames.encode_frame(Kind.REFUSAL, frames.pack_refusal(number, reason, is_busy=is_busy))


def _error_text(error: BaseException) -> str:
    if isinstance(error, trio.WouldBlock):
        return "the peer does not read the answers it requested"
    if isinstance(error, (EOFError, MalformedMessage)):
        return str(error)
    return frames.printable(f"{type(error).__name__}: {error}")
