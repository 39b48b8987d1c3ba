"""Start: a run that names fewer nodes than it needs starts with enough, in time, or never."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace

import pytest

from assay.ledger.settlement.ending import ending_of
from assay.participant.links import check_place
from assay.protocol.encoding.codec import encode
from assay.protocol.errors import MalformedMessage
from assay.protocol.membership import admitted, may_admit
from assay.protocol.messages import (
    ADMISSIONS_MAX,
    JOINS_MAX,
    Admission,
    Attendance,
    AttendanceKind,
    Closing,
    Manifest,
    Member,
    SignedAdmission,
    SignedAttendance,
)
from assay.protocol.run_state import RunState, start
from assay.protocol.state_transition import advance
from assay.protocol.types import Signature
from assay.testing.members import NODES, RUN_ID, VERIFIERS, a_member, peer
from assay.testing.messages import UNSIGNED, a_funding_report
from assay.testing.run import a_manifest, a_spec, grow

BY = 1_000  # the last second of agreed time in which the run may start
LEAST, SEATS = 6, 12
NEW = [a_member(peer(f"newcomer {i}")) for i in range(12)]


def a_run(named: int = 0, least: int = LEAST, seats: int = SEATS) -> RunState:
    spec = a_spec()
    return start(
        replace(spec, nodes=spec.nodes[:named], least_nodes=least, seats=seats, start_by_s=BY), RUN_ID
    )


def votes(*members: Member, time_s: int = BY) -> list[SignedAdmission]:
    """An admission of each of these by every verifier, with signatures that are none."""
    return [
        SignedAdmission(
            admission=Admission(run_id=RUN_ID, time_s=time_s, member=member, verifier=name),
            signature=Signature(bytes(64)),
        )
        for member in members
        for name in VERIFIERS
    ]


def first(run_state: RunState, *members: Member, time_s: int = BY, **changes) -> Manifest:
    """A manifest of round 0 that admits these."""
    admissions = admitted(run_state, votes(*members), time_s)
    return replace(a_manifest(run_state), **{"admissions": admissions, "time_s": time_s, **changes})


def extended(run_state: RunState, manifest: Manifest) -> RunState:
    check_place(run_state, manifest)
    return advance(run_state, manifest)


@pytest.mark.parametrize("named", [0, 2])
def test_a_run_starts_with_as_many_nodes_as_it_needs_and_not_with_one_fewer(named):
    run_state = a_run(named)
    with pytest.raises(MalformedMessage, match=f"fewer than {LEAST} nodes"):
        check_place(run_state, first(run_state, *NEW[: LEAST - named - 1]))

    begun = extended(run_state, first(run_state, *NEW[: LEAST - named]))
    assert len(begun.active) == LEAST > JOINS_MAX
    assert begun.training_rounds == run_state.spec.rounds and not begun.has_lapsed
    grown = grow(begun, 1)
    assert {node for _, node in grown.steps} == set(begun.active)


def test_it_admits_at_once_those_that_it_needs_and_others_a_few_at_a_time_after():
    run_state = a_run()
    begun = extended(run_state, first(run_state, *NEW))
    assert len(begun.nodes) == LEAST
    every = votes(*NEW, time_s=BY)
    assert len({one.admission.member for one in admitted(begun, every, BY)}) == JOINS_MAX < SEATS - LEAST


def test_it_starts_until_its_last_second_and_a_manifest_of_a_later_one_ends_it():
    run_state = a_run()
    assert extended(run_state, first(run_state, *NEW[:LEAST], time_s=BY)).is_training
    admissions = first(run_state, *NEW[:LEAST]).admissions
    with pytest.raises(MalformedMessage, match="other admissions"):
        check_place(run_state, first(run_state, time_s=BY + 1, admissions=admissions))

    over = extended(run_state, first(run_state, *NEW[:LEAST], time_s=BY + 1))
    assert over.has_lapsed and not over.nodes and not over.is_training
    assert over.calendar.epochs == 0
    while not over.is_complete:
        over = extended(over, a_manifest(over, time_s=BY + 2))
        assert not may_admit(over, votes(NEW[0])[0].admission, BY)
    assert over.round == run_state.spec.closing_rounds
    ending = ending_of(over)
    assert (ending.rounds, ending.closed_by, ending.closed_block) == (0, "start", None)
    assert "never started" in ending.text


def test_a_run_that_nobody_paid_for_ends_at_that_time_too_and_starts_no_sooner():
    run_state = a_run()
    with pytest.raises(MalformedMessage, match="not funded"):
        check_place(run_state, first(run_state, *NEW[:LEAST], funding_reports=()))
    assert extended(run_state, first(run_state, time_s=BY + 1, funding_reports=())).has_lapsed


def test_what_the_buyer_says_after_it_lapsed_does_not_change_why_it_ended():
    run_state = a_run()
    over = extended(run_state, first(run_state, time_s=BY + 1))
    closing = tuple(
        UNSIGNED.funding_report(a_funding_report(one, block=9, closing=Closing.BY_BUYER)) for one in VERIFIERS
    )
    later = extended(over, a_manifest(over, time_s=BY + 1, funding_reports=closing))
    assert later.closing is Closing.BY_BUYER and ending_of(later).closed_by == "start"


def test_a_buyer_may_end_it_before_it_starts_with_whoever_is_there():
    run_state = a_run(1)
    closing = tuple(
        UNSIGNED.funding_report(a_funding_report(one, block=9, closing=Closing.BY_BUYER)) for one in VERIFIERS
    )
    over = extended(run_state, first(run_state, funding_reports=closing))
    assert not over.is_training and not over.has_lapsed
    assert ending_of(over).closed_by == "buyer"


def test_nobody_trains_in_the_manifest_that_starts_a_run():
    run_state = a_run(2)
    assert run_state.active == () and not run_state.takes_commits
    plain = start(a_spec(), RUN_ID)
    commit = a_manifest(plain, nodes=[NODES[0]]).commits[0]
    early = replace(commit, commit=replace(commit.commit, parent=run_state.parent))
    with pytest.raises(MalformedMessage, match="may not train"):
        check_place(run_state, first(run_state, *NEW[:4], commits=(early,)))


def test_a_node_that_leaves_before_the_start_is_not_counted():
    run_state = a_run(2)
    node = run_state.spec.nodes[0].peer
    said = Attendance(run_id=RUN_ID, round=run_state.round, node=node, kind=AttendanceKind.LEAVE)
    leave = (SignedAttendance(attendance=said, signature=Signature(bytes(64))),)
    with pytest.raises(MalformedMessage, match="fewer than"):
        # Its signature is the last that is looked at, and none.
        check_unsigned(run_state, first(run_state, *NEW[: LEAST - 2], attendance=leave))
    check_unsigned(run_state, first(run_state, *NEW[: LEAST - 1], attendance=leave))


def check_unsigned(run_state: RunState, manifest: Manifest) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("assay.participant.links.verify", lambda *_: None)
        check_place(run_state, manifest)


def test_old_votes_do_not_start_a_run():
    run_state = a_run()
    old = admitted(run_state, votes(*NEW[:LEAST], time_s=BY - 61), BY)
    assert old == ()
    fresh = admitted(run_state, votes(*NEW[:LEAST], time_s=BY - 60), BY)
    extended(run_state, first(run_state, admissions=fresh))


def test_keys_made_for_a_spec_do_not_come_first_when_it_starts():
    run_state = a_run(seats=LEAST)
    chosen = {
        frozenset(one.admission.member for one in admitted(run_state, votes(*NEW), BY - second))
        for second in range(8)
    }
    assert len(chosen) > 1  # the spec's digest is known before keys are made; the time of the start is not


def test_seats_of_the_first_round_go_by_the_hash_that_the_protocol_names():
    run_state = a_run(seats=LEAST)
    salt = run_state.parent + struct.pack(">Q", BY)
    by_hash = sorted(NEW, key=lambda one: hashlib.sha256(salt + one.peer + one.hot).digest())

    chosen = {one.admission.member for one in admitted(run_state, votes(*NEW), BY)}

    assert chosen == {*by_hash[:LEAST]}


def test_the_largest_start_fits_a_notification_with_room_for_all_else():
    (one, *_) = votes(NEW[0], time_s=1 << 33)
    assert len(encode(one)) * ADMISSIONS_MAX < 150_000  # of 256 KiB
