"""Two endpoints: what both say is believed, and one that lies or is away stops the books with words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import requests

from assay.chain.deployment.anvil import Anvil
from assay.chain.providers import Providers, ProvidersDisagree, url_text
from assay.ledger.journal.store import BookStore
from assay.ledger.settlement.payouts import Settlement
from assay.observer.ledger_service.bookkeeper import Bookkeeper
from assay.observer.ledger_service.status import StatusFile
from assay.protocol.errors import Unavailable
from assay.protocol.types import Digest
from tests.chain.moves import transfer_token
from tests.contracts.chain_world import PURSE, World
from tests.observer.ledger_service.test_bookkeeper import SPEC

pytestmark = pytest.mark.slow

Change = Callable[[str, Any], Any]
TABLES: dict[int, Settlement] = {}


class Proxy:
    """An endpoint in front of the true one; `lie` changes an answer by its method."""

    def __init__(self, url: str) -> None:
        self.lie: Change = lambda _method, result: result
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked = json.loads(body)
                answer = requests.post(
                    url, data=body, headers={"Content-Type": "application/json"}, timeout=20
                ).json()
                if "result" in answer:
                    answer["result"] = proxy.lie(asked["method"], answer["result"])
                told = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def proxy(world: World) -> Iterator[Proxy]:
    made = Proxy(world.rpc_url)
    yield made
    made.close()


class Rig:
    """Books that follow the world's chain by two endpoints."""

    def __init__(self, folder: Path, on: World, urls: list[str], *, one_suffices: bool = False) -> None:
        self.world, self.run_id = on, Digest(on.run_id)
        self.books = BookStore(folder / "ledger.db", self.run_id, first_block=on.deployment.block)
        self.ledger_service = Bookkeeper(SPEC, self.run_id, self.books, StatusFile(folder / "status.jsonl"))
        self.chain = Providers(urls, on.deployment, one_suffices=one_suffices)

    def look(self) -> bool:
        return self.ledger_service.book_blocks(self.chain, TABLES)

    def numbers(self) -> list[int]:
        with self.books.reading() as db:
            asked = "SELECT block_number FROM chain_event WHERE state = 'seen' ORDER BY block_number"
            return list(db.exec_driver_sql(asked).scalars())


@pytest.fixture
def rig(tmp_path: Path, world: World, proxy: Proxy) -> Iterator[Rig]:
    made = Rig(tmp_path, world, [world.rpc_url, proxy.url])
    yield made
    made.books.close()


def test_what_both_say_is_booked(rig: Rig):
    assert rig.look()
    assert rig.numbers() == [e.block_number for e in rig.world.bank.events(rig.world.deployment.block)]
    assert not rig.look()
    rig.chain.check()


def test_a_missing_log_stops_the_books_and_the_words_name_it(rig: Rig, proxy: Proxy):
    proxy.lie = lambda method, result: result[:-1] if method == "eth_getLogs" else result
    last = rig.world.bank.events(rig.world.deployment.block)[-1]

    with pytest.raises(ProvidersDisagree) as stopped:
        rig.look()

    words = str(stopped.value)
    assert f"log {last.log_index} of block {last.block_number}: {type(last).__name__} in block " in words
    assert last.block_hash.hex() in words and f"none at {proxy.url}" in words
    assert rig.numbers() == []
    proxy.lie = lambda _method, result: result
    assert rig.look()


@pytest.mark.parametrize("lied", ["first", "amount", "added"])
def test_a_log_that_is_other_is_no_better_than_one_that_is_missing(rig: Rig, proxy: Proxy, lied: str):
    def lie(method: str, result: Any) -> Any:
        if method != "eth_getLogs" or not result:
            return result
        if lied == "first":
            return result[1:]
        if lied == "amount":
            return [*result[:-1], {**result[-1], "transactionHash": "0x" + "77" * 32}]
        return [*result, {**result[-1], "logIndex": hex(99)}]

    proxy.lie = lie
    with pytest.raises(ProvidersDisagree, match="log "):
        rig.look()
    assert rig.numbers() == []


