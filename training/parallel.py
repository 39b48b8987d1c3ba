"""Parallel: divides work on blocks among threads; how it is divided changes no bit.

Room: training (edge: threads). Compiled code and hashes run without the GIL. One number holds for the whole
process, that of `training/model/loss.py`'s `use_threads`; with one thread everything runs where it is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

LEAST = 32  # blocks of a part: a fraction of a millisecond, against some 20 us to hand it over
_PARTS_PER_THREAD = 4  # so that a thread that is held up does not hold up all
_AHEAD_PER_THREAD = 2  # results that wait to be read, and take memory
_pool: list[ThreadPoolExecutor] = []
_count = [1]


def set_count(count: int) -> None:
    """How many threads this process divides work among, the calling one included."""
    if count < 1:
        raise ValueError(f"{count} threads, expected at least 1")
    for pool in _pool:
        pool.shutdown()
    _pool.clear()
    _count[0] = count


def parts(size: int, least: int = LEAST) -> list[slice]:
    """Slices of about equal size, none empty, that divide `size` things among the threads."""
    number = 1 if _count[0] == 1 else min(_count[0] * _PARTS_PER_THREAD, max(size // least, 1))
    ends = [size * i // number for i in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends) if start < stop]


def each(work: Callable[[T], object], things: Iterable[T]) -> None:
    """Do the work for each of these, on all threads. The first error is raised once all have ended.

    The work may not call this function again: it would wait for threads that wait for it.
    """
    todo = list(things)
    if _count[0] == 1 or len(todo) < 2:
        for one in todo:
            work(one)
        return
    futures = [_threads().submit(work, one) for one in todo]
    wait(futures)
    for done in futures:
        done.result()


def in_order(work: Callable[[T], R], things: Iterable[T]) -> Iterator[R]:
    """What the work makes of each of these, in their order: on all threads, and a few ahead of who reads.

    The first error is raised in its turn. The work may not call this file's functions, as with `each`.
    """
    if _count[0] == 1:
        yield from map(work, things)
        return
    ahead: deque[Future[R]] = deque()
    try:
        for one in things:
            ahead.append(_threads().submit(work, one))
            if len(ahead) > _AHEAD_PER_THREAD * _count[0]:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        wait(ahead)


def _threads() -> ThreadPoolExecutor:
    if not _pool:
        _pool.append(ThreadPoolExecutor(_count[0], "blocks"))
    return _pool[0]
