"""Fetch: how long a blob takes where holders are slow, silent or keep chunks back, and what it costs.

Holders are streams in memory on a mock clock, so that seconds here are exact.
"""

from __future__ import annotations

import hashlib
from collections import deque
from contextlib import nullcontext
from typing import Any

import pytest
import trio
import trio.testing

from assay.network import frames, limits
from assay.network.fetch import Pull, Streams, Threads, fetch
from assay.network.frames import Kind
from assay.protocol.encoding.blob import CHUNK_BYTES, chunk_list_of, encode_chunk_list
from assay.protocol.types import PeerId

NEVER_S = 1e6
TIMING = limits.Timing()


def a_blob(chunk_count: int) -> bytes:
    return b"".join(hashlib.sha256(b"%d" % n).digest() * (CHUNK_BYTES // 32) for n in range(chunk_count))


class Holder:
    """A holder's only stream: it answers in order, a chunk in `chunk_s`, over a line that may be shared."""

    def __init__(self, data: bytes, chunk_s: float, *, list_s: float = 0.0, line: trio.Lock | None = None):
        self.data, self.chunks, self.line = data, chunk_list_of(data), line or nullcontext()
        self.chunk_s, self.list_s = chunk_s, list_s
        self.asked, self.sent = deque[tuple[Kind, bytes]](), list[int]()
        self.came, self.rest, self.due = trio.Event(), b"", 0

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        kind, _ = frames.decode_head(data[:5], (Kind.GET, Kind.WANT_CHUNK))
        self.asked.append((kind, data[5:]))
        self.due += 1
        self.came.set()

    async def read(self, n: int) -> bytes:
        while not self.asked and not self.rest:
            self.came = trio.Event()
            await self.came.wait()
        if not self.rest:
            kind, body = self.asked.popleft()
            self.rest = await (self.listed() if kind is Kind.GET else self.chunk(body))
        piece, self.rest = self.rest[:n], self.rest[n:]
        self.due -= not self.rest
        return piece

    async def listed(self) -> bytes:
        await trio.sleep(self.list_s)
        return frames.encode_frame(Kind.CHUNKS, encode_chunk_list(self.chunks))

    async def chunk(self, body: bytes) -> bytes:
        index, _ = frames.unpack_id(body)
        async with self.line:
            await trio.sleep(self.chunk_s)
        self.sent.append(index)
        offset, length = self.chunks.span(index)
        return frames.encode_frame(Kind.CHUNK, frames.pack_id(index, self.data[offset : offset + length]))

    async def reset(self) -> None:
        await trio.lowlevel.checkpoint()


class Inline(Threads):
    """Work of threads is done at once: a mock clock does not wait for them."""

    async def run(self, call: Any, *args: Any) -> Any:
        return call(*args)


def fetched(
    *holders: Holder, at_once: int = limits.FETCH_HOLDERS_AT_ONCE, deadline_s: float = 300.0
) -> float:
    """After how many seconds these holders' blob was there. A stream on which more comes is not kept."""
    named = {PeerId(bytes([n]) * 32): holder for n, holder in enumerate(holders)}

    async def open_stream(peer: PeerId) -> Holder:
        return named[peer]

    async def main() -> float:
        streams = Streams(open_stream, lambda _: None, TIMING)
        pull = Pull(holders[0].chunks.digest(), size_max=len(holders[0].data), threads=Inline())
        body = await fetch(
            pull,
            holders=list(named),
            streams=streams,
            on_fault=faults.append,
            timing=TIMING,
            deadline_s=deadline_s,
            at_once=at_once,
        )
        assert body == holders[0].data and not faults
        assert all(stream.due == 0 for kept in streams._kept.values() for _, stream in kept)
        return trio.current_time()

    faults: list[Any] = []
    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("chunk_count", [1, 8, 13])
@pytest.mark.parametrize("liar_s", [NEVER_S, TIMING.chunk_s - 0.5, TIMING.stalled_s - 0.1])
def test_a_holder_that_keeps_chunks_back_delays_a_blob_by_little_more_than_a_second(chunk_count, liar_s):
    """It has the list before others have, and so is asked for the first eight."""
    data = a_blob(chunk_count)
    after_s = fetched(Holder(data, liar_s), Holder(data, 0.05, list_s=0.1))

    assert after_s < 0.1 + 1.25 * TIMING.stalled_s + 0.05 * chunk_count


@pytest.mark.parametrize(("liar_count", "most_s"), [(1, 1.5), (2, 1.5), (3, 3.5), (4, 7.5)])
@pytest.mark.parametrize("list_s", [0.0, NEVER_S])
def test_holders_that_say_nothing_make_room_for_others(liar_count, most_s, list_s):
    data = a_blob(4)
    liars = [Holder(data, NEVER_S, list_s=list_s) for _ in range(liar_count)]
    after_s = fetched(*liars, Holder(data, 0.05))

    assert after_s < most_s


@pytest.mark.parametrize("at_once", [1, 2])
def test_holders_too_slow_for_the_deadline_make_room_for_others(at_once):
    data = a_blob(60)
    liars = [Holder(data, TIMING.stalled_s - 0.1) for _ in range(at_once)]

    assert fetched(*liars, Holder(data, 0.05), at_once=at_once, deadline_s=20.0) < 8.0


def test_who_is_sure_to_have_a_blob_is_asked_alone_while_it_sends():
    data = a_blob(12)
    sure, liar = Holder(data, 0.9), Holder(data, NEVER_S)

    assert fetched(sure, liar, at_once=1) < 12 * 0.9 + 0.1
    assert not liar.due
    assert fetched(Holder(data, NEVER_S), Holder(data, 0.05), at_once=1) < 1.7


def test_a_slow_line_of_our_own_carries_hardly_anything_twice():
    """A chunk in 2 s is 1 Mbit/s."""
    data, line = a_blob(40), trio.Lock()
    one, other, third = (Holder(data, 2.0, line=line) for _ in range(3))
    after_s = fetched(one, other, third)

    assert len(one.sent + other.sent + third.sent) <= 41 and after_s <= 82


@pytest.mark.parametrize("quick_s", [0.3, 0.5, 0.8, 1.1, 1.3, 1.7])
def test_what_a_slow_holder_would_send_last_is_asked_of_a_quick_one_first(quick_s):
    data = a_blob(16)
    slow, quick = Holder(data, 2.0), Holder(data, quick_s)
    after_s = fetched(slow, quick)

    assert len(slow.sent + quick.sent) <= 17
    assert after_s <= 16 / (1 / 2.0 + 1 / quick_s) + 2.0