def test_another_chain_behind_one_endpoint_is_told_by_block_and_both_hashes(rig: Rig, proxy: Proxy):
    def lie(method: str, result: Any) -> Any:
        if method == "eth_getBlockByNumber" and result["number"] == "0x0":
            return result
        return {**result, "hash": "0x" + "66" * 32} if method == "eth_getBlockByNumber" else result

    proxy.lie = lie
    head = rig.world.bank.block_number() - 2  # the finalised block is compared first
    true = rig.chain._rpcs[0].web3.eth.get_block(head)["hash"].hex().removeprefix("0x")
    for stopped in (rig.look, rig.chain.check):
        with pytest.raises(ProvidersDisagree) as error:
            stopped()
        for word in (f"block {head}", true, "66" * 32, rig.world.rpc_url, proxy.url):
            assert word in str(error.value)
    assert rig.numbers() == []


def test_a_finalised_block_that_differs_is_called_so(rig: Rig, proxy: Proxy):
    proxy.lie = lambda method, result: (
        {**result, "hash": "0x" + "66" * 32} if method == "eth_getBlockByNumber" else result
    )
    with pytest.raises(ProvidersDisagree, match=r"finalised block [0-9]+: "):
        rig.look()


def test_an_endpoint_that_lags_is_waited_for(rig: Rig, proxy: Proxy):
    rig.look()
    height = rig.world.bank.block_number()
    proxy.lie = lambda method, result: hex(height) if method == "eth_blockNumber" else result
    transfer_token(rig.world.bank, rig.world.buyer.account, 5)
    stake = rig.world.bank.block_number()
    rig.world.join(rig.world.operators[0], 0, PURSE // 2)
    assert not rig.look()

    proxy.lie = lambda _method, result: result
    assert rig.look()
    assert max(rig.numbers()) > stake


def test_one_that_is_away_stops_the_books_unless_the_file_says_that_one_suffices(
    tmp_path: Path,
    world: World,
    caplog: pytest.LogCaptureFixture,
):
    gone = "http://127.0.0.1:9/a-secret-key"
    strict = Rig(tmp_path, world, [world.rpc_url, gone])
    with pytest.raises(
        Unavailable, match=r"http://127\.0\.0\.1:9 is unreachable, one_rpc_suffices is not set"
    ):
        strict.look()
    with pytest.raises(Unavailable):
        strict.chain.check()
    assert strict.numbers() == []
    strict.books.close()

    (tmp_path / "other").mkdir()
    lenient = Rig(tmp_path / "other", world, [world.rpc_url, gone], one_suffices=True)
    assert lenient.look() and lenient.numbers()
    assert any(one.message == "endpoint unavailable" for one in caplog.records)
    lenient.books.close()
    nobody = Providers([gone, "http://127.0.0.1:9/b"], world.deployment, one_suffices=True)
    with pytest.raises(Unavailable, match="all 2 endpoints are unreachable"):
        nobody.head()


def test_keys_in_an_endpoints_address_are_not_shown():
    assert url_text("https://me:secret@rpc.example:8545/v3/KEY?k=KEY") == "https://rpc.example:8545"
    assert url_text("https://rpc.example/KEY") == "https://rpc.example"


def test_a_chain_restored_from_an_older_state_is_followed_block_by_block(
    anvil_binary: Path,
    tmp_path: Path,
):
    """The chain stops, is put back to an older state, and goes on otherwise: its old events are reversed."""
    with Anvil(binary=anvil_binary, state_dir=tmp_path / "chain", block_time_s=None) as chain:
        on = World(chain.rpc_url, chain.keys[0])
        rig = Rig(tmp_path, on, [on.rpc_url])
        rig.look()
        chain.stop()
        chain.backup()
        chain.start()
        on.join(on.operators[0], 0, PURSE // 2)
        rig.look()
        gone = set(rig.numbers())
        chain.stop()
        (tmp_path / "chain" / "chain.json").write_bytes((tmp_path / "chain" / "chain.json.bak").read_bytes())
        chain.start()
        on.join(on.operators[1], 0, PURSE // 3)
        on.join(on.operators[2], 0, PURSE // 4)
        assert rig.look()

        events = on.bank.events(on.deployment.block)
        assert rig.numbers() == [e.block_number for e in events]
        with rig.books.reading() as db:
            hashes = set(
                db.exec_driver_sql("SELECT block_hash FROM chain_event WHERE state = 'seen'").scalars()
            )
            orphaned = db.exec_driver_sql(
                "SELECT count(*) FROM chain_event WHERE state = 'orphaned'"
            ).scalar_one()
        assert hashes == {e.block_hash for e in events}
        assert orphaned > 0 and gone
        rig.books.close()
