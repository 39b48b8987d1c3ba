"""The client: moves are facts once, threads and processes may share a key, refusals have names."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from typing import Any

import pytest
import requests
from web3.types import FilterParams

from assay.chain.client import ALREADY_DONE, UNIT, Chain, ChainRefused
from assay.chain.events import RunOpened, Slashed, SlashPaid, Staked
from assay.chain.reader import ENTRIES_AT_ONCE
from assay.chain.signing import fees
from assay.chain.statements import OPERATOR, VERIFIER, term_of
from assay.protocol.errors import AssayError, ConfigError, Unavailable
from tests.chain.moves import transfer_token
from tests.contracts.chain_world import PURSE, World, a_person

pytestmark = pytest.mark.slow


def test_repeating_a_settled_move_is_no_error_and_moves_nothing(world: World):
    result = world.a_result(world.a_table())
    cert = world.cert(result)
    run_id = world.run_id
    assert world.a_run() == run_id  # asked again a moment later, with a later deadline
    run = world.bank.run(run_id)
    assert run is not None
    same = {"budget": run.budget, "epoch_cap": run.epoch_cap, "epochs": run.epochs, "deadline": run.deadline}
    assert world.as_(world.buyer).open_run(run.spec_hash, **same) == run_id
    with pytest.raises(ChainRefused, match="RunExists"):
        world.as_(world.buyer).open_run(run.spec_hash, **{**same, "epochs": 6})
    world.bank.propose(result, cert)
    assert world.bank.propose(result, cert) == ALREADY_DONE
    world.advance(world.params.challenge_window_s)
    world.bank.finalize(run_id, 0)
    assert world.bank.finalize(run_id, 0) == ALREADY_DONE
    assert world.bank.token_balance(world.buyer.account) == PURSE - run.budget


def test_two_clients_with_one_key_in_many_threads_lose_and_double_nothing(world: World):
    clients = [world.as_(world.buyer), world.as_(world.buyer)]
    payees = [a_person().account for _ in range(12)]

    def pay(at: int) -> None:
        transfer_token(clients[at % 2], payees[at], 1 + at)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(pay, range(12)))

    assert [world.bank.token_balance(who) for who in payees] == list(range(1, 13))


def test_a_transaction_that_another_with_the_same_key_replaces_is_known_at_once_and_not_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    mine, other = world.as_(world.buyer), world.as_(world.buyer)
    first, second = a_person().account, a_person().account
    world.rpc("evm_setAutomine", False)
    try:
        with ThreadPoolExecutor(1) as pool:
            replaced = pool.submit(transfer_token, mine, first, 5)
            while world.rpc("eth_getBlockTransactionCountByNumber", "pending") == "0x0":
                assert not replaced.done()
            nonce = mine._rpc._nonce("test", "latest")
            monkeypatch.setattr(other._rpc, "_nonce", lambda action, block: nonce)
            with monkeypatch.context() as dearer:
                dearer.setattr(fees, "PRIORITY_FEE_WEI", 3 * fees.PRIORITY_FEE_WEI)
                other._move("pay", "AssayToken", "transfer", second, 7, wait=False)
            while not replaced.done():
                world.rpc("evm_mine")
    finally:
        world.rpc("evm_setAutomine", True)

    with pytest.raises(Unavailable, match=f"has taken its nonce {nonce}"):
        replaced.result()
    assert [world.bank.token_balance(who) for who in (first, second)] == [0, 7]


def test_being_second_with_a_move_that_is_still_being_mined_is_success(world: World):
    result = world.a_result(world.a_table())
    cert = world.cert(result)
    first, second = world.as_(world.buyer), world.as_(world.bystander)
    refused, wait = Event(), second._rpc.wait_for_pending

    def wait_and_tell() -> None:
        refused.set()
        wait()

    second._rpc.wait_for_pending = wait_and_tell  # type: ignore[method-assign]
    world.rpc("evm_setAutomine", False)
    try:
        with ThreadPoolExecutor(2) as pool:
            early = pool.submit(first.propose, result, cert)
            while world.rpc("eth_getBlockTransactionCountByNumber", "pending") == "0x0":
                pass
            late = pool.submit(second.propose, result, cert)
            while not (refused.is_set() or late.done()):
                pass
            while not (early.done() and late.done()):
                world.rpc("evm_mine")
    finally:
        world.rpc("evm_setAutomine", True)

    assert early.result().tx_hash is not None
    assert late.result() == ALREADY_DONE


def test_an_answer_lost_on_the_way_back_does_not_send_twice(world: World):
    with Lossy(world.rpc_url) as lossy:
        chain = Chain(lossy.url, world.deployment, world.buyer.key)
        payee = a_person().account

        transfer_token(chain, payee, 5)

    assert lossy.lost == 1
    assert world.bank.token_balance(payee) == 5


class Lossy:
    """A proxy before the chain that passes the first transaction on and loses the answer."""

    def __init__(self, behind: str) -> None:
        self.lost = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = requests.post(
                    behind, data=body, headers={"Content-Type": "application/json"}, timeout=20
                )
                if json.loads(body)["method"] == "eth_sendRawTransaction" and outer.lost == 0:
                    outer.lost += 1
                    self.connection.close()
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Lossy:
        self.thread = Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def test_a_move_needs_a_key_and_gas(world: World):
    with pytest.raises(ConfigError, match="no key"):
        transfer_token(Chain(world.rpc_url, world.deployment), world.buyer.account, 1)
    with pytest.raises(ChainRefused, match="InsufficientFunds"):
        transfer_token(world.as_(a_person()), world.buyer.account, 0)


def test_a_refusal_names_the_contracts_error_and_its_arguments(world: World):
    with pytest.raises(ChainRefused) as refused:
        world.as_(world.buyer).stake(OPERATOR, 5)
    assert (refused.value.name, refused.value.arguments) == ("BelowMinimum", (5, 100 * UNIT))
    assert str(refused.value).endswith("[BelowMinimum(5, 100000000)]")
    assert isinstance(refused.value, AssayError)


def test_events_come_typed_in_chain_order_and_by_range(world: World):
    world.join(world.operators[0], OPERATOR, 200 * UNIT)
    tree = world.settle()
    world.bank.claim_all(world.run_id, 0, tree)

    events = world.bank.events(world.ready_block)

    places = [(e.block_number, e.log_index) for e in events]
    assert places == sorted(set(places))
    names = [type(e).__name__ for e in events]
    assert names == (
        ["Staked", "HotKeyDelegated", "RunOpened", "ResultProposed", "ResultFinalized", "BondReleased"]
        + ["Claimed"] * 3
    )
    opened = next(e for e in events if isinstance(e, RunOpened))
    assert (opened.run_id, opened.buyer) == (world.run_id, world.buyer.account)
    assert world.bank.events(opened.block_number, opened.block_number) == [opened]
    staked = next(e for e in events if isinstance(e, Staked))
    assert (staked.account, staked.role, staked.amount) == (world.operators[0].account, OPERATOR, 200 * UNIT)


def edit_logs(world: World, monkeypatch: pytest.MonkeyPatch, **edits: Any) -> None:
    """The endpoint sends each log's time as edited, or leaves it out."""
    eth = world.bank._rpc.web3.eth
    honest = eth.get_logs

    def edited(question: FilterParams) -> list[dict[str, Any]]:
        bare = [
            {name: log[name] for name in log if name != "blockTimestamp"}
            for log in map(dict, honest(question))
        ]
        return [{**log, **edits} for log in bare]

    monkeypatch.setattr(eth, "get_logs", edited)


