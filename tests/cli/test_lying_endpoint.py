"""A lying endpoint: whatever it answers, a command ends with one line in words, and moves no cursor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import Request, urlopen

import pytest

from assay.testing.signed import NODES
from tests.cli.market import Market
from tests.conftest import Assay

pytestmark = pytest.mark.slow


@contextmanager
def an_endpoint(answer: bytes, chain: str, method: str | None = None) -> Iterator[str]:
    """Answers everything so; or, with a method, that alone, and the rest as the chain does."""

    class Liar(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            body = answer
            if method is not None and json.loads(asked)["method"] != method:
                request = Request(chain, asked, {"Content-Type": "application/json"})
                with urlopen(request, timeout=30) as truth:
                    body = truth.read()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing on the test's standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def told(result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 0, "result": result}).encode()


def refused(message: str, data: str | None = None) -> bytes:
    error = {"code": 3, "message": message, **({} if data is None else {"data": data})}
    return json.dumps({"jsonrpc": "2.0", "id": 0, "error": error}).encode()


WORDS = "\x1b[2J all is well \r"
ERROR = "0x08c379a0" + f"{32:064x}{len(WORDS):064x}" + WORDS.encode().hex().ljust(64, "0")
ANSWERS = {
    "an error with a cursor in it": refused(WORDS),
    "a revert with a cursor in it": refused("execution reverted", ERROR),
    "a revert cut short": refused("execution reverted", ERROR[:30]),
    "a revert that is no hexadecimal": refused("execution reverted", "0xzz"),
    "no number": told("0xzz"),
    "nothing": told(None),
    "a list": told([]),
    "a number": told(7),
    "empty bytes": told("0x"),
    "a word": told("0x" + "ff" * 32),
    "no JSON": b"<html>\x1b[2J</html>",
    "no object": b"[]",
    "no text": b"\xff\xfe",
    "nothing at all": b"",
    "a deep nest": b"[" * 100_000,
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("method", [None, "eth_getLogs"])
def test_a_lie_is_one_line_in_words(assay: Assay, market: Market, name: str, method: str | None):
    if (method, name) == ("eth_getLogs", "a list"):
        return  # an empty list is what there is
    with an_endpoint(ANSWERS[name], market.rpc_url, method) as url:
        code, out, err = assay("stake", "show", market.config_of(NODES[0], rpc_url=url))

    assert code in (1, 2) and out == "" and err.startswith("assay: ")
    assert err.rstrip("\n").replace("\n", " ").isprintable() and len(err) < 2_000


@pytest.mark.parametrize("name", ["a revert with a cursor in it", "a word", "nothing", "a deep nest"])
def test_a_lie_about_gas_sends_nothing(assay: Assay, market: Market, name: str):
    before = market.bank.block_number()
    with an_endpoint(ANSWERS[name], market.rpc_url, "eth_estimateGas") as url:
        code, _, err = assay("stake", "add", market.config_of(NODES[0], rpc_url=url), "300")

    assert code == (1 if "revert" in name else 2) and err.startswith("assay: ")
    assert err.rstrip("\n").isprintable()
    assert market.bank.block_number() == before
