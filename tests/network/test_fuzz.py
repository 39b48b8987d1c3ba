"""A member that sends anything at all costs its own streams; it never ends our process."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import trio
from child_host import BLOB as BLOB_BYTES
from corpus import BLOB, Case, cases
from libp2p.io.exceptions import ConnectionClosedError
from loopback import PATIENCE_S, QUICK, Child, a_child, a_host, answers, peer_of, run, seed_of, until

from network.frames import Kind, encode_frame
from network.host import PeerAddress
from network.identity import libp2p_id
from network.peers import Peers
from protocol.blob import blob_digest
from protocol.errors import Unavailable


class Attacker:
    """A member whose streams carry whatever it likes."""

    def __init__(self, victim: Child) -> None:
        self._victim = victim
        self._peers = Peers(seed=seed_of("attacker"), is_member=lambda _peer: True, timing=QUICK)
        self.case_count = 0

    async def run(self, attack: Any) -> None:
        mine = PeerAddress(peer=peer_of("attacker"), ip="127.0.0.1", port=0)
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

    def muxer(self) -> Any:
        connections = self._peers.libp2p.get_network().get_connections(libp2p_id(self._victim.peer))
        return connections[0].muxed_conn

    async def raw_stream(self, protocol: str) -> tuple[Any, Any]:
        """The muxer and a stream on it, for writing frames that no honest muxer writes."""
        stream = await self._peers.open_stream(self._victim.peer, protocol)
        return self.muxer(), stream.muxed_stream


def test_no_byte_string_from_a_member_ends_a_guarded_host():
    async def main() -> None:
        with a_child("victim") as victim:
            attacker = Attacker(victim)

            async def attack(attacker: Attacker) -> None:
                for case in cases():
                    await attacker.try_case(case)
                    assert victim.is_alive, case

            await attacker.run(attack)
            assert attacker.case_count >= 200
            async with a_host("honest") as honest, trio.open_nursery() as nursery:
                nursery.start_soon(honest.keep_connected, [victim.address])
                assert await answers(honest, victim.peer)
                nursery.cancel_scope.cancel()

    run(main)


def test_without_the_guard_the_same_corpus_ends_the_process():
    """If this fails, libp2p was repaired, or the corpus no longer tests the guard."""

    async def main() -> None:
        with a_child("victim", "unguarded") as victim:

            async def attack(attacker: Attacker) -> None:
                for case in cases():
                    await attacker.try_case(case)
                    if not victim.is_alive:
                        return

            with trio.move_on_after(PATIENCE_S):
                await Attacker(victim).run(attack)
            with trio.move_on_after(10):
                while victim.is_alive:
                    await trio.sleep(0.1)
            assert not victim.is_alive

    run(main)


def test_a_member_that_ignores_its_window_loses_its_connection():
    async def main() -> None:
        with a_child("victim") as victim:

            async def attack(attacker: Attacker) -> None:
                # The victim is busy writing chunks that nobody reads, so it reads nothing meanwhile.
                muxer, stream = await attacker.raw_stream(BLOB)
                want = encode_frame(Kind.WANT_CHUNK, b"\0\0\0\0")
                await stream.write(encode_frame(Kind.GET, blob_digest(BLOB_BYTES)) + want * 64)
                frame = struct.pack("!BBHII", 0, 0, 0, stream.stream_id, 60_000) + bytes(60_000)
                with pytest.raises(ConnectionClosedError):  # the socket, by the victim
                    for _ in range(1000):  # 60 MB, where 4 are allowed
                        await muxer._write_frame(frame)

            await Attacker(victim).run(attack)
            assert victim.is_alive

    run(main)
