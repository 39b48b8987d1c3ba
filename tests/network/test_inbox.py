"""Inbox: one peer's flood costs that peer's facts and nobody else's."""

from __future__ import annotations

import trio
import trio.testing

from assay.network import limits
from assay.network.inbox import Inbox, Notification
from assay.protocol.types import PeerId

LOUD, QUIET = PeerId(b"l" * 32), PeerId(b"q" * 32)


def test_a_flood_does_not_delay_another_peers_fact():
    async def main() -> None:
        inbox = Inbox()
        while inbox.offer(Notification(LOUD, b"noise")):
            pass
        assert inbox.offer(Notification(QUIET, b"word"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbox.pump)
            first_two = [await inbox.receive.receive() for _ in range(2)]
            nursery.cancel_scope.cancel()
        assert Notification(QUIET, b"word") in first_two

    trio.run(main)


def test_a_peer_holds_at_most_its_share_in_facts_and_in_bytes():
    inbox = trio.run(_new_inbox)
    taken = sum(inbox.offer(Notification(LOUD, b"x")) for _ in range(2 * limits.INBOX_NOTIFICATIONS_PER_PEER))
    assert taken == limits.INBOX_NOTIFICATIONS_PER_PEER

    inbox = trio.run(_new_inbox)
    large = Notification(LOUD, bytes(limits.NOTIFICATION_BYTES_MAX))
    taken = sum(inbox.offer(large) for _ in range(2 * limits.INBOX_NOTIFICATIONS_PER_PEER))
    assert taken == limits.INBOX_BYTES_PER_PEER // limits.NOTIFICATION_BYTES_MAX


def test_a_fact_waits_for_room_and_is_then_dropped_and_counted():
    async def main() -> None:
        inbox = Inbox()
        while inbox.offer(Notification(LOUD, b"noise")):
            pass
        await inbox.offer_or_drop(Notification(LOUD, b"too much"), wait_s=5)
        assert inbox.dropped == {LOUD: 1}

        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbox.pump)
            nursery.start_soon(inbox.receive.receive)
            await inbox.offer_or_drop(Notification(LOUD, b"there is room again"), wait_s=5)
            nursery.cancel_scope.cancel()
        assert inbox.dropped == {LOUD: 1}

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


async def _new_inbox() -> Inbox:
    return Inbox()