@pytest.mark.parametrize("sends_times", [True, False])
def test_an_event_has_the_time_of_its_block(world: World, monkeypatch: pytest.MonkeyPatch, sends_times: bool):
    world.join(world.operators[0], OPERATOR, 200 * UNIT)
    eth = world.bank._rpc.web3.eth
    assert all("blockTimestamp" in log for log in eth.get_logs({"fromBlock": world.ready_block}))
    if not sends_times:
        edit_logs(world, monkeypatch)

    events = world.bank.events(world.ready_block)

    assert events
    assert [e.block_time for e in events] == [eth.get_block(e.block_hash)["timestamp"] for e in events]


@pytest.mark.parametrize("wrong", ["0x0", hex(1 << 63), "soon", "-0x1"])
def test_an_endpoint_that_makes_up_times_gives_no_events(
    world: World, monkeypatch: pytest.MonkeyPatch, wrong: str
):
    world.join(world.operators[0], OPERATOR, 200 * UNIT)
    edit_logs(world, monkeypatch, blockTimestamp=wrong)
    with pytest.raises(Unavailable, match="times of events"):
        world.bank.events(world.ready_block)


@pytest.mark.parametrize("field", ["blockNumber", "logIndex"])
@pytest.mark.parametrize("wrong", [1 << 63, -1, None])
def test_an_endpoint_that_makes_up_places_gives_no_events(
    world: World, monkeypatch: pytest.MonkeyPatch, field: str, wrong: Any
):
    world.join(world.operators[0], OPERATOR, 200 * UNIT)
    edit_logs(world, monkeypatch, **{field: wrong})
    with pytest.raises(Unavailable, match="times of events"):
        world.bank.events(world.ready_block)


