"""Who held a seat is paid for what it did in it, and answers for it, whoever has it later."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from assay.chain.commit_statement import evm_address
from assay.ledger.journal.round_facts import round_facts
from assay.ledger.journal.rows import rows_of_round
from assay.ledger.settlement.payouts import Settlement, settle
from assay.ledger.settlement.results import double_vote_order_of, fault_ruling_of, slash_order_of
from assay.protocol.agreement.double_votes import double_vote_offence
from assay.protocol.auditing.audits import Audit, AuditStatus, Fault, FaultKind
from assay.protocol.messages import Outcome, SeatNoticeKind
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import PeerId
from assay.testing.members import RUN_ID, a_member
from assay.testing.messages import a_verdict
from tests.protocol.test_rotation import (
    OTHER,
    RESERVES,
    SEAT,
    a_double_vote,
    a_notice,
    a_start,
    go,
    next_manifest,
    ready,
    told,
)

HOLDER = RESERVES[0]


def handed_over() -> tuple[RunState, dict[int, RunState], int]:
    """A state some epochs after a hand-over, that in which each epoch settles, and the hand-over's round."""
    run_state, settling, handed = ready(go(a_start(), 2), HOLDER), {}, 0
    while int(run_state.round) < 60:
        if int(run_state.round) == 14:
            run_state = told(run_state, a_notice(SEAT, SeatNoticeKind.RESIGN, 14))
        handed = handed or (int(run_state.round) if run_state.hand_over else 0)
        run_state = go(run_state, 1)
        for epoch in range(12):
            if run_state.calendar.settled_at(epoch) + 1 == int(run_state.round):
                settling[epoch] = run_state
    return run_state, settling, handed


def paid(table: Settlement, holder: PeerId) -> int:
    return sum(row.amount for row in table.rows if row.role == "verifier" and row.peer == holder)


def test_each_holder_is_paid_for_its_own_time():
    _, settling, handed = handed_over()
    tables, epoch = {one: settle(state, one) for one, state in settling.items()}, handed // 4
    assert epoch >= 4
    assert paid(tables[0], SEAT) and not paid(tables[0], HOLDER)
    assert paid(tables[epoch + 1], HOLDER) and not paid(tables[epoch + 1], SEAT)
    assert all(paid(table, OTHER) for table in tables.values())
    (row,) = (row for row in tables[epoch + 1].rows if row.peer == HOLDER)
    assert row.account == a_member(HOLDER).account


def test_a_fault_takes_the_pay_of_the_holder_that_is_at_fault_and_of_no_other():
    _, settling, handed = handed_over()
    before, after = handed // 4 - 2, handed // 4 + 1

    def paid_with_fault_of(holder: PeerId, epoch: int) -> set[PeerId]:
        state = settling[epoch]
        records = {**state.verifiers}
        if holder in records:
            records[holder] = replace(records[holder], fault_round=0)
        table = settle(replace(state, verifiers=records), epoch)
        return {one for one in (SEAT, HOLDER, OTHER) if paid(table, one)}

    assert paid_with_fault_of(HOLDER, before) == {SEAT, OTHER}
    assert paid_with_fault_of(SEAT, before) == {OTHER}
    assert paid_with_fault_of(HOLDER, after) == {OTHER}
    assert paid_with_fault_of(SEAT, after) == {HOLDER, OTHER}


def an_audit(run_state: RunState, closed_round: int) -> tuple[Audit, Fault]:
    audit = next(audit for audit in run_state.audits.values() if audit.has_ended)
    wrong, right = a_verdict(audit, SEAT), a_verdict(audit, OTHER, Outcome.MISMATCH)
    fault = Fault(verdict=wrong, failing=FaultKind.PASSED)
    found = replace(
        audit,
        verdicts=(wrong, right),
        faults=(fault,),
        ruling=AuditStatus.CONFIRMED,
        closed_round=closed_round,
    )
    return found, fault


def test_the_account_that_held_the_seat_when_the_audit_ended_is_slashed():
    run_state, _, handed = handed_over()
    for closed_round, holder in ((handed, SEAT), (handed + 1, HOLDER)):
        audit, fault = an_audit(run_state, closed_round)
        order = fault_ruling_of(run_state.spec, RUN_ID, audit, fault, run_state.rotation)
        assert order.offender == evm_address(a_member(holder).account)


def test_the_account_that_held_the_seat_accuses():
    run_state, _, handed = handed_over()
    for closed_round, holder in ((handed, SEAT), (handed + 1, HOLDER)):
        audit, _ = an_audit(run_state, closed_round)
        audit = replace(audit, verdicts=(a_verdict(audit, SEAT, Outcome.MISMATCH),))
        account = a_member(OTHER).account
        order = slash_order_of(run_state.spec, RUN_ID, audit, account, run_state.rotation)
        assert order.challenger == evm_address(a_member(holder).account)


def test_a_double_vote_slashes_whoever_held_the_seat_in_its_iteration():
    run_state, _, _ = handed_over()
    orders = []
    for pair, holder in (
        (a_double_vote(SEAT, 9), SEAT),
        (a_double_vote(SEAT, 1 << 32 | 3, holder=HOLDER), HOLDER),
    ):
        after = told(run_state, double_votes=(pair,))
        order = double_vote_order_of(after.spec, RUN_ID, holder, after.verifiers[holder])
        assert order.offender == evm_address(a_member(holder).account)
        assert order.offence_id == double_vote_offence(RUN_ID, holder)
        orders.append(order)
    assert orders[0].offence_id != orders[1].offence_id


def test_the_books_name_who_held_the_seat():
    run_state, _, _ = handed_over()
    while not any(one.verdict.verifier == SEAT for one in next_manifest(run_state).verdicts):
        run_state = go(run_state, 1)
    pairs = [a_double_vote(SEAT, 1 << 32 | 3, holder=HOLDER)]
    manifest = next_manifest(run_state, double_votes=tuple(pairs))
    certified: Any = SimpleNamespace(manifest=manifest, certificate=SimpleNamespace(verifiers=()))
    facts = round_facts(run_state, certified, advance(run_state, manifest), {})
    rows = rows_of_round(facts)

    assert [row["verifier"] for row in rows["fault"]] == [HOLDER]
    for table in ("reveal", "verdict"):
        named = {row["verifier"] for row in rows[table]}
        assert HOLDER in named and SEAT not in named
    late = a_double_vote(SEAT, 9)
    (row,) = rows_of_round(replace(facts, double_votes=(late,)))["fault"]
    assert row["verifier"] == SEAT
