"""Streams: open streams of server-sent events, within their bounds, and the one reader of each run's log.

Room: api (edge: waits, and reads books in threads). All of it lives in one event loop.

A stream is at a number of the log, sends what comes after it, and asks the run's `Tail` again. Nothing is
queued for a slow reader: what the socket does not take stops its stream, and network/http.py cuts the
connection. The reader resumes with the last number it received.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from assay.api.catalogue import ServedRun
from assay.api.config import LimitsSection
from assay.api.entries import Event, event_of
from assay.api.http.problems import Problem
from assay.ledger.journal.reader import read_entries
from assay.ledger.queries.lookup import log_edge
from assay.protocol.errors import Unavailable

POLL_S = 1.0  # between two looks at a log that has nothing new
HEARTBEAT_S = 15.0  # between two comments, before each of which the caller's access is checked again
RETRY_MS = 3000  # how long a reader waits before it resumes
PAGE, PAGES_KEPT = 100, 4  # events read at once, and pages kept for the run's other streams
Page: TypeAlias = Sequence[Event]  # ascending, without a gap


class Tail:
    """The log of one run, read once for all who follow it: who asks waits for the read under way."""

    def __init__(self, run: ServedRun) -> None:
        self.readers_count = 0
        self._run = run
        self._lock = asyncio.Lock()
        self._size, self._looked_s = 0, float("-inf")
        self._pages: OrderedDict[tuple[int, int], Page] = OrderedDict()

    async def after(self, number: int) -> Page:
        """The events that follow a number of the log, at most `PAGE`; none if there are none yet.

        Raises:
            Problem: the log is shorter than that, or cannot be read now.
            LedgerIntegrityError: an entry differs from the log.
            Unavailable: the database failed.
        """
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if number > self._size or (number == self._size and now_s >= self._looked_s + POLL_S):
                self._size, self._looked_s = await run_in_threadpool(self._log_size), now_s
            if number > self._size:
                raise Problem(409, f"the log has {self._size} entries, so none can follow entry {number}")
            last = min(number + PAGE, self._size)
            if last == number:
                return ()
            page = self._pages.get((number, last))
            if page is None:
                page = await run_in_threadpool(self._read, number, last)
                self._pages[number, last] = page
                if len(self._pages) > PAGES_KEPT:
                    self._pages.popitem(last=False)
            return page

    def _log_size(self) -> int:
        with self._run.opened() as db:
            return log_edge(db).size

    def _read(self, after: int, last: int) -> Page:
        with self._run.opened() as db:
            return [event_of(one) for one in read_entries(db, range(after + 1, last + 1))]


@dataclass(slots=True)
class Streams:
    """The open streams of one server."""

    limits: LimitsSection
    is_stopping: Callable[[], bool] = lambda: False
    _open: Counter[str | None] = field(default_factory=Counter)
    _tails: dict[str, Tail] = field(default_factory=dict)

    @contextmanager
    def opened(self, caller: str | None, run: ServedRun) -> Iterator[Tail]:
        """Count one stream of a caller (None: without an own bound) while it is open; gives the run's reader.

        Raises:
            Problem: the caller, or the server, has as many open as it may.
        """
        limits = self.limits
        own_max, all_max = limits.streams_per_account, min(limits.streams, limits.requests_at_once // 2)
        if caller is not None and self._open[caller] >= own_max:
            detail = f"{own_max} streams of this caller are open, which is the most; end one of them"
            raise Problem(429, detail, headers={"Retry-After": "60"})
        if self._open.total() >= all_max:
            detail = f"{all_max} streams are open, which is the most that this server has"
            raise Problem(503, detail, headers={"Retry-After": "60"})
        self._open[caller] += 1
        try:
            with self.reading(run) as tail:
                yield tail
        finally:
            self._open -= Counter([caller])  # in place, and without names at zero

    @contextmanager
    def reading(self, run: ServedRun) -> Iterator[Tail]:
        """The run's reader, which exists while somebody follows the run."""
        tail = self._tails.setdefault(run.name, Tail(run))
        tail.readers_count += 1
        try:
            yield tail
        finally:
            tail.readers_count -= 1
            if not tail.readers_count:
                del self._tails[run.name]


class EventStream(StreamingResponse):
    """A run's entries as server-sent events, from a number of the log on."""

    media_type = "text/event-stream"

    def __init__(
        self, streams: Streams, run: ServedRun, *, caller: str | None, after: int, check: Callable[[], None]
    ) -> None:
        """A stream, which is opened when it is sent.

        Args:
            streams: Those that are open.
            run: The run.
            caller: Whose stream it is, for the bound on them; None: no bound but the server's.
            after: Number of the last entry that the reader has; 0 begins with the first.
            check: Raises a Problem as soon as the caller may not read the run any more. Blocking.
        """
        super().__init__((), headers={"X-Accel-Buffering": "no"})  # the content follows, once it is opened
        self._streams, self._run, self._caller = streams, run, caller
        self._after, self._check = after, check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; what is wrong at its start is still an answer of its own."""
        with self._streams.opened(self._caller, self._run) as tail:
            self.body_iterator = self._events(tail, await tail.after(self._after))
            await super().__call__(scope, receive, send)

    async def _events(self, tail: Tail, page: Page) -> AsyncIterator[bytes]:
        clock_s, after = asyncio.get_running_loop().time, self._after
        ends_s, beats_s = clock_s() + self._streams.limits.stream_s, clock_s() + HEARTBEAT_S
        yield f"retry: {RETRY_MS}\n\n".encode()
        try:
            while clock_s() < ends_s and not self._streams.is_stopping():
                for event in page:
                    yield event.text()
                    after = event.number
                if not page:
                    await asyncio.sleep(POLL_S)
                if clock_s() >= beats_s:
                    await run_in_threadpool(self._check)
                    yield b":\n\n"
                    beats_s = clock_s() + HEARTBEAT_S
                page = await tail.after(after)
        except (Problem, Unavailable):
            return  # the reader resumes, and is told then what is wrong
