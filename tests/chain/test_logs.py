"""However many logs a stranger has some blocks hold, they are read: endpoints bound their answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from assay.chain.logs import BLOCKS_PER_QUESTION, _logs
from assay.chain.rpc import Rpc
from assay.protocol.errors import Unavailable

LOGS_MAX = 10
EMPTY = "0x" + "00" * 32


@contextmanager
def endpoint(blocks: dict[int, int], asked: list[tuple[int, int]], status: int = 200) -> Iterator[Rpc]:
    """A server on loopback with as many logs in each block, which refuses to answer with more than ten."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            first, last = (int(request["params"][0][name], 16) for name in ("fromBlock", "toBlock"))
            asked.append((first, last))
            numbers = [
                at for at, count in sorted(blocks.items()) for _ in range(count) if first <= at <= last
            ]
            answer = {"jsonrpc": "2.0", "id": request["id"]}
            is_refused = len(numbers) > LOGS_MAX
            if is_refused:
                words = f"query returned more than {LOGS_MAX} results"
                answer["error"] = {"code": -32005, "message": words}
            else:
                answer["result"] = [a_log(number) for number in numbers]
            body = json.dumps(answer).encode()
            self.send_response(status if is_refused else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield Rpc(f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def a_log(number: int) -> dict[str, object]:
    return {
        "address": "0x" + "00" * 20, "topics": [EMPTY], "data": "0x", "blockNumber": hex(number),
        "blockHash": EMPTY, "blockTimestamp": "0x1", "transactionHash": EMPTY, "transactionIndex": "0x0",
        "logIndex": "0x0", "removed": False,
    }  # fmt: skip


def read(rpc: Rpc, last: int) -> list[int]:
    return [log["blockNumber"] for log in _logs(rpc, {}, 0, last)]


def test_blocks_with_more_logs_than_an_endpoint_answers_with_are_asked_of_by_halves() -> None:
    blocks, asked = {5: 10, 6: 10, 7: 1, 9_000: 3}, list[tuple[int, int]]()
    with endpoint(blocks, asked) as rpc:
        assert read(rpc, 9_999) == [5] * 10 + [6] * 10 + [7] + [9_000] * 3

    assert len(asked) < 40
    assert max(last - first + 1 for first, last in asked[-3:]) == BLOCKS_PER_QUESTION  # as before the flood


@pytest.mark.parametrize("status", [400, 413])
def test_a_refusal_may_be_one_of_http(status: int) -> None:
    asked: list[tuple[int, int]] = []
    with endpoint({500: 10, 1500: 1}, asked, status) as rpc:
        assert read(rpc, 1999) == [500] * 10 + [1500]

    assert list(dict.fromkeys(asked)) == [(0, 1999), (0, 999), (1000, 1999)]


def test_one_block_that_is_refused_is_not_asked_of_again() -> None:
    asked: list[tuple[int, int]] = []
    with endpoint({5: 11}, asked) as rpc, pytest.raises(Unavailable, match="more than 10 results"):
        read(rpc, 5)

    assert asked[-1] == (5, 5) and asked.count((5, 5)) == 1


def test_an_endpoint_that_asks_for_a_pause_or_is_away_is_not_asked_of_fewer_blocks() -> None:
    asked: list[tuple[int, int]] = []
    with endpoint({5: 11}, asked, 429) as rpc, pytest.raises(Unavailable, match="429"):
        read(rpc, 5)
    with pytest.raises(Unavailable, match="no chain answers"):
        read(rpc, 5)

    assert set(asked) == {(0, 5)}
