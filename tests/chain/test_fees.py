"""Fees: a transaction whose fee became too low is sent again, and shuts its account for no later one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

import pytest
from eth_account import Account
from eth_utils.crypto import keccak
from hypothesis import given
from hypothesis import strategies as st

from assay.chain import rpc
from assay.chain.rpc import ChainRefused, Rpc
from assay.chain.signing import fees
from assay.chain.signing.fees import PRIORITY_FEE_WEI, RAISES_MAX, Pending, first_fees, raised_fees
from assay.chain.signing.unsigned import Transaction, parse_signed
from assay.protocol.errors import Unavailable

GWEI = 10**9
KEY = b"\1" * 32
ME = Account.from_key(KEY).address
PAYEES = ["0x" + digit * 40 for digit in "23456"]


@dataclass
class Geth:
    """A chain with geth's pool: a dearer transaction takes another's place, and one too cheap waits."""

    base_fee: int = 20 * GWEI
    lie: Callable[[], int] | None = None  # what it says its base fee is
    least_tip: int = 0  # of what its blocks take
    most_fee: int = 10**30  # that the account can pay
    is_mining: bool = True
    block: int = 1
    next_nonce: int = 0
    pool: dict[int, tuple[Transaction, str]] = field(default_factory=dict)
    mined: dict[str, Transaction] = field(default_factory=dict)
    lock: Any = field(default_factory=Lock)
    url: str = ""

    def paid(self) -> list[str]:
        return [one.to for one in self.mined.values()]

    def answer(self, method: str, given: list[Any]) -> Any:
        with self.lock:
            if self.is_mining and method == "eth_getTransactionReceipt":
                self.mine()
            return getattr(self, method.removeprefix("eth_").lower())(*given)

    def mine(self) -> None:
        self.block += 1
        while self.next_nonce in self.pool:
            one, tx_hash = self.pool[self.next_nonce]
            if one.fee_wei < self.base_fee or one.priority_fee_wei < self.least_tip:
                break
            del self.pool[self.next_nonce]
            self.mined[tx_hash] = one
            self.next_nonce += 1

    def chainid(self) -> str:
        return "0x1"

    def estimategas(self, *_: Any) -> str:
        return "0x5208"

    def getblockbynumber(self, *_: Any) -> dict[str, str]:
        said = self.base_fee if self.lie is None else self.lie()
        return {"number": hex(self.block), "timestamp": "0x6", "baseFeePerGas": hex(said)}

    def gettransactioncount(self, _account: str, block: str) -> str:
        found = self.next_nonce
        while block == "pending" and found in self.pool:
            found += 1
        return hex(found)

    def gettransactionbyhash(self, *_: Any) -> None:
        return None

    def sendrawtransaction(self, raw: str) -> str:
        given = bytes.fromhex(raw[2:])
        one, tx_hash = parse_signed(given), f"0x{keccak(given).hex()}"
        if one.nonce < self.next_nonce:
            raise ValueError("nonce too low")
        if one.fee_wei > self.most_fee:
            raise ValueError("insufficient funds for gas * price + value")
        before, _ = self.pool.get(one.nonce, (None, ""))
        if before is not None:
            for fee, old in (
                (one.fee_wei, before.fee_wei),
                (one.priority_fee_wei, before.priority_fee_wei),
            ):
                if fee * 10 < old * 11:
                    raise ValueError("replacement transaction underpriced")
        self.pool[one.nonce] = one, tx_hash
        return tx_hash

    def gettransactionreceipt(self, tx_hash: str) -> dict[str, Any] | None:
        if tx_hash not in self.mined:
            return None
        return {
            "blockNumber": hex(self.block), "transactionHash": tx_hash, "status": "0x1", "gasUsed": "0x5208",
            "logs": [],
        }  # fmt: skip


@pytest.fixture
def geth(monkeypatch: pytest.MonkeyPatch) -> Iterator[Geth]:
    """The chain, and processes that look at fees all the time."""
    chain = Geth()
    monkeypatch.setattr(rpc, "FEE_LOOK_S", 0.0)

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                said = {"result": chain.answer(asked["method"], asked["params"])}
            except ValueError as error:
                said = {"error": {"code": -32000, "message": str(error)}}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    chain.url = f"http://127.0.0.1:{server.server_port}"
    yield chain
    server.shutdown()
    thread.join()
    server.server_close()


def a_client(geth: Geth, seconds: float = 20.0) -> Rpc:
    return Rpc(geth.url, KEY, receipt_s_max=seconds)


def pay(client: Rpc, payee: str, **how: Any) -> Any:
    return client.send("pay", {"to": payee, "value": 1}, **how)


def once(lie: int, geth: Geth) -> Callable[[], int]:
    """What an endpoint says that lies once."""
    said = iter([lie])
    return lambda: next(said, geth.base_fee)


def test_one_lie_about_the_base_fee_costs_its_transaction_some_seconds_and_no_later_one(geth: Geth):
    client = a_client(geth)
    geth.lie = once(1, geth)

    sent = pay(client, PAYEES[0])
    pay(client, PAYEES[1])

    assert geth.paid() == PAYEES[:2]
    first, second = geth.mined.values()
    assert first.fee_wei >= 2 * geth.base_fee and first.priority_fee_wei == PRIORITY_FEE_WEI * 9 // 8
    assert second.priority_fee_wei == PRIORITY_FEE_WEI
    assert f"0x{sent.tx_hash.hex()}" == next(
        iter(geth.mined)
    )  # of what was mined, not of what was sent first


def test_a_base_fee_that_more_than_doubles_before_a_transaction_is_mined_is_paid(geth: Geth):
    geth.is_mining = False
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(pay, a_client(geth), PAYEES[0])
        while not geth.pool:
            time.sleep(0.001)
        geth.base_fee, geth.is_mining = 5 * geth.base_fee, True
        sent.result()

    assert geth.paid() == PAYEES[:1]


def test_a_transaction_that_blocks_leave_out_for_its_tip_gets_a_higher_one(geth: Geth):
    geth.least_tip = 2 * PRIORITY_FEE_WEI
    pay(a_client(geth), PAYEES[0])

    (paid,) = geth.mined.values()
    assert 2 * PRIORITY_FEE_WEI <= paid.priority_fee_wei < 2.7 * PRIORITY_FEE_WEI


def test_a_higher_fee_that_the_account_cannot_pay_is_no_refusal_of_what_was_sent(geth: Geth):
    """It may be mined as it is: whoever is told that it was refused would send it again."""
    geth.is_mining, geth.most_fee = False, 50 * GWEI
    client = a_client(geth, 1.0)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(pay, client, PAYEES[0])
        while not geth.pool:
            time.sleep(0.001)
        geth.base_fee *= 5
        with pytest.raises(Unavailable, match=r"not mined within 1 s; a higher fee: .*InsufficientFunds"):
            sent.result()

    assert [one.to for one, _ in geth.pool.values()] == PAYEES[:1]


def test_a_fee_that_pays_the_base_fee_is_not_raised(geth: Geth):
    geth.is_mining = False
    client = a_client(geth, 0.5)
    with pytest.raises(Unavailable, match="not mined within"):
        pay(client, PAYEES[0])

    (waiting,) = [one for one, _ in geth.pool.values()]
    assert (waiting.fee_wei, waiting.priority_fee_wei) == (41 * GWEI, PRIORITY_FEE_WEI)


def test_what_was_sent_without_waiting_or_given_up_holds_back_no_later_transaction(geth: Geth):
    client = a_client(geth, 0.5)
    geth.lie = lambda: 1
    early = pay(client, PAYEES[0], wait=False)
    with pytest.raises(Unavailable, match="not mined within"):
        pay(client, PAYEES[1])
    geth.lie = None

    pay(client, PAYEES[2])

    assert geth.paid() == PAYEES[:3]
    assert client.settled("pay", early).block_number  # found under the hash that was mined


def stuck(monkeypatch: pytest.MonkeyPatch, geth: Geth) -> None:
    """Another process's transaction with too low a fee, and patience of half a second."""
    monkeypatch.setattr(fees, "STUCK_S", 0.5)
    geth.lie = once(1, geth)
    pay(a_client(geth), PAYEES[0], wait=False)


