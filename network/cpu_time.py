"""CPU time: what each peer lately took of this host's processor, and whose work runs next because of it.

Room: network (edge: trio and the thread's CPU clock, no sockets). One account for each peer covers its
notifications, its requests and the blobs that it reads. A coroutine that serves a peer runs in *steps*: a
step is what it does between two of its waits. Steps run one in each pass of the event loop, first that of
the peer that took the least; so however many peers ask for expensive work, a step of another peer waits for
the one that is under way and the one chosen next, and tasks of the host's own for one in each pass.
"""

from __future__ import annotations

import math
import time
import types
from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, TypeVar

import trio

from assay.network import limits
from assay.protocol.types import PeerId

T = TypeVar("T")


class CpuTime:
    """The accounts of one host's peers. An account is never closed, so only members have one of their own."""

    def __init__(self) -> None:
        self._spent: dict[PeerId, tuple[float, float]] = {}  # CPU seconds, and the time of this figure
        self._waiting: dict[PeerId, deque[trio.Event]] = {}  # steps that may not run yet, by peer
        self._is_running = False  # whether a step runs, or was told to

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
            yield from self._turn(peer).__await__()
            since_s = time.thread_time()
            try:
                wait = work.send(sent)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                self.charge(peer, time.thread_time() - since_s)
                self._is_running = False
                self._tell_next()
            sent = yield wait  # trio sends an outcome here, errors and cancellation included

    async def _turn(self, peer: PeerId) -> None:
        told = trio.Event()
        self._waiting.setdefault(peer, deque()).append(told)
        self._tell_next()
        # What the step was waiting for has come (a lock, say), so it must run now, cancelled or not.
        with trio.CancelScope(shield=True):
            await told.wait()

    def _tell_next(self) -> None:
        """Let the next step run, in the next pass of the loop: those that are ready in this one all queue."""
        if self._is_running or not self._waiting:
            return
        peer = self.least(self._waiting)
        steps = self._waiting[peer]
        steps.popleft().set()
        del self._waiting[peer]
        if steps:
            self._waiting[peer] = steps  # behind its equals
        self._is_running = True
