"""Post: one HTTPS request to a webhook's address, which a stranger chose.

Room: api (edge: DNS and sockets). The host is looked up once, every address of it must be public, and the
connection goes to the address that was checked: no private service is reached, also by a name that changes in
between. Redirects are not followed, proxies of the environment are not used, only the status is read, and the
whole request has one deadline.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

import h11

from assay.network.public import is_public

PORT = 443
POST_S_MAX = 10.0
ADDRESSES_MAX = 4
BEFORE_BYTES_MAX = 1 << 14  # of interim answers (1xx) and an answer's head, which take time to parse
GONE = 410
Address: TypeAlias = tuple[str, int]  # IP address and port


class NotAccepted(Exception):
    """A webhook did not accept a message; the text is for its owner."""

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final  # the receiver wants no more


async def public_addresses(host: str) -> Sequence[Address]:
    """The addresses of a host.

    Raises:
        NotAccepted: it has none, or one that is not public. The text does not say which: names inside the
            server's network are nobody's business.
    """
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        infos = []
    found = [str(info[4][0]) for info in infos]
    if not found or not all(map(is_public, found)):
        raise NotAccepted("its host has no address, or one that is not public")
    return [(address, PORT) for address in found[:ADDRESSES_MAX]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Poster:
    """Sends messages to webhooks."""

    tls: ssl.SSLContext = field(default_factory=ssl.create_default_context)
    lookup: Callable[[str], Awaitable[Sequence[Address]]] = public_addresses

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """Post a message, once.

        Args:
            url: `https://host/path`, of the form that `HookAsked` allows.
            headers: Of the message.
            body: Its JSON.

        Raises:
            NotAccepted: no connection, no answer in time or within `BEFORE_BYTES_MAX`, or another status than
                200 to 299.
        """
        try:
            status = await asyncio.wait_for(self._posted(url, headers, body), POST_S_MAX)
        except asyncio.TimeoutError:
            raise NotAccepted(f"no answer within {POST_S_MAX:g} seconds") from None
        except ssl.SSLCertVerificationError as error:
            raise NotAccepted(f"its certificate is not valid: {error.verify_message}") from None
        except (OSError, EOFError):
            raise NotAccepted("the connection to it failed") from None
        except h11.ProtocolError:
            raise NotAccepted("its answer is not HTTP/1.1") from None
        if not 200 <= status < 300:
            raise NotAccepted(f"answered {status}, 200 to 299 expected", is_final=status == GONE)

    async def _posted(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        parts = urlsplit(url)
        host, target = parts.netloc, parts._replace(scheme="", netloc="").geturl() or "/"
        reader, writer = await self._connected(host)
        try:
            http = h11.Connection(h11.CLIENT)
            told = {"host": host, "content-type": "application/json", "content-length": str(len(body)),
                    "user-agent": "assay", "connection": "close", **headers}  # fmt: skip
            for event in (
                h11.Request(method="POST", target=target, headers=list(told.items())),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                writer.write(http.send(event) or b"")
            await writer.drain()
            left = BEFORE_BYTES_MAX
            while not isinstance(answer := http.next_event(), h11.Response):
                if answer is h11.NEED_DATA:
                    if not left:
                        raise NotAccepted(f"no answer within {BEFORE_BYTES_MAX} bytes")
                    data = await reader.read(left)
                    left -= len(data)
                    http.receive_data(data)
            return answer.status_code
        finally:
            writer.transport.abort()  # the rest of the answer is not wanted

    async def _connected(self, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failed: OSError = OSError()
        for address, port in await self.lookup(host):
            try:
                return await asyncio.open_connection(address, port, ssl=self.tls, server_hostname=host)
            except ssl.SSLError:
                raise
            except OSError as error:
                failed = error
        raise failed