def test_what_another_process_left_is_replaced_by_nothing_and_each_call_is_mined_once(
    geth: Geth, monkeypatch: pytest.MonkeyPatch
):
    stuck(monkeypatch, geth)
    client, started = a_client(geth), time.monotonic()

    pay(client, PAYEES[1])
    pay(client, PAYEES[2])

    assert geth.paid() == [ME, *PAYEES[1:3]]
    assert time.monotonic() - started > 0.5
    nothing = next(iter(geth.mined.values()))
    assert (nothing.value_wei, nothing.data, nothing.gas) == (0, b"", 21_000)


def test_what_another_process_left_is_replaced_whatever_it_had_raised_its_fees_to(
    geth: Geth, monkeypatch: pytest.MonkeyPatch
):
    stuck(monkeypatch, geth)
    left, tx_hash = geth.pool[0]
    geth.pool[0] = replace(left, priority_fee_wei=3 * PRIORITY_FEE_WEI), tx_hash

    pay(a_client(geth), PAYEES[1])

    assert geth.paid() == [ME, PAYEES[1]]


def test_raises_that_an_account_could_not_pay_are_made_once_it_can(
    geth: Geth, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rpc, "REFUSED_S", 0.01)
    client = refused(geth)
    geth.most_fee = 10**30

    pay(client, PAYEES[1])

    assert geth.paid() == PAYEES[:2]


