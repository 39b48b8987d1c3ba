"""One thread: production processes run by one seed: no threads, no real clock, no chance but the seed's.

Inside `one_thread` what production code runs in threads runs in line, `time.time` is the virtual clock of
trio, as far as a process's own is right, and trio's order of tasks and the module `random` follow from the
seed.
"""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import nacl.bindings
import trio
import trio.testing
from trio._core import _run as scheduler

from assay.protocol.randomness import vrf
from assay.training.compiled import compile_all
from assay.verifier.round import beacon
from tests.simulation.disk import HERE
from tests.simulation.remembered import made_once

T = TypeVar("T")
BEGUN_S = 1_800_000_000  # Unix time at the start of every simulation
REMEMBERED = 1 << 14
_real_time = time.time
# Signatures and proofs that eight processes check alike are checked once.
_opened = functools.lru_cache(REMEMBERED)(nacl.bindings.crypto_sign_open)
_proved = functools.lru_cache(REMEMBERED)(vrf.verify)


def now_s() -> float:
    """Unix time on the virtual clock; the real one where no simulation runs."""
    try:
        return BEGUN_S + trio.current_time()
    except RuntimeError:
        return _real_time()


def clock_s() -> float:
    """Unix time as the clock of the process that runs has it."""
    here = HERE.get()
    wrong_s = 0.0 if here is None else here.ahead_s + here.drift_ppm / 10**6 * trio.current_time()
    return now_s() + wrong_s


def _clock_ns() -> int:
    return int(clock_s() * 10**9)


async def _in_line(call: Callable[..., T], *args: Any, **_options: Any) -> T:
    """In place of a thread: another task may run first, and then the call alone."""
    await trio.lowlevel.checkpoint()
    return call(*args)


@contextmanager
def one_thread(seed: int) -> Iterator[None]:
    """While this lasts, a `trio.run` depends on nothing but the seed and the order of Python's sets.

    Kernels are compiled before: numba keeps each under a name from `os.urandom`, by `os.replace`.
    """
    compile_all()
    state, order = random.getstate(), scheduler._r.getstate()
    random.seed(seed)
    scheduler._r.seed(seed)
    with (
        mock.patch.object(scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        mock.patch.object(trio.to_thread, "run_sync", _in_line),
        mock.patch.object(trio.from_thread, "run_sync", lambda call, *args: call(*args)),
        mock.patch.object(time, "time", clock_s),
        mock.patch.object(time, "time_ns", _clock_ns),
        mock.patch.object(os, "urandom", random.randbytes),
        mock.patch.object(nacl.bindings, "crypto_sign_open", _opened),
        mock.patch.object(beacon, "verify", _proved),
        made_once(),
    ):
        try:
            yield
        finally:
            random.setstate(state)
            scheduler._r.setstate(order)


def run(main: Callable[..., Coroutine[Any, Any, T]] | Callable[..., Awaitable[T]], *args: Any) -> T:
    """`trio.run` on a clock that jumps to the next deadline whenever nobody has anything to do."""
    found: T = trio.run(main, *args, clock=trio.testing.MockClock(autojump_threshold=0))
    return found
