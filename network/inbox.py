"""Inbox: merges notifications from all peers into one channel, fairly and with a bound per peer.

Room: network (edge: trio, no sockets). Each peer has its own bounded queue; a pump takes one notification at
a time, from the peer whose notifications took the least processor time lately, and round-robin among equals.
So ten peers whose messages are expensive to decode delay another's notification by the one that is being
handled and the one chosen next, not by ten each time. A peer that floods fills its own queue, is throttled
per notification, and then loses notifications, which are counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import trio

from assay.network import limits
from assay.network.cpu_time import CpuTime
from assay.protocol.types import PeerId


@dataclass(frozen=True, slots=True)
class Notification:
    """A one-way message from an authenticated peer.

    Attributes:
        peer: The sender.
        payload: Unparsed bytes, at most `limits.NOTIFICATION_BYTES_MAX`.
    """

    peer: PeerId
    payload: bytes


class Inbox:
    """Holds at most `INBOX_NOTIFICATIONS_PER_PEER` messages and `INBOX_BYTES_PER_PEER` bytes per peer."""

    def __init__(self, cpu_time: CpuTime) -> None:
        self._cpu_time = cpu_time
        self._queues: dict[PeerId, deque[Notification]] = {}
        self._held_bytes: dict[PeerId, int] = {}
        self._turns: deque[PeerId] = deque()  # peers whose queue is not empty, each once
        self._news = trio.Event()
        self._space = trio.Event()
        self.dropped: dict[PeerId, int] = {}
        self._send, self.receive = trio.open_memory_channel[Notification](0)

    def offer(self, notification: Notification) -> bool:
        """Enqueue a notification if its peer has room; returns whether it had. Never waits."""
        queue = self._queues.setdefault(notification.peer, deque())
        held = self._held_bytes.get(notification.peer, 0)
        if len(queue) >= limits.INBOX_NOTIFICATIONS_PER_PEER or (
            queue and held + len(notification.payload) > limits.INBOX_BYTES_PER_PEER
        ):
            return False
        if not queue:
            self._turns.append(notification.peer)
        queue.append(notification)
        self._held_bytes[notification.peer] = held + len(notification.payload)
        self._news.set()
        return True

    async def offer_or_drop(self, notification: Notification, *, wait_s: float) -> None:
        """Enqueue, waiting up to `wait_s` for room, which throttles the sender; then drop and count."""
        with trio.move_on_after(wait_s):
            while not self.offer(notification):
                await self._space.wait()
            return
        self.drop(notification.peer)

    def drop(self, peer: PeerId) -> None:
        """Count one dropped notification of this peer."""
        self.dropped[peer] = self.dropped.get(peer, 0) + 1

    def forget(self, peer: PeerId) -> None:
        """Free an absent peer's empty queue."""
        if not self._queues.get(peer):
            self._queues.pop(peer, None)
            self._held_bytes.pop(peer, None)

    async def pump(self) -> None:
        """Deliver notifications, as long as the host runs."""
        async with self._send:
            while True:
                while not self._turns:
                    self._news = trio.Event()
                    await self._news.wait()
                peer = self._cpu_time.least(self._turns)  # and of equals who waits longest
                self._turns.remove(peer)
                notification = self._queues[peer].popleft()
                self._held_bytes[peer] -= len(notification.payload)
                if self._queues[peer]:
                    self._turns.append(peer)
                self._space.set()
                self._space = trio.Event()
                await self._send.send(notification)
