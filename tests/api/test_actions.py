"""Actions: what an account may call of the contracts is planned, or said why not; on a real chain."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from assay.api.actions import settlement
from assay.api.actions.planning import ACTIONS, SEPARATOR, actions_text
from assay.api.gateway import Gateway
from assay.api.schemas import PayoutAnswer, SettlementAnswer
from assay.bundle import books
from assay.chain.addresses import CONTRACTS
from assay.chain.client import UNIT
from assay.chain.proofs.payout_tree import Payout, PayoutTree, payout_tree
from assay.chain.rpc import artefact
from assay.chain.state import AppealPhase, CasePhase, DefencePhase, EpochPhase
from assay.chain.statements import OPERATOR, VERIFIER, Delegation, term_of
from assay.protocol.offences import offence_id
from tests.api.a_mover import landed, prepare, send, signed
from tests.api.a_server import ApiWorld, is_problem
from tests.contracts.chain_world import PURSE, Person, World, a_person

pytestmark = pytest.mark.slow

STAKE = 1_000 * UNIT
DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.fixture
def world_api(folder: Path, world: World) -> ApiWorld:
    return ApiWorld(folder, gateway=Gateway(world.rpc_url, world.deployment))


def planned(world_api: ApiWorld, person: Person, action: str, **parameters: Any) -> dict[str, Any]:
    answer = prepare(world_api, world_api.session(person.account), action, **parameters)
    assert answer.status_code == 201, answer.text
    return answer.json()  # type: ignore[no-any-return]


def carried_out(world_api: ApiWorld, person: Person, action: str, **parameters: Any) -> str:
    """Have an account take an action as it was planned; what it read before."""
    token, made = world_api.session(person.account), planned(world_api, person, action, **parameters)
    assert landed(world_api, token, send(world_api, token, signed(made, person.key)))["state"] == "mined"
    return str(made["typed_data"]["message"]["summary"])


def refused(
    world_api: ApiWorld, person: Person, status: int, words: str, action: str, **parameters: Any
) -> None:
    assert is_problem(
        prepare(world_api, world_api.session(person.account), action, **parameters), status, words
    )


def drawn(world_api: ApiWorld, world: World, action: str, **parameters: Any) -> str:
    """Draw a jury, in the first block whose randomness gives enough different accounts."""
    token = world_api.session(world.buyer.account)
    while True:
        answer = prepare(world_api, token, action, **parameters)
        if answer.status_code == 409:
            world.rpc("evm_mine")
            continue
        made = answer.json()
        done = landed(world_api, token, send(world_api, token, signed(made, world.buyer.key)))
        if done["state"] == "mined":
            return str(made["typed_data"]["message"]["summary"])


def hex_of(value: bytes) -> str:
    return "0x" + value.hex()


# ---- completeness


def test_every_function_that_an_account_may_call_is_an_action_or_said_to_be_none():
    text = DOCUMENT.read_text()
    told = text[text.index("## Actions") : text.index("## Events")]
    excepted = set(re.findall(r"`([A-Z]\w+\.\w+)`", told))
    planned_for = {f"{one.contract}.{one.function}" for one in ACTIONS.values()}
    writing = {
        f"{contract}.{one['name']}"
        for contract in CONTRACTS
        for one in artefact(contract)["abi"]
        if one["type"] == "function" and one["stateMutability"] not in ("view", "pure")
    }

    assert planned_for | excepted == writing
    assert not planned_for & excepted
    assert len(planned_for) == len(ACTIONS)
    assert re.findall(r"^\| `(\S+ \{.*?\})` \|", told, re.MULTILINE) == actions_text().split(SEPARATOR)


# ---- stake, keys, payee


def test_a_ticket_is_cancelled_by_its_account_alone(world_api: ApiWorld, world: World):
    person = world.operators[0]
    carried_out(world_api, person, "stake.add", role="operator", amount=str(STAKE))
    left = carried_out(world_api, person, "stake.remove", role="operator", amount=str(STAKE))
    assert " d later" in left or " h later" in left
    refused(world_api, world.buyer, 404, "no such ticket", "stake.cancel", ticket=1)

    assert "1,000.000000 aUSD of ticket 1" in carried_out(world_api, person, "stake.cancel", ticket=1)
    assert world.bank.stake_of(person.account, OPERATOR).free == STAKE
    refused(world_api, person, 404, "no such ticket", "stake.cancel", ticket=1)


def test_a_withdrawal_says_where_it_goes(world_api: ApiWorld, world: World):
    person, safe = world.operators[0], a_person().account
    carried_out(world_api, person, "stake.add", role="operator", amount=str(STAKE))
    carried_out(world_api, person, "stake.remove", role="operator", amount=str(STAKE))
    named = carried_out(world_api, person, "payee.name", payee=safe.lower())
    assert "ALL that is owed to this account" in named and f"sent to the address {safe}, no longer" in named
    world.advance(world.params.unbonding_s)

    assert f"at the address {safe} that it named" in carried_out(
        world_api, person, "stake.withdraw", ticket=1
    )
    assert world.bank.token_balance(safe) == STAKE
    assert "this account itself" in carried_out(world_api, person, "payee.name", payee=person.account)
    wrong = safe[:-1] + ("0" if safe[-1] != "0" else "1")
    refused(world_api, person, 422, "checksum is wrong", "payee.name", payee=wrong)


def test_a_lot_is_locked_and_released(world_api: ApiWorld, world: World):
    person, until = world.operators[0], world.bank.timestamp() + 86_400
    carried_out(world_api, person, "stake.add", role="operator", amount=str(STAKE))
    ahead = {"role": "operator", "run_id": "0x" + "12" * 32}
    told = carried_out(world_api, person, "stake.lock", **ahead, amount=str(STAKE), until=until)
    assert "nobody has opened it yet" in told and "slash orders about this seat take from it" in told
    assert world.bank.lot_of(person.account, OPERATOR, b"\x12" * 32).amount == STAKE

    assert "1,000.000000 aUSD" in carried_out(world_api, person, "stake.release", **ahead)
    assert world.bank.stake_of(person.account, OPERATOR).free == STAKE
    refused(world_api, person, 404, "has no lot", "stake.release", **ahead)
    run = {"role": "operator", "run_id": hex_of(world.run_id)}
    told = carried_out(world_api, person, "stake.lock", **run, amount=str(STAKE), until=until)
    assert f"of the buyer {world.buyer.account}" in told
    refused(world_api, person, 409, "not before", "stake.release", **run)
    refused(world_api, person, 422, "for a run_id", "stake.release", role="operator")
    refused(world_api, person, 422, "for a set_version", "stake.release", **{**run, "role": "verifier"})
    refused(world_api, person, 409, "are free", "stake.lock", **run, amount=str(STAKE), until=until)


def test_a_verifier_locks_for_its_term_and_enlists(world_api: ApiWorld, world: World):
    person = world.bystander
    refused(world_api, person, 409, "on the list of juries", "jury.enlist")
    carried_out(
        world_api, person, "stake.add", role="verifier", amount=str(3 * world.params.min_verifier_stake)
    )
    until = world.bank.timestamp() + 86_400
    told = carried_out(world_api, person, "stake.lock", role="verifier", amount=str(UNIT), until=until)
    assert "the place in verifier set 1" in told
    assert world.bank.lot_of(person.account, VERIFIER, term_of(1)).amount == UNIT

    assert "with 3 more entries" in carried_out(world_api, person, "jury.enlist")
    assert world.bank.entries_lacking(person.account) == 0


def test_a_hot_key_is_delegated_with_a_warning(world_api: ApiWorld, world: World):
    person, expiry = world.buyer, world.bank.timestamp() + 30 * 86_400

    def consent(of: Person, until: int) -> dict[str, Any]:
        said = Delegation(
            deployment_id=world.deployment.deployment_id,
            account=person.account,
            hot_key=of.hot_key,
            expiry=until,
        )
        return {"hot_key": of.hot_key, "expiry": until, "consent": hex_of(world.signed(said, of.hot))}

    told = carried_out(world_api, person, "key.delegate", **consent(person, expiry))
    assert (
        "whoever holds that key can have this account's whole stake slashed" in told and "instead" not in told
    )
    assert world.bank.hot_key_of(person.account) == person.hot_key
    other = a_person()
    told = carried_out(world_api, person, "key.delegate", **consent(other, expiry))
    assert f"instead of {person.hot_key}" in told
    refused(
        world_api, person, 409, "within 366 days", "key.delegate", **consent(other, expiry + 400 * 86_400)
    )
    over = carried_out(world_api, person, "key.delegate", **consent(other, expiry - 60 * 86_400))
    assert "it is over, so verifiers' seats of this account go to reserves" in over
    forged = {**consent(other, expiry), "consent": hex_of(world.signed(world.said(), other.hot))}
    refused(world_api, person, 409, "BadConsent", "key.delegate", **forged)


# ---- results


def challenged(world_api: ApiWorld, world: World) -> dict[str, Any]:
    """The world's first epoch, proposed by the bank and challenged by the bystander."""
    result = world.a_result(world.a_table())
    world.bank.propose(result, world.cert(result))
    epoch = {"run_id": hex_of(world.run_id), "epoch": 0}
    told = carried_out(world_api, world.bystander, "result.challenge", **epoch)
    assert "with a bond of 480.000000 aUSD: ALL of it is lost if a jury finds the result right" in told
    return epoch