@pytest.mark.parametrize("field", ["number", "timestamp"])
@pytest.mark.parametrize("wrong", [1 << 63, 1 << 64, -1])
def test_an_endpoint_that_makes_up_blocks_is_as_one_that_does_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, field: str, wrong: int
):
    eth = world.bank._rpc.web3.eth
    honest = eth.get_block
    assert world.bank.final_escrow(bytes(32)).escrow is None
    monkeypatch.setattr(eth, "get_block", lambda *asked: {**honest(*asked), field: wrong})

    with pytest.raises(Unavailable, match="finalised block"):
        world.bank.final_escrow(bytes(32))
    with pytest.raises(Unavailable, match="malformed answer"):
        world.bank.head()


@pytest.mark.parametrize("seed", range(2))
def test_whatever_people_do_the_contracts_hold_exactly_what_they_owe(world: World, seed: int):
    rng = random.Random(seed)
    people = [*world.operators, *world.verifiers]
    tickets: list[tuple[int, int]] = []
    cases: list[bytes] = []
    sunk = world.sunk()
    for step in range(30):
        who = rng.choice(people)
        chain, role = world.as_(who), rng.choice([OPERATOR, VERIFIER])
        try:
            match rng.choice(
                [
                    "stake",
                    "lock",
                    "leave",
                    "withdraw",
                    "cancel",
                    "case",
                    "case",
                    "wait",
                    "collect",
                    "epoch",
                    "pay out",
                ]
            ):
                case "stake":
                    chain.stake(role, rng.randrange(1, 300 * UNIT))
                case "lock":
                    free = chain.stake_of(who.account, role).free
                    lot = world.run_id if role == OPERATOR else term_of(1)
                    world.lock(who, rng.randrange(free + 1), role, lot)
                case "leave":
                    active = chain.stake_of(who.account, role).free
                    tickets.append(
                        (people.index(who), chain.request_unstake(role, rng.choice([active, active // 2])))
                    )
                case "withdraw" if tickets:
                    at, ticket = rng.choice(tickets)
                    world.as_(people[at]).withdraw(ticket)
                case "cancel" if tickets:
                    at, ticket = rng.choice(tickets)
                    world.as_(people[at]).cancel_unstake(ticket)
                case "case":
                    slash_order = world.a_ruling(who, role=role, ppm=rng.randrange(1, 300_000))
                    world.bank.open_case(slash_order, world.cert(slash_order))
                    cases.append(slash_order.offence_id)
                    world.advance(world.params.veto_window_s)
                    world.bank.execute_case(slash_order.offence_id)
                case "pay out" if cases:
                    world.bank.pay_out_case(rng.choice(cases))
                case "wait":
                    world.advance(world.params.unbonding_s)
                case "collect":
                    chain.collect()
                case "epoch":
                    world.bank.claim_all(world.run_id, 0, world.settle())
        except ChainRefused:
            pass
        owed = sum(world.bank.rewards_of(p.account) for p in [*people, world.buyer])
        owed += world.bank.rewards_of(world.bank.address)  # its bonds
        owed += sum(world.bank.pot_of(case) + world.bank.case_bond(case) for case in cases)
        for person in people:
            for one in (OPERATOR, VERIFIER):
                state = world.bank.stake_of(person.account, one)
                owed += state.active + state.unbonding
        owed -= len(world.verifiers) * world.params.min_verifier_stake  # which they came with
        assert world.held("StakeVault") == owed, f"seed {seed}, step {step}"
        run = world.bank.run(world.run_id)
        assert run is not None
        assert world.held("RunEscrow") == run.reserved + run.free, f"seed {seed}, step {step}"
        assert run.free >= 0
    slashes = [e for e in world.bank.events(world.deployment.block) if isinstance(e, Slashed)]
    paid = [e for e in world.bank.events(world.deployment.block) if isinstance(e, SlashPaid)]
    assert world.sunk() == sunk + sum(e.burnt for e in paid)
    assert len(slashes) >= len(paid)


def test_many_entries_on_the_list_of_juries_take_few_transactions_and_two_at_once_do_not_collide(
    world: World,
):
    rich = [world.bystander, world.buyer]
    minimum, count = world.params.min_verifier_stake, ENTRIES_AT_ONCE + 6

    def sent() -> list[int]:
        return [int(world.rpc("eth_getTransactionCount", one.account, "latest"), 16) for one in rich]

    for one in rich:
        world.bank.fund_many([one.account], token_amount=count * minimum, amount_wei=10**18)
        world.as_(one).stake(VERIFIER, count * minimum)
    before = sent()

    with ThreadPoolExecutor(len(rich)) as pool:
        list(pool.map(lambda one: world.as_(one).enlist(), rich))

    assert [world.bank.entries_lacking(one.account) for one in rich] == [0, 0]
    assert [after - earlier for after, earlier in zip(sent(), before, strict=True)] == [2, 2]
