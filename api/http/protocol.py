"""Protocol: uvicorn's HTTP/1.1 connection with problem responses and deadlines for its other side.

Room: api (edge: sockets). A request's head must come in time, and a response must be read: a connection whose
reader leaves the write buffer full is aborted, because closing it would wait for that reader.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.api.http.guard import HEADERS
from assay.api.http.problems import MEDIA_TYPE, problem_body

HEAD_S_MAX = 10.0
FULL_S_MAX = 20.0  # for which the write buffer may stay full
SILENT_S_MAX = 30  # for which what was sent may stay unacknowledged, as by a machine that is gone


class Http(H11Protocol):
    """One HTTP/1.1 connection."""

    _abort: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the request head, and have the kernel end what nobody acknowledges."""
        super().connection_made(transport)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the kernel's own time-out, many minutes
            line = transport.get_extra_info("socket")
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_S_MAX)
        self.loop.call_later(HEAD_S_MAX, self._end_if_silent, transport)

    def _end_if_silent(self, transport: asyncio.Transport) -> None:
        if self.conn.their_state is h11.IDLE and self.cycle is None and not transport.is_closing():
            transport.close()

    def pause_writing(self) -> None:
        """Start the deadline of a reader that leaves the write buffer full."""
        super().pause_writing()
        self._abort = self.loop.call_later(FULL_S_MAX, self.transport.abort)

    def resume_writing(self) -> None:
        """End the deadline: the reader has taken nearly all of the buffer."""
        super().resume_writing()
        self._end_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline with its connection."""
        super().connection_lost(exc)
        self._end_deadline()

    def _end_deadline(self) -> None:
        if self._abort is not None:
            self._abort.cancel()
            self._abort = None

    def send_400_response(self, msg: str) -> None:
        """Answer malformed bytes or an endless head with a problem."""
        is_long = self.conn.trailing_data[0][:1] != b"" and "too long" in msg.lower()
        status = 431 if is_long else 400
        body = problem_body(status, "the head of the request is not HTTP, or too long")
        headers: Any = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *HEADERS,
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=b""),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
