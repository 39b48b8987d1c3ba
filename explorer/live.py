"""Live: keeps the pages of a run that is still going on up to date, and tells open pages when it has grown.

Room: explorer (edge: reads a store, sends server-sent events). Nothing is queued for a reader: an event only
names the number of manifests, and a page fetches itself again. A reader who does not take an event in
`SEND_S` loses the stream.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from assay.bundle.follow import Followed
from assay.explorer.explored import Explored, explore
from assay.explorer.pages.run import Damaged
from assay.participant.files.index import IntegrityError
from assay.protocol.errors import Unavailable

POLL_S = 1.0  # between two looks at a store
SHARE = 4  # a look that takes long is followed by a pause this many times as long
HEARTBEAT_S = 15.0
STREAM_S = 900.0  # a browser opens the next one by itself
SEND_S = 10.0
STREAMS_MAX = 64  # each is a connection, of the server's 256, and looks once in POLL_S


class Live:
    """A followed run and its newest lookups."""

    def __init__(
        self,
        name: str,
        followed: Followed,
        delivered: Callable[[], Explored | Damaged | None] = lambda: None,
    ) -> None:
        """Read the run as far as it has got.

        Args:
            name: Of its pages.
            followed: The run.
            delivered: Reads it once it is delivered into the same folder; None: it is not yet.

        Raises:
            Unavailable: its store cannot be read now.
        """
        self.name, self._followed, self._delivered = name, followed, delivered
        self._lock = threading.Lock()
        self._next_s = 0.0
        self._newest: Explored | Damaged = self._explored()

    def newest(self) -> Explored | Damaged:
        """The run by a look at most about `POLL_S` old; a damaged or delivered one stays. Blocking."""
        with self._lock:
            started_s = time.monotonic()
            if started_s >= self._next_s and isinstance(self._newest, Explored) and self._newest.is_live:
                with suppress(Unavailable):  # the next look may succeed; until then pages show the last one
                    self._newest = self._delivered() or self._explored(self._newest)
                now_s = time.monotonic()
                self._next_s = now_s + max(POLL_S, SHARE * (now_s - started_s))
            return self._newest

    def _explored(self, known: Explored | None = None) -> Explored | Damaged:
        try:
            delivered = self._followed.read()
            if known is not None and delivered is known.delivered:
                return known
            return explore(self.name, delivered)
        except IntegrityError as error:
            return Damaged(name=self.name, reason=str(error))


@dataclass(slots=True)
class Streams:
    """Open streams of one server. is_stopping: whether they are to end."""

    is_stopping: Callable[[], bool] = lambda: False
    count: int = field(default=0)


class GrowthStream(StreamingResponse):
    """The number of manifests of a live run, as a server-sent event whenever it has changed."""

    media_type = "text/event-stream"

    def __init__(self, streams: Streams, live: Live, known: int) -> None:
        """A stream, which counts from when it is sent.

        Args:
            streams: Those that are open.
            live: The run.
            known: Manifests that the reader's page shows.
        """
        super().__init__((), headers={"X-Accel-Buffering": "no"})
        self._streams, self._live, self._known = streams, live, known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, or 503 where as many are open as may be."""
        if self._streams.count >= STREAMS_MAX:
            detail = f"{STREAMS_MAX} streams are open, which is the most; reload the page to see more\n"
            return await PlainTextResponse(detail, 503, {"Retry-After": "60"})(scope, receive, send)

        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), SEND_S)

        self._streams.count += 1
        try:
            self.body_iterator = self._events()
            await super().__call__(scope, receive, send_in_time)
        except (TimeoutError, asyncio.TimeoutError):
            return  # the server closes a connection whose answer has no end
        finally:
            self._streams.count -= 1

    async def _events(self) -> AsyncIterator[bytes]:
        clock_s, known = asyncio.get_running_loop().time, self._known
        ends_s, beats_s = clock_s() + STREAM_S, clock_s() + HEARTBEAT_S
        yield b"retry: 3000\n\n"
        while clock_s() < ends_s and not self._streams.is_stopping():
            run = await run_in_threadpool(self._live.newest)
            count = len(run.delivered.links) if isinstance(run, Explored) and run.is_live else -1
            if count != known:
                yield f"data: {count}\n\n".encode()
                known = count
            elif clock_s() >= beats_s:
                yield b":\n\n"
                beats_s = clock_s() + HEARTBEAT_S
            await asyncio.sleep(POLL_S)
