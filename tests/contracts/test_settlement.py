"""Settlement and escrow: what is certified is paid once, what is not certified is never paid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.chain.client import ALREADY_DONE, UNIT, ChainRefused, EpochPhase
from assay.chain.proofs.payout_tree import Payout, payout_tree
from assay.chain.statements import EpochResult, certificate, sign_digest, values
from tests.contracts.chain_world import BUDGET, MODEL, PURSE, World, a_person, view

pytestmark = pytest.mark.slow

N = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def test_every_unit_of_the_budget_is_paid_claimed_or_returned(world: World):
    world.join(world.operators[0], 0, 500 * UNIT)
    tree = world.settle()
    world.bank.claim_all(world.run_id, 0, tree)
    second = world.settle(epoch=1)
    world.bank.claim(world.run_id, 1, second, 2)

    buyer = world.as_(world.buyer)
    buyer.request_close(world.run_id)
    world.advance(world.params.close_delay_s)
    buyer.refund(world.run_id)
    world.advance(world.params.claim_period_s)
    world.bank.sweep_unclaimed(world.run_id, 1)

    purses = [world.bank.token_balance(p.account) for p in world.operators]
    assert purses == [PURSE - 500 * UNIT + 101, PURSE + 202, PURSE + 303 + 303]
    assert world.bank.token_balance(world.buyer.account) == PURSE - 606 - 303
    assert world.held("RunEscrow") == 0
    run = world.bank.run(world.run_id)
    assert run is not None
    assert (run.budget, run.reserved, run.paid, run.returned) == (BUDGET, 0, 909, BUDGET - 909)
    assert world.bank.epoch_state(world.run_id, 1).phase == EpochPhase.SWEPT


# ---- certificates


def _digest(world: World, result: EpochResult) -> bytes:
    return world.deployment.digest(result)


def _all(world: World, result: EpochResult) -> list[bytes]:
    cert = world.cert(result, 4)
    return [cert[at : at + 65] for at in range(0, len(cert), 65)]


def _high_s(signature: bytes) -> bytes:
    s = N - int.from_bytes(signature[32:64], "big")
    return signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])


BAD_CERTIFICATES = {
    "two of four": ("QuorumNotReached", lambda w, r: b"".join(_all(w, r)[:2])),
    "nothing": ("QuorumNotReached", lambda w, r: b""),
    "one signer three times": ("SignersNotAscending", lambda w, r: _all(w, r)[0] * 3),
    "descending": ("SignersNotAscending", lambda w, r: b"".join(reversed(_all(w, r)))),
    "a high s": ("ECDSAInvalidSignatureS", lambda w, r: _high_s(_all(w, r)[0]) + b"".join(_all(w, r)[1:])),
    "a byte too many": ("BadCertLength", lambda w, r: b"".join(_all(w, r)) + b"\0"),
    "a stranger": (
        "NotAMember",
        lambda w, r: certificate(_digest(w, r), [sign_digest(_digest(w, r), a_person().hot), *_all(w, r)]),
    ),
}


@pytest.mark.parametrize("name", BAD_CERTIFICATES)
def test_a_result_needs_a_quorum_of_distinct_members(world: World, name: str):
    expected, forge = BAD_CERTIFICATES[name]
    result = world.a_result(world.a_table())

    with pytest.raises(ChainRefused) as refused:
        world.bank.propose(result, forge(world, result))

    assert refused.value.name == expected
    assert world.bank.epoch_state(world.run_id, 0).phase == EpochPhase.NONE


def test_three_of_four_are_a_quorum(world: World):
    result = world.a_result(world.a_table())
    world.bank.propose(result, world.cert(result, 3))
    assert world.bank.epoch_state(world.run_id, 0).phase == EpochPhase.PROPOSED


@pytest.mark.parametrize(
    "field", ["epoch", "root", "table_hash", "model_hash", "total", "set_version", "run_id"]
)
def test_a_certificate_covers_every_field_of_the_result(world: World, field: str):
    result = world.a_result(world.a_table())
    other = {"epoch": 1, "total": 1, "set_version": 2, "run_id": world.a_run(b"other")}.get(field, b"\7" * 32)

    with pytest.raises(ChainRefused):
        world.bank.propose(replace(result, **{field: other}), world.cert(result, 4))


def test_yesterdays_signatures_do_not_count_on_a_fresh_chain_with_the_same_addresses(world: World):
    snapshot = world.rpc("evm_snapshot")
    yesterday = World(world.rpc_url, world.bank_key)
    result = yesterday.a_result(yesterday.a_table())
    cert = yesterday.cert(result)
    assert world.rpc("evm_revert", snapshot)

    today = World(world.rpc_url, world.bank_key)

    assert today.deployment.epoch_settlement == yesterday.deployment.epoch_settlement
    with pytest.raises(ChainRefused, match="WrongDeployment"):
        today.raw(today.buyer, "EpochSettlement", "propose", values(result), 0, cert)


def test_a_signature_for_one_deployment_does_not_fit_the_same_result_of_another(world: World):
    other = World(world.rpc_url, world.bank_key)
    other.run_id = world.run_id
    result = world.a_result(world.a_table())
    foreign = replace(result, deployment_id=other.deployment.deployment_id)
    digest = other.deployment.digest(foreign)
    cert = certificate(digest, [sign_digest(digest, p.hot) for p in world.verifiers])

    with pytest.raises(ChainRefused, match=r"NotAMember|SignersNotAscending"):
        world.bank.propose(result, cert)


# ---- claims


def test_nothing_is_paid_before_the_result_is_final(world: World):
    tree = world.a_table()
    result = world.a_result(tree)
    world.bank.propose(result, world.cert(result))

    with pytest.raises(ChainRefused, match="WrongState"):
        world.bank.claim(world.run_id, 0, tree, 0)
    with pytest.raises(ChainRefused, match="TooEarly"):
        world.bank.finalize(world.run_id, 0)


def test_a_row_is_paid_once(world: World):
    tree = world.settle()
    world.bank.claim(world.run_id, 0, tree, 1)

    assert world.bank.claim(world.run_id, 0, tree, 1) == ALREADY_DONE
    row = (1, tree.payouts[1].account, 202, tree.proof(1))
    with pytest.raises(ChainRefused, match="NothingToClaim"):
        world.raw(world.buyer, "EpochSettlement", "claim", world.run_id, 0, [row])
    assert world.bank.token_balance(world.operators[1].account) == PURSE + 202


def test_a_batch_pays_each_row_once_whatever_was_claimed_or_is_repeated_in_it(world: World):
    tree = world.settle()
    world.bank.claim(world.run_id, 0, tree, 1)  # somebody claims one row just before
    rows = [(at, row.account, row.amount, tree.proof(at)) for at, row in enumerate(tree.payouts)]

    world.raw(world.bystander, "EpochSettlement", "claim", world.run_id, 0, [*rows, rows[0]])

    held = [world.bank.token_balance(p.account) for p in world.operators]
    assert held == [PURSE + row.amount for row in tree.payouts]
    run = world.bank.run(world.run_id)
    assert run is not None and (run.paid, run.reserved) == (606, 0)


def test_a_false_row_stops_its_batch_and_no_other_row_when_the_client_claims_all(world: World):
    tree = world.settle(total=303)
    with pytest.raises(ChainRefused, match="AboveTotal"):
        world.bank.claim_all(world.run_id, 0, tree)

    held = [world.bank.token_balance(p.account) - PURSE for p in world.operators]
    assert held == [101, 202, 0]


def test_only_an_account_itself_names_who_gets_its_money(world: World):
    tree, first, other = world.settle(), world.operators[0], a_person()
    world.as_(world.bystander).name_payee(world.bystander.account)
    assert world.bank.payee_of(first.account) == first.account
    world.as_(first).name_payee(other.account)

    world.bank.claim_all(world.run_id, 0, tree)

    assert world.bank.token_balance(other.account) == 101
    assert world.bank.token_balance(first.account) == PURSE
    world.as_(first).name_payee("0x" + "0" * 40)
    assert world.bank.payee_of(first.account) == first.account


def test_a_proof_pays_its_own_row_only(world: World):
    tree = world.settle()
    first, second = tree.payouts[:2]
    run_id, proof = world.run_id, tree.proof(0)
    forgeries = [
        (0, 0, first.account, first.amount + 1, proof),
        (0, 0, world.bystander.account, first.amount, proof),
        (0, 3, first.account, first.amount, proof),
        (0, 1, second.account, second.amount, proof),
        (0, 0, first.account, first.amount, ()),
        (0, 0, first.account, first.amount, (*proof, bytes(32))),
    ]
    for epoch, index, account, amount, siblings in forgeries:
        with pytest.raises(ChainRefused, match="WrongProof"):
            world.bank.claim_with_proof(run_id, epoch, index, account, amount, siblings)

    world.settle(epoch=1)
    with pytest.raises(ChainRefused, match="WrongProof"):
        world.bank.claim_with_proof(run_id, 1, 0, first.account, first.amount, proof)


def test_claims_stop_at_the_signed_total(world: World):
    tree = world.settle(total=303)
    world.bank.claim(world.run_id, 0, tree, 0)
    world.bank.claim(world.run_id, 0, tree, 1)

    with pytest.raises(ChainRefused, match=r"AboveTotal\(606, 303\)"):
        world.bank.claim(world.run_id, 0, tree, 2)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_every_row_of_a_table_of_any_size_can_be_claimed(world: World, rows: int):
    payees = [a_person() for _ in range(rows)]
    tree = payout_tree(world.run_id, 0, [Payout(account=p.account, amount=i) for i, p in enumerate(payees)])
    result = world.a_result(tree)
    world.bank.propose(result, world.cert(result))
    world.advance(world.params.challenge_window_s)
    world.bank.finalize(world.run_id, 0)

    world.bank.claim_all(world.run_id, 0, tree)

    assert [world.bank.token_balance(p.account) for p in payees] == list(range(rows))
    assert (
        view(world, "EpochSettlement", "leafOf", world.run_id, 0, 0, payees[0].account, 0)
        == tree.levels[0][0]
    )


# ---- order, caps, challenges


def test_results_chain_without_gaps(world: World):
    skipped = world.a_result(world.a_table(1), 1)
    with pytest.raises(ChainRefused, match="WrongPrevious"):
        world.bank.propose(skipped, world.cert(skipped))
    first = world.a_result(world.a_table())
    world.bank.propose(first, world.cert(first))
    unchained = world.a_result(world.a_table(1), 1, prev_result=b"\1" * 32)
    with pytest.raises(ChainRefused, match="WrongPrevious"):
        world.bank.propose(unchained, world.cert(unchained))
    second = world.a_result(world.a_table(1), 1)
    world.bank.propose(second, world.cert(second))
    world.advance(world.params.challenge_window_s)

    with pytest.raises(ChainRefused, match="PreviousNotFinal"):
        world.bank.finalize(world.run_id, 1)
    world.bank.finalize(world.run_id, 0)
    world.bank.finalize(world.run_id, 1)


@pytest.mark.parametrize(
    ("total", "expected"),
    [(1_000 * UNIT, None), (1_000 * UNIT + 1, "AboveEpochCap"), (2**127, "AboveEpochCap")],
)
def test_an_epoch_costs_at_most_its_cap(world: World, total: int, expected: str | None):
    result = world.a_result(world.a_table(), total=total)
    if expected is None:
        world.bank.propose(result, world.cert(result))
    else:
        with pytest.raises(ChainRefused, match=expected):
            world.bank.propose(result, world.cert(result))


def test_all_epochs_together_cost_at_most_the_budget(world: World):
    for epoch in range(3):
        world.settle(epoch, total=1_000 * UNIT)
    result = world.a_result(world.a_table(3), 3, total=1)
    with pytest.raises(ChainRefused, match=r"AboveBudget\(1, 0\)"):
        world.bank.propose(result, world.cert(result))


def test_an_unanswered_challenge_costs_half_of_its_bond_and_ends_no_pay(world: World):
    bond = world.params.challenge_bond
    first = world.a_result(world.a_table())
    world.bank.propose(first, world.cert(first))
    second = world.a_result(world.a_table(1), 1)
    world.bank.propose(second, world.cert(second))
    challenger = world.as_(world.bystander)
    challenger.challenge(world.run_id, 0, bytes(32))
    assert challenger.challenge(world.run_id, 0, bytes(32)) == ALREADY_DONE
    assert challenger.token_balance() == PURSE - bond

    world.advance(world.params.resolve_window_s)
    challenger.timeout_challenge(world.run_id, 0)

    assert challenger.timeout_challenge(world.run_id, 0) == ALREADY_DONE
    assert challenger.token_balance() == PURSE - bond  # what returns is fetched, not sent
    world.bank.collect_bond(challenger.address)
    assert challenger.collect_bond() == ALREADY_DONE
    assert challenger.token_balance() == PURSE - bond // 2
    with pytest.raises(ChainRefused, match="NothingOwed"):
        world.raw(world.bystander, "EpochSettlement", "collectBond", challenger.address)
    assert world.bank.epoch_state(world.run_id, 0).bond == 2 * bond
    world.advance(world.params.challenge_window_s)
    for epoch in (0, 1):
        world.bank.finalize(world.run_id, epoch)
        world.bank.claim_all(world.run_id, epoch, world.a_table(epoch))
    assert world.bank.token_balance(world.operators[0].account) == PURSE + 202


def test_an_orphan_keeps_its_predecessors_name_whatever_falls_after_it(world: World):
    def falls(epoch: int) -> bytes:
        digest = world.bank.epoch_state(world.run_id, epoch).digest
        world.as_(world.bystander).challenge(world.run_id, epoch, bytes(32))
        world.judge(world.run_id, epoch, False)
        return digest

    def post(epoch: int, value: bytes) -> bytes:
        result = world.a_result(world.a_table(epoch), epoch, model_hash=value.ljust(32, b"\0"))
        world.bank.propose(result, world.cert(result))
        return world.deployment.digest(result)

    first, second, third = post(0, b"a"), post(1, b"b"), post(2, b"c")
    assert world.bank.epoch_state(world.run_id, 1).prev_result == first
    assert falls(0) == first
    post(0, b"other")
    falls(0)
    assert world.bank.epoch_state(world.run_id, 1).prev_result == first
    assert world.bank.epoch_state(world.run_id, 2).prev_result == second
    with pytest.raises(ChainRefused, match="NotAnOrphan"):
        world.raw(world.buyer, "EpochSettlement", "clearOrphan", world.run_id, 2)

    world.bank.clear_orphan(world.run_id, 1)

    assert world.bank.epoch_state(world.run_id, 2).prev_result == second
    assert world.bank.epoch_state(world.run_id, 2).digest == third
    world.bank.clear_orphan(world.run_id, 2)
    run = world.bank.run(world.run_id)
    assert run is not None
    assert (run.free, run.pending) == (BUDGET, 0)


def test_a_model_is_on_record_only_once_its_result_is_final(world: World):
    result = world.a_result(world.a_table())
    digest = world.deployment.digest(result)
    world.bank.propose(result, world.cert(result))
    assert view(world, "EpochSettlement", "finalModel", digest) == [bytes(32), bytes(32)]
    world.advance(world.params.challenge_window_s)
    world.bank.finalize(world.run_id, 0)
    assert view(world, "EpochSettlement", "finalModel", digest) == [world.run_id, MODEL]


@pytest.mark.parametrize("is_right", [True, False])
def test_the_jurys_answer_decides_result_and_bonds(world: World, is_right: bool):
    tree = world.a_table()
    result = world.a_result(tree)
    proposer, challenger = world.as_(world.buyer), world.as_(world.bystander)
    world.run_id  # noqa: B018  (opened before the buyer's balance is taken)
    before = proposer.token_balance()
    proposer.propose(result, world.cert(result))
    challenger.challenge(world.run_id, 0, bytes(32))
    sunk, bond = world.sunk(), world.params.challenge_bond

    world.judge(world.run_id, 0, is_right)

    jurors = [world.bank.bonds_owed(juror.account) for juror in world.jurors]
    assert sum(jurors) == bond // 2
    assert world.sunk() == sunk
    if is_right:
        assert world.bank.bonds_owed(proposer.address) == bond // 2
        with pytest.raises(ChainRefused, match="TooEarly"):
            world.bank.finalize(world.run_id, 0)
        world.advance(world.params.challenge_window_s)
        world.bank.finalize(world.run_id, 0)
        world.bank.claim(world.run_id, 0, tree, 0)
    else:
        assert world.bank.bonds_owed(challenger.address) == bond + bond // 2
        proposer.propose(result, world.cert(result))  # with twice the bond
        assert proposer.token_balance() == before - 3 * bond
        return
    for account in (proposer.address, challenger.address, *(juror.account for juror in world.jurors)):
        world.bank.collect_bond(account)
    assert proposer.token_balance() == before + bond // 2
    assert challenger.token_balance() == PURSE - bond
    assert world.held("EpochSettlement") == 0


# ---- the buyer's exits


def test_a_buyer_cannot_close_over_the_head_of_work_already_done(world: World):
    buyer = world.as_(world.buyer)
    result = world.a_result(world.a_table())
    buyer.request_close(world.run_id)
    with pytest.raises(ChainRefused, match="NotClosed"):
        buyer.refund(world.run_id)
    world.bank.propose(result, world.cert(result))  # the close delay is for this

    world.advance(world.params.close_delay_s)
    late = world.a_result(world.a_table(1), 1)
    with pytest.raises(ChainRefused, match="RunClosed"):
        world.bank.propose(late, world.cert(late))
    world.bank.finalize(world.run_id, 0)
    buyer.refund(world.run_id)
    assert buyer.refund(world.run_id) == ALREADY_DONE
    assert world.held("RunEscrow") == 606


def test_the_last_epochs_final_result_closes_the_run_and_no_earlier_one_does(world: World):
    run_id = world.run_id
    for epoch in range(4):
        world.settle(epoch)
    before = world.bank.run(run_id)
    assert before is not None and before.closes_at == before.deadline
    with pytest.raises(ChainRefused, match="NotClosed"):
        world.as_(world.bystander).refund(run_id)

    world.settle(4)

    after = world.bank.run(run_id)
    assert after is not None and after.closes_at <= world.bank.timestamp() < after.deadline
    world.as_(world.bystander).refund(run_id)
    assert world.bank.token_balance(world.buyer.account) == PURSE - 5 * 606


def test_a_cancelled_run_whose_last_epoch_becomes_final_early_closes_then(world: World):
    world.as_(world.buyer).request_close(world.run_id)
    asked = world.bank.run(world.run_id)
    for epoch in range(5):
        result = world.a_result(world.a_table(epoch), epoch)
        world.bank.propose(result, world.cert(result))
    world.advance(world.params.challenge_window_s)
    for epoch in range(5):
        world.bank.finalize(world.run_id, epoch)

    closed = world.bank.run(world.run_id)
    assert asked is not None and closed is not None and closed.pending == 0
    assert closed.closes_at == min(asked.closes_at, closed.closes_at) <= world.bank.timestamp()


def test_a_pending_result_holds_the_refund(world: World):
    result = world.a_result(world.a_table())
    world.advance(30 * 86_400 - 3_600)
    world.bank.propose(result, world.cert(result))
    world.advance(7_200)  # past the run's deadline, inside the challenge window

    with pytest.raises(ChainRefused, match="ResultsPending"):
        world.as_(world.buyer).refund(world.run_id)


def test_after_the_deadline_anyone_can_send_the_rest_home(world: World):
    world.settle()
    world.advance(31 * 86_400)

    world.as_(world.bystander).refund(world.run_id)

    assert world.bank.token_balance(world.buyer.account) == PURSE - 606


def test_a_top_up_moves_no_timer_and_a_stranger_closes_nothing(world: World):
    before = world.bank.run(world.run_id)
    world.as_(world.bystander).top_up(world.run_id, 7)
    after = world.bank.run(world.run_id)
    assert before is not None
    assert after == replace(before, budget=before.budget + 7)
    with pytest.raises(ChainRefused, match="OnlyBuyer"):
        world.as_(world.bystander).request_close(world.run_id)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [("reserve", (0, 1)), ("release", (1, 0)), ("settle", (0,)), ("returnUnclaimed", (1,))],
)
def test_only_the_settlement_touches_reserved_money(world: World, function: str, arguments: tuple[int, ...]):
    with pytest.raises(ChainRefused, match="OnlySettlement"):
        world.raw(world.buyer, "RunEscrow", function, world.run_id, *arguments)


def test_no_run_outlasts_a_year_so_no_lost_key_keeps_its_money(world: World):
    now = world.bank.timestamp()
    with pytest.raises(ChainRefused, match="BadRun"):
        world.as_(world.buyer).open_run(
            bytes(32), budget=UNIT, epoch_cap=UNIT, epochs=1, deadline=now + 367 * 86_400
        )
