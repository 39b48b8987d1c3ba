"""Lists of known-answer tasks: a node binds itself once, before its steps, and to as many as are ordered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.participant.links import check_place
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root
from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.membership import SAID_ROUNDS, may_attend
from assay.protocol.messages import AttendanceKind, SignedAttendance
from assay.protocol.permitted import check_known_answer
from assay.protocol.run_state import NodeRecord, RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, RoundId
from assay.testing.members import NODES, RUN_ID, a_digest
from assay.testing.run import a_manifest, a_start, an_attendance, grow

NODE, OTHER = NODES[:2]
TASKS = [(a_digest("salt", at), RoundId(at), NODE) for at in (2, 3)]
ROOT = known_answer_root(TASKS)
KIND = AttendanceKind.TASKS


def began(rounds: int = 0, **choices: Any) -> RunState:
    """A run that orders two tasks of each node, this many rounds later."""
    return grow(a_start(**{"known_answer_count": 2, "rounds": 60, **choices}), rounds)


def announced(run_state: RunState, *said: SignedAttendance) -> RunState:
    """The run state after a manifest that carries these statements, as any verifier checks it."""
    manifest = a_manifest(run_state, attendance=said)
    check_place(run_state, manifest)
    return advance(run_state, manifest)


def changed(run_state: RunState, **changes: Any) -> RunState:
    record: NodeRecord = replace(run_state.nodes[NODE], **changes)
    return replace(run_state, nodes={**run_state.nodes, NODE: record})


def test_a_list_counts_from_the_round_after_the_manifest_that_carries_it():
    run_state = began(2)
    run_state = announced(run_state, an_attendance(run_state, NODE, KIND, ROOT))

    record = run_state.nodes[NODE]
    assert (record.tasks, record.tasks_from, record.has_left) == (ROOT, 3, False)
    assert run_state.nodes[OTHER].tasks == NO_DIGEST
    check_known_answer(run_state, known_answer_proofs(RUN_ID, TASKS)[1])
    # It had taken the step of round 2 before that manifest was final, and of round 1 long before.
    with pytest.raises(MalformedMessage, match=r"round 2 .*: its list counts from round 3"):
        check_known_answer(run_state, known_answer_proofs(RUN_ID, TASKS)[0])


def test_a_task_is_shown_by_nobody_without_a_list_and_by_no_other_than_its_node():
    shown = known_answer_proofs(RUN_ID, TASKS)[1]
    for run_state in (began(), changed(began(), member=replace(began().nodes[NODE].member))):
        with pytest.raises(MalformedMessage, match="which has announced no list"):
            check_known_answer(run_state, shown)
    with pytest.raises(MalformedMessage, match="which has announced no list"):
        check_known_answer(began(), replace(shown, node=a_digest("stranger")))
    run_state = began()
    copied = announced(run_state, an_attendance(run_state, OTHER, KIND, ROOT))
    for lie in (shown, replace(shown, node=OTHER)):  # another node's list binds nobody's steps
        with pytest.raises(MalformedMessage):
            check_known_answer(copied, lie)


def test_a_list_of_more_tasks_than_are_ordered_shows_none():
    longer = [*TASKS, (a_digest("salt", 4), RoundId(4), NODE)]
    run_state = began()
    run_state = announced(run_state, an_attendance(run_state, NODE, KIND, known_answer_root(longer)))

    for index in range(3):
        with pytest.raises(MalformedMessage):
            check_known_answer(run_state, known_answer_proofs(RUN_ID, longer)[index])


def test_of_one_index_no_two_steps_can_be_shown():
    """So a list excuses no more steps than are ordered."""
    run_state = changed(began(), tasks=ROOT)
    shown = known_answer_proofs(RUN_ID, TASKS)[0]
    check_known_answer(run_state, shown)
    for lie in ({"round": RoundId(3)}, {"index": 1}, {"salt": a_digest("salt", 3)}, {"index": 2}):
        with pytest.raises(MalformedMessage):
            check_known_answer(run_state, replace(shown, **lie))


@pytest.mark.parametrize("again", [ROOT, a_digest("another list")])
def test_a_node_announces_one_list_in_a_run(again: Digest):
    run_state = began(1)
    first = announced(run_state, an_attendance(run_state, NODE, KIND, ROOT))

    with pytest.raises(MalformedMessage, match="carries a TASKS attendance of"):
        announced(first, an_attendance(first, NODE, KIND, again))
    with pytest.raises(MalformedMessage, match="must ascend by node, one each"):
        announced(
            run_state,
            an_attendance(run_state, NODE, KIND, ROOT),
            an_attendance(run_state, NODE, KIND, again),
        )


def test_a_list_is_announced_by_a_node_with_a_seat_in_a_run_that_orders_tasks_and_still_trains():
    run_state = began(SAID_ROUNDS + 2)
    one = an_attendance(run_state, NODE, KIND, ROOT).attendance
    assert may_attend(run_state, one, 0)

    for refused in (
        began(SAID_ROUNDS + 2, known_answer_count=0),
        changed(run_state, has_left=True),
        changed(run_state, fault_round=0),
        replace(run_state, training_rounds=int(run_state.round)),
    ):
        assert not may_attend(refused, one, 0)
    for lie, is_good in (
        ({"tasks": NO_DIGEST}, False),
        ({"run_id": a_digest("another run")}, False),
        ({"node": a_digest("stranger")}, False),
        ({"round": RoundId(2)}, True),
        ({"round": RoundId(1)}, False),
        ({"round": RoundId(int(run_state.round) + 1)}, False),
    ):
        assert may_attend(run_state, replace(one, **lie), 0) is is_good, lie


def test_only_an_announcement_has_a_list():
    run_state = began(1)
    assert may_attend(run_state, an_attendance(run_state, NODE, AttendanceKind.LEAVE).attendance, 0)
    leaves = an_attendance(run_state, NODE, AttendanceKind.LEAVE, ROOT)
    assert not may_attend(run_state, leaves.attendance, 0)


def test_an_announcement_without_its_nodes_signature_is_not_carried():
    run_state = began(1)
    forged = replace(
        an_attendance(run_state, NODE, KIND, ROOT),
        signature=an_attendance(run_state, OTHER, KIND, ROOT).signature,
    )
    with pytest.raises(PeerFault, match="signature does not cover this Attendance"):
        announced(run_state, forged)
