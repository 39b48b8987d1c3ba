"""Membership: nodes that the spec does not name take free seats, on a quorum's word, and give them up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from assay.participant.links import check_place
from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.membership import ADMISSION_S, admitted, may_admit, may_attend
from assay.protocol.messages import (
    JOINS_MAX,
    Admission,
    Attendance,
    AttendanceKind,
    Member,
    SignedAdmission,
    SignedAttendance,
)
from assay.protocol.params import PPM
from assay.protocol.run_state import IDLE_ROUNDS, RunState, start
from assay.protocol.state_transition import advance
from assay.protocol.types import Address, PeerId, RoundId, Signature
from assay.testing.members import NODES, RUN_ID, VERIFIERS, a_member, peer
from assay.testing.run import a_manifest, a_spec, grow

NEW = [a_member(peer(f"newcomer {i}")) for i in range(6)]


def a_run(seats: int = len(NODES) + 1, rounds: int = 12) -> RunState:
    return start(replace(a_spec(rounds=rounds), seats=seats), RUN_ID)


def votes(run_state: RunState, member: Member, verifiers=VERIFIERS, **changes) -> list[SignedAdmission]:
    """An admission of this member by each of these verifiers, with signatures that are none."""
    one = Admission(run_id=RUN_ID, time_s=run_state.time_s, member=member, verifier=VERIFIERS[0])
    return [
        SignedAdmission(admission=replace(one, verifier=name, **changes), signature=Signature(bytes(64)))
        for name in verifiers
    ]


def chosen(run_state: RunState, every: Iterable[SignedAdmission]) -> tuple[SignedAdmission, ...]:
    return admitted(run_state, every, run_state.time_s)


def joined(run_state: RunState, *members: Member) -> RunState:
    every = [vote for member in members for vote in votes(run_state, member)]
    return extended(run_state, admissions=chosen(run_state, every))


def extended(run_state: RunState, **changes) -> RunState:
    manifest = replace(a_manifest(run_state), time_s=run_state.time_s, **changes)
    check_place(run_state, manifest)
    return advance(run_state, manifest)


def a_leave(run_state: RunState, node: PeerId, **changes) -> SignedAttendance:
    said = Attendance(run_id=RUN_ID, round=run_state.round, node=node, kind=AttendanceKind.LEAVE)
    return SignedAttendance(attendance=replace(said, **changes), signature=Signature(bytes(64)))


def left(run_state: RunState, node: PeerId) -> RunState:
    return advance(run_state, replace(a_manifest(run_state), attendance=(a_leave(run_state, node),)))


def test_a_node_that_a_quorum_admits_trains_from_the_next_round_on_and_on_probation():
    run_state = joined(a_run(), NEW[0])

    assert NEW[0].peer in run_state.active
    assert run_state.nodes[NEW[0].peer].joined_round == 1
    assert run_state.nodes[NEW[0].peer].member == NEW[0]
    for member in NEW:
        nodes = joined(a_run(), member).nodes
        assert list(nodes) == sorted(nodes)
    assert run_state.rate_ppm(NEW[0].peer) == PPM
    grown = grow(run_state, 1)
    assert (1, NEW[0].peer) in grown.steps


def test_a_node_takes_the_lowest_seat_that_is_free_and_keeps_it():
    """No two nodes of a round have one seat, for what is drawn without replacement follows from it."""
    run_state = a_run(seats=len(NODES) + 2)
    first, second = sorted(NEW[:2], key=lambda member: member.peer)
    together = joined(run_state, second, first).nodes
    assert [together[one.peer].seat for one in (first, second)] == [len(NODES), len(NODES) + 1]
    run_state = joined(run_state, first)
    gone = run_state.spec.nodes[0].peer
    run_state = joined(left(run_state, gone), second)

    assert [run_state.nodes[one.peer].seat for one in run_state.spec.nodes] == list(range(len(NODES)))
    assert run_state.nodes[first.peer].seat == len(NODES)
    assert run_state.nodes[second.peer].seat == 0
    seated = [one.seat for one in run_state.nodes.values() if one.is_seated]
    assert len(seated) == len(set(seated))


def test_fewer_than_a_quorum_admit_nobody():
    run_state = a_run()
    assert chosen(run_state, votes(run_state, NEW[0], VERIFIERS[:2])) == ()
    twice = votes(run_state, NEW[0], VERIFIERS[:2]) * 2
    assert chosen(run_state, twice) == ()
    assert len(chosen(run_state, votes(run_state, NEW[0]))) == 3  # a quorum of four, and no more


def test_a_manifest_with_other_admissions_than_a_quorums_is_refused():
    run_state = a_run()
    for admissions in (
        votes(run_state, NEW[0], VERIFIERS[:2]),
        votes(run_state, NEW[0], VERIFIERS[:4]),
        votes(run_state, NEW[0], reversed(VERIFIERS[:3])),
        votes(run_state, NEW[0], VERIFIERS[:3], run_id=bytes(32)),
    ):
        manifest = replace(a_manifest(run_state), admissions=tuple(admissions))
        with pytest.raises(MalformedMessage, match="other admissions than a quorum's"):
            check_place(run_state, manifest)


def test_votes_for_two_members_with_one_key_do_not_add_up():
    run_state = a_run(seats=len(NODES) + 4)
    other = replace(NEW[0], hot=Address(b"h" * 20))
    mixed = votes(run_state, NEW[0], VERIFIERS[:2]) + votes(run_state, other, VERIFIERS[2:])
    assert chosen(run_state, mixed) == ()


@pytest.mark.parametrize("field", ["peer", "account", "hot"])
def test_of_two_members_that_share_a_key_or_an_account_one_joins(field):
    run_state = a_run(seats=len(NODES) + 4)
    other = replace(NEW[1], **{field: getattr(NEW[0], field)})
    both = votes(run_state, NEW[0]) + votes(run_state, other)
    assert len({one.admission.member for one in chosen(run_state, both)}) == 1
    assert len(chosen(run_state, both)) == 3


def test_no_more_join_than_there_are_seats_and_keys_do_not_choose_who():
    run_state = a_run(seats=len(NODES) + 2)
    every = [vote for member in NEW for vote in votes(run_state, member)]

    first = {one.admission.member for one in chosen(run_state, every)}
    assert len(first) == 2
    orders = {
        frozenset(one.admission.member for one in chosen(replace(run_state, parent=bytes([i]) * 32), every))
        for i in range(16)
    }
    assert len(orders) > 1  # the last manifest's digest decides
    full = joined(run_state, *first)
    assert full.free_seats == 0
    assert chosen(full, votes(full, next(one for one in NEW if one not in first))) == ()


def test_one_manifest_admits_a_few_nodes_only():
    run_state = a_run(seats=len(NODES) + 6)
    every = [vote for member in NEW for vote in votes(run_state, member)]
    assert len({one.admission.member for one in chosen(run_state, every)}) == JOINS_MAX


@pytest.mark.parametrize("field", ["peer", "account", "hot"])
@pytest.mark.parametrize("known", ["node", "verifier", "reserve", "left"])
def test_no_key_and_no_account_takes_a_second_seat(field, known):
    run_state = a_run(seats=len(NODES) + 2)
    reserve = peer("reserve")
    run_state = replace(run_state, spec=replace(run_state.spec, reserves=(a_member(reserve),)))
    taken = a_member(
        {"node": NODES[0], "verifier": VERIFIERS[0], "reserve": reserve, "left": NODES[1]}[known]
    )
    if known == "left":
        run_state = left(run_state, NODES[1])
    member = replace(NEW[0], **{field: getattr(taken, field)})
    assert not may_admit(run_state, votes(run_state, member)[0].admission, 0)


def test_an_admission_counts_for_some_time_and_in_its_run_only():
    run_state = a_run()
    vote = replace(votes(run_state, NEW[0])[0].admission, time_s=100)
    assert may_admit(run_state, vote, 100 + ADMISSION_S)
    assert not may_admit(run_state, vote, 100 + ADMISSION_S + 1)
    assert may_admit(run_state, vote, 99)  # its verifier's clock is ahead
    assert not may_admit(run_state, replace(vote, run_id=bytes(32)), 100)
    assert not may_admit(run_state, replace(vote, verifier=NODES[0]), 100)
    assert not may_admit(replace(run_state, round=RoundId(12)), vote, 100)  # over


def test_a_node_that_leaves_trains_no_more_and_what_it_did_is_judged_and_paid_as_before():
    run_state = grow(a_run(), 2)
    run_state = left(run_state, NODES[0])

    assert NODES[0] not in run_state.active
    assert run_state.free_seats == 2
    assert (1, NODES[0]) in run_state.steps
    audit = grow(run_state, 1).audits[(1, NODES[0])]
    assert audit.is_open
    assert not may_attend(run_state, a_leave(run_state, NODES[0]).attendance, 0)  # it has left


def test_a_leave_is_the_nodes_own_and_recent():
    run_state = grow(a_run(), 3)
    leave = a_leave(run_state, NODES[0]).attendance
    assert may_attend(run_state, leave, 0)
    later = replace(run_state, round=RoundId(int(leave.round) + 16), training_rounds=99)
    assert may_attend(later, leave, 0)
    assert not may_attend(replace(later, round=RoundId(later.round + 1)), leave, 0)
    assert not may_attend(run_state, replace(leave, node=NEW[0].peer), 0)
    assert not may_attend(run_state, replace(leave, run_id=bytes(32)), 0)
    with pytest.raises(PeerFault, match="signature"):  # those of these tests are none
        extended(run_state, attendance=(a_leave(run_state, NODES[0]),))


def test_a_seat_that_is_given_up_or_lost_is_free_for_another():
    run_state = a_run(seats=len(NODES))
    assert run_state.free_seats == 0
    run_state = left(run_state, NODES[2])
    assert run_state.free_seats == 1
    assert NEW[1].peer in joined(run_state, NEW[1]).active
    banned = replace(run_state.nodes[NODES[0]], fault_round=0)
    assert replace(run_state, nodes={**run_state.nodes, NODES[0]: banned}).free_seats == 2


def test_an_epoch_costs_what_all_seats_can_earn():
    spec = a_spec()
    assert replace(spec, seats=2 * len(NODES)).epoch_price(0) == 2 * spec.epoch_price(0)


def silent_for(run_state: RunState, rounds: int, node: PeerId, second_s: int = 0) -> RunState:
    """So many rounds in which all others commit; agreed time goes on by `second_s` with each."""
    others = [one for one in run_state.active if one != node]
    for _ in range(rounds):
        time_s = run_state.time_s + second_s
        run_state = advance(run_state, replace(a_manifest(run_state, nodes=others), time_s=time_s))
    return run_state


@pytest.mark.parametrize("absence_s", [0, 100])
def test_a_seat_is_anothers_for_the_asking_after_silence_in_rounds_and_in_agreed_time(absence_s):
    spec = replace(a_run(rounds=60).spec, audit=replace(a_spec().audit, absence_s=absence_s))
    begun, gone = start(replace(spec, seats=len(NODES)), RUN_ID), NODES[0]
    early = silent_for(begun, IDLE_ROUNDS - 1, gone, second_s=1000)
    assert early.free_seats == 0
    quick = silent_for(begun, IDLE_ROUNDS, gone, second_s=0)
    assert quick.free_seats == 0
    idle = silent_for(early, 1, gone, second_s=1000)
    assert idle.free_seats == 1 and idle.nodes[gone].is_seated

    after = joined(idle, NEW[0])
    assert after.nodes[gone].has_left and after.nodes[NEW[0].peer].is_seated
    assert gone not in after.active and after.free_seats == 0
    assert sum(record.is_seated for record in after.nodes.values()) == len(NODES)


def test_an_idle_node_keeps_its_seat_while_others_are_free():
    idle = silent_for(a_run(rounds=60), IDLE_ROUNDS, NODES[0], second_s=1000)
    assert idle.free_seats == 2

    others = a_manifest(idle, nodes=[node for node in idle.active if node != NODES[0]])
    admissions = chosen(idle, votes(idle, NEW[0]))
    one = advance(idle, replace(others, time_s=idle.time_s, admissions=admissions))
    assert one.nodes[NODES[0]].is_seated and one.free_seats == 1
    two = joined(one, NEW[1])
    assert two.nodes[NODES[0]].has_left and two.free_seats == 0


def test_a_node_that_is_back_is_idle_no_more():
    idle = silent_for(a_run(len(NODES), rounds=60), IDLE_ROUNDS, NODES[0], second_s=1000)
    back = advance(idle, a_manifest(idle))
    assert back.free_seats == 0


def test_there_are_never_more_seats_taken_than_paid_for_even_if_an_idle_node_comes_back_at_once():
    idle = silent_for(a_run(len(NODES), rounds=60), IDLE_ROUNDS, NODES[0], second_s=1000)
    after = extended(idle, admissions=chosen(idle, votes(idle, NEW[0])))
    assert NODES[0] in {signed.commit.node for signed in a_manifest(idle).commits}

    assert (
        after.nodes[NODES[0]].has_left and after.nodes[NODES[0]].accepted == idle.nodes[NODES[0]].accepted + 1
    )
    assert sum(record.is_seated for record in after.nodes.values()) == len(NODES)


def test_of_idle_nodes_the_longest_silent_one_goes_first():
    first, second = NODES[1], NODES[0]
    run_state = silent_for(a_run(len(NODES), rounds=60), 1, first, second_s=1000)
    for _ in range(IDLE_ROUNDS):
        others = [one for one in run_state.active if one not in (first, second)]
        time_s = run_state.time_s + 1000
        run_state = advance(run_state, replace(a_manifest(run_state, nodes=others), time_s=time_s))
    assert run_state.free_seats == 2

    after = joined(run_state, NEW[0])
    assert after.nodes[first].has_left and after.nodes[second].is_seated


def test_a_node_that_never_came_is_idle_from_the_first_manifest_on_and_not_from_1970():
    late = advance(a_run(len(NODES)), replace(a_manifest(a_run(len(NODES))), time_s=1_700_000_000))
    assert all(record.heard_s == 1_700_000_000 for record in late.nodes.values())