def test_a_result_is_challenged_and_judged_by_moves(world_api: ApiWorld, world: World):
    epoch = challenged(world_api, world)
    refused(world_api, world.buyer, 409, "challenged by", "result.challenge", **epoch)
    assert world.bystander.account in drawn(world_api, world, "challenge.draw", **epoch)
    state = world.bank.epoch_state(world.run_id, 0)
    answer = {**epoch, "digest": hex_of(state.digest), "is_right": False}
    refused(world_api, world.buyer, 403, "not on the jury", "challenge.vote", **answer)
    refused(
        world_api,
        world.buyer,
        409,
        "the challenged result",
        "challenge.vote",
        **{**answer, "digest": "0x" + "1" * 64},
    )

    jurors = {one.account: one for one in world.jurors}
    for juror in dict.fromkeys(state.jury):
        if world.bank.epoch_state(world.run_id, 0).phase is EpochPhase.CHALLENGED:
            told = carried_out(world_api, jurors[juror], "challenge.vote", **answer)
            assert f"with {state.jury.count(juror)} of 5 seats" in told and "is WRONG" in told
    assert world.bank.epoch_state(world.run_id, 0).phase is EpochPhase.NONE
    told = carried_out(world_api, world.bystander, "bond.collect")
    assert "collect 720.000000 aUSD of bonds and fees to this account" in told
    refused(world_api, world.bystander, 409, "no bonds", "bond.collect")


