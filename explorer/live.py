"""Live: keeps the pages of a run that is still going on up to date, and tells open pages when it has grown.

Room: explorer (edge: reads a store, sends server-sent events). A run has one thread that folds, of which no
page waits longer than `WAIT_S`: pages show what is folded so far, and a large backlog in steps. Nothing is
queued for a reader: an event only names the number of manifests, and a page fetches itself again. A reader
who does not take an event in `SEND_S` loses the stream.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from assay.bundle.follow import Followed
from assay.explorer.explored import Explored, explore
from assay.explorer.pages.run import Damaged
from assay.network.http import client_of
from assay.participant.files.index import IntegrityError
from assay.protocol.errors import Unavailable

POLL_S = 1.0  # between two looks at a store
SHARE = 4  # a look that takes long is followed by a pause this many times as long
WAIT_S = 0.05  # that a page waits for a look that it began: the newest round is mostly there by then
FOLD_S = 0.5  # of a backlog that are folded before pages show them, or `SHARE` times what showing takes
HEARTBEAT_S = 15.0
STREAM_S = 900.0  # a browser opens the next one by itself
SEND_S = 10.0
STREAMS_MAX = 64  # each is a connection, of the server's 256, and looks once in POLL_S
CLIENT_STREAMS_MAX = 4  # of one address: a browser has six connections to a server, and pages need some too


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
        self._folding = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"follow-{name}")
        self._look: Future[None] | None = None  # the one under way, or the last
        self._is_closed = False
        self._next_s = self._show_s = 0.0
        self._newest: Explored | Damaged = self._explored()

    def newest(self, wait_s: float | None = None) -> Explored | Damaged:
        """The run by the last look, at most about `POLL_S` old unless there is a backlog.

        A damaged or delivered run stays as it is.

        Args:
            wait_s: Seconds that this blocks at most, for a look that it begins; None: `WAIT_S`.
        """
        look = self._begin_look()
        if look is not None:
            wait([look], WAIT_S if wait_s is None else wait_s)
        return self._newest

    def close(self) -> None:
        """Look no more; returns once the step under way has ended."""
        self._is_closed = True
        self._folding.shutdown(cancel_futures=True)

    def _begin_look(self) -> Future[None] | None:
        """A look that this call began; None where one is under way or none is due."""
        with self._lock:
            if self._look is not None and not self._look.done():
                return None
            if self._look is not None:
                self._look.result()  # raises what was wrong in our own code
            is_open = isinstance(self._newest, Explored) and self._newest.is_live and not self._is_closed
            if not is_open or time.monotonic() < self._next_s:
                return None
            self._look = self._folding.submit(self._catch_up)
            return self._look

    def _catch_up(self) -> None:
        """Look at the store; a backlog takes several steps, after each of which pages show more."""
        is_behind = True
        while is_behind and not self._is_closed:
            started_s, is_behind = time.monotonic(), False
            with suppress(Unavailable):  # the next look may succeed; until then pages show the last one
                found = self._newest = self._delivered() or self._explored(self._newest)
                is_behind = self._followed.is_behind and isinstance(found, Explored) and found.is_live
            now_s = time.monotonic()
            self._next_s = now_s + max(POLL_S, SHARE * (now_s - started_s))

    def _explored(self, known: Explored | Damaged | None = None) -> Explored | Damaged:
        """The run as its store has it now: all of it at first, then as much as one step takes."""
        try:
            fold_s = math.inf if known is None else max(FOLD_S, SHARE * self._show_s)
            delivered, trips = self._followed.read(fold_s), self._followed.round_trips(time.time())
            if isinstance(known, Explored) and delivered is known.delivered:
                return known if trips == known.round_trips else replace(known, round_trips=trips)
            started_s = time.monotonic()
            found = explore(self.name, delivered)
            self._show_s = time.monotonic() - started_s
            return replace(found, round_trips=trips)
        except IntegrityError as error:
            return Damaged(name=self.name, reason=str(error))


def newest_of(runs: Iterable[Explored | Damaged | Live]) -> list[Explored | Damaged]:
    """Each of these runs as it is now. Blocks `WAIT_S` at most for all of them together."""
    ends_s = time.monotonic() + WAIT_S
    return [run.newest(max(ends_s - time.monotonic(), 0)) if isinstance(run, Live) else run for run in runs]


@dataclass(slots=True)
class Streams:
    """Open streams of one server. is_stopping: whether they are to end; clients: how many each has."""

    is_stopping: Callable[[], bool] = lambda: False
    clients: Counter[str] = field(default_factory=Counter)

    def refusal(self, client: str) -> str:
        """Why this client gets no further stream; empty if it may have one."""
        if self.clients[client] >= CLIENT_STREAMS_MAX:
            return (
                f"{CLIENT_STREAMS_MAX} streams of your address are open, which is the most; reload the page\n"
            )
        if self.clients.total() >= STREAMS_MAX:
            return f"{STREAMS_MAX} streams are open, which is the most; reload the page\n"
        return ""

    @contextmanager
    def opened(self, client: str) -> Iterator[None]:
        """Count a stream of this client."""
        self.clients[client] += 1
        try:
            yield
        finally:
            self.clients[client] -= 1
            if not self.clients[client]:
                del self.clients[client]


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
        """Send the stream, or 503 where as many are open as may be, of all or of this client."""
        client = client_of(scope)
        refusal = self._streams.refusal(client)
        if refusal:
            return await PlainTextResponse(refusal, 503, {"Retry-After": "60"})(scope, receive, send)

        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), SEND_S)

        with self._streams.opened(client), suppress(TimeoutError, asyncio.TimeoutError):
            self.body_iterator = self._events()
            await super().__call__(scope, receive, send_in_time)
        # After a timeout the server closes the connection: its answer has no end.

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
