"""Steady: HTTP requests to sources that nobody trusts: none holds a reader up with a byte now and then.

Room: bundle (edge: HTTP). A socket's own timeout ends only a silence. So the head of an answer has a
deadline, as has each read of its body, and a body that comes slower than a least rate is broken off. A
stranger's address may be refused unless its connection leads to the internet: a name may have another IP
address each time that it is resolved.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Timer
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import NewConnectionError

from assay.network.public import is_public as public_address

STEP_S_MAX = 60.0  # for the head of an answer, and for each read of its body
WINDOW_S = 30.0  # over which a rate is measured
LEAST_RATE = 4096  # bytes a second: a file of 10 MB in 40 minutes


class TooSlow(Exception):
    """A source sends less than `LEAST_RATE`. The text says how much it sent."""


@dataclass(slots=True)
class Rate:
    """What an answer sent in the present window. since_s: when this began, by the caller's clock."""

    since_s: float
    size: int = 0

    def add(self, size: int, now_s: float) -> None:
        """Count what has come by now.

        Raises:
            TooSlow: the window is over, and too little came in it.
        """
        self.size += size
        spent_s = now_s - self.since_s
        if spent_s < WINDOW_S:
            return
        if self.size < LEAST_RATE * spent_s:
            raise TooSlow(
                f"{self.size:,} bytes in {spent_s:.0f} s, at least {LEAST_RATE:,} a second expected"
            )
        self.since_s, self.size = now_s, 0


def steady_session(*, is_public: bool = False) -> requests.Session:
    """A session each of whose answers has a deadline for its head.

    Args:
        is_public: Whether nothing is sent on a connection to an address that is not on the internet. A proxy
            that the environment names connects as it does.
    """
    session = requests.Session()
    adapter = HTTPAdapter()
    pools = (
        {"http": _PublicPool, "https": _PublicTlsPool} if is_public else {"http": _Pool, "https": _TlsPool}
    )
    adapter.poolmanager.pool_classes_by_scheme = pools
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    return session


def pieces(answer: requests.Response, size: int, clock: Callable[[], float]) -> Iterator[bytes]:
    """The body of an answer in pieces of this size at most, as they come.

    Raises:
        TooSlow: they come too slowly.
        urllib3.exceptions.HTTPError, OSError: the connection broke off, or a read took over `STEP_S_MAX`.
    """
    rate = Rate(clock())
    while True:
        with _ended_after(STEP_S_MAX, getattr(answer.raw, "line", None)):
            piece: bytes = answer.raw.read1(size, decode_content=False)
        if not piece:
            return
        rate.add(len(piece), clock())
        yield piece


@contextmanager
def _ended_after(seconds: float, line: socket.socket | None) -> Iterator[None]:
    """Shut a connection down, and so end whatever waits for it, unless the block ends in time.

    Raises:
        TimeoutError: it did not, though what waited may have taken this for the end of an answer.
    """
    is_late = Event()

    def end() -> None:
        is_late.set()
        if line is not None:
            with suppress(OSError):
                socket.socket.shutdown(line, socket.SHUT_RDWR)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError(f"more than {seconds:g} s")


class _Plain(HTTPConnection):
    def getresponse(self) -> Any:
        line = self.sock
        with _ended_after(STEP_S_MAX, line):
            answer = super().getresponse()
        answer.line = line  # type: ignore[attr-defined]  # a connection that is to close forgets it
        return answer


class _Tls(HTTPSConnection):
    def getresponse(self) -> Any:
        line = self.sock
        with _ended_after(STEP_S_MAX, line):
            answer = super().getresponse()
        answer.line = line  # type: ignore[attr-defined]
        return answer


class _ToPublic(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        line = super()._new_conn()
        address = str(line.getpeername()[0])
        if not public_address(address):
            line.close()
            raise NewConnectionError(self, f"{address} is not a public address")
        return line


class _PublicPlain(_Plain, _ToPublic):
    pass


class _PublicTls(_Tls, _ToPublic):
    pass


class _PublicPool(HTTPConnectionPool):
    ConnectionCls = _PublicPlain


class _PublicTlsPool(HTTPSConnectionPool):
    ConnectionCls = _PublicTls


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _Tls
