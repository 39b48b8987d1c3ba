"""Host: one participant's network endpoint: notifications, requests and blobs between authenticated peers.

Room: network (edge: libp2p over TCP, Noise and Yamux, and nothing else). libp2p
provides only authentication; every bound,
deadline and liveness check is ours (limits.py), and guard.py keeps its failures
from ending the process. No identify, DHT, mDNS or relay: members are known, and
strangers, where they may connect at all, reach public methods only.

    ctl    notifications, requests, pings    connection.py sends, request_server.py answers
    blob   pull by digest              fetch.py requests, blob_server.py serves
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import trio

from assay.network import limits
from assay.network.blob_server import BlobServer
from assay.network.blob_store import BlobSource
from assay.network.connection import Connection, RemoteError
from assay.network.cpu_time import CpuTime
from assay.network.fetch import Pull, Streams, Threads, fetch
from assay.network.guard import reset_quietly
from assay.network.inbox import Inbox, Notification
from assay.network.peers import PeerAddress, Peers
from assay.network.request_server import Handler, RequestServer
from assay.network.traffic import Traffic
from assay.protocol.errors import ConfigError, PeerFault
from assay.protocol.types import Digest, PeerId

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

__all__ = [
    "BlobSource",
    "Handler",
    "Host",
    "Notification",
    "PeerAddress",
    "RemoteError",
    "open_host",
]

T = TypeVar("T")
log = logging.getLogger(__name__)


class Host:
    """Made by `open_host`; usable inside its scope only.

    Attributes:
        peer: Our own peer id.
        address: Our listening address.
        notifications: One-way messages from all peers, bounded per peer; handle each within `metered`.
    """

    def __init__(
        self,
        *,
        peers: Peers,
        inbox: Inbox,
        cpu_time: CpuTime,
        request_server: RequestServer,
        address: PeerAddress,
    ) -> None:
        self.peer = address.peer
        self.address = address
        self.notifications = inbox.receive
        self._peers = peers
        self._inbox = inbox
        self._cpu_time = cpu_time
        self._request_server = request_server
        self._connections: dict[PeerId, Connection] = {}
        self._threads = Threads()
        self._blob_server: BlobServer
        self._streams: Streams
        self._nursery: trio.Nursery
        self._timing: limits.Timing
        self._on_fault: Callable[[PeerFault], None]
        self._protocols: _Protocols

    def connected(self) -> frozenset[PeerId]:
        """The members with a live connection now."""
        return self._peers.connected()

    def latencies(self) -> dict[PeerId, float]:
        """Seconds of the newest answered ping, by peer."""
        known = ((peer, one.latency_s) for peer, one in self._connections.items())
        return {peer: latency_s for peer, latency_s in known if latency_s is not None}

    def traffic(self) -> Traffic:
        """The bytes of messages and blobs so far."""
        return self._peers.traffic

    def dropped_notifications(self) -> Mapping[PeerId, int]:
        """Count of notifications dropped so far because their sender flooded us, by sender."""
        return dict(self._inbox.dropped)

    @contextmanager
    def metered(self, peer: PeerId) -> Iterator[None]:
        """Charge this thread's processor time in the block to a peer, whose next messages wait for it.

        The block must not await: other tasks' time would be the peer's too.
        """
        since_s = time.thread_time()
        try:
            yield
        finally:
            self._cpu_time.charge(peer, time.thread_time() - since_s)

    async def in_thread(self, peer: PeerId, call: Callable[..., T], *args: Any) -> T:
        """`call(*args)` in a thread for a peer, at its charge: its next messages and requests wait for it."""
        return await self._cpu_time.in_thread_at_once(self._cpu_time.payer(peer), call, *args)

    async def keep_connected(self, addresses: Sequence[PeerAddress]) -> None:
        """Keep connections to these members, redialling when one ends; ends only by cancellation."""
        async with trio.open_nursery() as nursery:
            for address in addresses:
                if address.peer != self.peer:
                    nursery.start_soon(self._peers.keep, address)

    def move(self, address: PeerAddress) -> None:
        """Dial a member here, too, from now on; a connection that it has stays."""
        self._peers.move(address)

    async def send(self, peer: PeerId, payload: bytes) -> None:
        """Return once a notification is written to the peer's stream; the peer may not have read it.

        Raises:
            Unavailable: the peer is not connected, or does not read.
            ValueError: the payload is above `limits.NOTIFICATION_BYTES_MAX` (our own mistake).
        """
        await self._connection(peer).send(payload)

    def post(self, peer: PeerId, payload: bytes) -> None:
        """Queue a notification for a peer, connected or not; a full queue drops its oldest.

        Raises:
            ValueError: the payload is above `limits.NOTIFICATION_BYTES_MAX` (our own mistake).
        """
        self._connection(peer).post(payload)

    async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        """Call `method` of a peer and return its response.

        Raises:
            RemoteError: the peer answered with an error; a `PeerFault` with bounded text.
            Unavailable: not connected, busy, or no answer within `timeout_s`.
            ValueError: method or body above their bounds (our own mistake).
        """
        return await self._connection(peer).request(method, body, timeout_s=timeout_s)

    async def fetch(
        self,
        digest: Digest,
        *,
        holders: Sequence[PeerId],
        size_max: int,
        deadline_s: float,
        at_once: int = limits.FETCH_HOLDERS_AT_ONCE,
        path: Path | None = None,
    ) -> bytes:
        """Download and verify a blob from `holders`; it is not put into our store.

        Args:
            digest: The blob's digest.
            holders: Peers that may have it, best first.
            size_max: In bytes; a larger blob is refused.
            deadline_s: Seconds for the whole fetch.
            at_once: How many are asked side by side; more of them while no chunk comes.
            path: Of a file that takes the bytes in their place, of which few are in memory at a time; what is
                returned is then empty. It may be left in part.

        Raises:
            PeerFault: every holder broke the protocol or sent wrong bytes.
            Unavailable: it was not complete in time.
        """
        pull = Pull(digest, size_max=size_max, threads=self._threads, path=path)
        try:
            return await fetch(
                pull,
                holders=[holder for holder in holders if holder != self.peer],
                streams=self._streams,
                on_fault=self._on_fault,
                timing=self._timing,
                deadline_s=deadline_s,
                at_once=at_once,
            )
        finally:
            pull.close()

    # --- for open_host only -----------------------------------------------------------------------

    def _connection(self, peer: PeerId) -> Connection:
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = Connection(
                peer,
                open_stream=self._opener(self._protocols.ctl),
                is_connected=self._peers.is_connected,
                timing=self._timing,
            )
            self._nursery.start_soon(connection.run)
        return connection

    def _opener(self, protocol: str) -> Callable[[PeerId], Awaitable[Any]]:
        async def open_stream(peer: PeerId) -> Any:
            return await self._peers.open_stream(peer, protocol)

        return open_stream

    def _reset_soon(self, stream: Any) -> None:
        self._nursery.start_soon(reset_quietly, stream)

    def _on_change(self, peer: PeerId) -> None:
        if peer in self._connections:
            self._connections[peer].wake()
        if not self._peers.is_connected(peer):
            self._inbox.forget(peer)

    async def _ping(self, peer: PeerId) -> bool:
        return await self._connection(peer).ping(timeout_s=self._timing.ping_interval_s)


@dataclass(frozen=True, slots=True)
class _Protocols:
    """The libp2p protocol names of one network; hosts of different networks share none."""

    network_id: str

    @property
    def ctl(self) -> str:
        return f"/assay/{self.network_id}/ctl/1"

    @property
    def blob(self) -> str:
        return f"/assay/{self.network_id}/blob/1"


@asynccontextmanager
async def open_host(
    *,
    seed: bytes,
    listen_port: int,
    network_id: str,
    is_member: Callable[[PeerId], bool],
    handlers: Mapping[str, Handler],
    blobs: BlobSource,
    may_read: Callable[[PeerId, Digest], bool] = lambda _peer, _digest: True,
    public: Mapping[str, Handler] | None = None,
    takes_strangers: Callable[[], bool] = lambda: False,
    listen_ip: str = "127.0.0.1",
    on_fault: Callable[[PeerFault], None] | None = None,
    timing: limits.Timing | None = None,
) -> AsyncIterator[Host]:
    """Run a host; all its tasks have ended when the scope is left.

    Args:
        seed: 32 bytes, the same that PyNaCl's `SigningKey` takes.
        listen_port: TCP port; 0 lets the system choose, see `Host.address`.
        network_id: Part of every protocol name, so that two networks never mix.
        is_member: Whether a peer is known; called again for every stream and request.
        handlers: Request handlers by method name, for members.
        public: The same, for everybody.
        takes_strangers: Whether others than members may connect now, for a short time, to call the latter.
        blobs: Source of served blobs.
        may_read: Whether a member may be served a blob; called for each pull.
        listen_ip: IPv4 or IPv6; `::` takes connections of both.
        on_fault: Called with every fault of a peer, also if the call around it succeeds.
        timing: All timeouts; tests shorten them.

    Raises:
        ConfigError: the seed is not 32 bytes, or the port cannot be listened on.
    """
    if len(seed) != 32:
        raise ConfigError(f"seed of {len(seed)} bytes, 32 expected")
    timing = timing or limits.Timing()
    report = on_fault or _log_fault
    port = _free_port(listen_ip, listen_port)
    cpu_time = CpuTime(is_member)
    peers = Peers(
        seed=seed, is_member=is_member, takes_strangers=takes_strangers, cpu_time=cpu_time, timing=timing
    )
    inbox = Inbox(cpu_time)
    open_to_all = public or {}
    request_server = RequestServer(
        handlers={**handlers, **open_to_all},
        public=open_to_all,
        is_member=is_member,
        inbox=inbox,
        cpu_time=cpu_time,
        timing=timing,
    )
    host = Host(
        peers=peers,
        inbox=inbox,
        cpu_time=cpu_time,
        request_server=request_server,
        address=PeerAddress(peer=peers.me, host=listen_ip, port=port),
    )
    protocols = _Protocols(network_id)
    host._protocols, host._timing, host._on_fault = protocols, timing, report
    host._streams = Streams(host._opener(protocols.blob), host._reset_soon, timing)
    host._blob_server = server = BlobServer(
        blobs=blobs, may_read=may_read, on_fault=report, cpu_time=cpu_time, timing=timing
    )
    peers.serve(protocols.ctl, request_server.serve, members_only=not open_to_all)
    peers.serve(protocols.blob, server.serve, members_only=True)
    trio.lowlevel.add_instrument(cpu_time)
    try:
        async with peers.run(host.address, on_change=host._on_change), trio.open_nursery() as nursery:
            host._nursery = nursery
            nursery.start_soon(inbox.pump)
            nursery.start_soon(peers.watch, host._ping)
            yield host
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        only = _only(group)
        raise only from only.__cause__
    finally:
        trio.lowlevel.remove_instrument(cpu_time)


def _free_port(ip: str, port: int) -> int:
    """The port to listen on, chosen by the system for 0; the real check is libp2p's own bind."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
            probe.listen(1)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {ip} port {port}: {error}") from error
        return int(probe.getsockname()[1])


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one exception in nested groups, so that callers see what was raised; else the group."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    return inner


def _log_fault(fault: PeerFault) -> None:
    log.warning("peer fault", extra={"peer": fault.peer.hex()[:8], "reason": fault.reason})
