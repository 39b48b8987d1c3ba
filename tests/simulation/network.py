"""Simulated network: loses, repeats, delays and reorders messages between hosts, from one seed.

No sockets and no clock: time is an integer of milliseconds that jumps from event to
event. The same seed and calls give the same events, which `trace` proves. Bytes go in and bytes come out, so
whatever runs on it can run on libp2p.

    send --drop? delay? twice?--> heap --partitioned or crashed?--> next()
    wake ------------------------> heap --crashed since?----------> next()
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Host = TypeVar("Host", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Loss, repetition and delay of links. Delays vary by message, so messages overtake each other."""

    delay_ms: tuple[int, int] = (5, 50)
    drop: float = 0.0
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.delay_ms[0] <= self.delay_ms[1]:
            raise ValueError(f"delay_ms: {self.delay_ms}, expected 0 <= low <= high")
        if not (0 <= self.drop <= 1 and 0 <= self.duplicate <= 1):
            raise ValueError("drop and duplicate are probabilities")


@dataclass(frozen=True, slots=True)
class Delivery(Generic[Host]):
    """Bytes reach a host."""

    source: Host
    target: Host
    payload: bytes


@dataclass(frozen=True, slots=True)
class Alarm(Generic[Host]):
    """A time at which a host, or the world (None), requested to be woken."""

    target: Host | None
    name: object


@dataclass(frozen=True, slots=True)
class _Partition(Generic[Host]):
    sides: tuple[frozenset[Host], frozenset[Host]]
    until_ms: int

    def cuts(self, source: Host, target: Host) -> bool:
        one, other = self.sides
        return (source in one and target in other) or (source in other and target in one)


@dataclass(slots=True)
class Network(Generic[Host]):
    """The heap of future events. Everything random in it comes from `seed`."""

    seed: int
    hosts: tuple[Host, ...]
    weather: Weather = field(default_factory=Weather)
    links: Mapping[tuple[Host, Host], Weather] = field(default_factory=dict)  # where one differs
    now_ms: int = 0
    _random: random.Random = field(init=False)
    _heap: list[tuple[int, int, int, Delivery[Host] | Alarm[Host]]] = field(default_factory=list)
    _count: int = 0
    _partitions: list[_Partition[Host]] = field(default_factory=list)
    _lives: dict[Host, int] = field(default_factory=dict)  # raised by each crash
    _down: set[Host] = field(default_factory=set)
    _trace: bytes = bytes(32)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def trace(self) -> bytes:
        """A hash over every event so far: two runs with the same trace had the same history."""
        return self._trace

    def send(self, source: Host, target: Host, payload: bytes) -> None:
        """Put bytes on the way; they arrive once, twice or never."""
        weather = self.links.get((source, target), self.weather)
        copies = 2 if self._random.random() < weather.duplicate else 1
        for _ in range(copies):
            delay_ms = self._random.randint(*weather.delay_ms)
            if self._random.random() >= weather.drop:
                self._push(delay_ms, self._lives.get(target, 0), Delivery(source, target, payload))

    def wake(self, target: Host | None, name: object, delay_ms: int) -> None:
        """Ask for an `Alarm`; a crash of the host before then cancels it."""
        life = 0 if target is None else self._lives.get(target, 0)
        self._push(delay_ms, life, Alarm(target, name))

    def partition(self, one: Collection[Host], other: Collection[Host], heal_ms: int) -> None:
        """Block messages between the two sides until `heal_ms` from now; other hosts reach both."""
        self._partitions.append(_Partition((frozenset(one), frozenset(other)), self.now_ms + heal_ms))

    def crash(self, host: Host) -> None:
        """Drop the messages under way to this host and all its alarms, until `restart`."""
        self._lives[host] = self._lives.get(host, 0) + 1
        self._down.add(host)

    def restart(self, host: Host) -> None:
        """Let the host receive again."""
        self._down.discard(host)

    def is_down(self, host: Host) -> bool:
        """Whether the host has crashed and not restarted."""
        return host in self._down

    def next(self) -> Delivery[Host] | Alarm[Host] | None:
        """The next event, at its time; None when nothing is left."""
        while self._heap:
            self.now_ms, _, life, event = heapq.heappop(self._heap)
            if event.target is not None:
                if event.target in self._down or life != self._lives.get(event.target, 0):
                    continue
                if isinstance(event, Delivery) and self._is_cut(event.source, event.target):
                    continue
            self._remember(event)
            return event
        return None

    def _push(self, delay_ms: int, life: int, event: Delivery[Host] | Alarm[Host]) -> None:
        self._count += 1  # breaks ties, so that equal times keep the order of the calls
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._count, life, event))

    def _is_cut(self, source: Host, target: Host) -> bool:
        self._partitions = [one for one in self._partitions if one.until_ms > self.now_ms]
        return any(one.cuts(source, target) for one in self._partitions)

    def _remember(self, event: Delivery[Host] | Alarm[Host]) -> None:
        what = event.payload if isinstance(event, Delivery) else repr(event.name).encode()
        source = event.source if isinstance(event, Delivery) else None
        head = repr((self.now_ms, source, event.target)).encode()
        self._trace = hashlib.sha256(self._trace + hashlib.sha256(head).digest() + what).digest()
