"""Protocol: an HTTP/1.1 connection of the API, which answers what is no request with a problem.

Room: api (edge: sockets). Deadlines for its other side: network/http.py.
"""

from __future__ import annotations

from typing import Any

import h11

from assay.api.http.guard import HEADERS
from assay.api.http.problems import MEDIA_TYPE, problem_body
from assay.network.http import DeadlineHttp


class Http(DeadlineHttp):
    """One HTTP/1.1 connection."""

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
