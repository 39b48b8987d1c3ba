"""Delivery: sends each webhook the entries of its run, one after another, until it is cancelled.

Room: api (edge: a task of the server's process). A few workers take one webhook each, so a slow receiver
holds up one worker for one turn, which is shorter than the lease on its webhook. An entry is sent until it is
accepted or the webhook fails, and the position is on disk before the next is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.concurrency import run_in_threadpool

from assay.api.hooks.message import message_body, message_id, signed_headers
from assay.api.hooks.post import NotAccepted, Poster
from assay.api.hooks.store import Hook, HookStore
from assay.api.http.problems import Problem
from assay.api.server import Server
from assay.ledger.journal.reader import LedgerIntegrityError
from assay.ledger.queries.lookup import log_edge
from assay.protocol.errors import Unavailable

log = logging.getLogger(__name__)
WORKERS = 8
POLL_S = 1.0
TURN_S = 20.0  # after which a worker goes on to another webhook; with one more attempt, less than the lease
TURN_ENTRIES = 20  # to a webhook that is behind, before a pause: it may be aimed at a third party
REST_S = 10
WAIT_S = 60  # when the books cannot be read


class Delivery:
    """The workers of one server."""

    def __init__(self, server: Server, poster: Poster) -> None:
        self._server, self._poster = server, poster
        self._hooks = HookStore(server.access)
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Send until cancelled."""
        await asyncio.gather(*(self._work() for _ in range(WORKERS)))

    async def _work(self) -> None:
        while True:
            async with self._looking:  # one worker looks, the others wait for their turn to
                while (hook := await self._next()) is None:
                    await asyncio.sleep(POLL_S)
            await self._take_turn(hook)

    async def _next(self) -> Hook | None:
        """A webhook for which there are entries, with a lease on it."""
        now_s = self._server.now_s()
        try:
            for run, position in await run_in_threadpool(self._hooks.waiting, now_s):
                size = await run_in_threadpool(self._size, run)
                if size > position:
                    hook = await run_in_threadpool(self._hooks.claim, run, size, now_s)
                    if hook is not None:
                        return hook
        except Unavailable as error:
            log.warning("webhooks cannot be read", extra={"reason": str(error)[:500]})
        return None

    def _size(self, run: str) -> int:
        """The size of a run's log; 0 if it cannot be read now, or the run is not served any more."""
        try:
            with self._server.catalogue.find(run).opened() as db:
                return log_edge(db).size
        except (Problem, Unavailable, LedgerIntegrityError):
            return 0

    async def _take_turn(self, hook: Hook) -> None:
        try:
            try:
                count = await self._send(hook)
            except NotAccepted as refusal:
                is_failed = await run_in_threadpool(
                    self._hooks.refused, hook.id, str(refusal), self._server.now_s(),
                    is_final=refusal.is_final,
                )  # fmt: skip
                if is_failed:
                    log.warning("webhook failed", extra={"hook": hook.id, "reason": str(refusal)})
            except (Problem, LedgerIntegrityError) as error:
                reason = getattr(error, "detail", str(error))
                log.warning("webhook waits", extra={"hook": hook.id, "reason": reason})
                await run_in_threadpool(self._hooks.release, hook.id, self._server.now_s() + WAIT_S)
            else:
                next_s = self._server.now_s() + (REST_S if count == TURN_ENTRIES else 0)
                await run_in_threadpool(self._hooks.release, hook.id, next_s)
        except Unavailable as error:  # the lease ends by itself
            log.warning("webhook waits", extra={"hook": hook.id, "reason": str(error)[:500]})

    async def _send(self, hook: Hook) -> int:
        """Send a turn's entries; returns how many were accepted."""
        run, ends_s = self._server.catalogue.find(hook.run), time.monotonic() + TURN_S
        if not await run_in_threadpool(self._server.may_be_sent, hook.owner, hook.token, run):
            raise NotAccepted("its owner may not read the run any more", is_final=True)
        secret = self._hooks.secret(hook.id)
        with self._server.streams.reading(run) as tail:
            page = await tail.after(hook.position)
        count = 0
        for event in page[:TURN_ENTRIES]:
            message, body = message_id(hook.id, event.number), message_body(run.name, event)
            headers = signed_headers(secret, message, self._server.now_s(), body)
            await self._poster.post(hook.url, headers, body)
            is_there = await run_in_threadpool(self._hooks.delivered, hook.id, event.number)
            count += 1
            if not is_there or time.monotonic() >= ends_s:
                break
        return count
