"""A member that sends anything at all costs its own streams; it never ends our process."""

from __future__ import annotations

import contextlib
import random
import struct
from typing import Any

import pytest
import trio
from libp2p.io.exceptions import ConnectionClosedError

from assay.network import limits
from assay.network.cpu_time import CpuTime
from assay.network.frames import Kind, encode_frame
from assay.network.host import PeerAddress
from assay.network.identity import libp2p_id
from assay.network.peers import Peers
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.errors import Unavailable
from tests.network.child_host import BLOB as BLOB_BYTES
from tests.network.corpus import BLOB, Case, cases
from tests.network.loopback import (
    QUICK,
    WorkerProcess,
    a_child,
    a_host,
    answers,
    connected,
    peer_of,
    run,
    seed_of,
    until,
)

pytestmark = pytest.mark.slow


class Attacker:
    """A member whose streams carry whatever it likes."""

    def __init__(self, victim: WorkerProcess) -> None:
        self._victim = victim
        self._peers = Peers(
            seed=seed_of("attacker"),
            is_member=lambda _peer: True,
            takes_strangers=lambda: False,
            cpu_time=CpuTime(),
            timing=QUICK,
        )
        self.case_count = 0

    async def run(self, attack: Any) -> None:
        mine = PeerAddress(peer=peer_of("attacker"), host="127.0.0.1", port=0)
        async with self._peers.run(mine, on_change=lambda _peer: None), trio.open_nursery() as nursery:
            nursery.start_soon(self._peers.keep, self._victim.address)
            await until(lambda: self._peers.is_connected(self._victim.peer))
            await attack(self)
            nursery.cancel_scope.cancel()

    async def try_case(self, case: Case) -> None:
        """One stream; that the victim refuses or resets it is the expected end."""
        self.case_count += 1
        if not self._victim.is_alive:
            return
        with trio.move_on_after(5):
            try:
                await until(lambda: self._peers.is_connected(self._victim.peer))
                stream = await self._peers.open_stream(self._victim.peer, case.protocol)
            except Unavailable:
                return
            try:
                for piece in case.writes:
                    await stream.write(piece)
                    await trio.sleep(case.pause_s)
                with trio.move_on_after(0.02):
                    await stream.read(1)
                await stream.reset()
            except Exception:
                return

    @property
    def is_connected(self) -> bool:
        return self._peers.is_connected(self._victim.peer)

    def muxer(self) -> Any:
        connections = self._peers.libp2p.get_network().get_connections(libp2p_id(self._victim.peer))
        return connections[0].muxed_conn

    async def raw_stream(self, protocol: str) -> tuple[Any, Any]:
        """The muxer and a stream on it, for writing frames that no honest muxer writes."""
        await until(lambda: self._peers.is_connected(self._victim.peer))
        stream = await self._peers.open_stream(self._victim.peer, protocol)
        return self.muxer(), stream.muxed_stream


async def assert_serves_honest(victim: WorkerProcess) -> None:
    async with a_host("honest") as honest, trio.open_nursery() as nursery:
        nursery.start_soon(honest.keep_connected, [victim.address])
        assert await answers(honest, victim.peer)
        nursery.cancel_scope.cancel()


def test_no_byte_string_from_a_member_ends_a_guarded_host():
    async def main() -> None:
        with a_child("victim") as victim:
            attacker = Attacker(victim)

            async def attack(attacker: Attacker) -> None:
                for case in cases():
                    await attacker.try_case(case)
                    assert victim.is_alive, case

            await attacker.run(attack)
            assert attacker.case_count >= 120
            await assert_serves_honest(victim)

    run(main)


def test_no_muxer_frame_ends_a_guarded_host():
    async def main() -> None:
        rng = random.Random(7)
        heads = [
            (rng.choice([0, 7]), kind, flags, stream, length)
            for kind in (0, 1, 2, 3, 9)
            for flags in (0, 1, 8, 0xFFFF)
            for stream, length in ((0, 0), (2, 5), (rng.getrandbits(31), 2**32 - 1))
        ]
        with a_child("victim") as victim:

            async def attack(attacker: Attacker) -> None:
                for head in heads:
                    await until(lambda: attacker.is_connected)
                    with contextlib.suppress(Exception), trio.move_on_after(1):  # the connection may be gone
                        await attacker.muxer()._write_frame(struct.pack("!BBHII", *head) + rng.randbytes(5))
                    await trio.sleep(0.01)
                    assert victim.is_alive, head

            await Attacker(victim).run(attack)
            await assert_serves_honest(victim)

    run(main)


def test_a_member_that_opens_streams_without_end_holds_a_bounded_number():
    async def main() -> None:
        async with a_host("victim") as victim, a_host("attacker") as attacker, connected(victim, attacker):
            (mine,) = attacker._peers.libp2p.get_network().get_connections()
            (theirs,) = victim._peers.libp2p.get_network().get_connections()
            own_count = limits.CTL_STREAMS_PER_PEER_MAX  # what the victim may have opened itself
            most = 0
            for n in range(1000):
                stream_id = 100_001 + 2 * n - (not mine.muxed_conn.is_initiator)
                await mine.muxed_conn._write_frame(struct.pack("!BBHII", 0, 1, 1, stream_id, 0))
                most = max(most, len(theirs.streams))
            await until(
                lambda: len(theirs.muxed_conn.streams) <= limits.STREAMS_PER_CONNECTION_MAX + own_count
            )
            assert (
                limits.STREAMS_PER_CONNECTION_MAX // 2 < most <= limits.STREAMS_PER_CONNECTION_MAX + own_count
            )
            async with a_host("honest") as honest, connected(victim, honest):
                assert await answers(honest, victim.peer)

    run(main)


def test_rubbish_and_silence_before_the_handshake_end_nothing():
    async def main() -> None:
        rng = random.Random(8)
        with a_child("victim") as victim:
            async with contextlib.AsyncExitStack() as open_sockets:
                for size in [0] * 30 + [rng.randrange(1, 3000) for _ in range(30)]:
                    stream = await trio.open_tcp_stream(victim.address.host, victim.address.port)
                    await open_sockets.enter_async_context(stream)
                    with contextlib.suppress(trio.BrokenResourceError):
                        await stream.send_all(
                            rng.choice([b"", b"\x13/multistream/1.0.0\n"]) + rng.randbytes(size)
                        )
                await assert_serves_honest(victim)
            assert victim.is_alive

    run(main)


def test_a_member_that_ignores_its_window_loses_its_connection():
    async def main() -> None:
        with a_child("victim") as victim:

            async def flood(attacker: Attacker) -> None:
                # The victim is busy writing chunks that nobody reads, so it reads nothing meanwhile.
                muxer, stream = await attacker.raw_stream(BLOB)
                want = encode_frame(Kind.WANT_CHUNK, b"\0\0\0\0")
                await stream.write(encode_frame(Kind.GET, blob_digest(BLOB_BYTES)) + want * 64)
                frame = struct.pack("!BBHII", 0, 0, 0, stream.stream_id, 60_000) + bytes(60_000)
                for _ in range(1000):  # 60 MB, where 4 are allowed
                    await muxer._write_frame(frame)

            async def flood_often(attacker: Attacker) -> None:
                for _ in range(10):  # on a busy machine a stream may end before its window is full
                    await flood(attacker)

            async def attack(attacker: Attacker) -> None:
                with pytest.raises(ConnectionClosedError):  # the socket, by the victim
                    await flood_often(attacker)

            await Attacker(victim).run(attack)
            assert victim.is_alive

    run(main)