def test_what_cannot_be_raised_is_replaced_by_nothing_and_its_account_open(
    geth: Geth, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fees, "STUCK_S", 0.5)
    client = refused(geth)
    geth.most_fee = 10**30  # the refused raise is not tried again before a minute has passed

    pay(client, PAYEES[1])
    pay(client, PAYEES[2])

    assert geth.paid() == [ME, *PAYEES[1:3]]


def test_what_was_raised_as_often_as_it_may_be_is_replaced_by_nothing(
    geth: Geth, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fees, "STUCK_S", 0.5)
    geth.least_tip = 2 * PRIORITY_FEE_WEI
    client = a_client(geth)
    pay(client, PAYEES[0], wait=False)
    client._pending[0].raised = RAISES_MAX

    pay(client, PAYEES[1])

    assert geth.paid() == [ME, PAYEES[1]]


@pytest.mark.parametrize("now_gwei", [1, 20, 500])
@pytest.mark.parametrize("base_gwei", [1, 20, 500])
def test_what_was_raised_as_often_as_it_may_be_can_be_replaced_at_any_base_fee(
    geth: Geth, base_gwei: int, now_gwei: int
):
    geth.is_mining, geth.base_fee = False, base_gwei * GWEI
    client = a_client(geth)
    pay(client, PAYEES[0], wait=False)
    one = client._pending[0]
    for _ in range(RAISES_MAX):
        client._raise("pay", one, raised_fees(one, geth.base_fee, is_late=True))
    assert raised_fees(one, geth.base_fee, is_late=True) is None and geth.pool[0][0].to == PAYEES[0]

    geth.base_fee = now_gwei * GWEI

    for canceller in (client, a_client(geth)):  # the other one knows of none
        pool = dict(geth.pool)
        canceller._cancel("pay", 0, geth.base_fee)
        assert geth.pool[0][0].to == ME
        geth.pool = pool


