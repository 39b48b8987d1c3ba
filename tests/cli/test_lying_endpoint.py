"""A lying endpoint: whatever it answers, a command ends with one line in words, and moves no cursor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import Request, urlopen

import pytest
from eth_utils.abi import function_signature_to_4byte_selector

from assay.cli.result import document
from assay.participant.checks import Check
from assay.testing.signed import NODES
from tests.cli.market import Market
from tests.cli.network.test_directory import own_record
from tests.conftest import Assay

pytestmark = pytest.mark.slow


@contextmanager
def an_endpoint(
    answer: bytes, chain: str, method: str | None = None, *, selector: str | None = None, reason: str = "OK"
) -> Iterator[str]:
    """Answers everything so; or, with a method or a selector, that alone, and the rest as the chain does.

    A reason other than OK is the phrase of an error's status line.
    """

    def is_lied_about(asked: bytes) -> bool:
        call = json.loads(asked)
        if selector is not None:
            return call["method"] == "eth_call" and call["params"][0]["data"].startswith(selector)
        return method in (None, call["method"])

    class Liar(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            body, is_true = answer, not is_lied_about(asked)
            if is_true:
                request = Request(chain, asked, {"Content-Type": "application/json"})
                with urlopen(request, timeout=30) as truth:
                    body = truth.read()
            if is_true or reason == "OK":
                self.send_response(200)
            else:
                self.send_response(500, reason)
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


@pytest.mark.parametrize("reason", ["OK", "x\x1b]52;c;cm0=\x07\x1b[2K all is well \x9b8m"])
def test_a_lie_moves_no_cursor_where_a_command_goes_on(assay: Assay, market: Market, reason: str):
    market.invitation()  # which doctor compares with the chain
    asked = "0x" + function_signature_to_4byte_selector("getRun(bytes32)").hex()
    answer = refused("execution reverted", ERROR)
    with an_endpoint(answer, market.rpc_url, selector=asked, reason=reason) as url:
        file = own_record(market, NODES[0])
        file.write_text(file.read_text().replace(market.rpc_url, url))
        code, out, err = assay("doctor", file)
        said = assay("doctor", file, "--json").out

    assert code == 1 and err == "" and "all is well" in out and "\x1b" not in out
    assert all(line.isprintable() for line in out.split("\n"))
    assert all(line.isprintable() for line in said.split("\n"))
    assert any("\x1b" in (check["fault"] or "") for check in json.loads(said)["checks"])


def test_a_document_has_escapes_of_what_moves_a_cursor_and_says_the_same():
    text = "Zürich 東京 \x1b[2J \x9b2J \x85 \x7f \u202e \U000e0001\nmore"
    said = document(Check(name="run", fault=text, found=""))

    assert json.loads(said)["fault"] == text and "Zürich 東京" in said
    assert all(line.isprintable() for line in said.split("\n"))
