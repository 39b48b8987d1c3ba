"""Submissions: whoever sends its commit again and again, or many at once, takes the work of one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import trio
from trio.testing import trio_test

from assay.participant.pushes import Pushes
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.messages import SignedReceipt, SignedRefusal, Submission
from assay.protocol.types import PeerId
from assay.testing.members import peer
from assay.testing.signed import NODES
from assay.verifier.service.process import Service
from assay.verifier.service.relay import Relay
from tests.verifier.service.a_driver import LAYOUT, Running, a_real_commit, an_update, running

AT_ONCE = 16
ONE, OTHER = NODES[:2]


class Threads:
    """In place of a host: who is charged for work in threads, and how much of it is done at a time."""

    def __init__(self) -> None:
        self.charged: list[PeerId] = []
        self.now_count = self.most_count = 0

    async def in_thread(self, node: PeerId, call: Callable[[], None]) -> None:
        self.charged.append(node)
        self.now_count += 1
        self.most_count = max(self.most_count, self.now_count)
        try:
            await trio.to_thread.run_sync(call)
        finally:
            self.now_count -= 1


@asynccontextmanager
async def a_service(folder: Path) -> AsyncIterator[tuple[Running, Service, Threads]]:
    """A verifier that holds all updates, and what of its service answers submissions."""
    async with running(folder) as verifier:
        service: Any = Service.__new__(Service)
        service.me, service.driver, service.follower = verifier.me, verifier.driver, verifier.follower
        service.layout, service.pushes, service._host = LAYOUT, Pushes(1 << 20), Threads()
        service._submitting = WeakValueDictionary()
        service.relay = Relay(verifier.me.spec.seat_peers, 1 << 20)
        yield verifier, service, service._host


async def answers(service: Service, *submitted: tuple[str, Submission]) -> list[bytes]:
    """What comes back for all of these, sent at once."""
    found: list[bytes] = []

    async def submit(name: str, submission: Submission) -> None:
        found.append(await service._on_submit(peer(name), encode(submission)))

    async with trio.open_nursery() as nursery:
        for name, submission in submitted:
            nursery.start_soon(submit, name, submission)
    return found


def a_submission(verifier: Running, name: str, **changes: Any) -> tuple[str, Submission]:
    run_state = verifier.driver.round.run_state
    update = an_update(name, run_state)
    return name, Submission(signed=a_real_commit(name, run_state, **changes), update=update)


@trio_test
async def test_a_commit_that_comes_many_times_is_decoded_once_and_acknowledged_each_time(
    tmp_path: Path,
) -> None:
    async with a_service(tmp_path) as (verifier, service, threads):
        one = a_submission(verifier, ONE)
        for _ in range(2):
            for answer in await answers(service, *[one] * AT_ONCE):
                decode(SignedReceipt, answer)

        assert threads.charged == [peer(ONE)]
        assert list(verifier.driver.round.commits) == [peer(ONE)]
        assert not service._submitting


@trio_test
async def test_updates_of_one_node_are_decoded_one_at_a_time_and_those_of_others_beside_them(
    tmp_path: Path,
) -> None:
    """A false size is found only once the whole update was loaded."""
    async with a_service(tmp_path) as (verifier, service, threads):
        false = a_submission(verifier, ONE, update_bytes=7)
        for answer in await answers(service, *[false] * AT_ONCE):
            decode(SignedRefusal, answer)
        assert threads.charged == [peer(ONE)] * AT_ONCE and threads.most_count == 1

        await answers(service, false, a_submission(verifier, OTHER))
        assert threads.most_count == 2 and list(verifier.driver.round.commits) == [peer(OTHER)]
