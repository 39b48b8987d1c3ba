"""HTTP: uvicorn's HTTP/1.1 connection with deadlines for its other side.

Room: network (edge: sockets). A request must come whole in time, and a response must be read. Whoever sends
half a head or half a body, also behind a request that was whole, would else hold one of a server's
connections for ever; and whoever is quick enough to begin again would hold all of them, so an address has a
share alone. A connection whose reader leaves the write buffer full is aborted, because closing it
would wait for that reader.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from assay.protocol.errors import ConfigError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
# Of a page: this server's own files and nothing else, in no other page's frame.
PAGE_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = (  # of every response
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
KEEP_ALIVE_S = 5
HEAD_S_MAX = 10.0  # from a connection's start, or the end of a response, to the end of a request's head
BODY_S_MAX = 20.0  # from then on to the end of its body
FULL_S_MAX = 20.0  # for which the write buffer may stay full
PER_ADDRESS_MAX = 64  # connections at once
SILENT_S_MAX = 30  # for which what was sent may stay unacknowledged, as by a machine that is gone
NETWORK_BITS = 64  # of an IPv6 address: whoever has one has all of its network


class DeadlineHttp(H11Protocol):
    """One HTTP/1.1 connection."""

    _by: str | None = None  # whose it is, as it is counted
    _late: asyncio.TimerHandle | None = None  # ends a request that does not come
    _abort: asyncio.TimerHandle | None = None  # ends a response that is not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request, and have the kernel end what nobody acknowledges.

        One more of an address that has its share already is aborted.
        """
        super().connection_made(transport)
        self._by = counted_by({"client": self.client})
        same = (isinstance(one, DeadlineHttp) and one._by == self._by for one in self.connections)
        if self._by is not None and sum(same) > PER_ADDRESS_MAX:
            transport.abort()
            return
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; elsewhere the kernel's own time-out, many minutes
            line = transport.get_extra_info("socket")
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_S_MAX)
        self._await_head()

    def on_response_complete(self) -> None:
        """Start the deadline of the next request."""
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        _end(self._late)
        self._late = self.loop.call_later(HEAD_S_MAX, self._end_if_no_head)

    def _end_if_no_head(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            self._late = self.loop.call_later(BODY_S_MAX, self._end_if_no_body)
        elif self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def _end_if_no_body(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Start the deadline of a reader that leaves the write buffer full."""
        super().pause_writing()
        self._abort = self.loop.call_later(FULL_S_MAX, self.transport.abort)

    def resume_writing(self) -> None:
        """End the deadline: the reader has taken nearly all of the buffer."""
        super().resume_writing()
        _end(self._abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadlines with their connection."""
        super().connection_lost(exc)
        _end(self._abort)
        _end(self._late)


def listening(host: str, port: int, backlog: int) -> tuple[socket.socket, str]:
    """A socket on an IP address, and the URL that leads to it. port: 0: any free one.

    Raises:
        ConfigError: the port is taken, or the address is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        line = socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror})") from None
    return line, f"http://{f'[{host}]' if ':' in host else host}:{line.getsockname()[1]}"


def server_of(app: App, http: type[DeadlineHttp], *, connections: int, stop_s: int, **options: Any) -> Server:
    """uvicorn's server of an app, which says nothing of itself and takes no proxy's word.

    Args:
        app: What answers.
        http: The class of its connections.
        connections: How many there are at most.
        stop_s: For which requests may still be answered once the server ends.
        options: More of uvicorn's.
    """
    return Server(
        Config(
            app,
            http=http,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=stop_s,
            limit_concurrency=connections,
            **options,
        )
    )


def counted_by(scope: Mapping[str, Any]) -> str | None:
    """As `client_of`, but None for this machine, from which a proxy passes on everybody's requests."""
    client = client_of(scope)
    return None if client in ("", "::/64") or client.startswith("127.") else client


def client_of(scope: Mapping[str, Any]) -> str:
    """Who sends an ASGI request, as it is counted: an IPv4 address, or an IPv6 one's network of 64 bits.

    Readers behind one proxy are one client.
    """
    host = str((scope.get("client") or ("",))[0])
    try:
        return _counted(_address(host))
    except ValueError:
        return host


def hosts_of(scope: Mapping[str, Any]) -> list[str]:
    """The hosts that an ASGI request names, in lower case and without their ports.

    A browser names one: the one whose page it shows. Any web site can have its name lead to this machine, to
    read what is served here (DNS rebinding), so a server looks whether it is called by a name of its own.
    """
    named = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
    return [host[: host.find("]") + 1] if host[:1] == "[" else host.partition(":")[0] for host in named]


def _address(host: str) -> IPv4Address | IPv6Address:
    """An address without its zone; that of IPv4 where an IPv6 one maps it, as on a socket for both."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _counted(address: IPv4Address | IPv6Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(ip_network((address, NETWORK_BITS), strict=False))


def _end(deadline: asyncio.TimerHandle | None) -> None:
    if deadline is not None:
        deadline.cancel()
