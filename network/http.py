"""HTTP: uvicorn's HTTP/1.1 connection with deadlines for its other side.

Room: network (edge: sockets). A request must come whole in time, and a response must be read. Whoever sends
half a head or half a body, also behind a request that was whole, would else hold one of a server's
connections for ever. A connection whose reader leaves the write buffer full is aborted, because closing it
would wait for that reader.
"""

from __future__ import annotations

import asyncio
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S_MAX = 10.0  # from a connection's start, or the end of a response, to the end of a request's head
BODY_S_MAX = 20.0  # from then on to the end of its body
FULL_S_MAX = 20.0  # for which the write buffer may stay full
SILENT_S_MAX = 30  # for which what was sent may stay unacknowledged, as by a machine that is gone


class DeadlineHttp(H11Protocol):
    """One HTTP/1.1 connection."""

    _late: asyncio.TimerHandle | None = None  # ends a request that does not come
    _abort: asyncio.TimerHandle | None = None  # ends a response that is not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request, and have the kernel end what nobody acknowledges."""
        super().connection_made(transport)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the kernel's own time-out, many minutes
            line = transport.get_extra_info("socket")
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_S_MAX)
        self._await_head()

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        _end(self._late)
        self._late = self.loop.call_later(HEAD_S_MAX, self._end_if_no_head)

    def _end_if_no_head(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            self._late = self.loop.call_later(BODY_S_MAX, self._end_if_no_body)
        elif self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def _end_if_no_body(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Start the deadline of a reader that leaves the write buffer full."""
        super().pause_writing()
        self._abort = self.loop.call_later(FULL_S_MAX, self.transport.abort)

    def resume_writing(self) -> None:
        """End the deadline: the reader has taken nearly all of the buffer."""
        super().resume_writing()
        _end(self._abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadlines with their connection."""
        super().connection_lost(exc)
        _end(self._abort)
        _end(self._late)


def _end(deadline: asyncio.TimerHandle | None) -> None:
    if deadline is not None:
        deadline.cancel()
