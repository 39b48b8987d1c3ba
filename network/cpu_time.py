"""CPU time: what each peer lately took of this host's processor, and whose work runs next because of it.

Room: network (edge: trio and the thread's CPU clock, no sockets). One account for each member covers what
arrives on its connections, decryption included, its streams, notifications and requests, and the blobs that
it reads. Strangers have one together, which also pays for the handshakes of all: keys cost nothing, so a new
one must not be first. A coroutine that serves a peer runs in *steps*: a step is what it does between two of
its waits. Steps of peers that took little run at once. Those of others begin in a pass of the event loop
until they have taken a moment of it; the rest run one in each later pass, first that of the peer that took
the least. So however many peers ask for expensive work, tasks of the host's own and of peers that took
little wait for that moment and one step. Threads that read and hash for peers are given out by the same
order.
"""

from __future__ import annotations

import math
import time
import types
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar

import trio

from assay.network import limits
from assay.protocol.types import NO_DIGEST, PeerId

T = TypeVar("T")
STRANGERS = PeerId(NO_DIGEST)
_HALVES_MAX = 500.0  # far from where a float ends


class _Account:
    __slots__ = ("spent",)

    def __init__(self) -> None:
        self.spent = 0.0


class CpuTime(trio.abc.Instrument):
    """The accounts of one host's peers. An account is never closed, so only members have one of their own.

    Added to the event loop as an instrument, it knows when a pass ends; without it no step begins at once.
    """

    def __init__(self, is_member: Callable[[PeerId], bool] = lambda _peer: True) -> None:
        self._is_member = is_member
        # Half of what was taken is forgotten in SPENT_HALF_S. So that no account changes by itself, accounts
        # are in a unit that a second of now is more and more of.
        self._spent: defaultdict[PeerId, _Account] = defaultdict(_Account)
        self._second, self._since_s = 1.0, -math.inf
        self._light = limits.LIGHT_S
        self._pass_s = limits.PASS_S  # CPU seconds of steps in this pass that were not light
        self._steps = _Turns(self.least, limits.STEPS_AT_ONCE)
        self._in_threads = _Turns(self.least, limits.SERVE_THREADS)
        self._limiter = trio.CapacityLimiter(limits.SERVE_THREADS)

    def before_io_wait(self, _timeout: float) -> None:
        """Note that a pass of the loop ends."""
        self._pass_s = 0.0
        self._forget()

    def payer(self, peer: PeerId) -> PeerId:
        """Whose account pays for a peer."""
        return peer if self._is_member(peer) else STRANGERS

    def charge(self, peer: PeerId, cpu_s: float) -> None:
        """Charge a peer for seconds of work."""
        self._forget()
        self._spent[peer].spent += cpu_s * self._second

    def spent_s(self, peer: PeerId) -> float:
        """CPU seconds that this peer took, of which half is forgotten in `SPENT_HALF_S`."""
        self._forget()
        return self._units(peer) / self._second

    def least(self, peers: Iterable[PeerId]) -> PeerId:
        """Who of these took the least lately; of equals the first."""
        return min(peers, key=self._units)

    def _units(self, peer: PeerId) -> float:
        account = self._spent.get(peer)
        return account.spent if account else 0.0

    def _forget(self) -> None:
        now_s = trio.current_time()
        halves = (now_s - self._since_s) / limits.SPENT_HALF_S
        if halves > _HALVES_MAX:
            rest = math.pow(2.0, -halves)
            for account in self._spent.values():
                account.spent *= rest
            self._since_s, halves = now_s, 0.0
        self._second = math.pow(2.0, halves)
        self._light = limits.LIGHT_S * self._second

    async def share(self, peer: PeerId, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` for a peer, each step when it is the peer's turn and at the peer's charge.

        Tasks that `work` starts, and threads, are not part of its steps: charge them apart. `work` must
        not share again, which would wait for its own step to end.
        """
        return await self._in_steps(peer, work)

    @types.coroutine
    def _in_steps(self, peer: PeerId, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        sent: Any = None
        account, thread_time = self._spent[peer], time.thread_time
        while True:
            is_light = account.spent < self._light
            if not is_light and not (self._pass_s < limits.PASS_S and self._steps.take_free()):
                # What the step waited for has come (a lock, say), so it must run now, cancelled or not.
                yield from self._steps.take(peer, is_shielded=True).__await__()
            since_s = thread_time()
            try:
                wait = work.send(sent)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                spent_s = thread_time() - since_s
                account.spent += spent_s * self._second
                if not is_light:
                    self._pass_s += spent_s
                    self._steps.leave()
            sent = yield wait  # trio sends an outcome here, errors and cancellation included

    async def in_thread(self, peer: PeerId, call: Callable[..., T], *args: Any) -> T:
        """`call(*args)` for a peer in a thread, when it is the peer's turn and at the peer's charge."""
        await self._in_threads.take(peer)
        try:
            return await self.in_thread_at_once(peer, call, *args, limiter=self._limiter)
        finally:
            self._in_threads.leave()

    async def in_thread_at_once(
        self, peer: PeerId, call: Callable[..., T], *args: Any, limiter: trio.CapacityLimiter | None = None
    ) -> T:
        """`call(*args)` for a peer in a thread, whoever's turn it is, at the peer's charge."""
        cpu_s = 0.0

        def timed() -> T:
            nonlocal cpu_s
            since_s = time.thread_time()
            try:
                return call(*args)
            finally:
                cpu_s = time.thread_time() - since_s

        try:
            return await trio.to_thread.run_sync(timed, limiter=limiter)
        finally:
            self.charge(peer, cpu_s)


class _Turns:
    """Lets `at_once` work at a time; of those that wait, first the peer that took the least."""

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

    def take_free(self) -> bool:
        """Begin a turn at once if one is free, which it is not while anybody waits."""
        if self._free == 0 or self._waiting:
            return False
        self._free -= 1
        return True

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
