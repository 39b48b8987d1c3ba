"""Guard: ASGI middleware that bounds every request and sets security headers on every response.

Room: api (edge: ASGI). Bounds on the head, the body, the time, and the number of concurrent requests; a
rate limit for each client; no answer under another host's name; headers that forbid browsers everything, or,
of the wallet page, everything that does not come from this server; a log line without secrets.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from assay.api.config import LimitsSection
from assay.api.http.problems import Problem, incident, problem_answer
from assay.api.http.rate_limits import Buckets, Rate
from assay.network import http
from assay.network.http import PAGE_POLICY, App, Message, Receive, Send, counted_by, hosts_of

log = logging.getLogger(__name__)
PATH_BYTES_MAX = 2048
SHARES = 4  # parts of the requests at once, of which a client has one: their bodies may never come
EXPORT = "/export"  # how paths end whose answers take long
PAGE_PATH = "/wallet"  # the one page; every other answer forbids browsers everything
ADDRESS = re.compile(r"[0-9.]+|\[[0-9a-f:.]+\]")  # an IP address: no site can have one lead elsewhere
IS_HEAD = "assay.is_head"  # key of a request's scope: nobody reads the body of the answer
HEADERS = (
    *http.HEADERS,
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"strict-transport-security", b"max-age=31536000"),
)


class Guard:
    """One app behind the limits of one configuration.

    hosts: The names by which callers may call it, in lower case; by an IP address they always may.
    """

    def __init__(
        self,
        app: App,
        limits: LimitsSection,
        hosts: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._limits, self._hosts, self._clock = app, limits, frozenset(hosts), clock
        self._addresses = Buckets(rate=Rate(per_minute=limits.address_per_minute, burst=limits.address_burst))
        self._at_once: Counter[str | None] = Counter()  # by client
        self._exporting: set[str | None] = set()  # clients that read an export

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request; see the module text."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began, answer = self._clock(), _Answer(send, scope)
        client, at_once_max = counted_by(scope), self._limits.requests_at_once
        exporting = {client} if client is not None and scope["path"].endswith(EXPORT) else set[str]()
        refused = self._refusal(scope, client)
        if refused is not None:
            await refused(dict(scope), receive, answer.send)
        elif exporting & self._exporting:
            busy = problem_answer(503, "one export at a time", {"Retry-After": "5"})
            await busy(dict(scope), receive, answer.send)
        elif self._at_once.total() >= at_once_max or (
            client is not None and self._at_once[client] >= max(1, at_once_max // SHARES)
        ):
            busy = problem_answer(503, "too many requests at once", {"Retry-After": "1"})
            await busy(dict(scope), receive, answer.send)
        else:
            self._at_once[client] += 1
            self._exporting |= exporting
            try:
                await self._served(scope, receive, answer)
            finally:
                self._exporting -= exporting
                self._at_once -= Counter([client])  # in place, and without names at zero
        log.info(
            "request",
            extra={
                "method": scope["method"],
                "path": scope["path"][:200],  # never the query, headers or body: they may hold secrets
                "status": answer.status,
                "ms": round((self._clock() - began) * 1000),
                "from": _address(scope),
            },
        )

    async def _served(self, scope: Message, receive: Receive, answer: _Answer) -> None:
        limits = self._limits
        limit_s = limits.request_s
        if scope["path"].endswith(EXPORT):
            limit_s = limits.export_s
        elif scope["path"].endswith("/events"):
            limit_s += limits.stream_s  # a stream ends by itself, unless its reader is slow
        request = {**scope, "method": "GET", IS_HEAD: True} if scope["method"] == "HEAD" else scope
        try:
            await asyncio.wait_for(self._app(request, self._bounded(receive), answer.send), limit_s)
        except asyncio.TimeoutError:
            late = problem_answer(503, f"not answered within {limit_s:g} seconds", {"Retry-After": "5"})
            await answer.instead(late, scope, receive)
        except Exception as error:  # outermost handler: the caller gets an incident number, the log the rest
            if answer.is_whole:
                return  # an inner handler has reported it as an incident
            if answer.status:
                raise  # the response has begun: only closing the connection can signal the error
            await answer.instead(incident(error, scope["path"][:200]), scope, receive)

    def _refusal(self, scope: Message, client: str | None) -> App | None:
        limits = self._limits
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size > limits.header_bytes:
            return problem_answer(431, f"headers too long, at most {limits.header_bytes} bytes expected")
        if len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > PATH_BYTES_MAX:
            return problem_answer(414, f"path too long, at most {PATH_BYTES_MAX} bytes expected")
        for name, value in scope["headers"]:
            if name == b"content-length" and (not value.isdigit() or int(value) > limits.body_bytes):
                return problem_answer(413, f"body too long, at most {limits.body_bytes} bytes expected")
        if not all(host in self._hosts or ADDRESS.fullmatch(host) for host in hosts_of(scope)):
            return problem_answer(421, "this server is not at that host, but at the origin in its file")
        wait = 0.0 if client is None else self._addresses.take(client, self._clock())
        if wait:
            seconds = str(int(wait) + 1)
            return problem_answer(
                429, f"too many requests; the next in {seconds} s", {"Retry-After": seconds}
            )
        return None

    def _bounded(self, receive: Receive) -> Receive:
        left = self._limits.body_bytes

        async def read() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body") or b"")
            if left < 0:
                raise Problem(413, f"body too long, at most {self._limits.body_bytes} bytes expected")
            return message

        return read


class _Answer:
    """Sends a response with our headers; without a body to HEAD requests."""

    def __init__(self, send: Send, scope: Message) -> None:
        self._send, self._is_head = send, scope["method"] == "HEAD"
        policy = {b"content-security-policy": PAGE_POLICY} if scope["path"] == PAGE_PATH else {}
        self._headers = {**dict(HEADERS), **policy}
        self.status = 0
        self.is_whole = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kept = [(n, v) for n, v in message.get("headers", []) if n.lower() not in self._headers]
            if not any(name.lower() == b"cache-control" for name, _ in kept):
                kept.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*kept, *self._headers.items()]}
        elif self._is_head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_whole = True

    async def instead(self, answer: Any, scope: Message, receive: Receive) -> None:
        """Send a replacement response; if one has begun, close the connection."""
        if self.status:
            raise ConnectionAbortedError("the answer was cut off")
        await answer(dict(scope), receive, self.send)


def _address(scope: Message) -> str:
    client = scope.get("client")
    return str(client[0]) if client else "unknown"
