"""Absence: outages are told from theft by agreed time, and nobody gains by seeming to be away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.ledger.settlement.payouts import UnpaidReason, settle, why_unpaid
from assay.participant.links import check_place
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root
from assay.protocol.errors import MalformedMessage
from assay.protocol.membership import may_attend
from assay.protocol.messages import Attendance, AttendanceKind, Outcome, SignedAttendance
from assay.protocol.params import PPM
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import Digest, PeerId, RoundId, Signature
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.run import a_manifest, a_start, grow, vote_messages

MATCH, MISMATCH, WITHHELD = Outcome.MATCH, Outcome.MISMATCH, Outcome.WITHHELD
NODE, HOUR = NODES[0], 3600
STEP = (0, NODE)
HONEST = {step: dict.fromkeys(VERIFIERS, MATCH) for step in ((r, n) for r in range(40) for n in NODES)}


def a_return(run_state: RunState, node: PeerId = NODE, round_id: int | None = None) -> SignedAttendance:
    at = run_state.round if round_id is None else RoundId(round_id)
    said = Attendance(run_id=RUN_ID, round=at, node=node, kind=AttendanceKind.RETURN)
    return SignedAttendance(attendance=said, signature=Signature(bytes(64)))


def go_on(run_state, count, votes, *, time_s=0, returns=(), mute=(NODE,), nodes=None):
    """The state after `count` more manifests of this agreed time; the first carries the returns."""
    for at in range(count):
        present = nodes if run_state.is_training else ()
        said = vote_messages(run_state, votes, mute)
        manifest = a_manifest(run_state, nodes=present, **said)
        if not run_state.is_training:
            manifest = replace(manifest, commits=(), inclusion_lists=())
        manifest = replace(manifest, time_s=time_s, attendance=tuple(returns) if not at else ())
        run_state = advance(run_state, manifest)
    return run_state


def others(outcome, **of):
    """Votes of all verifiers: this on NODE's first step, MATCH on every other one."""
    return {**HONEST, STEP: dict.fromkeys(VERIFIERS, outcome), **of}


def absent(*, rounds=30, **changes):
    """NODE's step of round 0 is drawn, and its opening does not come: OVERDUE at time 0."""
    run_state = a_start(rounds=rounds, absence_s=HOUR, probation=3, **changes)
    run_state = grow(run_state, 2)
    while run_state.audits[STEP].ruling is not AuditStatus.OVERDUE:
        assert run_state.round < 12
        run_state = go_on(run_state, 1, others(WITHHELD), nodes=NODES if run_state.round < 1 else NODES[1:])
    return run_state


def test_an_opening_that_does_not_come_is_overdue_and_costs_no_stake():
    run_state = absent()

    audit = run_state.audits[STEP]
    assert audit.due_s == HOUR
    assert not run_state.nodes[NODE].banned
    assert NODE not in run_state.active
    assert why_unpaid(audit) is UnpaidReason.LATE


def test_without_absence_in_the_order_it_is_a_fault_at_once():
    run_state = grow(a_start(rounds=30), 2)
    run_state = go_on(run_state, 6, others(WITHHELD), nodes=NODES[1:])

    assert run_state.audits[STEP].ruling is AuditStatus.CONFIRMED
    assert run_state.nodes[NODE].fault_round == 0


def test_when_the_time_is_over_it_is_a_fault_at_full_price_and_its_audited_steps_stand():
    run_state = absent()
    before = go_on(run_state, 1, HONEST, time_s=HOUR - 1, nodes=NODES[1:])
    assert before.audits[STEP].ruling is AuditStatus.OVERDUE

    after = go_on(before, 1, HONEST, time_s=HOUR, nodes=NODES[1:])

    assert after.audits[STEP].ruling is AuditStatus.CONFIRMED
    assert after.nodes[NODE].fault_round == int(before.round)  # not the step's: what passed since is paid


def test_whoever_returns_is_judged_by_all_and_loses_the_pay_of_the_late_step_only():
    run_state = absent()

    run_state = go_on(
        run_state, 1, others(MATCH), time_s=60, returns=[a_return(run_state)], mute=(), nodes=NODES[1:]
    )
    audit = run_state.audits[STEP]
    assert (audit.ruling, set(audit.committee)) == (AuditStatus.DISPUTED, set(VERIFIERS))
    assert NODE not in run_state.active
    run_state = go_on(run_state, 4, others(MATCH), time_s=70, mute=(), nodes=NODES[1:])

    assert run_state.audits[STEP].ruling is AuditStatus.LATE
    assert not run_state.audits[STEP].faults  # who found it withheld was right then
    assert NODE in run_state.active
    assert run_state.rate_ppm(NODE) == PPM  # on probation again