def test_a_challenge_lapses_and_the_result_becomes_final(world_api: ApiWorld, world: World):
    epoch, anybody = challenged(world_api, world), world.buyer
    refused(world_api, anybody, 409, "not before", "challenge.lapse", **epoch)
    world.advance(world.params.resolve_window_s)
    told = carried_out(world_api, anybody, "challenge.lapse", **epoch)
    assert (
        f"half of the bond of 480.000000 aUSD returns to another account ({world.bystander.account})" in told
    )
    refused(world_api, anybody, 409, "not before", "result.finalize", **epoch)
    world.advance(world.params.challenge_window_s)
    assert "nobody can challenge it any more" in carried_out(world_api, anybody, "result.finalize", **epoch)

    refused(world_api, anybody, 409, "not before", "result.sweep", **epoch)
    refused(world_api, anybody, 409, "final", "result.challenge", **epoch)
    world.advance(world.params.claim_period_s)
    told = carried_out(world_api, world.bystander, "result.sweep", **epoch)
    assert (
        f"unclaimed 0.000606 aUSD of epoch 0 of run {world.run_id.hex()[:8]} to its buyer, another account"
        in told
    )
    assert "yours too, are never paid then" in told
    assert world.bank.epoch_state(world.run_id, 0).phase is EpochPhase.SWEPT


