"""Blobs between hosts: every chunk checked, the right peer blamed, nothing fetched twice."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from assay.network import frames, limits
from assay.network.blob_store import DiskBlobs
from assay.network.fetch import Streams
from assay.network.frames import Kind, encode_frame, read_frame
from assay.protocol.encoding.blob import CHUNK_BYTES, blob_digest, chunk_list_of, encode_chunk_list
from assay.protocol.errors import PeerFault, Unavailable
from assay.protocol.types import PeerId
from tests.network.loopback import QUICK, a_host, answers, burn, connected, run, until
from tests.network.memory_blobs import MemoryBlobs

pytestmark = pytest.mark.slow

DATA = b"".join(hashlib.sha256(bytes([n])).digest() * (CHUNK_BYTES // 32) for n in range(12)) + b"tail"
DIGEST = blob_digest(DATA)
CHUNK_COUNT = 13
ONE, OTHER = PeerId(b"1" * 32), PeerId(b"2" * 32)


class CountingBlobs(MemoryBlobs):
    """A store that counts which chunks are read, and can stop giving them."""

    def __init__(self, *blobs: bytes) -> None:
        super().__init__()
        self.reads: Counter[int] = Counter()
        self.served_max = 10**9
        for blob in blobs:
            self.put(blob)

    def read(self, digest, offset, length):
        self.reads[offset // CHUNK_BYTES] += 1
        return super().read(digest, offset, length)


def lie(host, change):
    """Make a host send `change(index, chunk)` in place of each chunk of the truth."""
    exchange = host._blob_server
    honest = exchange._read_verified

    def dishonest(digest, chunks, index):
        return change(index, honest(digest, chunks, index))

    exchange._read_verified = dishonest


def spoil_from(first):
    return lambda index, chunk: chunk if index < first else bytes(len(chunk))


async def fetch(host, *holders, **changes):
    settings = {"size_max": len(DATA), "deadline_s": 60, **changes}
    return await host.fetch(DIGEST, holders=[holder.peer for holder in holders], **settings)


@asynccontextmanager
async def reader_and_holders(count, **changes):
    """A host that collects faults, and `count` holders of DATA connected to it."""
    faults = []
    shelves = [CountingBlobs(DATA) for _ in range(count)]
    async with trio.open_nursery() as nursery:

        async def hold(name, shelf, *, task_status):
            async with a_host(name, blobs=shelf) as host:
                task_status.started(host)
                await trio.sleep_forever()

        holders = [await nursery.start(hold, f"holder {n}", shelf) for n, shelf in enumerate(shelves)]
        async with a_host("reader", on_fault=faults.append, **changes) as reader, connected(reader, *holders):
            yield reader, holders, faults
        nursery.cancel_scope.cancel()


def test_a_blob_arrives_whole_from_one_holder():
    async def main() -> None:
        async with reader_and_holders(1) as (reader, [holder], faults):
            assert await fetch(reader, holder) == DATA
            assert not faults

    run(main)


def test_a_blob_goes_into_a_file_also_from_two_of_whom_one_lies_and_is_not_held_in_memory(tmp_path):
    data = hashlib.sha256(b"large").digest() * (1 << 20)  # 32 MiB

    async def main() -> None:
        async with reader_and_holders(2) as (reader, [honest, liar], faults):
            for holder in (honest, liar):
                digest = holder._blob_server._blobs.put(data)
            lie(liar, spoil_from(3))
            at = {"holders": [honest.peer, liar.peer], "size_max": len(data), "deadline_s": 60}
            tracemalloc.start()
            try:
                assert await reader.fetch(digest, **at, path=tmp_path / "file") == b""
                assert tracemalloc.get_traced_memory()[1] < len(data) // 2
            finally:
                tracemalloc.stop()
            assert (tmp_path / "file").read_bytes() == data
            assert [fault.peer for fault in faults] == [liar.peer]
            with pytest.raises(Unavailable, match="cannot be written"):
                await reader.fetch(digest, **at, path=tmp_path / "none" / "file")

    run(main)


def knows(reader):
    return lambda peer, _digest: peer == reader.peer


def test_who_may_not_read_a_blob_is_told_that_it_is_not_here():
    """Also where somebody else has just read it, so that its chunk list is known."""

    async def main() -> None:
        async with (
            a_host("reader") as reader,
            a_host("stranger") as stranger,
            a_host("holder", blobs=CountingBlobs(DATA), may_read=knows(reader)) as holder,
            connected(reader, stranger, holder),
        ):
            assert await fetch(reader, holder) == DATA
            with pytest.raises(Unavailable):
                await fetch(stranger, holder, deadline_s=2)

    run(main)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1])
def test_sizes_at_the_edges_of_a_chunk_arrive(size):
    async def main() -> None:
        async with reader_and_holders(1) as (reader, [holder], _):
            digest = holder._blob_server._blobs.put(DATA[:size])
            got = await reader.fetch(digest, holders=[holder.peer], size_max=size, deadline_s=60)
            assert got == DATA[:size]

    run(main)


def test_a_corrupt_chunk_blames_its_sender_and_the_blob_still_arrives_from_another():
    async def main() -> None:
        async with reader_and_holders(2) as (reader, [liar, honest], faults):
            lie(liar, spoil_from(1))
            assert await fetch(reader, liar, honest) == DATA
            assert [fault.peer for fault in faults] == [liar.peer]
            assert "content does not match" in faults[0].reason

    run(main)


def test_when_every_holder_lies_the_fetch_fails_with_their_fault():
    async def main() -> None:
        async with reader_and_holders(2) as (reader, liars, faults):
            for liar in liars:
                lie(liar, spoil_from(0))
            with pytest.raises(PeerFault):
                await fetch(reader, *liars)
            assert {fault.peer for fault in faults} == {liar.peer for liar in liars}

    run(main)


def test_a_wrong_chunk_list_blames_its_sender():
    async def main() -> None:
        async with reader_and_holders(2) as (reader, [liar, honest], faults):
            liar._blob_server._lists[DIGEST] = chunk_list_of(DATA + b"more")
            assert await fetch(reader, liar, honest, size_max=2 * len(DATA)) == DATA
            assert [fault.peer for fault in faults] == [liar.peer]

    run(main)


def test_a_holder_without_the_blob_or_that_is_gone_is_passed_over():
    async def main() -> None:
        async with reader_and_holders(2) as (reader, [empty, holder], faults), a_host("gone") as gone:
            empty._blob_server._blobs._blobs.clear()
            assert await fetch(reader, gone, empty, holder) == DATA
            with pytest.raises(Unavailable, match="does not have it"):
                await fetch(reader, empty)
            with pytest.raises(Unavailable):
                await fetch(reader)
            assert not faults

    run(main)


def test_a_blob_at_the_size_bound_arrives_and_a_larger_one_is_refused_before_any_chunk():
    async def main() -> None:
        async with reader_and_holders(1) as (reader, [holder], _):
            with pytest.raises(PeerFault, match="at most"):
                await fetch(reader, holder, size_max=len(DATA) - 1)
            reads = holder._blob_server._blobs.reads
            assert max(reads.values()) == 1  # for the list; none was sent
            assert await fetch(reader, holder, size_max=len(DATA)) == DATA

    run(main)


def test_a_holder_that_falls_silent_is_replaced_and_blamed_for_nothing():
    async def main() -> None:
        async with reader_and_holders(2) as (reader, [silent, holder], faults):

            async def say_nothing(_peer, stream):
                await read_frame(stream, (Kind.GET,))
                chunks = encode_chunk_list(chunk_list_of(DATA))
                await stream.write(encode_frame(Kind.CHUNKS, chunks))
                await trio.sleep_forever()

            silent._peers.serve(silent._protocols.blob, say_nothing, members_only=True)
            assert await fetch(reader, silent, holder) == DATA
            assert not faults

    run(main)


def opened_by(host):
    """Whom a host opens streams to from now on."""
    opened, open_stream = [], host._streams._open

    async def counted(peer):
        opened.append(peer)
        return await open_stream(peer)

    host._streams._open = counted
    return opened


def test_blobs_one_after_another_come_over_one_stream():
    async def main() -> None:
        async with reader_and_holders(1) as (reader, [holder], faults):
            opened = opened_by(reader)
            for _ in range(3):
                assert await fetch(reader, holder) == DATA
                with pytest.raises(Unavailable, match="does not have it"):
                    await reader.fetch(blob_digest(b"?"), holders=[holder.peer], size_max=1, deadline_s=60)
            assert opened == [holder.peer] and not faults

    run(main)


def test_streams_that_are_fetched_from_at_a_time_are_more_than_are_kept():
    async def main() -> None:
        async with reader_and_holders(1) as (reader, [holder], _):
            async with trio.open_nursery() as nursery:
                for _ in range(limits.BLOB_STREAMS_PER_PEER_MAX):
                    nursery.start_soon(fetch, reader, holder)
            await until(lambda: len(holder._blob_server._serving[reader.peer]) == limits.BLOB_STREAMS_KEPT)

    run(main)


def test_a_kept_stream_that_its_holder_has_ended_costs_no_attempt():
    async def main() -> None:
        async with reader_and_holders(1) as (reader, [holder], faults):
            assert await fetch(reader, holder) == DATA
            (place,) = holder._blob_server._serving[reader.peer]
            place.scope.cancel()
            await until(lambda: not holder._blob_server._serving)
            opened = opened_by(reader)
            with trio.fail_after(QUICK.retry_s * 10):  # in which no holder is tried again
                assert await fetch(reader, holder) == DATA
            assert opened == [holder.peer] and not faults

    run(main)


def test_a_holder_that_is_silent_on_kept_streams_is_asked_once_an_attempt():
    async def main() -> None:
        async with reader_and_holders(1, timing=replace(QUICK, first_frame_s=0.3)) as (
            reader,
            [holder],
            faults,
        ):
            async with trio.open_nursery() as nursery:
                for _ in range(limits.BLOB_STREAMS_KEPT):
                    nursery.start_soon(fetch, reader, holder)
            asked = []

            async def never(peer, digest):
                asked.append(digest)
                await trio.sleep_forever()

            holder._blob_server._list_of = never
            with pytest.raises(Unavailable, match="too slow"):
                await fetch(reader, holder)
            assert len(asked) == limits.HOLDER_ATTEMPTS and not faults

    run(main)


def test_a_stream_is_kept_for_a_while_and_no_longer():
    ended = []

    async def open_stream(peer):
        return peer, trio.current_time()

    async def main() -> None:
        timing = limits.Timing()
        streams = Streams(open_stream, ended.append, timing)
        first, is_kept = await streams.take(ONE)
        assert not is_kept
        streams.keep(ONE, first)
        await trio.sleep(timing.keep_stream_s / 2)
        assert await streams.take(ONE) == (first, True)
        streams.keep(ONE, first)
        await trio.sleep(timing.keep_stream_s + 1)
        other, is_kept = await streams.take(OTHER)  # of whoever else it is, an old one ends
        assert ended == [first] and not is_kept
        assert await streams.take(ONE) == ((ONE, trio.current_time()), False)
        for _ in range(limits.BLOB_STREAMS_KEPT + 1):
            streams.keep(OTHER, other)
        assert ended == [first, other]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_reader_that_requests_nothing_loses_its_place_to_one_that_does(monkeypatch):
    monkeypatch.setattr(limits, "BLOB_STREAMS_MAX", 2)

    async def main() -> None:
        timing = replace(QUICK, give_place_s=0.2)
        async with (
            a_host("holder", blobs=CountingBlobs(DATA), timing=timing) as holder,
            a_host("idle 0") as one,
            a_host("idle 1") as other,
            a_host("reader") as reader,
            connected(holder, one, other, reader),
        ):
            for idle in (one, other):
                assert await fetch(idle, holder) == DATA
            await trio.sleep(0.3)
            assert await fetch(reader, holder) == DATA
            assert set(holder._blob_server._serving) == {
                other.peer,
                reader.peer,
            }  # not who waits longest
            assert await fetch(one, holder) == DATA

    run(main)


def test_a_fetch_ends_at_its_deadline():
    async def main() -> None:
        async with reader_and_holders(1) as (reader, [holder], _):

            async def never(_peer, _stream):
                await trio.sleep_forever()

            holder._peers.serve(holder._protocols.blob, never, members_only=True)
            with pytest.raises(Unavailable, match="within"):
                await fetch(reader, holder, deadline_s=0.5)

    run(main)


def test_a_slow_reader_gets_its_blob_and_delays_nobody():
    async def main() -> None:
        async with (
            reader_and_holders(1) as (reader, [holder], _),
            a_host("slow") as slow,
            connected(slow, holder),
        ):
            stream = await slow._peers.open_stream(holder.peer, slow._protocols.blob)
            want = b"".join(encode_frame(Kind.WANT_CHUNK, struct.pack(">I", n)) for n in range(CHUNK_COUNT))
            await stream.write(encode_frame(Kind.GET, DIGEST) + want)
            assert (await read_frame(stream, (Kind.CHUNKS,)))[0] is Kind.CHUNKS
            got = bytearray()
            assert await fetch(reader, holder) == DATA  # while the slow reader reads nothing
            for _ in range(CHUNK_COUNT):
                await trio.sleep(0.05)
                got += (await read_frame(stream, (Kind.CHUNK,)))[1][4:]
            assert bytes(got) == DATA

    run(main)


def test_what_reading_a_blob_takes_is_on_the_readers_account_thread_time_included():
    class Dear(CountingBlobs):
        def read(self, digest, offset, length):
            burn(0.005)
            return super().read(digest, offset, length)

    async def main() -> None:
        async with (
            a_host("holder", blobs=Dear(DATA)) as holder,
            a_host("reader") as reader,
            connected(holder, reader),
        ):
            assert await fetch(reader, holder) == DATA
            assert holder._cpu_time.spent_s(reader.peer) >= 0.005 * CHUNK_COUNT

    run(main)


def test_what_sending_a_blob_takes_is_on_the_readers_account_too(monkeypatch):
    write = frames.write_frame

    async def dear(*args: Any) -> None:
        burn(0.005)
        await write(*args)

    monkeypatch.setattr(frames, "write_frame", dear)

    async def main() -> None:
        async with (
            a_host("holder", blobs=CountingBlobs(DATA)) as holder,
            a_host("reader") as reader,
            connected(holder, reader),
        ):
            assert await fetch(reader, holder) == DATA
            assert holder._cpu_time.spent_s(reader.peer) >= 0.005 * CHUNK_COUNT

    run(main)


def test_a_reader_that_reads_nothing_at_all_loses_its_stream_only():
    async def main() -> None:
        async with (
            reader_and_holders(1) as (reader, [holder], _),
            a_host("deaf") as deaf,
            connected(deaf, holder),
        ):
            stream = await deaf._peers.open_stream(holder.peer, deaf._protocols.blob)
            want = encode_frame(Kind.WANT_CHUNK, bytes(4)) * 200
            await stream.write(encode_frame(Kind.GET, DIGEST) + want)
            await until(lambda: not holder._blob_server._serving)
            assert await fetch(reader, holder) == DATA
            assert await answers(deaf, holder.peer)

    run(main)


def test_more_streams_than_a_peer_may_have_are_refused_and_the_rest_serve_on():
    async def main() -> None:
        async with (
            reader_and_holders(1) as (reader, [holder], _),
            a_host("greedy") as greedy,
            connected(greedy, holder),
        ):
            served = 0
            for _ in range(limits.BLOB_STREAMS_PER_PEER_MAX + 3):
                try:
                    stream = await greedy._peers.open_stream(holder.peer, greedy._protocols.blob)
                    await stream.write(encode_frame(Kind.GET, DIGEST))
                    served += (await read_frame(stream, (Kind.CHUNKS,)))[0] is Kind.CHUNKS
                except Exception:
                    continue
            assert served == limits.BLOB_STREAMS_PER_PEER_MAX
            assert await fetch(reader, holder) == DATA

    run(main)


def test_when_every_place_is_taken_a_reader_gets_one_of_a_peer_that_has_several(monkeypatch):
    monkeypatch.setattr(limits, "BLOB_STREAMS_MAX", 2 * limits.BLOB_STREAMS_PER_PEER_MAX)

    async def main() -> None:
        async with (
            reader_and_holders(1) as (reader, [holder], _),
            a_host("greedy 0") as one,
            a_host("greedy 1") as other,
            connected(one, holder),
            connected(other, holder),
        ):
            streams = []
            for greedy in (one, other) * limits.BLOB_STREAMS_PER_PEER_MAX:
                stream = await greedy._peers.open_stream(holder.peer, greedy._protocols.blob)
                await stream.write(encode_frame(Kind.GET, DIGEST))
                assert (await read_frame(stream, (Kind.CHUNKS,)))[0] is Kind.CHUNKS
                streams.append(stream)
            stream = await reader._peers.open_stream(holder.peer, reader._protocols.blob)
            await stream.write(encode_frame(Kind.GET, DIGEST))
            assert (await read_frame(stream, (Kind.CHUNKS,)))[0] is Kind.CHUNKS
            counts = {peer: len(scopes) for peer, scopes in holder._blob_server._serving.items()}
            assert sum(counts.values()) == limits.BLOB_STREAMS_MAX
            assert counts[reader.peer] == 1
            # Among those that have as many each, or one more, nobody takes another's place.
            assert not holder._blob_server._has_room_for(one.peer)
            assert not holder._blob_server._has_room_for(other.peer)

    run(main)


def test_a_bit_flipped_on_the_holders_disk_is_never_served(tmp_path):
    async def main() -> None:
        store = DiskBlobs(tmp_path, bytes_max=10 * len(DATA))
        store.put(DATA)
        async with (
            a_host("holder", blobs=store) as holder,
            a_host("reader") as reader,
            connected(holder, reader),
        ):
            assert await fetch(reader, holder) == DATA
            (path,) = tmp_path.glob("*.blob")
            content = bytearray(path.read_bytes())
            content[2 * CHUNK_BYTES] ^= 1
            path.write_bytes(content)
            with pytest.raises(Unavailable):  # and not PeerFault: the holder sent nothing wrong
                await fetch(reader, holder, deadline_s=20)
            assert store.size(blob_digest(DATA)) is None  # so it can be made or fetched again
            store.put(DATA)
            assert await fetch(reader, holder) == DATA

    run(main)
