"""Post: only a public address is reached, whatever name or redirect leads to it, and in bounded time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from assay.api.hooks import post
from assay.api.hooks.post import NotAccepted, Poster, public_addresses
from assay.api.schemas import HookAsked
from assay.network.public import is_public
from tests.api.hooks.a_receiver import HOST, URL, Receiver, receiving

PUBLIC = ["93.184.215.14", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001::1"]
NOT_PUBLIC = [
    "127.0.0.1", "127.255.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "100.100.100.200", "192.0.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1",
    "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
    "::ffff:93.184.215.14", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1",
    "2002:7f00:1::", "2002:a00:1::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fe80::1", "fe80::1%eth0",
    "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "2001:db8::1", "100::1", "5f00::1",
]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_posted_to(address: str):
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(address: str):
    assert not is_public(address)


def resolving(monkeypatch: pytest.MonkeyPatch, *rounds: list[str]) -> list[str]:
    """Have names looked up as these addresses, look-up by look-up; returns the names asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        found = rounds[min(len(asked), len(rounds) - 1)]
        asked.append(host)
        if not found:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@pytest.mark.parametrize("found", [["127.0.0.1"], ["93.184.215.14", "10.0.0.1"], ["::1", "1.1.1.1"], []])
def test_a_name_with_any_private_address_is_refused_and_the_error_does_not_name_it(
    monkeypatch: pytest.MonkeyPatch, found: list[str]
):
    resolving(monkeypatch, found)
    with pytest.raises(NotAccepted) as refusal:
        asyncio.run(public_addresses("db.internal.example"))
    assert str(refusal.value) == "its host has no address, or one that is not public"


def test_the_address_that_was_checked_is_connected_to_when_the_name_changes(monkeypatch: pytest.MonkeyPatch):
    asked = resolving(monkeypatch, ["93.184.215.14", "1.1.1.1"], ["127.0.0.1"])
    dialled: list[Any] = []

    async def open_connection(host: str, port: int, *, ssl: ssl.SSLContext, server_hostname: str) -> Any:
        dialled.append((host, port, server_hostname, ssl.check_hostname, ssl.verify_mode.name))
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    with pytest.raises(NotAccepted, match="the connection to it failed"):
        asyncio.run(Poster().post(URL, {}, b"{}"))

    assert asked == [HOST]
    assert dialled == [
        (address, 443, HOST, True, "CERT_REQUIRED") for address in ("93.184.215.14", "1.1.1.1")
    ]


def posted(receiver: Receiver, url: str = URL) -> str:
    """What is wrong with a post; empty if it was accepted."""
    try:
        asyncio.run(receiver.poster().post(url, {"webhook-id": "msg_1"}, b'{"a": 1}'))
    except NotAccepted as refusal:
        return str(refusal)
    return ""


def test_a_message_arrives_as_it_was_sent(tmp_path: Path):
    with receiving(tmp_path) as receiver:
        assert posted(receiver) == ""
        assert posted(receiver, f"https://{HOST}") == ""

    (path, headers, body), (root, *_) = receiver.got
    assert (path, root, body) == ("/assay?from=api", "/", b'{"a": 1}')
    assert (headers["host"], headers["webhook-id"]) == (HOST, "msg_1")
    assert headers["content-type"] == "application/json"


def test_a_redirect_is_an_answer_and_not_followed(tmp_path: Path):
    with receiving(tmp_path, answers=[302, 307, 404, 500, 204]) as receiver:
        found = [posted(receiver) for _ in range(5)]

    assert found == [f"answered {status}, 200 to 299 expected" for status in (302, 307, 404, 500)] + [""]
    assert [path for path, *_ in receiver.got] == ["/assay?from=api"] * 5


def test_a_certificate_of_another_name_or_issuer_is_refused(tmp_path: Path):
    with receiving(tmp_path) as receiver:
        assert "certificate is not valid" in posted(receiver, "https://other.example.org/")
        distrustful = Poster(lookup=receiver.poster().lookup)
        with pytest.raises(NotAccepted, match="certificate is not valid"):
            asyncio.run(distrustful.post(URL, {}, b"{}"))
    assert receiver.got == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "not HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 101 x\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 x\r\nx: " + b"x" * 100_000, "no answer within 16384 bytes"),
        (b"HTTP/1.1 103 x\r\n\r\n" * 1_000, "no answer within 16384 bytes"),
        (b"HTTP/1.1 103 x\r\n\r\n" * 900, "no answer within 1 s"),
        (None, "no answer within 1 s"),
    ],
)
def test_an_answer_that_is_none_or_endless_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, words: str
):
    monkeypatch.setattr(post, "POST_S_MAX", 1.0)

    async def run() -> str:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            writer.write(b"HTTP/1.1 200" if answer is None else answer)
            if words == "not HTTP":
                writer.close()
            while answer is None:  # a byte now and then never ends the waiting for the next
                await asyncio.sleep(0.1)
                writer.write(b" ")

        with receiving(tmp_path) as receiver:
            poster = receiver.poster()
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(receiver.certificate)
            server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
            async with server:
                receiver.port = server.sockets[0].getsockname()[1]
                try:
                    await poster.post(URL, {}, b"{}")
                except NotAccepted as refusal:
                    return str(refusal)
                finally:
                    receiver.port = 0
        return ""

    assert words in asyncio.run(run())


@pytest.mark.parametrize(
    "url", [URL, "https://a.b", "https://A-1.example.com/x/y?z=%20", "https://xn--a.xn--p1ai/"]
)
def test_an_https_address_with_a_name_is_taken(url: str):
    assert HookAsked(run="paper", url=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/", "ftp://a.example/", "https://", "https:///x", "https://localhost/",
        "https://127.0.0.1/", "https://0x7f.1/", "https://2130706433/", "https://[::1]/", "https://a.example:22/",
        "https://a.example:443/", "https://user@a.example/", "https://a.example@127.0.0.1/", "https://a.example#x",
        "https://a.example/#x", "https://a.example?x", "https://a.example/ x", "https://a.example/\r\nx: y",
        "https://a.example/\n", "https://a.example\\@b.example/", "https://ä.example/", "https://a..example/",
        "https://a.example/é", "//a.example/", "https://a.example/" + "x" * 500, " https://a.example/",
    ],
)  # fmt: skip
def test_any_other_address_is_refused(url: str):
    with pytest.raises(ValidationError):
        HookAsked(run="paper", url=url)
