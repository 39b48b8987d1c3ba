"""Streams: an in-memory network of hosts with the interface of `network.host.Host`, for one thread.

A link between two hosts is ordered and loses nothing while it lasts, as TCP is; it has a delay, and breaks.
What is on its way then is lost, requests in flight fail, and what was posted waits for the next connection.
Nothing here waits but `request`, `fetch` and handlers; one task delivers everything, in order of time.

    post, request --outbox--> link, if connected --delay--> arrive --> inbox | handler --answer--> asker
"""

from __future__ import annotations

import contextvars
import hashlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import trio
from nacl.signing import SigningKey

from assay.network import limits
from assay.network.blob_store import BlobSource
from assay.network.cpu_time import CpuTime
from assay.network.host import Handler, Notification, PeerAddress, RemoteError
from assay.network.inbox import Inbox
from assay.network.traffic import Traffic
from assay.protocol.encoding.blob import blob_digest
from assay.protocol.errors import AssayError, PeerFault, Unavailable
from assay.protocol.identity import peer_of
from assay.protocol.types import Digest, PeerId

T = TypeVar("T")
BLOB = "blob"  # no method of a host: a pull of bulk bytes
REDIAL_S = (0.05, 2.0)  # from the end of a link, or of what cuts it, to the next one


@dataclass(frozen=True, slots=True)
class Frame:
    """What travels: a notification (`method` empty), a request, or the answer to one (`answers`)."""

    source: PeerId
    target: PeerId
    method: str
    body: bytes
    number: int = 0
    answers: bool = False
    error: str = ""
    is_busy: bool = False


@dataclass(slots=True)
class _Link:
    """Between two hosts. `life` counts connections; frames of an earlier one are lost."""

    delay_s: float
    is_up: bool = False
    life: int = 0
    last_s: dict[PeerId, float] = field(default_factory=dict)  # when the newest frame of a side arrives


@dataclass(eq=False, slots=True)
class _Asked:
    done: trio.Event = field(default_factory=trio.Event)
    body: bytes = b""
    error: AssayError | None = None