def test_an_orphan_is_cleared(world_api: ApiWorld, world: World):
    epoch = challenged(world_api, world)
    second = world.a_result(world.a_table(1), 1)
    world.bank.propose(second, world.cert(second))
    refused(world_api, world.buyer, 409, "was not rejected", "result.clear", **{**epoch, "epoch": 1})
    world.judge(world.run_id, 0, is_right=False)

    told = carried_out(world_api, world.buyer, "result.clear", **{**epoch, "epoch": 1})
    assert "whose predecessor was rejected" in told
    assert world.bank.epoch_state(world.run_id, 1).phase is EpochPhase.NONE


# ---- claims


def served(world: World, tree: PayoutTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The books have this table of the world's run."""
    rows = [
        PayoutAnswer(
            index=at, role="operator", peer=bytes(32), account=row.account, amount=row.amount,
            proof=[hex_of(one) for one in tree.proof(at)],
        )
        for at, row in enumerate(tree.payouts)
    ]  # fmt: skip
    table = SettlementAnswer(
        epoch=0, table_hash=bytes(32), root=tree.root, tokens_paid=0, total=tree.total, rows=rows
    )
    monkeypatch.setattr(books, "run_id_of", lambda _: world.run_id)
    monkeypatch.setattr(settlement, "payouts", lambda *_: table)


def test_rows_are_claimed_at_once_and_nobody_is_paid_twice(
    world_api: ApiWorld, world: World, monkeypatch: pytest.MonkeyPatch
):
    first, second, third = world.operators
    served(world, world.settle(), monkeypatch)
    epoch = {"run": "paper", "epoch": 0}
    refused(world_api, world.buyer, 404, "no row of this account", "claim", **epoch)
    refused(world_api, first, 422, "either index or rows", "claim", **epoch, index=0, rows=[1])
    refused(world_api, first, 404, "has 3 rows", "claim", **epoch, rows=[0, 3])
    refused(world_api, first, 422, "parameters.rows", "claim", **epoch, rows=[])

    told = carried_out(world_api, first, "claim", **epoch, rows=[2, 0, 2])
    assert "pay 0.000404 aUSD of epoch 0, in 2 rows" in told and f"another account ({third.account})" in told
    assert world.bank.token_balance(third.account) == PURSE + 303
    refused(world_api, first, 409, "were paid before", "claim", **epoch)  # its own are among them
    told = carried_out(world_api, second, "claim", **epoch, rows=[0, 1, 2])
    assert f"pay 0.000202 aUSD of epoch 0, in 1 rows, to this account ({second.account})" in told


def test_all_of_mine_is_as_many_rows_as_one_transaction_takes(
    world_api: ApiWorld, world: World, monkeypatch: pytest.MonkeyPatch
):
    mine, count = world.operators[0], settlement.ROWS_MAX + 2
    tree = payout_tree(world.run_id, 0, [Payout(account=mine.account, amount=7)] * count)
    monkeypatch.setattr(World, "a_table", lambda *_: tree)
    served(world, world.settle(), monkeypatch)

    told = carried_out(world_api, mine, "claim", run="paper", epoch=0)
    assert "in 16 rows" in told and "2 more rows are left" in told
    assert "in 2 rows" in carried_out(world_api, mine, "claim", run="paper", epoch=0)
    assert world.bank.token_balance(mine.account) == PURSE + 7 * count


# ---- the court


def opened_case(world: World) -> tuple[Person, dict[str, Any]]:
    accused = world.operators[0]
    world.join(accused, OPERATOR, STAKE)
    ruling = world.a_ruling(accused)
    world.bank.open_case(ruling, world.cert(ruling))
    return accused, {"case_id": hex_of(ruling.offence_id)}


def test_a_case_is_carried_out_paid_and_its_shares_collected(world_api: ApiWorld, world: World):
    accused, case = opened_case(world)
    refused(world_api, world.buyer, 409, "not before", "case.execute", **case)
    refused(world_api, world.buyer, 409, "is open, not executed", "case.payout", **case)
    world.advance(world.params.veto_window_s)
    told = carried_out(world_api, accused, "case.execute", **case)
    assert f"25 % of a lot of this account ({accused.account}) is taken" in told
    world.advance(world.params.payout_delay_s)
    told = carried_out(world_api, world.bystander, "case.payout", **case)
    assert "the 250.000000 aUSD that were taken" in told and "cannot return" in told

    before = world.bank.token_balance(world.buyer.account)
    told = carried_out(world_api, world.buyer, "stake.collect")
    assert world.bank.token_balance(world.buyer.account) > before
    refused(world_api, world.buyer, 409, "no shares of slashes", "stake.collect")


def test_a_case_expires(world_api: ApiWorld, world: World):
    _, case = opened_case(world)
    world.advance(world.params.veto_window_s + world.params.execute_window_s)
    told = carried_out(world_api, world.buyer, "case.expire", **case)
    assert "burns" in told
    assert world.bank.case(bytes.fromhex(case["case_id"][2:])).phase is CasePhase.EXPIRED


def appealed(world: World, *, is_defended: bool) -> tuple[Person, dict[str, Any]]:
    """The appeal of a case about a step of two operators, of which a signer defends the first one."""
    accused, signer = world.operators[0], world.verifiers[0]
    world.join(accused, OPERATOR, STAKE)
    step = world.said(value=sha256(b"commit").digest())
    case_id = offence_id(world.run_id, b"assay/offence/1" + step.value)
    ruling = world.a_ruling(accused, offence_id=case_id)
    world.bank.open_case(ruling, world.cert(ruling))
    parts = [sha256(b"position %d" % at).digest() for at in range(2)]
    world.as_(accused).appeal_case(case_id, 2, parts)
    if is_defended:
        world.as_(signer).defend_order(case_id, 0, parts, step, world.signed(step, accused.hot))
    return accused, {"case_id": hex_of(case_id)}


def test_an_appeal_that_nobody_meets_is_won(world_api: ApiWorld, world: World):
    accused, case = appealed(world, is_defended=False)
    refused(world_api, world.buyer, 409, "not before", "appeal.conclude", **case)
    world.advance(world.params.appeal_move_s)
    told = carried_out(world_api, world.buyer, "appeal.conclude", **case)
    assert f"the appeal of another account ({accused.account})" in told
    case_id = bytes.fromhex(case["case_id"][2:])
    assert world.bank.case(case_id).phase is CasePhase.VETOED
    refused(world_api, world.buyer, 409, "is not open", "appeal.conclude", **case)


def test_the_jury_of_a_defence_answers(world_api: ApiWorld, world: World):
    _, case = appealed(world, is_defended=True)
    case_id, defender = bytes.fromhex(case["case_id"][2:]), world.verifiers[0].account
    defence = {**case, "defender": defender}
    refused(
        world_api, world.buyer, 409, "waits for no jury", "appeal.draw", **case, defender=world.buyer.account
    )
    refused(world_api, world.buyer, 409, "there is no", "appeal.lapse", **case, defender=world.buyer.account)
    refused(world_api, world.buyer, 409, "not before", "appeal.lapse", **defence)
    assert f"by {defender}" in drawn(world_api, world, "appeal.draw", **defence)
    state, jury = world.bank.defence(case_id, defender)
    answer = {**defence, "end": hex_of(state.end), "is_right": True}
    refused(world_api, world.buyer, 403, "not on the jury", "appeal.vote", **answer)
    refused(
        world_api, world.buyer, 409, "the jury judges", "appeal.vote", **{**answer, "end": "0x" + "1" * 64}
    )

    jurors = {one.account: one for one in [*world.jurors, *world.verifiers]}
    for juror in dict.fromkeys(jury.seats):
        if world.bank.defence(case_id, defender)[0].phase is DefencePhase.JURY:
            told = carried_out(world_api, jurors[juror], "appeal.vote", **answer)
            assert f"with {jury.seats.count(juror)} of 5 seats" in told and told.endswith("is right")
    assert world.bank.defence(case_id, defender)[0].phase is DefencePhase.ENDED


def test_a_defence_without_an_answer_lapses(world_api: ApiWorld, world: World):
    _, case = appealed(world, is_defended=True)
    world.advance(world.params.appeal_vote_s)
    told = carried_out(world_api, world.buyer, "appeal.lapse", **case, defender=world.verifiers[0].account)
    assert "before a jury nobody has" in told
    assert world.bank.appeal(bytes.fromhex(case["case_id"][2:])).phase is AppealPhase.LAPSED
