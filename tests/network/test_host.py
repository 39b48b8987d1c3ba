"""Hosts on loopback: who may talk, what a failure costs, and how soon it is noticed."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import struct
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
import trio
from libp2p.stream_muxer.yamux import yamux

from assay.network import limits
from assay.network.cpu_time import STRANGERS
from assay.network.frames import Kind, encode_frame, read_frame
from assay.network.host import Notification, RemoteError
from assay.network.identity import libp2p_id
from assay.protocol.errors import ConfigError, OutOfPhase, PeerFault, Unavailable
from tests.network.loopback import (
    PATIENCE_S,
    QUICK,
    a_child,
    a_host,
    answers,
    burn,
    connected,
    echo,
    peer_of,
    run,
    until,
)
from tests.network.memory_blobs import MemoryBlobs

pytestmark = pytest.mark.slow

YAMUX_PING = bytes((0, 2, 0, 1)) + bytes(8)  # version 0, ping, SYN


def test_the_peer_id_is_the_key_that_pynacl_has_for_the_same_seed():
    async def main() -> None:
        async with a_host("alice") as alice:
            assert alice.peer == alice.address.peer == peer_of("alice")

    run(main)


def test_facts_and_requests_arrive_with_their_authenticated_sender():
    asked = []

    async def whoami(peer, body):
        asked.append((peer, body))
        return peer + body

    async def main() -> None:
        async with (
            a_host("alice") as alice,
            a_host("bob", handlers={"whoami": whoami}) as bob,
            connected(alice, bob),
        ):
            await alice.send(bob.peer, b"one")
            alice.post(bob.peer, b"two")
            assert await bob.notifications.receive() == Notification(alice.peer, b"one")
            assert await bob.notifications.receive() == Notification(alice.peer, b"two")
            assert await alice.request(bob.peer, "whoami", b"!", timeout_s=10) == alice.peer + b"!"
            assert asked == [(alice.peer, b"!")]

    run(main)


def test_a_peer_that_moved_is_dialled_where_it_was_too():
    """Who listens where it is said to be may be another process of its keys, in another run."""

    async def main() -> None:
        async with (
            a_host("alice") as alice,
            a_host("bob") as bob,
            a_host("bob", network_id="another run") as other,
            trio.open_nursery() as nursery,
        ):
            alice.move(other.address)
            nursery.start_soon(alice.keep_connected, [bob.address])
            await until(lambda: bool(alice.connected()))
            assert not bob.connected()
            assert await answers(alice, bob.peer)
            nursery.cancel_scope.cancel()

    run(main)


def test_a_host_knows_its_latency_to_a_peer_and_the_bytes_that_went_each_way():
    async def main() -> None:
        async with (
            a_host("alice") as alice,
            a_host("bob", handlers={"echo": echo}) as bob,
            connected(alice, bob),
        ):
            sent, received = alice.traffic().sent, alice.traffic().received
            await alice.request(bob.peer, "echo", bytes(100_000), timeout_s=10)
            assert 100_000 <= alice.traffic().sent - sent < 110_000
            assert 100_000 <= alice.traffic().received - received < 110_000
            assert bob.traffic().received >= 100_000
            await until(lambda: bob.peer in alice.latencies())
            assert 0 < alice.latencies()[bob.peer] < PATIENCE_S
            assert set(alice.latencies()) <= alice.connected()

    run(main)


def test_a_peer_is_told_of_room_for_half_a_window_and_not_of_every_read(monkeypatch):
    told: list[int] = []
    write = yamux.Yamux._write_frame

    async def counted(self: yamux.Yamux, frame: bytes) -> None:
        _, kind, flags, _, room = struct.unpack(yamux.YAMUX_HEADER_FORMAT, frame[: yamux.HEADER_SIZE])
        if kind == yamux.TYPE_WINDOW_UPDATE and not flags:
            told.append(room)
        await write(self, frame)

    monkeypatch.setattr(yamux.Yamux, "_write_frame", counted)

    async def main() -> None:
        async with a_host("alice") as alice, a_host("bob") as bob, connected(alice, bob):
            for n in range(50):
                await alice.request(bob.peer, "echo", bytes([n]) * 1000, timeout_s=10)
            assert told == []
            for n in range(30):
                await alice.request(bob.peer, "echo", bytes([n]) * 100_000, timeout_s=10)
            assert told and min(told) >= yamux.DEFAULT_WINDOW_SIZE // 2

    run(main)


def test_requests_in_flight_together_each_get_their_own_answer():
    async def slow_first(_peer, body):
        await trio.sleep(0.3 if body == b"0" else 0)
        return body * 1000

    async def main() -> None:
        async with (
            a_host("alice") as alice,
            a_host("bob", handlers={"echo": slow_first}) as bob,
            connected(alice, bob),
        ):
            got = {}

            async def ask(n):
                body = str(n).encode()
                got[n] = await alice.request(bob.peer, "echo", body, timeout_s=10) == body * 1000

            async with trio.open_nursery() as nursery:
                for n in range(10):
                    nursery.start_soon(ask, n)
            assert got == dict.fromkeys(range(10), True)
            assert next(iter(got)) != 0

    run(main)


def test_what_a_handler_raises_reaches_the_asker_as_a_bounded_fault_of_the_peer(caplog):
    caplog.set_level(logging.CRITICAL, "assay.network.request_server")

    async def refuse(peer, _body):
        raise OutOfPhase(peer, "x" * 5000)

    async def break_down(_peer, _body):
        raise ZeroDivisionError("secret")

    async def be_busy(_peer, _body):
        raise Unavailable("disk is slow")

    async def main() -> None:
        handlers = {"refuse": refuse, "break": break_down, "busy": be_busy, "echo": echo}
        async with a_host("alice") as alice, a_host("bob", handlers=handlers) as bob, connected(alice, bob):
            with pytest.raises(RemoteError) as refused:
                await alice.request(bob.peer, "refuse", b"", timeout_s=10)
            assert refused.value.peer == bob.peer
            assert len(refused.value.reason) <= limits.REASON_CHARS_MAX
            with pytest.raises(RemoteError, match="internal error"):
                await alice.request(bob.peer, "break", b"", timeout_s=10)
            with pytest.raises(RemoteError, match="no method"):
                await alice.request(bob.peer, "unheard of", b"", timeout_s=10)
            with pytest.raises(Unavailable, match="disk is slow"):
                await alice.request(bob.peer, "busy", b"", timeout_s=10)
            assert await answers(alice, bob.peer)

    run(main)


def test_more_requests_than_a_peer_may_have_running_are_told_busy():
    is_free = trio.Event()

    async def wait(_peer, body):
        await is_free.wait()
        return body

    async def main() -> None:
        async with (
            a_host("alice") as alice,
            a_host("bob", handlers={"wait": wait}) as bob,
            connected(alice, bob),
        ):
            outcomes = []

            async def ask():
                try:
                    outcomes.append(await alice.request(bob.peer, "wait", b"done", timeout_s=PATIENCE_S))
                except Unavailable as error:
                    outcomes.append("busy" if "busy" in str(error) else error)

            async with trio.open_nursery() as nursery:
                for _ in range(limits.REQUESTS_PER_PEER_MAX + 3):
                    nursery.start_soon(ask)
                await until(lambda: len(outcomes) == 3)
                is_free.set()
            assert outcomes == ["busy"] * 3 + [b"done"] * limits.REQUESTS_PER_PEER_MAX

    run(main)


def test_a_stranger_gets_no_connection_and_a_member_beside_it_does():
    async def main() -> None:
        members = {peer_of("alice"), peer_of("bob")}
        async with (
            a_host("bob", is_member=members.__contains__) as bob,
            a_host("mallory") as mallory,
            a_host("alice", is_member=members.__contains__) as alice,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(mallory.keep_connected, [bob.address])
            nursery.start_soon(alice.keep_connected, [bob.address])
            assert await answers(alice, bob.peer)
            for _ in range(10):
                with pytest.raises(Unavailable):
                    await mallory.request(bob.peer, "echo", b"let me in", timeout_s=0.2)
                await trio.sleep(0.05)
            assert bob.connected() == {alice.peer}
            nursery.cancel_scope.cancel()

    run(main)


def test_a_stranger_reaches_public_methods_only_and_for_a_short_time():
    members = {peer_of("alice"), peer_of("bob")}
    shared = MemoryBlobs()
    name = shared.put(b"what members made")

    async def main() -> None:
        async with (
            a_host(
                "bob",
                is_member=members.__contains__,
                public={"apply": echo},
                takes_strangers=lambda: True,
                blobs=shared,
                timing=replace(QUICK, ping_interval_s=3),  # a busy machine answers late
            ) as bob,
            a_host("mallory") as mallory,
            a_host("alice", is_member=members.__contains__) as alice,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(mallory.keep_connected, [bob.address])
            nursery.start_soon(alice.keep_connected, [bob.address])
            assert await answers(alice, bob.peer)
            await until(lambda: bob.peer in mallory.connected())
            assert await mallory.request(bob.peer, "apply", b"a seat", timeout_s=5) == b"a seat"
            with pytest.raises(RemoteError, match="only members"):
                await mallory.request(bob.peer, "echo", b"", timeout_s=5)
            with pytest.raises((PeerFault, Unavailable)):
                await mallory.fetch(name, holders=[bob.peer], size_max=100, deadline_s=0.5)
            assert await alice.fetch(name, holders=[bob.peer], size_max=100, deadline_s=5)
            mallory.post(bob.peer, b"read this")
            alice.post(bob.peer, b"and this")
            assert (await bob.notifications.receive()).peer == alice.peer
            assert bob.connected() == {alice.peer}
            await until(lambda: bob.peer not in mallory.connected())  # the next round of pings
            nursery.cancel_scope.cancel()

    run(main)


def test_strangers_take_only_a_few_places_and_none_of_the_members(monkeypatch):
    monkeypatch.setattr(limits, "STRANGERS_MAX", 2)

    async def main() -> None:
        members = {peer_of("alice"), peer_of("bob")}
        slow = replace(QUICK, ping_interval_s=60)  # nobody is sent away during this test
        door: dict[str, Any] = {"public": {"apply": echo}, "takes_strangers": lambda: True, "timing": slow}
        async with (
            a_host("bob", is_member=members.__contains__, **door) as bob,
            a_host("mallory 0") as first,
            a_host("mallory 1") as second,
            a_host("mallory 2") as third,
            a_host("alice", is_member=members.__contains__) as alice,
            trio.open_nursery() as nursery,
        ):
            for stranger in (first, second):
                nursery.start_soon(stranger.keep_connected, [bob.address])
                await until(lambda stranger=stranger: bob.peer in stranger.connected())
                assert await stranger.request(bob.peer, "apply", b"x", timeout_s=5) == b"x"
            nursery.start_soon(third.keep_connected, [bob.address])
            with pytest.raises(Unavailable):
                await third.request(bob.peer, "apply", b"x", timeout_s=1)
            nursery.start_soon(alice.keep_connected, [bob.address])
            assert await answers(alice, bob.peer)
            nursery.cancel_scope.cancel()

    run(main)


def test_strangers_that_come_all_at_once_get_no_more_places(monkeypatch):
    monkeypatch.setattr(limits, "STRANGERS_MAX", 2)
    slow = replace(QUICK, ping_interval_s=60)

    async def main() -> None:
        door: dict[str, Any] = {"public": {"apply": echo}, "takes_strangers": lambda: True, "timing": slow}
        async with (
            a_host("bob", is_member=lambda _peer: False, **door) as bob,
            trio.open_nursery() as nursery,
            AsyncExitStack() as strangers,
        ):
            crowd = [await strangers.enter_async_context(a_host(f"mallory {n}")) for n in range(8)]
            for one in crowd:
                nursery.start_soon(one.keep_connected, [bob.address])
            most = 0
            with trio.move_on_after(PATIENCE_S) as watch:
                while True:
                    now = len(bob._peers._live())
                    if most < 2 <= now:
                        watch.deadline = trio.current_time() + 2
                    most = max(most, now)
                    await trio.sleep(0)
            assert most == 2
            nursery.cancel_scope.cancel()

    run(main)


def test_a_member_that_is_struck_off_is_disconnected_and_served_no_more():
    async def main() -> None:
        members = {peer_of("alice"), peer_of("bob")}
        async with (
            a_host("bob", is_member=lambda peer: peer in members) as bob,
            a_host("alice") as alice,
            connected(alice, bob),
        ):
            assert await answers(alice, bob.peer)
            members.discard(alice.peer)
            await until(lambda: alice.peer not in bob.connected())
            with pytest.raises((RemoteError, Unavailable)):
                await alice.request(bob.peer, "echo", b"", timeout_s=1)

    run(main)


def test_peers_that_come_and_go_use_up_nothing(monkeypatch):
    """Unguarded libp2p counts every inbound connection of its lifetime against the limit."""
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 4)

    async def main() -> None:
        async with a_host("bob") as bob:
            for _ in range(8):
                async with a_host("alice") as alice, trio.open_nursery() as nursery:
                    nursery.start_soon(alice.keep_connected, [bob.address])
                    assert await answers(alice, bob.peer)
                    nursery.cancel_scope.cancel()

    run(main)


def test_a_killed_peer_is_noticed_and_dialled_again_when_it_is_back():
    async def main() -> None:
        async with a_host("alice") as alice, trio.open_nursery() as nursery:
            with a_child("bob") as bob:
                nursery.start_soon(alice.keep_connected, [bob.address])
                assert await answers(alice, bob.peer)
                bob.signal(signal.SIGKILL)
                await until(lambda: not alice.connected())
                with pytest.raises(Unavailable):
                    await alice.send(bob.peer, b"anybody")
                alice.post(bob.peer, b"read this when you are back")
                port = bob.address.port
            await trio.sleep(1)  # a few dials fail, which libp2p would answer by refusing for 60 s
            with a_child("bob", port=port) as bob:
                assert await answers(alice, bob.peer)
            nursery.cancel_scope.cancel()

    run(main)


def test_a_peer_that_moved_is_dialled_where_it_is_now():
    async def main() -> None:
        async with a_host("alice") as alice, a_host("bob") as bob, trio.open_nursery() as nursery:
            elsewhere = replace(bob.address, port=1)
            nursery.start_soon(alice.keep_connected, [elsewhere])
            await trio.sleep(0.5)  # a few dials fail
            assert not alice.connected()
            alice.move(bob.address)
            assert await answers(alice, bob.peer)
            nursery.cancel_scope.cancel()

    run(main)


def test_a_frozen_peer_is_let_go_and_found_again_when_it_thaws():
    async def main() -> None:
        with a_child("bob") as bob:
            async with a_host("alice") as alice, trio.open_nursery() as nursery:
                nursery.start_soon(alice.keep_connected, [bob.address])
                assert await answers(alice, bob.peer)
                bob.signal(signal.SIGSTOP)
                await until(lambda: not alice.connected())
                bob.signal(signal.SIGCONT)
                assert await answers(alice, bob.peer)
                nursery.cancel_scope.cancel()

    run(main)


def test_a_frozen_peer_with_a_full_socket_delays_neither_others_nor_closing():
    async def main() -> None:
        with a_child("bob") as bob, a_child("carol") as carol:
            with trio.fail_after(PATIENCE_S):
                async with (
                    a_host("alice", timing=replace(QUICK, ping_interval_s=60)) as alice,
                    trio.open_nursery() as nursery,
                ):
                    nursery.start_soon(alice.keep_connected, [bob.address, carol.address])
                    assert await answers(alice, bob.peer)
                    bob.signal(signal.SIGSTOP)
                    for _ in range(100):
                        alice.post(bob.peer, bytes(limits.NOTIFICATION_BYTES_MAX))
                    assert await answers(alice, carol.peer)
                    closing_since = trio.current_time()
                    nursery.cancel_scope.cancel()
            assert trio.current_time() - closing_since < PATIENCE_S / 2

    run(main)


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("is_member", [True, False])
def test_what_a_request_takes_is_on_its_members_account_and_strangers_have_one_together(is_member, in_thread):
    bob: Any = None

    async def dear(peer, body):
        if in_thread:
            await bob.in_thread(peer, burn, 0.02)
            return body
        for _ in range(4):
            await trio.sleep(0)
            burn(0.005)
        return body

    async def main() -> None:
        nonlocal bob
        async with (
            a_host("alice") as alice,
            a_host(
                "bob",
                is_member=lambda peer: is_member or peer != alice.peer,
                takes_strangers=lambda: True,
                public={"dear": dear},
                timing=replace(QUICK, ping_interval_s=PATIENCE_S),
            ) as bob,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(alice.keep_connected, [bob.address])
            await until(lambda: bob.peer in alice.connected())
            assert await alice.request(bob.peer, "dear", b"x", timeout_s=PATIENCE_S) == b"x"
            payer = alice.peer if is_member else bytes(32)
            assert bob._cpu_time.least([payer, peer_of("nobody")]) == peer_of("nobody")
            assert bob._cpu_time.spent_s(payer) >= 0.01  # of 0.02, since some is forgotten already
            assert set(bob._cpu_time._spent) == {payer, STRANGERS}  # the handshake
            nursery.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize("is_member", [True, False])
def test_what_the_multiplexer_reads_is_on_the_same_account(is_member):
    async def main() -> None:
        calm = replace(QUICK, ping_interval_s=PATIENCE_S)
        async with (
            a_host(
                "alice",
                is_member=lambda peer: is_member or peer != peer_of("bob"),
                takes_strangers=lambda: True,
                public={"echo": echo},
                timing=calm,
            ) as alice,
            a_host("bob", timing=calm) as bob,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(bob.keep_connected, [alice.address])
            await until(lambda: alice.peer in bob.connected())
            payer = alice._cpu_time.payer(bob.peer)
            assert payer == (bob.peer if is_member else STRANGERS)
            [connection] = bob._peers._swarm.get_connections(libp2p_id(alice.peer))
            before_s = spent_s(alice, payer)
            await connection.muxed_conn.secured_conn.write(YAMUX_PING * 500)  # which no stream of ours sees
            await until(lambda: spent_s(alice, payer) - before_s > 0.002)
            nursery.cancel_scope.cancel()

    run(main)


def test_handshakes_are_on_the_strangers_account_whoever_makes_them():
    async def main() -> None:
        async with a_host("alice") as alice, a_host("bob") as bob, trio.open_nursery() as nursery:
            nursery.start_soon(bob.keep_connected, [alice.address])
            await until(lambda: alice.peer in bob.connected() and bob.peer in alice.connected())
            assert spent_s(alice, STRANGERS) > 0.0005
            assert spent_s(bob, STRANGERS) == 0  # it dialled
            nursery.cancel_scope.cancel()

    run(main)


def spent_s(host, peer):
    return host._cpu_time.spent_s(peer)


def test_pings_above_their_rate_end_the_stream_and_those_within_it_are_answered():
    async def main() -> None:
        async with a_host("bob") as bob, a_host("mallory") as mallory, connected(bob, mallory):
            stream = await mallory._peers.open_stream(bob.peer, mallory._protocols.ctl)
            count = 0
            with contextlib.suppress(Exception):  # libp2p's errors share no base class
                while count < 20 * limits.PINGS_PER_PEER_BURST:
                    await stream.write(encode_frame(Kind.PING, bytes(4)))
                    await read_frame(stream, (Kind.PONG,))
                    count += 1
            assert limits.PINGS_PER_PEER_BURST <= count < 20 * limits.PINGS_PER_PEER_BURST
            await trio.sleep(1)  # earns a few
            assert await answers(mallory, bob.peer)

    run(main)


def test_a_flood_of_facts_from_one_peer_does_not_stop_anothers():
    async def main() -> None:
        async with (
            a_host("bob") as bob,
            a_host("mallory") as mallory,
            a_host("alice") as alice,
            connected(bob, mallory, alice),
            trio.open_nursery() as nursery,
        ):

            async def flood():
                while True:
                    try:
                        await mallory.send(bob.peer, bytes(1000))
                    except Unavailable:
                        await trio.sleep(0.01)

            nursery.start_soon(flood)
            await until(
                lambda: bob.dropped_notifications().get(mallory.peer, 0) >= 2
            )  # nobody reads bob's facts
            await alice.send(bob.peer, b"a word")
            assert await answers(alice, bob.peer)
            await until_received(bob, Notification(alice.peer, b"a word"))
            assert alice.peer not in bob.dropped_notifications()
            nursery.cancel_scope.cancel()

    run(main)


async def until_received(host, expected):
    with trio.fail_after(PATIENCE_S):
        while await host.notifications.receive() != expected:
            pass


def test_posts_to_an_absent_peer_keep_the_newest_and_cost_no_more_than_the_bound():
    async def main() -> None:
        async with a_host("alice") as alice, a_host("bob") as bob:
            for n in range(limits.OUTBOX_FRAMES_MAX + 50):
                alice.post(bob.peer, str(n).encode())
            async with connected(alice, bob):
                first = await bob.notifications.receive()
                assert first.payload == b"50"

    run(main)


def test_a_peer_that_ends_every_stream_at_once_is_not_courted_in_a_loop():
    async def main() -> None:
        streams = []

        async def hang_up(peer, stream):
            streams.append(peer)
            await read_frame(stream, (Kind.NOTIFICATION,))
            await stream.reset()

        patient = replace(QUICK, redial_min_s=60, redial_max_s=60, ping_interval_s=60)
        async with a_host("alice", timing=patient) as alice, a_host("bob") as bob, connected(bob, alice):
            bob._peers.serve(bob._protocols.ctl, hang_up, members_only=True)
            await until(lambda: bob.peer in alice.connected())
            for _ in range(20):
                alice.post(bob.peer, b"hello")
                await trio.sleep(0.05)
            await until(lambda: bool(streams))
            assert streams == [alice.peer]

    run(main)


def test_a_payload_at_the_bound_is_sent_and_one_byte_more_is_our_own_mistake():
    async def main() -> None:
        async with a_host("alice") as alice, a_host("bob") as bob, connected(alice, bob):
            await alice.send(bob.peer, bytes(limits.NOTIFICATION_BYTES_MAX))
            assert len((await bob.notifications.receive()).payload) == limits.NOTIFICATION_BYTES_MAX
            with pytest.raises(ValueError, match="at most"):
                alice.post(bob.peer, bytes(limits.NOTIFICATION_BYTES_MAX + 1))
            body = bytes(limits.REQUEST_BYTES_MAX)
            assert await alice.request(bob.peer, "echo", body, timeout_s=30) == body
            with pytest.raises(ValueError, match="at most"):
                await alice.request(bob.peer, "echo", body + b"x", timeout_s=30)

    run(main)


def test_hosts_of_another_network_have_nothing_to_say_to_each_other():
    async def main() -> None:
        async with (
            a_host("alice") as alice,
            a_host("bob", network_id="other") as bob,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(alice.keep_connected, [bob.address])
            await until(lambda: bool(alice.connected()))
            with pytest.raises(Unavailable):
                await alice.request(bob.peer, "echo", b"", timeout_s=2)
            nursery.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize(
    ("listen", "dial"), [("::1", "::1"), ("127.0.0.1", "localhost"), ("::", "127.0.0.1")]
)
def test_a_peer_is_reached_at_an_ipv6_address_and_by_its_dns_name(listen, dial):
    if ":" in listen and not _has_ipv6():
        pytest.skip("no IPv6 on this machine")

    async def main() -> None:
        async with (
            a_host("alice", listen_ip=listen) as alice,
            a_host("bob") as bob,
            trio.open_nursery() as tasks,
        ):
            tasks.start_soon(bob.keep_connected, [replace(alice.address, host=dial)])
            await until(lambda: alice.peer in bob.connected())
            assert await answers(bob, alice.peer)
            tasks.cancel_scope.cancel()

    run(main)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_busy_port_is_the_operators_to_fix_and_is_named():
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=str(port)):
                async with a_host("alice", listen_port=port):
                    pass

    run(main)


def test_two_hosts_cannot_share_a_port():
    async def main() -> None:
        async with a_host("alice") as alice:
            with pytest.raises(ConfigError, match=str(alice.address.port)):
                async with a_host("bob", listen_port=alice.address.port):
                    pass

    run(main)


def test_what_is_raised_inside_the_scope_comes_out_as_it_is():
    async def main() -> None:
        with pytest.raises(KeyError, match="mine"):
            async with a_host("alice"):
                raise KeyError("mine")

    run(main)