class Network:
    """All hosts and links. Whatever is random in it comes from `rng`."""

    def __init__(
        self,
        rng: random.Random,
        watch: Callable[[Frame], Iterable[Frame]],
        arrives: Callable[[Frame], None] = lambda _frame: None,
        *,
        jitter_s: float = 0.01,
    ) -> None:
        """
        Args:
            rng: Of delays.
            watch: What becomes of a frame as it is sent: the same one, unless its sender lies.
            arrives: Told of every frame in the moment in which its target has it.
            jitter_s: The most that a frame's delay exceeds its link's.
        """
        self._rng, self._watch, self._arrives, self._jitter_s = rng, watch, arrives, jitter_s
        self.delay_of: Callable[[PeerId, PeerId], float] = lambda _one, _other: 0.02
        self.hosts: dict[PeerId, SimulatedHost] = {}
        self.cuts: list[frozenset[PeerId]] = []  # each one's members reach each other, and nobody else
        self.delivered = 0
        self.trace = hashlib.sha256()
        self._links: dict[frozenset[PeerId], _Link] = {}
        self._heap: list[tuple[float, int, frozenset[PeerId], int, Frame | None]] = []
        self._count = itertools.count()
        self._news = trio.Event()

    # ---- hosts and links

    def add(self, host: SimulatedHost) -> None:
        """A host listens: others reach it after a while."""
        self.hosts[host.peer] = host
        for other in self.hosts:
            if other != host.peer:
                self._dial(frozenset((host.peer, other)))

    def remove(self, host: SimulatedHost) -> None:
        """A host's process ended."""
        if self.hosts.get(host.peer) is host:
            del self.hosts[host.peer]
            for pair in [pair for pair in self._links if host.peer in pair]:
                self._break(pair)

    def partition(self, side: frozenset[PeerId]) -> None:
        """Break all links between these hosts and others until `heal`."""
        self.cuts.append(side)
        for pair in list(self._links):
            if self._is_cut(pair):
                self._break(pair)

    def heal(self) -> None:
        """End all partitions."""
        self.cuts.clear()
        for pair in itertools.combinations(self.hosts, 2):
            self._dial(frozenset(pair))

    def drop_link(self, one: PeerId, other: PeerId) -> None:
        """Break one link; it is dialled again."""
        pair = frozenset((one, other))
        if self._link(pair).is_up:
            self._break(pair)
            self._dial(pair)

    def is_up(self, one: PeerId, other: PeerId) -> bool:
        """Whether two hosts have a connection now."""
        return self._link(frozenset((one, other))).is_up

    def _link(self, pair: frozenset[PeerId]) -> _Link:
        found = self._links.get(pair)
        if found is None:
            found = self._links[pair] = _Link(self.delay_of(*sorted(pair)))
        return found

    def _is_cut(self, pair: frozenset[PeerId]) -> bool:
        return any(len(pair & side) == 1 for side in self.cuts)

    def _dial(self, pair: frozenset[PeerId]) -> None:
        if not self._link(pair).is_up:
            self._push(trio.current_time() + self._rng.uniform(*REDIAL_S), pair, 0, None)

    def _break(self, pair: frozenset[PeerId]) -> None:
        link = self._link(pair)
        link.is_up, link.life = False, link.life + 1
        link.last_s.clear()
        for one in pair:
            if one in self.hosts:
                (other,) = pair - {one}
                self.hosts[one].lost(other)

    # ---- frames

    def send(self, frame: Frame) -> None:
        """Put a frame on a link that is up."""
        pair = frozenset((frame.source, frame.target))
        link = self._link(pair)
        for sent in self._watch(frame):
            at_s = trio.current_time() + link.delay_s + self._rng.uniform(0, self._jitter_s)
            at_s = link.last_s[sent.source] = max(at_s, link.last_s.get(sent.source, 0.0))
            self._push(at_s, pair, link.life, sent)

    def _push(self, at_s: float, pair: frozenset[PeerId], life: int, frame: Frame | None) -> None:
        heapq.heappush(self._heap, (at_s, next(self._count), pair, life, frame))
        self._news.set()

    async def run(self) -> None:
        """Deliver frames and make connections at their times; ends only by cancellation."""
        while True:
            self._news = trio.Event()
            wait_s = self._heap[0][0] - trio.current_time() if self._heap else 3600.0
            if wait_s > 0:
                with trio.move_on_after(wait_s):
                    await self._news.wait()
                continue
            _, _, pair, life, frame = heapq.heappop(self._heap)
            link = self._link(pair)
            if frame is None:
                self._connect(pair, link)
            elif link.is_up and link.life == life:
                self._deliver(frame)

    def _connect(self, pair: frozenset[PeerId], link: _Link) -> None:
        if link.is_up or self._is_cut(pair) or not all(one in self.hosts for one in pair):
            return
        one, other = sorted(pair)
        if not (self.hosts[one].lets_in(other) and self.hosts[other].lets_in(one)):
            self._push(trio.current_time() + REDIAL_S[1], pair, 0, None)
            return
        link.is_up = True
        self.hosts[one].met(other)
        self.hosts[other].met(one)

    def _deliver(self, frame: Frame) -> None:
        self.delivered += 1
        head = (round(trio.current_time() * 1e6), frame.source, frame.target, frame.method, frame.answers)
        self.trace.update(repr((*head, frame.error)).encode() + frame.body)
        self._arrives(frame)
        self.hosts[frame.target].arrive(frame)


