"""CPU time: what each peer lately took of this host's processor, and whose work runs next because of it.

Room: network (edge: trio and the thread's CPU clock, no sockets). One account for each member covers what
arrives on its connections, decryption included, its streams, notifications and requests, and the blobs that
it reads. Strangers have one together, which also pays for the handshakes of all: keys cost nothing, so a new
one must not be first. A coroutine that serves a peer runs in *steps*: a step is what it does between two of
its waits. Steps of peers that took little run at once. Those of others run one in each pass of the event
loop, first that of the peer that took the least; so however many peers ask for expensive work, tasks of the
host's own and of peers that took little wait for one such step. Threads that read and hash for peers are
given out by the same order.
"""

from __future__ import annotations

import math
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar

import trio

from assay.network import limits
from assay.protocol.types import NO_DIGEST, PeerId

T = TypeVar("T")
STRANGERS = PeerId(NO_DIGEST)


class CpuTime:
    """The accounts of one host's peers. An account is never closed, so only members have one of their own."""

    def __init__(self, is_member: Callable[[PeerId], bool] = lambda _peer: True) -> None:
        self._is_member = is_member
        self._spent: dict[PeerId, tuple[float, float]] = {}  # CPU seconds, and the time of this figure
        self._steps = _Turns(self.least, limits.STEPS_AT_ONCE)
        self._in_threads = _Turns(self.least, limits.SERVE_THREADS)
        self._limiter = trio.CapacityLimiter(limits.SERVE_THREADS)

    def payer(self, peer: PeerId) -> PeerId:
        """Whose account pays for a peer."""
        return peer if self._is_member(peer) else STRANGERS

    def charge(self, peer: PeerId, cpu_s: float) -> None:
        """Note that work for this peer took so many seconds."""
        now_s = trio.current_time()
        self._spent[peer] = (self._spent_lately(peer, now_s) + cpu_s, now_s)

    def least(self, peers: Iterable[PeerId]) -> PeerId:
        """Who of these took the least lately; of equals the first."""
        now_s = trio.current_time()
        return min(peers, key=lambda one: self._spent_lately(one, now_s))

    def _spent_lately(self, peer: PeerId, now_s: float) -> float:
        """CPU seconds that this peer took, of which half is forgotten in `SPENT_HALF_S`."""
        spent_s, at_s = self._spent.get(peer, (0.0, now_s))
        return spent_s * math.pow(0.5, (now_s - at_s) / limits.SPENT_HALF_S)

    async def share(self, peer: PeerId, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` for a peer, each step when it is the peer's turn and at the peer's charge.

        Tasks that `work` starts, and threads, are not part of its steps: charge them apart. `work` must
        not share again, which would wait for its own step to end.
        """
        return await self._in_steps(peer, work)

    @types.coroutine
    def _in_steps(self, peer: PeerId, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        sent: Any = None
        while True:
            is_light = self._spent_lately(peer, trio.current_time()) < limits.LIGHT_S
            if not is_light:
                # What the step waited for has come (a lock, say), so it must run now, cancelled or not.
                yield from self._steps.take(peer, is_shielded=True).__await__()
            since_s = time.thread_time()
            try:
                wait = work.send(sent)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.charge(peer, time.thread_time() - since_s)
                if not is_light:
                    self._steps.leave()
            sent = yield wait  # trio sends an outcome here, errors and cancellation included

    async def in_thread(self, peer: PeerId, call: Callable[..., T], *args: Any) -> T:
        """`call(*args)` for a peer in a thread, when it is the peer's turn and at the peer's charge."""
        cpu_s = 0.0

        def timed() -> T:
            nonlocal cpu_s
            since_s = time.thread_time()
            try:
                return call(*args)
            finally:
                cpu_s = time.thread_time() - since_s

        await self._in_threads.take(peer)
        try:
            return await trio.to_thread.run_sync(timed, limiter=self._limiter)
        finally:
            self.charge(peer, cpu_s)
            self._in_threads.leave()


class _Turns:
    """At most so many at once, of those that wait first the peer that took the least."""

    def __init__(self, least: Callable[[Iterable[PeerId]], PeerId], at_once: int) -> None:
        self._least = least
        self._free = at_once
        self._waiting: dict[PeerId, deque[trio.Event]] = {}  # not empty, by peer

    async def take(self, peer: PeerId, *, is_shielded: bool = False) -> None:
        """Return when it is this peer's turn, in a later pass of the loop: first all who are ready queue."""
        told = trio.Event()
        self._waiting.setdefault(peer, deque()).append(told)
        self._tell()
        try:
            with trio.CancelScope(shield=is_shielded):
                await told.wait()
        except trio.Cancelled:
            if told.is_set():
                self.leave()
            else:
                self._waiting[peer].remove(told)
                if not self._waiting[peer]:
                    del self._waiting[peer]
            raise

    def leave(self) -> None:
        """End a turn, and begin the next."""
        self._free += 1
        self._tell()

    def _tell(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            peer = self._least(self._waiting)
            queue = self._waiting.pop(peer)
            queue.popleft().set()
            if queue:
                self._waiting[peer] = queue  # behind its equals
