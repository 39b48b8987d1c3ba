"""Discharge: a lot stays bound while anything that its node did can still cost it, and not for longer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.membership import bound_by
from assay.protocol.messages import Attendance, AttendanceKind, Outcome, SignedAttendance
from assay.protocol.run_state import NodeRecord, RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import PeerId, RoundId, Signature
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.run import a_manifest, a_start, grow, vote_messages
from tests.protocol.test_absence import HONEST, HOUR, a_return, absent, go_on, others

NODE, OTHER = NODES[0], NODES[1]
UNSETTLED = "not all of its steps are settled, or an audit of one has not ended"
FALSE = {**HONEST, (1, NODE): dict.fromkeys(VERIFIERS, Outcome.MISMATCH)}


def a_leave(run_state: RunState, node: PeerId = NODE) -> SignedAttendance:
    said = Attendance(run_id=RUN_ID, round=run_state.round, node=node, kind=AttendanceKind.LEAVE)
    return SignedAttendance(attendance=said, signature=Signature(bytes(64)))


def left(run_state: RunState) -> RunState:
    """The state after a manifest with NODE's leave; its last step is that of this round."""
    return advance(run_state, replace(a_manifest(run_state), attendance=(a_leave(run_state),)))


def changed(run_state: RunState, **changes: object) -> RunState:
    record: NodeRecord = replace(run_state.nodes[NODE], **changes)  # type: ignore[arg-type]
    return replace(run_state, nodes={**run_state.nodes, NODE: record})


def a_discharged() -> RunState:
    run_state = left(grow(a_start(rounds=40), 1, HONEST))
    return grow(run_state, run_state.calendar.settled_at(0) - 1, HONEST)


def test_a_lot_is_bound_until_the_epoch_of_its_nodes_last_step_is_settled_and_then_free_for_good():
    run_state = left(grow(a_start(rounds=40), 1, HONEST))
    settled_at = run_state.calendar.settled_at(0)  # the last step is of round 1, in epoch 0
    while run_state.round <= settled_at:
        assert bound_by(run_state, NODE) == UNSETTLED
        run_state = grow(run_state, 1, HONEST)
    assert run_state.round == settled_at + 1
    for _ in range(3):
        assert bound_by(run_state, NODE) is None and run_state.is_training
        run_state = grow(run_state, 1, HONEST)


def test_who_has_a_seat_or_never_had_one_is_not_discharged():
    run_state = a_discharged()

    assert bound_by(run_state, NODE) is None
    assert bound_by(run_state, OTHER) == bound_by(changed(run_state, has_left=False), NODE)
    assert bound_by(run_state, OTHER) == "it has not left"
    assert bound_by(run_state, PeerId(b"?" * 32)) == "it never had a seat"
    assert bound_by(run_state, PeerId(b"")) == "it never had a seat"


def test_a_node_with_a_proven_fault_stays_bound_to_the_end():
    assert bound_by(changed(a_discharged(), fault_round=0), NODE) == "its fault in round 0 is proven"


def test_a_node_without_a_step_is_free_as_soon_as_it_has_left():
    run_state = a_start(rounds=40)
    gone = advance(
        run_state, replace(a_manifest(run_state, nodes=NODES[1:]), attendance=(a_leave(run_state),))
    )
    assert bound_by(gone, NODE) is None


def test_at_the_end_of_a_run_the_last_epoch_is_settled_too():
    run_state = grow(a_start(), 11, HONEST)
    run_state = left(run_state)
    while not run_state.is_complete:
        assert bound_by(run_state, NODE) == UNSETTLED
        run_state = grow(run_state, 1, HONEST)
    assert bound_by(run_state, NODE) is None


def test_an_overdue_opening_binds_beyond_the_settlement_until_it_is_shown_or_is_a_fault():
    run_state = absent()
    run_state = advance(
        run_state, replace(a_manifest(run_state, nodes=NODES[1:]), attendance=(a_leave(run_state),))
    )
    while run_state.steps and min(run_state.steps)[0] <= 4:
        run_state = go_on(run_state, 1, HONEST, nodes=NODES[1:])
    assert not any(node == NODE for _, node in run_state.steps)
    assert bound_by(run_state, NODE) == UNSETTLED

    lost = go_on(run_state, 1, HONEST, time_s=HOUR, nodes=NODES[1:])
    assert bound_by(lost, NODE) == f"its fault in round {int(run_state.round)} is proven"
    back = [a_return(run_state)]
    late = go_on(run_state, 1, others(Outcome.MATCH), time_s=60, returns=back, mute=(), nodes=NODES[1:])
    while not late.audits[(RoundId(0), NODE)].has_ended:
        assert bound_by(late, NODE) == UNSETTLED
        late = go_on(late, 1, others(Outcome.MATCH), time_s=70, mute=(), nodes=NODES[1:])
    assert late.audits[(RoundId(0), NODE)].ruling is AuditStatus.LATE
    assert bound_by(late, NODE) is None


@pytest.mark.parametrize("first_round", range(2, 15))
def test_nothing_that_verifiers_find_however_late_is_found_of_a_discharged_node(first_round: int):
    """The last step is false, and no verifier says a word before this round."""
    run_state = left(grow(a_start(rounds=40), 1))
    while run_state.round < 24:
        said = vote_messages(run_state, FALSE) if run_state.round >= first_round else {}
        was_bound = bound_by(run_state, NODE)
        run_state = advance(run_state, a_manifest(run_state, **said))
        assert was_bound or bound_by(run_state, NODE) is None
    in_time = first_round <= 1 + run_state.spec.audit.audit_rounds - 2
    assert run_state.nodes[NODE].banned or not in_time
    assert (bound_by(run_state, NODE) is None) != run_state.nodes[NODE].banned