class SimulatedHost:
    """In place of `network.host.Host`."""

    def __init__(
        self,
        network: Network,
        peer: PeerId,
        is_member: Callable[[PeerId], bool],
        handlers: Mapping[str, Handler],
        public: Mapping[str, Handler],
        takes_strangers: Callable[[], bool],
        blobs: BlobSource,
        nursery: trio.Nursery,
    ) -> None:
        self.peer, self.is_member, self._takes_strangers = peer, is_member, takes_strangers
        self.address = PeerAddress(peer=peer, host="127.0.0.1", port=1)
        self._network, self._nursery, self._blobs = network, nursery, blobs
        self._handlers, self._public = {**handlers, **public}, public
        self._context = contextvars.copy_context()  # that of our process, in which its handlers run
        self._inbox = Inbox(CpuTime())
        self.notifications = self._inbox.receive
        self._outbox: dict[PeerId, deque[Frame]] = {}
        self._asked: dict[int, tuple[PeerId, _Asked]] = {}
        self._numbers = itertools.count(1)
        self.is_dead = False
        nursery.start_soon(self._inbox.pump)

    # ---- what a process calls

    def connected(self) -> frozenset[PeerId]:
        """The members with a live connection now."""
        return frozenset(one for one in self._network.hosts if self._reaches(one) and self.is_member(one))

    def latencies(self) -> dict[PeerId, float]:
        """None is measured."""
        return {}

    def traffic(self) -> Traffic:
        """Nothing is counted."""
        return Traffic()

    def dropped_notifications(self) -> Mapping[PeerId, int]:
        """As `Host` has it."""
        return dict(self._inbox.dropped)

    @contextmanager
    def metered(self, _peer: PeerId) -> Iterator[None]:
        """Nobody is charged: processor time does not follow from a seed."""
        yield

    async def in_thread(self, _peer: PeerId, call: Callable[..., T], *args: Any) -> T:
        """As `Host.in_thread`; nobody is charged."""
        return await trio.to_thread.run_sync(call, *args)

    async def keep_connected(self, _addresses: Sequence[PeerAddress]) -> None:
        """The network dials."""
        await trio.sleep_forever()

    def move(self, _address: PeerAddress) -> None:
        """Nobody moves."""

    async def send(self, peer: PeerId, payload: bytes) -> None:
        """As `Host.send`."""
        self._check(peer)
        self.post(peer, payload)

    def post(self, peer: PeerId, payload: bytes) -> None:
        """As `Host.post`."""
        if len(payload) > limits.NOTIFICATION_BYTES_MAX:
            raise ValueError(f"notification of {len(payload)} bytes")
        if self.is_dead:
            return
        frame = Frame(self.peer, peer, "", payload)
        if self._reaches(peer):
            self._network.send(frame)
            return
        queue = self._outbox.setdefault(peer, deque(maxlen=limits.OUTBOX_FRAMES_MAX))
        queue.append(frame)

    async def request(self, peer: PeerId, method: str, body: bytes, *, timeout_s: float) -> bytes:
        """As `Host.request`."""
        self._check(peer)
        number, asked = next(self._numbers), _Asked()
        self._asked[number] = peer, asked
        self._network.send(Frame(self.peer, peer, method, body, number))
        try:
            with trio.move_on_after(timeout_s):
                await asked.done.wait()
        finally:
            self._asked.pop(number, None)
        if asked.error is not None:
            raise asked.error
        if not asked.done.is_set():
            raise Unavailable(f"peer {peer.hex()[:8]}: no answer within {timeout_s} s")
        return asked.body

    async def fetch(
        self, digest: Digest, *, holders: Sequence[PeerId], size_max: int, deadline_s: float,
        at_once: int = 1, path: Path | None = None,
    ) -> bytes:  # fmt: skip
        """As `Host.fetch`, one holder after another."""
        reason = "no holder was given"
        with trio.move_on_after(deadline_s):
            for holder in holders:
                if holder == self.peer:
                    continue
                try:
                    body = await self.request(holder, BLOB, digest, timeout_s=deadline_s)
                except AssayError as error:
                    reason = str(error)
                    continue
                if len(body) <= size_max and blob_digest(body) == digest:
                    if path is None:
                        return body
                    path.write_bytes(body)
                    return b""
                reason = f"peer {holder.hex()[:8]} sent other bytes"
        raise Unavailable(f"blob {digest.hex()[:8]}: {reason}")

    # ---- what the network calls

    def lets_in(self, peer: PeerId) -> bool:
        """Whether it has, or would take, a connection with this peer; a stranger's lasts here, too."""
        return self.is_member(peer) or self._takes_strangers()

    def met(self, peer: PeerId) -> None:
        """A link is up: what was posted goes out."""
        for frame in self._outbox.pop(peer, ()):
            self._network.send(frame)

    def lost(self, peer: PeerId) -> None:
        """A link is down."""
        for other, asked in list(self._asked.values()):
            if other == peer and not asked.done.is_set():
                asked.error = Unavailable(f"peer {peer.hex()[:8]}: connection lost")
                asked.done.set()

    def arrive(self, frame: Frame) -> None:
        """A frame has come."""
        if self.is_dead:
            return
        if frame.answers:
            self._answered(frame)
        elif not frame.method:
            if self.is_member(frame.source) and not self._inbox.offer(Notification(frame.source, frame.body)):
                self._inbox.drop(frame.source)
        else:
            self._context.copy().run(self._nursery.start_soon, self._answer, frame)

    def _answered(self, frame: Frame) -> None:
        peer, asked = self._asked.get(frame.number, (frame.source, None))
        if asked is None or asked.done.is_set():
            return
        asked.body = frame.body
        if frame.error:
            busy = Unavailable(f"peer {peer.hex()[:8]}: {frame.error}")
            asked.error = busy if frame.is_busy else RemoteError(peer, frame.error)
        asked.done.set()

    async def _answer(self, frame: Frame) -> None:
        body, error, is_busy = b"", "", False
        try:
            with trio.fail_after(limits.Timing().handler_s):
                body = await self._handle(frame)
        except Unavailable as fault:
            error, is_busy = str(fault), True
        except AssayError as fault:
            error = str(fault)
        except trio.TooSlowError:
            error, is_busy = f"{frame.method} took too long", True
        if not self.is_dead and self._reaches(frame.source):
            self._network.send(
                Frame(self.peer, frame.source, frame.method, body, frame.number, True, error[:200], is_busy)
            )

    async def _handle(self, frame: Frame) -> bytes:
        if frame.method == BLOB and self.is_member(frame.source):
            return self._blob(Digest(frame.body))
        handler = self._handlers.get(frame.method)
        if handler is None or (frame.method not in self._public and not self.is_member(frame.source)):
            raise PeerFault(frame.source, f"no method {frame.method}")
        return await handler(frame.source, frame.body)

    def _blob(self, digest: Digest) -> bytes:
        size = self._blobs.size(digest)
        if size is None:
            raise Unavailable("the holder does not have it")
        body = self._blobs.read(digest, 0, size)
        if blob_digest(body) != digest:  # as the server of a real host notices
            self._blobs.discard_damaged(digest)
            raise Unavailable("the holder's blob is damaged")
        return body

    def _reaches(self, peer: PeerId) -> bool:
        return not self.is_dead and peer != self.peer and self._network.is_up(self.peer, peer)

    def _check(self, peer: PeerId) -> None:
        if not self._reaches(peer):
            raise Unavailable(f"peer {peer.hex()[:8]}: not connected")


@asynccontextmanager
async def open_simulated_host(
    network: Network,
    *,
    seed: bytes,
    is_member: Callable[[PeerId], bool],
    handlers: Mapping[str, Handler],
    blobs: BlobSource,
    public: Mapping[str, Handler] | None = None,
    takes_strangers: Callable[[], bool] = lambda: False,
    **_more: Any,
) -> AsyncIterator[SimulatedHost]:
    """In place of `network.host.open_host`."""
    async with trio.open_nursery() as nursery:
        peer = peer_of(SigningKey(seed))
        host = SimulatedHost(
            network, peer, is_member, handlers, public or {}, takes_strangers, blobs, nursery
        )
        network.add(host)
        try:
            yield host
        finally:
            host.is_dead = True
            network.remove(host)
        nursery.cancel_scope.cancel()
