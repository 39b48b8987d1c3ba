"""A process that was given the wrong chain says so before it does anything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from assay.chain.endpoint import check_endpoint
from assay.chain.rpc import Rpc
from assay.protocol.errors import ConfigError, Unavailable
from assay.testing.members import a_deployment


@contextmanager
def endpoint(answers: dict[str, Any], body: bytes | None = None, length: int | None = None) -> Iterator[str]:
    """A server on loopback that answers JSON-RPC methods with fixed results, and may claim another length."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = (
                body or json.dumps({"jsonrpc": "2.0", "id": 1, "result": answers[asked["method"]]}).encode()
            )
            self.send_response(200)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


GOOD = {"eth_chainId": hex(31337), "eth_getCode": "0x6001"}


def test_the_right_chain_passes() -> None:
    with endpoint(GOOD) as url:
        check_endpoint(url, a_deployment())


def test_a_client_asks_the_endpoint_itself_whatever_proxy_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with endpoint(GOOD) as url:
        client = Rpc(url)
        assert client.read("chain id", lambda: client.web3.eth.chain_id) == 31337
        check_endpoint(url, a_deployment())


def test_another_chain_id_is_named_beside_the_expected_one() -> None:
    with endpoint(GOOD) as url, pytest.raises(ConfigError, match=r"wrong chain.*0x7a69, expected 0x1"):
        check_endpoint(url, replace(a_deployment(), chain_id=1))


def test_a_chain_without_our_contracts_is_refused() -> None:
    with endpoint({**GOOD, "eth_getCode": "0x"}) as url, pytest.raises(ConfigError, match="no contract"):
        check_endpoint(url, a_deployment())


@pytest.mark.parametrize("body", [b"hello", b"[]", b'{"error": {"code": 1}}'])
def test_what_is_no_chain_is_refused_in_words(body: bytes) -> None:
    with endpoint(GOOD, body) as url, pytest.raises(ConfigError):
        check_endpoint(url, a_deployment())


def test_nobody_there_is_not_the_operators_mistake() -> None:
    with pytest.raises(Unavailable):
        check_endpoint("http://127.0.0.1:9", a_deployment())
    with endpoint(GOOD, b"{", length=100) as url, pytest.raises(Unavailable):
        check_endpoint(url, a_deployment())