def test_a_lie_that_comes_back_is_found_and_one_that_opens_to_nobody_goes_on_to_the_end():
    run_state = absent()
    back = [a_return(run_state)]

    false = go_on(run_state, 6, others(MISMATCH), time_s=60, returns=back, mute=(), nodes=NODES[1:])
    assert false.audits[STEP].ruling is AuditStatus.CONFIRMED
    assert false.audits[STEP].is_false

    shut = go_on(run_state, 6, others(WITHHELD), time_s=60, returns=back, nodes=NODES[1:])
    assert shut.audits[STEP].ruling is AuditStatus.OVERDUE
    assert shut.audits[STEP].due_s == HOUR  # the time does not begin anew


def test_what_few_found_false_before_the_return_counts_after_it():
    run_state = grow(a_start(rounds=30, absence_s=HOUR), 2)
    order = run_state.audits[STEP].order
    mixed = {**HONEST, STEP: {order[0]: MISMATCH, **dict.fromkeys(order[1:], WITHHELD)}}
    run_state = go_on(run_state, 6, mixed, nodes=NODES[1:])
    assert run_state.audits[STEP].ruling is AuditStatus.OVERDUE  # one MISMATCH of four proves nothing

    run_state = go_on(run_state, 1, others(MATCH), returns=[a_return(run_state)], nodes=NODES[1:])

    assert [v.outcome for v in run_state.audits[STEP].verdicts] == [MISMATCH]
    assert len(run_state.audits[STEP].withheld) == 3


def test_each_return_since_probation_doubles_the_time_until_the_next():
    run_state, time_s, waits = absent(rounds=80), 0, []
    for _ in range(4):
        earliest = next(
            t for t in range(time_s, HOUR) if may_attend(run_state, a_return(run_state).attendance, t)
        )
        waits.append(earliest - time_s)
        time_s = earliest
        run_state = go_on(
            run_state, 6, others(WITHHELD), time_s=time_s, returns=[a_return(run_state)], nodes=NODES[1:]
        )
        assert run_state.audits[STEP].ruling is AuditStatus.OVERDUE

    assert waits == [0, 60, 120, 240]


def test_the_time_until_the_next_return_stops_doubling_after_the_33rd():
    run_state = absent()
    again = a_return(run_state).attendance
    for returns, pause_s in ((33, 60 << 32), (34, 60 << 32)):
        record = replace(run_state.nodes[NODE], returns=returns, absent_s=5)
        waiting = replace(run_state, nodes={**run_state.nodes, NODE: record})
        assert not may_attend(waiting, again, 4 + pause_s)
        assert may_attend(waiting, again, 5 + pause_s)


def test_a_return_counts_once_and_only_from_a_node_that_is_absent():
    run_state = absent()
    old = a_return(run_state, round_id=int(run_state.round) - 1)
    assert not may_attend(run_state, old.attendance, 0)  # signed before it was found absent
    assert not may_attend(run_state, a_return(run_state, node=NODES[1]).attendance, 0)

    used = a_return(run_state)
    run_state = go_on(run_state, 6, others(WITHHELD), returns=[used], nodes=NODES[1:])
    assert not may_attend(run_state, used.attendance, HOUR - 1)
    with pytest.raises(MalformedMessage, match="not admissible now"):
        check_place(run_state, replace(a_manifest(run_state, nodes=NODES[1:]), attendance=(used,)))


def test_time_never_goes_back():
    run_state = go_on(absent(), 1, HONEST, time_s=50, nodes=NODES[1:])

    with pytest.raises(MalformedMessage, match="its time is 49, before its parent's 50"):
        check_place(run_state, replace(a_manifest(run_state, nodes=NODES[1:]), time_s=49))


