"""Signers: an account whose key is elsewhere sends the same transactions, and no signer can send others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from eth_account import Account
from eth_utils.address import to_checksum_address

from assay.chain.client import UNIT, Chain
from assay.chain.signing.signer import KeyHere, RemoteSigner
from assay.chain.statements import OPERATOR, Address
from assay.protocol.errors import Unavailable
from tests.contracts.chain_world import World

KEY, OTHER = b"\1" * 32, b"\2" * 32
ASKED = {
    "to": "0x" + "11" * 20, "data": "0xabcd", "value": 3, "gas": 50_000, "nonce": 7, "chainId": 31337,
    "maxFeePerGas": 9, "maxPriorityFeePerGas": 1,
}  # fmt: skip
Reply = Callable[[str, dict[str, str]], object]


def address_of(key: bytes) -> Address:
    return Address(Account.from_key(key).address)


def signed(given: dict[str, str], key: bytes = KEY, **edits: Any) -> str:
    """What clef signs, in its own spelling of the transaction."""
    numbers = {name: int(given[name], 16) for name in given if name not in ("from", "to", "data")}
    made = Account.from_key(key).sign_transaction(
        {**numbers, "to": to_checksum_address(given["to"]), "data": given["data"], "type": 2, **edits}
    )
    return "0x" + bytes(made.raw_transaction).hex()


class Elsewhere:
    """A signer's process. It remembers what it was asked, and answers as it is told."""

    def __init__(self, reply: Reply) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        signer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                (given,) = body["params"]
                signer.asked.append((body["method"], given))
                said = reply(body["method"], given)
                text = (
                    said
                    if isinstance(said, bytes)
                    else json.dumps({"jsonrpc": "2.0", "id": 1, **said}).encode()
                )
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.thread = Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Reply], Elsewhere]]:
    started: list[Elsewhere] = []

    def start(reply: Reply) -> Elsewhere:
        started.append(Elsewhere(reply))
        return started[-1]

    yield start
    for one in started:
        one.close()


def clef(method: str, given: dict[str, str]) -> object:
    """As clef's documentation says it answers."""
    assert method == "account_signTransaction"
    return {"result": {"raw": signed(given), "tx": {"nonce": given["nonce"]}}}


def web3signer(method: str, given: dict[str, str]) -> object:
    if method != "eth_signTransaction":
        return {"error": {"code": -32601, "message": "the method does not exist"}}
    return {"result": signed(given)}


@pytest.mark.parametrize("reply", [clef, web3signer])
def test_a_signer_elsewhere_signs_as_a_key_here_does(elsewhere, reply: Reply):
    there = elsewhere(reply)
    signer = RemoteSigner(url=there.url, account=address_of(KEY))

    for _ in range(2):
        assert signer.sign("stake", ASKED) == KeyHere(KEY).sign("stake", ASKED)
    method, given = there.asked[-1]
    assert method == there.asked[-2][0]  # the second time it is not asked what it does not know
    assert given == {
        "from": address_of(KEY), "to": ASKED["to"], "data": "0xabcd", "value": "0x3", "gas": "0xc350",
        "nonce": "0x7", "chainId": "0x7a69", "maxFeePerGas": "0x9", "maxPriorityFeePerGas": "0x1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (lambda _, given: {"result": {"raw": signed(given, OTHER)}}, "signed as 0x"),
        (lambda _, given: {"result": {"raw": signed(given, value=4)}}, "another transaction"),
        (lambda _, given: {"result": {"raw": signed(given, data="0xabce")}}, "another transaction"),
        (lambda _, given: {"result": {"raw": signed(given, chainId=1)}}, "another transaction"),
        (lambda _, given: {"result": {"raw": signed(given, nonce=8)}}, "another transaction"),
        (lambda _, given: {"result": {"raw": signed(given)[:-2]}}, "no transaction"),
        (lambda *_: {"result": {"raw": "0x02"}}, "no transaction"),
        (lambda *_: {"result": {"raw": 5}}, "no transaction"),
        (lambda *_: {"result": "soon"}, "no transaction"),
        (lambda *_: {}, "no transaction"),
        (lambda *_: {"error": {"code": -32000, "message": "request denied"}}, "declined: request denied"),
        (lambda *_: {"error": {"code": -32601, "message": "no such method"}}, "declined: no such method"),
        (lambda *_: b"<html>", "no signer answers"),
        (lambda *_: b"[" * 100_000, "no signer answers"),
        (lambda *_: b"[]", "no signer answers"),
    ],
)
def test_what_a_signer_makes_of_it_is_not_sent(elsewhere, reply: Reply, error: str):
    there = elsewhere(reply)
    with pytest.raises(Unavailable, match=error):
        RemoteSigner(url=there.url, account=address_of(KEY)).sign("stake", ASKED)


def test_a_signer_that_is_gone_is_named():
    with pytest.raises(Unavailable, match="stake: no signer answers at http://"):
        RemoteSigner(url="http://127.0.0.1:9", account=address_of(KEY)).sign("stake", ASKED)


def test_the_secret_of_a_signer_is_its_processes_and_not_shown():
    one, two = (RemoteSigner(url="http://127.0.0.1:9", account=address_of(KEY)) for _ in range(2))
    assert len(one.secret) == 32 and one.secret != two.secret
    assert one.secret.hex() not in repr(one) and repr(one.secret) not in repr(one)


@pytest.mark.slow
def test_an_operator_stakes_through_a_signer_that_the_chain_takes(world: World):
    """anvil has the key of the bank's account, and signs for it as Web3Signer does."""
    signer = RemoteSigner(url=world.rpc_url, account=world.bank.address)
    chain = Chain(world.rpc_url, world.deployment, signer)
    assert chain.address == world.bank.address

    sent = chain.stake(OPERATOR, 200 * UNIT)

    assert sent.tx_hash is not None and sent.block_number is not None
    assert world.bank.stake_of(world.bank.address, OPERATOR).active == 200 * UNIT
