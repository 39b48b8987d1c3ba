"""Moves: only what was prepared, only signed by its account, only once, only in time; on a real chain."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_utils.crypto import keccak

from assay.api import access
from assay.api.access import ANSWER_S, PREPARED_MAX, InProgress, NoRoom
from assay.api.gateway import Gateway
from assay.api.moves import MOVE_S, MoveRefused, check_transaction
from assay.chain.signing.unsigned import Transaction
from assay.chain.statements import OPERATOR
from tests.api.a_mover import landed, prepare, send, signed
from tests.api.a_server import ApiWorld, is_problem
from tests.contracts.chain_world import Person, World

pytestmark = pytest.mark.slow

STAKE = 5_000_000_000


@pytest.fixture
def world_api(folder: Path, world: World) -> ApiWorld:
    return ApiWorld(folder, gateway=Gateway(world.rpc_url, world.deployment))


def stake(world_api: ApiWorld, person: Person, token: str | None = None, amount: int = STAKE) -> Any:
    secret = token or world_api.session(person.account)
    answer = prepare(world_api, secret, "stake.add", role="operator", amount=str(amount))
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_stake_goes_in_and_out_by_moves(world_api: ApiWorld, world: World):
    person = world.operators[0]
    token = world_api.session(person.account)
    made = stake(world_api, person, token)
    assert [one["to"] for one in made["transactions"]] == [
        world.deployment.token, world.deployment.stake_vault
    ]  # fmt: skip
    assert made["typed_data"]["message"]["summary"] == "stake 5,000.000000 aUSD as operator"

    assert landed(world_api, token, send(world_api, token, signed(made, person.key)))["state"] == "mined"
    assert world.bank.stake_of(person.account, OPERATOR).active == STAKE
    shown = world_api.get(f"/v1/stakes/operator/{person.account}", token).json()
    assert (shown["active"], shown["banned"]) == (str(STAKE), False)

    leaving = prepare(world_api, token, "stake.remove", role="operator", amount=str(STAKE)).json()
    assert landed(world_api, token, send(world_api, token, signed(leaving, person.key)))["state"] == "mined"
    assert world.bank.stake_of(person.account, OPERATOR).active == 0
    refused = prepare(world_api, token, "stake.withdraw", ticket=1)
    assert is_problem(refused, 409, "can be withdrawn from")
    assert is_problem(
        prepare(world_api, world_api.session(world.buyer.account), "stake.withdraw", ticket=1), 404
    )


def test_a_run_is_placed_topped_up_and_closed_by_moves(world_api: ApiWorld, world: World):
    buyer, token = world.buyer, world_api.session(world.buyer.account)
    now = world.bank.timestamp()
    placed = prepare(
        world_api, token, "order.place", spec_hash="0x" + "ab" * 32, budget="1000000", epoch_cap="500000",
        epochs=2, deadline=now + 10**6, lot="100000000", operators=[],
    ).json()  # fmt: skip
    assert landed(world_api, token, send(world_api, token, signed(placed, buyer.key)))["state"] == "mined"
    run_id = "0x" + world.bank.run_id_of(buyer.account, bytes.fromhex("ab" * 32)).hex()
    more = prepare(world_api, token, "order.topup", run_id=run_id, amount="500").json()
    assert more["typed_data"]["message"]["summary"] == f"add 0.000500 aUSD to your run {run_id[2:10]}"
    assert landed(world_api, token, send(world_api, token, signed(more, buyer.key)))["state"] == "mined"

    shown = world_api.get(f"/v1/orders/{run_id}", token).json()
    assert (shown["buyer"], shown["budget"], shown["free"]) == (buyer.account, "1000500", "1000500")
    stranger = world_api.session(world.bystander.account)
    gift = prepare(world_api, stranger, "order.topup", run_id=run_id, amount="500").json()
    assert (
        f"another account's ({buyer.account}, which gets the rest)"
        in gift["typed_data"]["message"]["summary"]
    )
    assert is_problem(
        prepare(world_api, stranger, "order.cancel", run_id=run_id), 403, "only the run's buyer"
    )
    closing = prepare(world_api, token, "order.cancel", run_id=run_id).json()
    assert landed(world_api, token, send(world_api, token, signed(closing, buyer.key)))["state"] == "mined"
    assert is_problem(prepare(world_api, token, "order.refund", run_id=run_id), 409, "NotClosed")
    world.advance(10**6)
    rest = prepare(world_api, token, "order.refund", run_id=run_id).json()
    assert landed(world_api, token, send(world_api, token, signed(rest, buyer.key)))["state"] == "mined"
    assert world_api.get(f"/v1/orders/{run_id}", token).json()["returned"] == "1000500"


def test_a_session_alone_moves_nothing(world_api: ApiWorld, world: World):
    person = world.operators[0]
    token, made = world_api.session(person.account), None
    made = stake(world_api, person, token)
    body = signed(made, person.key)

    for broken, words in (
        ({**body, "signature": "0x" + "11" * 65}, "v 17"),
        ({**body, "signature": signed(made, world.buyer.key)["signature"]}, "is signed by"),
        ({**body, "transactions": signed(made, world.buyer.key)["transactions"]}, "is signed by"),
        ({**body, "transactions": body["transactions"][:1]}, "1 transactions, 2 were prepared"),
        ({**body, "transactions": body["transactions"][::-1]}, "differs from the prepared one's"),
        ({**body, "transactions": ["0x02", "0x02"]}, "not a signed transaction"),
        ({**body, "transactions": [one + "00" for one in body["transactions"]]}, "not a signed transaction"),
    ):
        assert is_problem(send(world_api, token, broken), 422, words)
    assert world.bank.stake_of(person.account, OPERATOR).active == 0
    assert (
        landed(world_api, token, send(world_api, token, body))["state"] == "mined"
    )  # what was refused used nothing up


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"to": "0x" + "99" * 20}, "to differs"),
        ({"data": "0x1234"}, "data differs"),
        ({"value": 1}, "value differs"),
        ({"nonce": 99}, "nonce differs"),
        ({"chainId": 1}, "chainId differs"),
        ({"gas": 10**7}, "gas differs"),
        ({"accessList": [{"address": "0x" + "99" * 20, "storageKeys": []}]}, "access list"),
    ],
)
def test_a_transaction_that_was_altered_does_not_go_out(
    world_api: ApiWorld, world: World, changes: dict[str, Any], words: str
):
    person = world.operators[0]
    token = world_api.session(person.account)
    before = world.rpc("eth_getTransactionCount", person.account, "pending")
    made = stake(world_api, person, token)

    assert is_problem(send(world_api, token, signed(made, person.key, **changes)), 422, words)
    assert world.rpc("eth_getTransactionCount", person.account, "pending") == before


def test_only_the_fees_are_the_accounts_choice(world_api: ApiWorld, world: World):
    person = world.operators[0]
    token = world_api.session(person.account)
    fees = {"maxFeePerGas": 5 * 10**9, "maxPriorityFeePerGas": 1}

    assert (
        send(world_api, token, signed(stake(world_api, person, token), person.key, **fees)).status_code == 202
    )


def test_an_old_form_of_transaction_is_refused():
    to = "0x" + "99" * 20
    prepared = Transaction(
        account="0x" + "11" * 20, chain_id=1, nonce=0, to=to, value_wei=0, data=b"", gas=21_000, fee_wei=1,
        priority_fee_wei=1,
    )  # fmt: skip
    told = {"chainId": 1, "nonce": 0, "to": to, "value": 0, "gas": 21_000, "gasPrice": 1}
    old = Account.sign_transaction(told, "0x" + "11" * 32)
    raw = bytes(old.raw_transaction)
    for body in (raw, b"", b"\x02", b"\x02" + bytes(40), b"\x02" * 20_000, b"\x03" + raw):
        with pytest.raises(MoveRefused, match="not a signed transaction"):
            check_transaction(body, prepared)


def test_a_statement_that_names_another_move_is_refused(world_api: ApiWorld, world: World):
    person = world.operators[0]
    token = world_api.session(person.account)
    one, other = stake(world_api, person, token), stake(world_api, person, token, amount=STAKE + 1)
    body = {**signed(one, person.key), "signature": signed(other, person.key)["signature"]}

    assert is_problem(send(world_api, token, body), 422, "is signed by")


def test_a_move_goes_out_once_and_in_time(world_api: ApiWorld, world: World):
    person = world.operators[0]
    token = world_api.session(person.account)
    made = stake(world_api, person, token)
    body = signed(made, person.key)
    headers = {"Idempotency-Key": "mine"}
    first = send(world_api, token, body, **headers)
    replayed = send(world_api, token, body, **headers)
    assert (replayed.content, replayed.headers["idempotency-replayed"]) == (first.content, "true")
    again = landed(world_api, token, send(world_api, token, body))  # another key, the same move: its state
    assert again["state"] == "mined"
    other = {**body, "transactions": signed(made, person.key, maxFeePerGas=9 * 10**9)["transactions"]}
    assert is_problem(send(world_api, token, other), 409, "was sent before")
    assert is_problem(send(world_api, token, other, **headers), 422, "another request")
    assert world.bank.stake_of(person.account, OPERATOR).active == STAKE

    late = stake(world_api, person, token)
    world_api.clock.now_s += MOVE_S
    assert is_problem(send(world_api, token, signed(late, person.key)), 409, "has expired")
    assert world_api.get(f"/v1/moves/{late['id']}", token).json()["state"] == "expired"


def test_another_account_neither_sees_nor_sends_a_move(world_api: ApiWorld, world: World):
    person, stranger = world.operators[0], world_api.session(world.buyer.account)
    made = stake(world_api, person)

    assert is_problem(world_api.get(f"/v1/moves/{made['id']}", stranger), 404)
    assert is_problem(send(world_api, stranger, signed(made, person.key)), 404)
    assert is_problem(world_api.get(f"/v1/moves/{'00' * 32}", stranger), 404)
    assert is_problem(world_api.get("/v1/moves/../../etc", stranger), 404)


def test_a_token_moves_for_its_account_within_its_limit(world_api: ApiWorld, world: World):
    person = world.operators[0]
    token = world_api.token("move", account=person.account, limit=STAKE + 10)
    first, second = stake(world_api, person, token), stake(world_api, person, token)

    # The second takes the same nonce of the account as the first: what counts here is the limit.
    assert send(world_api, token, signed(first, person.key)).status_code == 202
    assert is_problem(send(world_api, token, signed(second, person.key)), 403, "spend limit")
    assert world_api.access.tokens()[-1].spent == STAKE
    assert world_api.get(f"/v1/moves/{second['id']}", token).json()["state"] == "prepared"

    reader = world_api.token("read", account=person.account)
    assert is_problem(
        prepare(world_api, reader, "stake.add", role="operator", amount="1"), 403, "no scope 'move'"
    )
    assert is_problem(send(world_api, reader, signed(second, person.key)), 403, "no scope 'move'")


@pytest.mark.parametrize(
    ("action", "parameters", "words"),
    [
        ("steal", {}, "no action 'steal'"),
        ("stake.add", {}, "parameters.role"),
        ("stake.add", {"role": "operator", "amount": 5}, "parameters.amount"),
        ("stake.add", {"role": "operator", "amount": "-5"}, "parameters.amount"),
        ("stake.add", {"role": "operator", "amount": "0"}, "parameters.amount"),
        ("stake.add", {"role": "operator", "amount": "1e400"}, "parameters.amount"),
        ("stake.add", {"role": "operator", "amount": "1.5"}, "parameters.amount"),
        ("stake.add", {"role": "king", "amount": "5"}, "parameters.role"),
        ("stake.add", {"role": "operator", "amount": "5", "to": "0x"}, "parameters.to"),
        ("stake.withdraw", {"ticket": True}, "parameters.ticket"),
        ("claim", {"run": "../paper", "epoch": 0, "index": 0}, "parameters.run"),
        ("claim", {"run": "/etc/passwd", "epoch": 0, "index": 0}, "parameters.run"),
        ("order.cancel", {"run_id": "0x12"}, "parameters.run_id"),
    ],
)
def test_what_is_not_an_action_is_refused_in_words(
    world_api: ApiWorld, world: World, action: str, parameters: dict[str, Any], words: str
):
    answer = prepare(world_api, world_api.session(world.buyer.account), action, **parameters)
    assert is_problem(answer, 422, words)


def test_what_cannot_be_done_is_told_before_anything_is_signed(world_api: ApiWorld, world: World):
    token = world_api.session(world.bystander.account)
    nothing = "0x" + "00" * 32

    assert is_problem(
        prepare(world_api, token, "stake.add", role="operator", amount="9" * 18), 409, "holds less"
    )
    assert is_problem(prepare(world_api, token, "order.topup", run_id=nothing, amount="1"), 404)
    assert is_problem(prepare(world_api, token, "claim", run="nowhere", epoch=0, index=0), 404)
    assert is_problem(prepare(world_api, token, "claim", run="paper", epoch=0, index=99), 404, "rows")
    assert is_problem(prepare(world_api, token, "claim", run="paper", epoch=0, index=0), 409, "refuses")
    assert is_problem(world_api.get(f"/v1/orders/{nothing}", token), 404)


def test_an_idempotency_key_is_asked_for_and_bounded(world_api: ApiWorld, world: World):
    token = world_api.session(world.buyer.account)
    body = {"action": "steal", "parameters": {}}
    for headers in ({}, {"Idempotency-Key": ""}, {"Idempotency-Key": "x" * 65}):
        answer = world_api.ask("POST", "/v1/moves/prepare", token, headers=headers, json=body)
        assert is_problem(answer, 400, "Idempotency-Key")


def test_a_refused_move_is_not_kept_and_its_key_is_free(world_api: ApiWorld, world: World):
    token, headers = world_api.session(world.operators[0].account), {"Idempotency-Key": "mine"}
    rest = {"role": "operator", "amount": str(STAKE)}

    def ask(action: str) -> Any:
        body = {"action": action, "parameters": rest}
        return world_api.ask("POST", "/v1/moves/prepare", token, headers=headers, json=body)

    assert is_problem(ask("steal"), 422, "no action 'steal'")
    with world_api.access.reading() as db:
        assert db.execute("SELECT count(*) FROM answer").fetchone()[0] == 0
    made = ask("stake.add")
    assert made.status_code == 201
    assert ask("stake.add").json() == made.json()  # what was carried out is replayed


def test_a_flood_ends_its_own_responses_and_shuts_nobody_out(
    world_api: ApiWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("assay.api.access.ANSWERS_MAX", 5)
    store, now_s, request = world_api.access, world_api.clock(), bytes(32)

    def carried_out(principal: str, key: str, at_s: int = now_s) -> bool:
        """Whether this request is carried out now, and not replayed."""
        if store.begin(principal, key, request, at_s, 20) is not None:
            return False
        store.finish(principal, key, 201, key.encode())
        return True

    carried_out("early", "1")
    assert store.begin("slow", "1", request, now_s, 20) is None  # its response is still to come
    assert all(carried_out("flood", str(n)) for n in range(20))

    assert carried_out("late", "1")
    assert [carried_out(who, "1") for who in ("early", "late")] == [False, False]
    with pytest.raises(InProgress):
        store.begin("slow", "1", request, now_s, 20)
    assert [carried_out("flood", str(n)) for n in (19, 17)] == [False, True]  # its oldest ended first
    # Where everybody has one, the oldest ends; one that was broken off is no exception.
    assert all(carried_out(f"account {n}", "1", now_s + 20) for n in range(7))
    with store.reading() as db:
        kept = [row[0] for row in db.execute("SELECT principal FROM answer ORDER BY rowid")]
    assert kept == [f"account {n}" for n in range(2, 7)]


def test_only_responses_of_one_day_count_against_their_account(
    world_api: ApiWorld, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("assay.api.access.PRINCIPAL_ANSWERS_MAX", 2)
    store, now_s = world_api.access, world_api.clock()
    for key in ("1", "2"):
        assert store.begin("account", key, bytes(32), now_s, 20) is None

    with pytest.raises(NoRoom):
        store.begin("account", "3", bytes(32), now_s + ANSWER_S - 1, 20)
    assert store.begin("account", "3", bytes(32), now_s + ANSWER_S, 20) is None  # nothing is swept yet


def test_a_move_whose_response_has_ended_goes_out_once(
    world_api: ApiWorld, world: World, monkeypatch: pytest.MonkeyPatch
):
    person, headers = world.operators[0], {"Idempotency-Key": "mine"}
    token = world_api.session(person.account)
    body = signed(stake(world_api, person, token), person.key)
    monkeypatch.setattr("assay.api.access.ANSWERS_MAX", 1)
    landed(world_api, token, send(world_api, token, body, **headers))
    stake(world_api, person, token)  # in the place of its response

    again = send(world_api, token, body, **headers)
    assert (again.status_code, again.json()["state"]) == (202, "mined")
    assert "idempotency-replayed" not in again.headers
    assert world.bank.stake_of(person.account, OPERATOR).active == STAKE


def test_so_many_moves_of_an_account_wait_and_no_more(world_api: ApiWorld, world: World):
    person = world.operators[0]
    token = world_api.session(person.account)
    for _ in range(PREPARED_MAX):
        stake(world_api, person, token)

    assert is_problem(
        prepare(world_api, token, "stake.add", role="operator", amount=str(STAKE)), 429, "are not sent yet"
    )
    world_api.clock.now_s += MOVE_S
    stake(world_api, person, token)


def test_no_number_of_accounts_keeps_moves_for_others_out(
    world_api: ApiWorld, world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(access, "MOVES_MAX", 3)
    one, other = world.operators[:2]
    moves = [stake(world_api, one, world_api.session(one.account)) for _ in range(3)]
    moves.append(stake(world_api, other, world_api.session(other.account)))

    kept = [world_api.access.move(move["id"]) is not None for move in moves]
    assert kept == [False, True, True, True]


def test_a_server_killed_before_it_sent_offers_the_move_again(
    world_api: ApiWorld, world: World, monkeypatch: pytest.MonkeyPatch
):
    person = world.operators[0]
    token = world_api.session(person.account)
    made = stake(world_api, person, token)

    def dies(_: bytes) -> str:
        raise KeyboardInterrupt

    offer: Callable[[bytes], str] = world_api.gateway.offer  # type: ignore[union-attr]
    monkeypatch.setattr(world_api.gateway, "offer", dies)
    with pytest.raises(KeyboardInterrupt):
        send(world_api, token, signed(made, person.key))
    for (
        thread
    ) in threading.enumerate():  # which a process that died would not have left, and pytest waits for
        if thread.name == "AnyIO worker thread":
            thread.stop()  # type: ignore[attr-defined]
    assert world.bank.stake_of(person.account, OPERATOR).active == 0

    monkeypatch.setattr(world_api.gateway, "offer", offer)
    shown = world_api.get(f"/v1/moves/{made['id']}", token)
    assert shown.status_code == 200
    assert landed(world_api, token, send(world_api, token, signed(made, person.key)))["state"] == "mined"
    assert world.bank.stake_of(person.account, OPERATOR).active == STAKE


def test_a_move_that_the_chain_reverts_says_so(world_api: ApiWorld, world: World):
    buyer, token = world.buyer, world_api.session(world.buyer.account)
    closing = prepare(world_api, token, "order.topup", run_id="0x" + world.run_id.hex(), amount="5").json()
    world.as_(world.operators[0]).stake(OPERATOR, STAKE)  # the chain goes on
    world.advance(31 * 86_400)
    done = landed(world_api, token, send(world_api, token, signed(closing, buyer.key)))

    assert (done["state"], [one["state"] for one in done["transactions"]]) == (
        "reverted",
        ["mined", "reverted"],
    )
    assert (
        done["transactions"][0]["hash"]
        == "0x" + keccak(bytes.fromhex(signed(closing, buyer.key)["transactions"][0][2:])).hex()
    )


def test_a_call_behind_an_approval_is_rehearsed(
    world_api: ApiWorld, world: World, monkeypatch: pytest.MonkeyPatch
):
    token = world_api.session(world.buyer.account)
    asked = {
        "spec_hash": "0x" + "cd" * 32, "budget": "1000", "epoch_cap": "1000", "epochs": 1, "deadline": 1,
        "lot": "1", "operators": [],
    }  # fmt: skip
    assert is_problem(prepare(world_api, token, "order.place", **asked), 409, "the escrow refuses this run")

    # An endpoint that cannot rehearse: what the approval's call allows is all that is known.
    monkeypatch.setattr(world_api.gateway, "_rehearsed", lambda *_: None)
    assert prepare(world_api, token, "order.place", **asked).json()["transactions"][1]["gas"] == 400_000


def test_a_move_is_final_when_its_block_is(world_api: ApiWorld, world: World):
    person = world.operators[0]
    token = world_api.session(person.account)
    made = stake(world_api, person, token)
    landed(world_api, token, send(world_api, token, signed(made, person.key)))
    world.rpc("anvil_mine", hex(200))

    assert world_api.get(f"/v1/moves/{made['id']}", token).json()["state"] == "final"


def test_without_a_chain_nothing_moves(folder: Path):
    world_api = ApiWorld(folder)
    token = world_api.session("0x" + "11" * 20)
    assert is_problem(
        prepare(world_api, token, "stake.add", role="operator", amount="1"), 503, "not connected"
    )