def test_two_overdue_openings_are_one_fault():
    run_state = grow(a_start(rounds=30, absence_s=HOUR), 2)
    both = {**others(WITHHELD), (1, NODE): dict.fromkeys(VERIFIERS, WITHHELD)}
    run_state = go_on(run_state, 8, both, nodes=NODES[1:])
    assert {run_state.audits[(r, NODE)].ruling for r in (0, 1)} == {AuditStatus.OVERDUE}

    run_state = go_on(run_state, 1, both, time_s=HOUR, nodes=NODES[1:])

    assert [run_state.audits[(r, NODE)].ruling for r in (0, 1)] == [
        AuditStatus.CONFIRMED,
        AuditStatus.SUPERSEDED,
    ]


def test_a_run_is_settled_in_time_and_ends_only_when_no_opening_is_owed():
    run_state = absent(rounds=12)
    while not run_state.is_settled:
        if (ripe := run_state.calendar.ripe_at(int(run_state.round) - 1)) is not None:
            reasons = {(one.round, one.node): one.reason for one in settle(run_state, ripe).unpaid}
            assert reasons.get(STEP) == (UnpaidReason.LATE if ripe == 0 else None)
        run_state = go_on(run_state, 1, HONEST, nodes=NODES[1:])

    assert not run_state.is_complete
    assert run_state.due_s == HOUR
    empty = replace(a_manifest(run_state, nodes=NODES[1:]), commits=(), inclusion_lists=())
    with pytest.raises(MalformedMessage, match="nothing is left but openings overdue until 3600"):
        check_place(run_state, replace(empty, time_s=HOUR - 1, aggregate=type(empty.aggregate)(bytes(32))))
    assert go_on(run_state, 1, HONEST, time_s=HOUR).is_complete
    back = go_on(run_state, 1, others(MATCH), returns=[a_return(run_state)], mute=())
    assert back.due_s is None  # a dispute: any manifest may follow
    assert go_on(back, 4, others(MATCH), mute=()).is_complete


def test_a_node_that_is_away_is_counted_as_missing_only_where_others_commit():
    run_state = grow(a_start(rounds=30), 1)
    run_state = go_on(run_state, 2, HONEST, mute=(), nodes=NODES[1:])
    assert [run_state.nodes[node].missed for node in NODES] == [2, 0, 0]

    assert go_on(run_state, 1, HONEST, mute=(), nodes=NODES).nodes[NODE].missed == 0


# ---- known-answer tasks

TASKS = [(Digest(b"s" * 32), RoundId(0), NODE)]  # of a list that came before the first round
SHOWN = known_answer_proofs(RUN_ID, TASKS)[0]
FOUND = others(MISMATCH)


def found_false(*, until=None, nodes=NODES[1:], votes=FOUND, **changes):
    """NODE's task of round 0 is drawn and found false, and the node says nothing in the dispute."""
    rules = {"known_answer_count": 1, "absence_s": HOUR, **changes}
    run_state = a_start(rounds=30, probation=3, **rules)
    record = replace(run_state.nodes[NODE], tasks=known_answer_root(TASKS))
    run_state = grow(replace(run_state, nodes={**run_state.nodes, NODE: record}), 2)
    while run_state.audits[STEP].is_open and run_state.round != until:
        assert run_state.round < 16
        run_state = go_on(run_state, 1, votes, nodes=nodes, mute=())
    return run_state


def test_a_node_that_is_cut_off_for_a_whole_dispute_may_yet_show_its_task():
    run_state = found_false()
    audit = run_state.audits[STEP]
    assert (audit.ruling, audit.is_false, audit.due_s) == (AuditStatus.OVERDUE, True, HOUR)
    assert not run_state.nodes[NODE].banned and NODE not in run_state.active

    manifest = replace(a_manifest(run_state, nodes=NODES[1:], known_answers=(SHOWN,)), time_s=HOUR - 1)
    check_place(run_state, manifest)
    after = advance(run_state, manifest)

    assert after.audits[STEP].ruling is AuditStatus.KNOWN_ANSWER
    assert not after.nodes[NODE].banned and NODE in after.active and after.disqualified == ()
    assert why_unpaid(after.audits[STEP]) is UnpaidReason.KNOWN_ANSWER


