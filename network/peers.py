"""Peers: dials, admits, pings and disconnects the peers of one host.

Room: network (edge: libp2p's host and swarm). Only members get past the handshake.
A connection counts as alive while pings on it are answered; libp2p itself does
not detect a frozen peer.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import libp2p
import trio
from libp2p.abc import INotifee
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.exceptions import SwarmException
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL_ID
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_PROTOCOL_ID
from libp2p.stream_muxer.yamux.yamux import Yamux
from multiaddr import Multiaddr

from assay.network import frames, limits
from assay.network.cpu_time import STRANGERS, CpuTime
from assay.network.guard import harden, reset_quietly
from assay.network.identity import key_pair, libp2p_id, peer_id
from assay.network.traffic import CountedStream, Traffic
from assay.protocol.errors import ConfigError, MalformedMessage, Unavailable
from assay.protocol.types import PeerId

log = logging.getLogger(__name__)

_ADDRESS_TTL_S = 10**9
_RESOLVED_MAX = 4  # addresses of one DNS name that a dial tries
Serve = Callable[[PeerId, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerAddress:
    """A member's listening address."""

    peer: PeerId
    host: str  # IPv4 or IPv6 address, or a DNS name
    port: int


class Peers:
    """The connections of one host."""

    def __init__(
        self,
        *,
        seed: bytes,
        is_member: Callable[[PeerId], bool],
        takes_strangers: Callable[[], bool],
        cpu_time: CpuTime,
        timing: limits.Timing,
    ) -> None:
        harden()
        self.is_member = is_member
        self._cpu_time = cpu_time
        self._takes_strangers = takes_strangers
        self._entering: set[PeerId] = set()  # strangers whose connection is not counted by libp2p yet
        self._timing = timing
        self._moved: dict[PeerId, PeerAddress] = {}  # members that are elsewhere than `keep` was told
        self._changed = trio.Event()
        self.traffic = Traffic()
        self._on_change: Callable[[PeerId], None] = lambda _peer: None
        self._jitter = random.Random()  # jitter of dial times only
        identity = key_pair(seed)
        self.libp2p = libp2p.new_host(
            key_pair=identity,
            sec_opt={
                NOISE_PROTOCOL_ID: NoiseTransport(identity, noise_privkey=create_noise_key_pair().private_key)
            },
            muxer_opt={YAMUX_PROTOCOL_ID: Yamux},
            connection_config=ConnectionConfig(
                max_connections=limits.CONNECTIONS_MAX,
                min_connections=0,
                low_watermark=0,
                high_watermark=limits.CONNECTIONS_MAX,
                max_connections_per_peer=limits.CONNECTIONS_PER_PEER_MAX,
                outbound_stream_protocol_negotiation_timeout=timing.open_stream_s,
            ),
            disable_identify_address_discovery=True,
        )
        self.me = peer_id(self.libp2p.get_id())
        self._swarm = self.libp2p.get_network()
        self._swarm.set_resource_manager(None)  # it refuses reconnecting members; limits.py has the bounds
        self._swarm.retry_config = RetryConfig(max_retries=0)
        self._strip()
        self._gate()

    def _strip(self) -> None:
        # Identify lets a peer write into our address book, and runs in system tasks, where one
        # exception ends the process. Members are known, so it is not needed.
        self._swarm.notifees.clear()
        self._swarm.register_notifee(_Watcher(self._note))
        self.libp2p._schedule_identify = lambda *_args, **_kwargs: None
        self.libp2p.multiselect.handlers.clear()

        async def dial_nobody() -> None:
            """Replaces libp2p's own dialling, which would fill up to half its connections."""

        self._swarm.auto_connector.maybe_connect = dial_nobody

    def _gate(self) -> None:
        # Before the muxer runs: who is not admitted can never open a stream. (libp2p calls a notifee,
        # its own hook for this, only after streams are being accepted.)
        add = self._swarm.add_conn

        async def add_member(muxed: Any, direction: str = "unknown") -> Any:
            if not self._admits(muxed.peer_id):
                log.info("non-member refused", extra={"stranger": str(muxed.peer_id)})
                with trio.move_on_after(self._timing.close_s):
                    await muxed.close()
                raise SwarmException("not a member")
            peer = peer_id(muxed.peer_id)
            read = muxed.handle_incoming
            muxed.handle_incoming = lambda: self._cpu_time.share(self._cpu_time.payer(peer), read())
            if self.is_member(peer):
                return await add(muxed, direction)
            self._entering.add(peer)  # counted here, with no await since the check
            try:
                return await add(muxed, direction)
            finally:
                self._entering.discard(peer)

        self._swarm.add_conn = add_member
        handle = self.libp2p._swarm_stream_handler

        async def handle_member(stream: Any) -> None:
            if self._admits(stream.muxed_conn.peer_id):
                payer = self._cpu_time.payer(peer_id(stream.muxed_conn.peer_id))
                await self._cpu_time.share(payer, handle(stream))
            else:  # it was a member when it connected
                await reset_quietly(stream)

        self._swarm.set_stream_handler(handle_member)
        shake_hands = self._swarm.upgrade_inbound_raw_conn

        async def accept(raw: Any, address: Any) -> Any:  # who it is comes out of the handshake
            return await self._cpu_time.share(STRANGERS, shake_hands(raw, address))

        self._swarm.upgrade_inbound_raw_conn = accept

    def _admits(self, identity: Any) -> bool:
        """Whether this is a member, or a stranger for whom there is room."""
        try:
            peer = peer_id(identity)
        except MalformedMessage:
            return False
        if self.is_member(peer):
            return True
        strangers = {other for other in self._live() | self._entering if not self.is_member(other)} - {peer}
        return self._takes_strangers() and len(strangers) < limits.STRANGERS_MAX

    def serve(self, protocol: str, serve: Serve, *, members_only: bool) -> None:
        """Register the handler of this protocol's streams."""

        async def handle(stream: Any) -> None:
            peer = peer_id(stream.muxed_conn.peer_id)
            if members_only and not self.is_member(peer):
                await reset_quietly(stream)
            else:
                await serve(peer, CountedStream(stream, self.traffic))

        self.libp2p.set_stream_handler(protocol, handle)

    @asynccontextmanager
    async def run(self, address: PeerAddress, *, on_change: Callable[[PeerId], None]) -> AsyncIterator[None]:
        """Listen for as long as the scope lasts.

        Raises:
            ConfigError: the port cannot be listened on.
        """
        self._on_change = on_change
        listen = _multiaddr(address.host, address.port)
        async with self.libp2p.run(listen_addrs=[listen]):
            if not self._swarm.listeners:
                raise ConfigError(f"cannot listen on {address.host} port {address.port}")
            try:
                yield
            finally:
                self._swarm._closing = True
                with trio.CancelScope(shield=True), trio.move_on_after(self._timing.close_s):
                    async with trio.open_nursery() as nursery:
                        for connection in self._swarm.get_connections():
                            nursery.start_soon(self._abort, connection)

    def connected(self) -> frozenset[PeerId]:
        """The members with a live connection now."""
        return frozenset(filter(self.is_member, self._live()))

    def _live(self) -> frozenset[PeerId]:
        """Everybody with a live connection now."""
        return frozenset(
            peer_id(identity)
            for identity, connections in self._swarm.connections.items()
            if any(not connection.is_closed for connection in connections)
        )

    def is_connected(self, peer: PeerId) -> bool:
        """Whether this peer has a live connection now."""
        connections = self._swarm.connections.get(libp2p_id(peer), ())
        return any(not connection.is_closed for connection in connections)

    async def open_stream(self, peer: PeerId, protocol: str) -> Any:
        """A new stream to a connected peer.

        Raises:
            Unavailable: not connected, or the peer does not take it in time.
        """
        name = peer.hex()[:8]
        if not self.is_connected(peer):
            raise Unavailable(f"peer {name}: not connected")
        try:
            with trio.fail_after(self._timing.open_stream_s):
                stream = await self.libp2p.new_stream(libp2p_id(peer), [protocol])
                return CountedStream(stream, self.traffic)
        except trio.TooSlowError as error:
            raise Unavailable(f"peer {name}: no stream within {self._timing.open_stream_s} s") from error
        except Exception as error:  # libp2p's errors share no base class
            raise Unavailable(f"peer {name}: {frames.printable(repr(error))}") from error

    async def keep(self, address: PeerAddress) -> None:
        """Dial a member whenever it is not connected, with backoff; ends only by cancellation.

        One that moved is dialled there and here by turns: whoever listens there may be another process of
        its keys, with which nothing can be exchanged.
        """
        timing = self._timing
        wait_s, place = timing.redial_min_s, address
        if self.me > address.peer:
            await trio.sleep(timing.polite_dial_s)
        while True:
            since_s = trio.current_time()
            while self.is_connected(address.peer):
                await self._changed.wait()
            if trio.current_time() - since_s > timing.redial_max_s:
                wait_s = timing.redial_min_s
            moved = self._moved.get(address.peer, address)
            place = moved if place is not moved else address
            if not await self._dial(place):
                log.debug("dial failed", extra={"peer": address.peer.hex()[:8], "wait_s": wait_s})
            # Also after success: a peer that accepts and closes at once must not be redialled in a loop.
            await trio.sleep(wait_s * (1 - timing.redial_jitter * self._jitter.random()))
            wait_s = (
                timing.redial_min_s
                if self.is_connected(address.peer)
                else min(2 * wait_s, timing.redial_max_s)
            )

    def move(self, address: PeerAddress) -> None:
        """Dial this member here, too, from now on."""
        self._moved[address.peer] = address

    async def _dial(self, address: PeerAddress) -> bool:
        identity = libp2p_id(address.peer)
        self._swarm.unblock_peer(identity)  # libp2p refuses for 60 s after a failed dial
        try:
            with trio.fail_after(self._timing.dial_s):
                found = await _resolved(address)
                self._swarm.peerstore.clear_addrs(identity)
                self._swarm.peerstore.add_addrs(identity, found, _ADDRESS_TTL_S)
                await self._swarm.dial_peer(identity)
        except Exception as error:  # libp2p's errors share no base class; a dial may always fail
            log.debug("dial failed", extra={"peer": address.peer.hex()[:8], "error": repr(error)})
        return self.is_connected(address.peer)

    async def watch(self, ping: Callable[[PeerId], Awaitable[bool]]) -> None:
        """Ping every peer; disconnect those that stop answering, strangers and former members."""
        checked: set[PeerId] = set()

        async def check(peer: PeerId) -> None:
            try:
                for _ in range(self._timing.ping_misses):
                    if await ping(peer) or not self.is_connected(peer):
                        return
                log.info("peer stopped answering", extra={"peer": peer.hex()[:8]})
                await self.disconnect(peer)
            finally:
                checked.discard(peer)

        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self._timing.ping_interval_s)
                for peer in self._live() - checked:
                    if not self.is_member(peer):
                        nursery.start_soon(self.disconnect, peer)
                        continue
                    checked.add(peer)
                    nursery.start_soon(check, peer)

    async def disconnect(self, peer: PeerId) -> None:
        """End every connection to this peer, also a frozen one."""
        for connection in self._swarm.get_connections(libp2p_id(peer)):
            await self._abort(connection)

    async def _abort(self, connection: Any) -> None:
        # libp2p's close first writes a go-away frame, which blocks for ever on a frozen peer. With
        # the socket closed its cleanup completes.
        try:
            await connection.muxed_conn.secured_conn.conn.read_writer.read_write_closer.stream.close()
        except Exception as error:
            log.debug("socket already gone", extra={"error": repr(error)})
        with trio.move_on_after(self._timing.close_s):
            try:
                await connection.close()
            except Exception as error:
                log.debug("connection already gone", extra={"error": repr(error)})

    def _note(self, identity: Any) -> None:
        self._changed.set()
        self._changed = trio.Event()
        try:
            self._on_change(peer_id(identity))
        except MalformedMessage:
            return


