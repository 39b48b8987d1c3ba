"""Drand servers that answer with nonsense, or never to the end, cost a try and no verifier."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import trio

from assay.verifier.service import drand_client
from assay.verifier.service.drand_client import THREADS_PER_SERVER, DrandClient
from tests.a_drand import a_network, a_signature, serving

NETWORK = a_network()
HEAD = b"HTTP/1.1 200 OK\r\n"
TIMEOUT_S = 0.5  # in place of `drand_client.TIMEOUT_S`
TRICKLES = {"status line": b"", "head": HEAD, "body": HEAD + b"Content-Length: 60000\r\n\r\n"}


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that answers every request so."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer_one(caller: socket.socket) -> None:
        try:
            with caller:
                caller.recv(4096)
                answer(caller)
        except OSError:  # the client has closed
            pass

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:  # closed: the test is over
                return
            Thread(target=answer_one, args=(caller,), daemon=True).start()

    Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/chain"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def trickling(start: bytes) -> Iterator[str]:
    """A server that goes on after this start, a byte at a time, and ends no answer while the test lasts."""
    is_over = False

    def trickle(caller: socket.socket) -> None:
        caller.sendall(start)
        while not is_over:
            caller.sendall(b"a")
            time.sleep(TIMEOUT_S / 5)

    with answering(trickle) as url:
        try:
            yield url
        finally:
            is_over = True


def fetched(urls: list[str], numbers: list[int], wait_s: float = 20.0) -> dict[int, bytes]:
    """What a client gives for these numbers; other threads must be free all the time."""
    found: dict[int, bytes] = {}

    async def ask() -> None:
        client = DrandClient(NETWORK, urls, lambda number, signature: found.update({number: signature}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            with trio.move_on_after(wait_s):
                for number in numbers:
                    client.want(number)
                    await trio.sleep(0.01)
                while set(found) != set(numbers):
                    with trio.fail_after(5):
                        await trio.to_thread.run_sync(lambda: None)
                    await trio.sleep(0.02)
            nursery.cancel_scope.cancel()

    trio.run(ask)
    return found


@pytest.mark.parametrize(
    "answer",
    [
        b"no status line\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"".join(b"A%d: b\r\n" % number for number in range(120)) + b"\r\n",
        HEAD + b"Content-Length: 100\r\n\r\n{",
        b"",
    ],
)
def test_an_answer_that_is_no_http_costs_a_try_at_the_next_server(answer):
    with answering(lambda caller: caller.sendall(answer)) as liar, serving(NETWORK) as honest:
        assert fetched([liar, honest], [5]) == {5: a_signature(5)}


@pytest.mark.parametrize("start", TRICKLES.values(), ids=TRICKLES.keys())
def test_a_server_that_never_ends_its_answers_keeps_nobody_from_the_next_one(start, monkeypatch):
    monkeypatch.setattr(drand_client, "TIMEOUT_S", TIMEOUT_S)
    numbers = list(range(5, 5 + 2 * THREADS_PER_SERVER))

    with trickling(start) as liar, serving(NETWORK) as honest:
        assert fetched([liar, honest], numbers) == {number: a_signature(number) for number in numbers}


def test_servers_that_never_end_their_answers_take_no_threads_from_others(monkeypatch):
    monkeypatch.setattr(drand_client, "TIMEOUT_S", TIMEOUT_S)

    with trickling(TRICKLES["status line"]) as liar:
        assert fetched([liar], list(range(100, 150)), wait_s=3.0) == {}


def test_the_server_that_answered_last_is_asked_first():
    asked = []

    def silent(caller: socket.socket) -> None:
        asked.append(caller)

    async def ask() -> None:
        with answering(silent) as liar, serving(NETWORK) as honest:
            got, took = trio.open_memory_channel[int](9)
            client = DrandClient(NETWORK, [liar, honest], lambda number, _: got.send_nowait(number))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                for number in (5, 6, 7):
                    client.want(number)
                    with trio.fail_after(20):
                        assert await took.receive() == number
                nursery.cancel_scope.cancel()

    trio.run(ask)
    assert len(asked) == 1
