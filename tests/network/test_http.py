"""HTTP connections end where their other side does not: no head, half a head, half a body, no reader."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn

from assay.network import http

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ANSWER = b"whole"


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """Answers at once, without reading a body, with what the path asks for."""
    body = b"x" * (64 << 20) if scope["path"] == "/much" else ANSWER
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    for name in ("HEAD_S_MAX", "BODY_S_MAX", "FULL_S_MAX"):
        monkeypatch.setattr(http, name, 0.3)
    config = uvicorn.Config(
        answers, port=0, http=http.DeadlineHttp, log_config=None, ws="none", lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive()
        yield server.servers[0].sockets[0].getsockname()[:2]
    finally:
        server.should_exit = server.force_exit = True
        thread.join(120)


def until_the_end(line: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    line.settimeout(20)
    found = b""
    try:
        while part := line.recv(65_536):
            found += part
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", 0),
        (HEAD[:-2], 0),
        (HEAD + HEAD[:-2], 1),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", 1),
        (HEAD + b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", 2),
    ],
    ids=["nothing", "half a head", "a request and half a head", "half a body", "a request and half a body"],
)
def test_who_does_not_finish_a_request_is_cut_off(address, sent: bytes, answered: int):
    with socket.create_connection(address) as line:
        line.sendall(sent)
        assert until_the_end(line).count(ANSWER) == answered


def test_who_sends_the_rest_of_a_head_byte_by_byte_gains_no_time(address):
    with socket.create_connection(address) as line:
        line.sendall(HEAD + b"GET / HTTP/1.1\r\nX: ")
        assert _ends_while_sending(line)


@pytest.mark.parametrize("is_own", [False, True], ids=["from elsewhere", "from this machine"])
def test_an_address_has_a_share_of_the_connections(address, monkeypatch: pytest.MonkeyPatch, is_own: bool):
    monkeypatch.setattr(http, "HEAD_S_MAX", 60)
    monkeypatch.setattr(http, "PER_ADDRESS_MAX", 3)
    if not is_own:
        monkeypatch.setattr(http, "counted_by", http.client_of)
    with ExitStack() as lines:
        held = [lines.enter_context(socket.create_connection(address)) for _ in range(3)]
        for line in held:
            assert is_answered(line)
        with socket.create_connection(address) as more:
            assert is_answered(more) is is_own
        assert is_answered(held[0])


@pytest.mark.parametrize(
    ("host", "by"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::2:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", None),
        ("::1", None),
        ("::ffff:127.0.0.1", None),
    ],
)
def test_connections_are_counted_by_what_a_stranger_cannot_have_many_of(host: str, by: str | None):
    assert http.counted_by({"client": (host, 1)}) == by
    assert http.client_of({"client": (host, 1)}) == (by or {"::1": "::/64"}.get(host, "127.0.0.1"))


def test_a_client_without_an_address_is_what_its_server_calls_it():
    scopes: list[dict[str, Any]] = [{}, {"client": None}, {"client": ("a test", 1)}]
    assert [http.client_of(scope) for scope in scopes] == ["", "", "a test"]
    assert [http.counted_by(scope) for scope in scopes] == [None, None, "a test"]


def is_answered(line: socket.socket) -> bool:
    """Whether one more request gets its answer."""
    line.settimeout(20)
    found = b""
    try:
        line.sendall(HEAD)
        while not found.endswith(ANSWER) and (part := line.recv(65_536)):
            found += part
    except (ConnectionResetError, BrokenPipeError):
        return False
    return found.endswith(ANSWER)


def _ends_while_sending(line: socket.socket) -> bool:
    for _ in range(2000):
        try:
            line.sendall(b"x")
        except OSError:
            return True
        threading.Event().wait(0.01)
    return False


@pytest.mark.slow
def test_who_does_not_read_is_cut_off(address):
    with socket.create_connection(address) as line:
        line.sendall(HEAD.replace(b"/ ", b"/much "))
        threading.Event().wait(2)
        assert len(until_the_end(line)) < 64 << 20


def test_a_connection_serves_as_many_requests_as_come_in_time(address):
    with socket.create_connection(address) as line:
        line.settimeout(20)
        for _ in range(3):
            line.sendall(HEAD)
            told = b""
            while not told.endswith(ANSWER):
                part = line.recv(65_536)
                assert part
                told += part
