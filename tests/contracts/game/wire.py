"""Wire: a game's connection to its local chain, which asks for nothing twice in one block.

At a table nobody else writes to the chain. So what a view function answered holds until something is sent,
and what was asked lately is asked again for the next block in one batch.
"""

from __future__ import annotations

import json
import re
import socket
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from web3.types import RPCEndpoint, RPCResponse

from assay.chain.client import Chain, Deployment
from assay.chain.rpc import _Endpoint
from assay.chain.views import view_call, view_values

READS = frozenset({
    "eth_blockNumber", "eth_call", "eth_chainId", "eth_estimateGas", "eth_getBlockByNumber", "eth_getLogs",
    "eth_getTransactionByHash", "eth_getTransactionCount", "eth_getTransactionReceipt",
})  # fmt: skip
SEND = "eth_sendRawTransaction"  # anvil's `Sync` answers once it is mined, with the receipt (EIP-7966)
RECENT = 6  # blocks for which a question is repeated that nobody asks any more
TIMEOUT_S = 30.0
# Address and data of a call, in hexadecimal digits; or else method and parameters, as JSON.
Question = tuple[str, str]
NEWEST = ("eth_getBlockByNumber", '["latest", false]')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Wire(_Endpoint):
    """web3's provider on one kept connection, and what the present block answers."""

    def __init__(self, url: str) -> None:
        """Connects to `url`, a chain on this machine."""
        super().__init__(url)
        found = urlsplit(url)
        self._socket = socket.create_connection((found.hostname, found.port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"POST / HTTP/1.1\r\nhost: {found.netloc}\r\ncontent-type: application/json\r\n".encode()
        self._answers: dict[Question, str | None] = {}  # in the present block
        self._asked: dict[Question, int] = {}  # and when last
        self._replies: dict[Question, RPCResponse] = {}  # to all else that is read, likewise
        self._age = 0

    def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """One call of web3's; what is no read ends the validity of all answers."""
        if method == SEND:
            return self._send(params)
        if method not in READS:
            self._answers, self._replies = {}, {}
            return self._reply(method, params)
        question = method, json.dumps(params)
        if question not in self._replies:
            if method == "eth_estimateGas":  # a transaction follows
                self._read(
                    question, ("eth_getTransactionCount", json.dumps([params[0]["from"], "pending"])), NEWEST
                )
            else:
                self._read(question)
        return self._replies[question]

    def _read(self, *questions: Question) -> None:
        """Has the answers to these, by one request."""
        wanted = [one for one in questions if one not in self._replies]
        calls = (
            f'{{"jsonrpc":"2.0","id":{at},"method":"{method}","params":{params}}}'
            for at, (method, params) in enumerate(wanted)
        )
        for answer in json.loads(self._post(f"[{','.join(calls)}]".encode())):
            self._replies[wanted[answer["id"]]] = answer

    def _send(self, params: Any) -> RPCResponse:
        """Sends a transaction, whose receipt is then known."""
        self._answers, self._replies = {}, {}
        answer = self._reply(RPCEndpoint(f"{SEND}Sync"), params)
        receipt: Any = answer.get("result")
        if receipt is None:
            return answer
        tx_hash = receipt["transactionHash"]
        self._replies["eth_getTransactionReceipt", json.dumps([tx_hash])] = answer
        return {**answer, "result": tx_hash}

    def _reply(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        return self.decode_rpc_response(self._post(self.encode_rpc_request(method, params)))

    def call(self, question: Question) -> str | None:
        """What a view function returns now, in hexadecimal digits; None if it reverts."""
        self._asked[question] = self._age
        if question not in self._answers:
            self._ask(question)
        return self._answers[question]

    def block(self) -> tuple[int, int]:
        """Number and time of the newest block."""
        found: Any = self.make_request(RPCEndpoint("eth_getBlockByNumber"), ["latest", False])["result"]
        return int(found["number"], 16), int(found["timestamp"], 16)

    def _ask(self, question: Question) -> None:
        wanted = [question]
        if len(self._answers) == 1:  # somebody looks around: not one question before a transaction
            self._age += 1
            self._asked = {one: age for one, age in self._asked.items() if age > self._age - RECENT}
            wanted += [one for one in self._asked if one != question and one not in self._answers]
        calls = [
            {"jsonrpc": "2.0", "id": at, "method": "eth_call", "params": [{"to": to, "data": data}, "latest"]}
            for at, (to, data) in enumerate(wanted)
        ]
        for answer in json.loads(self._post(json.dumps(calls).encode())):
            self._answers[wanted[answer["id"]]] = answer.get("result")

    def _post(self, body: bytes) -> bytes:
        self._socket.sendall(b"%scontent-length: %d\r\n\r\n%s" % (self._head, len(body), body))
        found = self._received()
        while b"\r\n\r\n" not in found:
            found += self._received()
        head, _, answer = found.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        assert length is not None, head
        parts, missing = [answer], int(length[1]) - len(answer)
        while missing > 0:
            parts.append(self._received())
            missing -= len(parts[-1])
        return b"".join(parts)

    def _received(self) -> bytes:
        found = self._socket.recv(1 << 18)
        if not found:
            raise ConnectionError("the chain has ended")
        return found


class Client(Chain):
    """The product's client over a wire: it reads view functions by `Wire.call`, and all else as ever."""

    def __init__(self, wire: Wire, deployment: Deployment, key: bytes) -> None:
        super().__init__(str(wire.endpoint_uri), deployment, key)
        self._rpc.web3.provider = self._wire = wire

    def _ask(self, contract: str, function: str, *arguments: Any, block: int | None = None) -> Any:
        if block is None:
            question = self.deployment.address(contract), _data(contract, function, _hashable(arguments))
            answer = self._wire.call(question)
            if answer is not None:
                return _values(contract, function, bytes.fromhex(answer[2:]))
        return super()._ask(contract, function, *arguments, block=block)  # which also says what is wrong

    def block_number(self) -> int:
        return self._wire.block()[0]

    def timestamp(self) -> int:
        return self._wire.block()[1]


_values = lru_cache(1 << 16)(view_values)


@lru_cache(1 << 16)
def _data(contract: str, function: str, arguments: tuple[Any, ...]) -> str:
    return f"0x{view_call(contract, function, arguments).hex()}"


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value