class _Watcher(INotifee):  # type: ignore[misc]  # libp2p has no types
    """Reports changes of a peer's connections."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        self._note = note

    async def connected(self, network: Any, conn: Any) -> None:
        self._note(conn.muxed_conn.peer_id)

    async def disconnected(self, network: Any, conn: Any) -> None:
        self._note(conn.muxed_conn.peer_id)

    async def opened_stream(self, network: Any, stream: Any) -> None:
        pass

    async def closed_stream(self, network: Any, stream: Any) -> None:
        pass

    async def listen(self, network: Any, multiaddr: Any) -> None:
        pass

    async def listen_close(self, network: Any, multiaddr: Any) -> None:
        pass


async def _resolved(address: PeerAddress) -> list[Multiaddr]:
    """Where to dial a peer: a DNS name is asked for anew each time, since home lines change their address."""
    found = await trio.socket.getaddrinfo(address.host, address.port, type=trio.socket.SOCK_STREAM)
    hosts = dict.fromkeys(str(place[0]) for *_, place in found)
    return [_multiaddr(host, address.port) for host in list(hosts)[:_RESOLVED_MAX]]


def _multiaddr(ip: str, port: int) -> Multiaddr:
    return Multiaddr(f"/ip{ip_address(ip).version}/{ip}/tcp/{port}")