def test_a_node_that_shows_no_task_in_agreed_hours_is_convicted():
    run_state = go_on(found_false(), 1, FOUND, time_s=HOUR - 1, nodes=NODES[1:])
    assert run_state.audits[STEP].ruling is AuditStatus.OVERDUE

    run_state = go_on(run_state, 1, FOUND, time_s=HOUR, nodes=NODES[1:])

    assert run_state.audits[STEP].ruling is AuditStatus.CONFIRMED
    assert run_state.nodes[NODE].banned and run_state.nodes[NODE].is_lost


def test_a_node_that_trained_on_in_the_dispute_knew_of_it_and_has_no_hours():
    """A liar that goes on gains no time by such tasks in its run."""
    opened = next(
        state.audits[STEP].dispute_opened_round
        for state in (found_false(until=at) for at in range(4, 12))
        if state.audits[STEP].ruling is AuditStatus.DISPUTED
    )
    for trains_until, ruling in ((opened, AuditStatus.OVERDUE), (opened + 1, AuditStatus.CONFIRMED)):
        run_state = found_false(until=trains_until + 1, nodes=NODES)
        while run_state.audits[STEP].is_open:
            run_state = go_on(run_state, 1, FOUND, nodes=NODES[1:], mute=())
        assert run_state.audits[STEP].ruling is ruling


def test_steps_on_stale_parameters_say_less_of_what_their_node_heard():
    run_state = grow(a_start(rounds=30, absence_s=HOUR), 3)
    seen = []

    def heard(audit, *_args, **named):
        seen.append(named["heard_round"])
        return audit

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("assay.protocol.auditing.audits.rule", heard)
        stale = replace(run_state.spec, rule=replace(run_state.spec.rule, read_lag=1))
        for spec in (run_state.spec, stale):
            advance(replace(run_state, spec=spec), a_manifest(run_state))
    assert set(seen) == {1, 0}  # the step of round 2 needed the manifest of round 1, or that of round 0


def test_who_passed_the_task_of_a_node_that_was_away_is_at_fault_in_the_end_either_way():
    lazy = found_false().audits[STEP].order[-1]
    votes = {**FOUND, STEP: {**dict.fromkeys(VERIFIERS, MISMATCH), lazy: MATCH}}
    run_state = found_false(votes=votes)
    audit = run_state.audits[STEP]
    assert audit.ruling is AuditStatus.OVERDUE
    assert [verifier for verifier in VERIFIERS if audit.binds(verifier)] == [lazy]
    shown = advance(run_state, a_manifest(run_state, nodes=NODES[1:], known_answers=(SHOWN,)))
    late = go_on(run_state, 1, votes, time_s=HOUR, nodes=NODES[1:])

    for after, ruling in ((shown, AuditStatus.KNOWN_ANSWER), (late, AuditStatus.CONFIRMED)):
        assert after.audits[STEP].ruling is ruling
        assert after.disqualified == (lazy,)


def test_a_step_that_was_found_false_is_not_judged_again_because_its_node_returns():
    run_state = found_false()

    assert not may_attend(run_state, a_return(run_state).attendance, run_state.time_s)
    assert may_attend(absent(), a_return(absent()).attendance, 0)
    back = go_on(run_state, 1, others(MATCH), returns=[a_return(run_state)], nodes=NODES[1:])
    assert back.audits[STEP].ruling is AuditStatus.OVERDUE


def test_a_withheld_step_is_not_shown_to_be_a_task_before_it_is_found_false():
    run_state = found_false(votes=others(WITHHELD))

    assert run_state.audits[STEP].ruling is AuditStatus.OVERDUE
    with pytest.raises(MalformedMessage, match="known-answer task of round 0 at the wrong time"):
        check_place(run_state, a_manifest(run_state, nodes=NODES[1:], known_answers=(SHOWN,)))


def test_without_absence_in_the_order_a_task_that_is_not_shown_is_a_fault_at_once():
    assert found_false(absence_s=0).audits[STEP].ruling is AuditStatus.CONFIRMED


def test_when_only_a_task_is_overdue_the_manifest_that_shows_it_needs_no_time():
    run_state = found_false()
    while not run_state.is_settled:
        run_state = go_on(run_state, 1, HONEST, nodes=NODES[1:])
    empty = a_manifest(run_state, nodes=())
    with pytest.raises(MalformedMessage, match="nothing is left but"):
        check_place(run_state, empty)

    manifest = a_manifest(run_state, nodes=(), known_answers=(SHOWN,))
    check_place(run_state, manifest)
    assert advance(run_state, manifest).is_complete
