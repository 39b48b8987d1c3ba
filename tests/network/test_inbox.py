"""Inbox: one peer's flood costs that peer's facts and nobody else's."""

from __future__ import annotations

import functools
import time

import trio
import trio.testing

from assay.network import limits
from assay.network.cpu_time import CpuTime
from assay.network.host import Host
from assay.network.inbox import Inbox, Notification
from assay.participant.run import _read_notifications
from assay.protocol.errors import MalformedMessage
from assay.protocol.types import PeerId

LOUD, QUIET = PeerId(b"l" * 32), PeerId(b"q" * 32)


def test_a_flood_does_not_delay_another_peers_fact():
    async def main() -> None:
        inbox = Inbox(CpuTime())
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
        inbox = Inbox(CpuTime())
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


def _order(charges: dict[bytes, float], *, flooders: int = 10, rest_s: float = 0.0) -> list[bytes]:
    """The payloads in the order of delivery: flooders' noise is queued, then one peer's words come in."""

    async def main() -> list[bytes]:
        cpu_time = CpuTime()
        inbox, found = Inbox(cpu_time), []
        for number in range(flooders):
            for _ in range(20):
                inbox.offer(Notification(PeerId(bytes([number]) * 32), b"noise"))
        for peer, cpu_s in charges.items():
            cpu_time.charge(PeerId(peer), cpu_s)
        await trio.sleep(rest_s)
        for _ in range(20):
            inbox.offer(Notification(QUIET, b"word"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbox.pump)
            while len(found) < 20 * (flooders + 1):
                notification = await inbox.receive.receive()
                found.append(notification.payload)
                cpu_time.charge(notification.peer, 0.008 if notification.payload == b"noise" else 0.0001)
            nursery.cancel_scope.cancel()
        return found

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_ten_peers_with_dear_messages_do_not_delay_the_cheap_ones_of_another():
    order = _order({})
    last = max(index for index, payload in enumerate(order) if payload == b"word")
    # Each flooder has one turn before anybody knows what it costs, and one may be under way each time.
    assert last <= 20 + 10 + 1
    assert order.count(b"noise") == 200  # and nobody starves


def test_what_a_peer_took_is_forgotten_with_time():
    assert _order({QUIET: 10.0}, flooders=1)[-20:] == [b"word"] * 20
    rested = _order({QUIET: 10.0}, flooders=1, rest_s=20 * limits.SPENT_HALF_S)
    assert rested.index(b"word") <= 2


def test_a_peer_that_comes_back_is_not_first_again():
    async def main() -> None:
        cpu_time = CpuTime()
        inbox = Inbox(cpu_time)
        cpu_time.charge(LOUD, 1.0)
        inbox.forget(LOUD)
        inbox.offer(Notification(LOUD, b"noise"))
        inbox.offer(Notification(QUIET, b"word"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbox.pump)
            assert await inbox.receive.receive() == Notification(QUIET, b"word")
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_who_took_processor_time_waits_for_others_even_if_its_notification_was_refused():
    async def main() -> None:
        class Read:
            """A host that has three notifications, and the part of a real one that meters."""

            def __init__(self) -> None:
                self._cpu_time = CpuTime()
                self._inbox = Inbox(self._cpu_time)
                self.notifications = self._inbox.receive
                self.metered = functools.partial(Host.metered, self)  # type: ignore[arg-type]

        host, taken = Read(), []

        def take(notification):
            taken.append(notification.payload)
            if notification.peer == LOUD:
                since_s = time.thread_time()
                while time.thread_time() < since_s + 0.005:
                    pass
                raise MalformedMessage("dear noise")

        for _ in range(5):
            host._inbox.offer(Notification(LOUD, b"noise"))
        for _ in range(5):
            host._inbox.offer(Notification(QUIET, b"word"))
        ready = trio.Event()
        ready.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host._inbox.pump)
            nursery.start_soon(_read_notifications, host, take, ready)
            with trio.fail_after(60):
                while len(taken) < 10:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert taken.index(b"word") <= 2  # one may be under way, and one chosen already
        assert taken[-3:] == [b"noise"] * 3

    trio.run(main)


async def _new_inbox() -> Inbox:
    return Inbox(CpuTime())