def test_an_endpoint_that_keeps_what_it_is_given_brings_no_tip_above_its_bound(
    geth: Geth, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fees, "STUCK_S", 0.0)
    monkeypatch.setattr(fees, "STUCK_BLOCKS", 0)
    geth.is_mining = False
    client = a_client(geth)
    pay(client, PAYEES[0], wait=False)
    client._pending[0].raised = RAISES_MAX
    for _ in range(60):
        geth.block += fees.LATE_BLOCKS
        client._unstick("pay")

    ((waiting, _),) = geth.pool.values()
    assert waiting.to == ME and waiting.priority_fee_wei <= 8 * PRIORITY_FEE_WEI
    tips = [one["maxPriorityFeePerGas"] for one in fees.nothing(ME, geth.base_fee, client._pending[0])]
    assert max(tips) <= 8 * PRIORITY_FEE_WEI


def test_no_more_is_offered_for_a_nonce_than_the_account_has(geth: Geth):
    geth.is_mining, geth.base_fee = False, 500 * GWEI
    pay(a_client(geth), PAYEES[0], wait=False)
    geth.base_fee, geth.most_fee = GWEI, 900 * GWEI

    with pytest.raises(ChainRefused, match="InsufficientFunds"):
        a_client(geth)._cancel("pay", 0, geth.base_fee)

    assert geth.pool[0][0].to == PAYEES[0]


def test_a_signer_that_declines_a_higher_fee_is_not_asked_at_every_look(
    geth: Geth, monkeypatch: pytest.MonkeyPatch
):
    geth.is_mining = False
    client, asked = a_client(geth, 1.0), []
    sent = pay(client, PAYEES[0], wait=False)
    geth.base_fee, geth.is_mining = 5 * geth.base_fee, True

    def declines(*_: object) -> Any:
        asked.append(1)
        raise Unavailable("pay: the signer declined")

    monkeypatch.setattr(client, "_sign", declines)
    with pytest.raises(Unavailable, match=r"not mined within 1 s; a higher fee: .* declined"):
        client.settled("pay", sent)

    assert len(asked) == 1


def refused(geth: Geth) -> Rpc:
    """A client that waited for a transaction whose fees the account could not pay any more."""
    geth.is_mining, geth.most_fee = False, 50 * GWEI
    client = a_client(geth, 2.0)
    sent = pay(client, PAYEES[0], wait=False)
    geth.base_fee, geth.is_mining = 5 * geth.base_fee, True
    with pytest.raises(Unavailable, match="InsufficientFunds"):
        client.settled("pay", sent)
    client._receipt_s_max = 20.0
    return client


def test_another_process_keeps_its_place_while_no_blocks_come(geth: Geth, monkeypatch: pytest.MonkeyPatch):
    stuck(monkeypatch, geth)
    geth.is_mining = False
    with pytest.raises(Unavailable, match="not mined within"):
        pay(a_client(geth, 1.5), PAYEES[1])

    assert geth.pool[0][0].to == PAYEES[0]


def test_an_endpoint_that_lies_about_base_fees_makes_an_account_pay_a_bounded_priority_fee(geth: Geth):
    geth.is_mining = False
    told = [GWEI]

    def more() -> int:
        told[0] *= 3
        return told[0]

    geth.lie = more
    with pytest.raises(Unavailable, match="not mined within"):
        pay(a_client(geth, 3.0), PAYEES[0])

    (waiting,) = [one for one, _ in geth.pool.values()]
    assert 2 * PRIORITY_FEE_WEI < waiting.priority_fee_wei < 2.7 * PRIORITY_FEE_WEI


@given(st.integers(0, 10**13), st.integers(0, 10**13), st.integers(0, RAISES_MAX))
def test_a_fee_is_raised_if_it_no_longer_pays_the_base_fee_and_by_what_pools_ask_for(before, now, raised):
    one = Pending(fields=first_fees(before), hashes=[], raised=raised)
    fee, tip = one.fields["maxFeePerGas"], one.fields["maxPriorityFeePerGas"]

    found = raised_fees(one, now)

    if fee >= now + tip or raised == RAISES_MAX:
        assert found is None
    else:
        assert found is not None
        assert 10 * found["maxFeePerGas"] >= 11 * fee and 10 * found["maxPriorityFeePerGas"] >= 11 * tip
        assert found["maxFeePerGas"] >= 2 * now + found["maxPriorityFeePerGas"]
