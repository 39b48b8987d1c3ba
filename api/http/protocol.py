"""Protocol: uvicorn's HTTP/1.1 connection with problem responses and a deadline for the request head.

Room: api (edge: sockets).
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.api.http.guard import HEADERS
from assay.api.http.problems import MEDIA_TYPE, problem_body

HEAD_S_MAX = 10.0


class Http(H11Protocol):
    """One HTTP/1.1 connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the request head."""
        super().connection_made(transport)
        self.loop.call_later(HEAD_S_MAX, self._end_if_silent, transport)

    def _end_if_silent(self, transport: asyncio.Transport) -> None:
        if self.conn.their_state is h11.IDLE and self.cycle is None and not transport.is_closing():
            transport.close()

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
