"""Rotation: a seat goes from a holder with a cause to the first ready reserve, and nobody chooses."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from assay.ledger.settlement.payouts import settle
from assay.participant.links import check_place
from assay.protocol import rotation
from assay.protocol.agreement.double_votes import double_vote
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import AssayError, MalformedMessage
from assay.protocol.identity import sign
from assay.protocol.messages import (
    BeaconShare,
    Evaluation,
    HandOver,
    Manifest,
    Outcome,
    Score,
    SeatNotice,
    SeatNoticeKind,
    SignedSeatNotice,
    SignedVote,
    Vote,
    VoteKind,
)
from assay.protocol.params import AcceptSpec, Milestone, check_spec
from assay.protocol.permitted import may_commit_evaluation, may_commit_verdict, may_show_double_vote
from assay.protocol.run_state import EvaluationRecord, RunState, VerifierRecord, start
from assay.protocol.state_transition import BEACON_PAUSE, advance, judges_of
from assay.protocol.types import NO_ITERATION, Iteration, PeerId, RoundId
from assay.testing.members import DOMAIN, RUN_ID, VERIFIERS, a_digest, a_member, a_peer_key, name_of, peers
from assay.testing.messages import UNSIGNED, a_verdict, a_verdict_commitment, an_evaluation_commitment
from assay.testing.run import Votes, a_manifest, a_spec, vote_messages

RESERVES = peers("reserve", 3)
SEAT, OTHER = VERIFIERS[0], VERIFIERS[1]
READY, RESIGN = SeatNoticeKind.READY, SeatNoticeKind.RESIGN


def a_start(rounds: int = 400, **choices: object) -> RunState:
    spec = a_spec(rounds=rounds, **choices)  # type: ignore[arg-type]
    return start(replace(spec, reserves=tuple(map(a_member, RESERVES))), RUN_ID)


def a_notice(holder: PeerId, kind: SeatNoticeKind, at: int) -> SignedSeatNotice:
    notice = SeatNotice(run_id=RUN_ID, round=RoundId(at), holder=holder, kind=kind)
    return SignedSeatNotice(notice=notice, signature=sign(a_peer_key(name_of(holder)), DOMAIN, notice))


def shares(run_state: RunState, missing: Collection[PeerId] = ()) -> tuple[BeaconShare, ...]:
    if not run_state.round:
        return ()
    return tuple(
        BeaconShare(run_id=RUN_ID, round=RoundId(run_state.round - 1), verifier=seat, proof=bytes(80))
        for seat in run_state.beacon
        if seat not in missing
    )


def next_manifest(
    run_state: RunState, *said: SignedSeatNotice, missing: Collection[PeerId] = (), led_by: int | None = None,
    votes: Votes | None = None, **changes: object,
) -> Manifest:  # fmt: skip
    """The next manifest; every verifier but those missing takes part, gives its share, and judges rightly."""
    if votes is None:
        present = {seat: Outcome.MATCH for seat in VERIFIERS if seat not in missing}
        votes = dict.fromkeys(run_state.audits, present)
    if led_by is not None:
        changes["iteration"] = Iteration(4 * (int(run_state.round) + 1) + led_by)
    carried = vote_messages(run_state, votes, mute=set(missing))
    notices = tuple(sorted(said, key=lambda one: one.notice.holder))
    manifest = a_manifest(
        run_state, beacon_shares=shares(run_state, missing), seat_notices=notices, **{**carried, **changes}
    )
    lists = tuple(one for one in manifest.inclusion_lists if one.inclusion_list.verifier not in missing)
    return replace(manifest, inclusion_lists=lists)


def go(run_state: RunState, rounds: int, **how: object) -> RunState:
    """The state this many manifests later, each of them checked."""
    for _ in range(rounds):
        manifest = next_manifest(run_state, **how)  # type: ignore[arg-type]
        check_place(run_state, manifest)
        run_state = advance(run_state, manifest)
    return run_state


def told(run_state: RunState, *said: SignedSeatNotice, **how: object) -> RunState:
    manifest = next_manifest(run_state, *said, **how)  # type: ignore[arg-type]
    check_place(run_state, manifest)
    return advance(run_state, manifest)


def ready(run_state: RunState, *reserves: PeerId) -> RunState:
    return told(run_state, *(a_notice(one, READY, int(run_state.round)) for one in reserves))


def handed_over(run_state: RunState, within: int, **how: object) -> tuple[RunState, HandOver]:
    """The state after the next hand-over, which must come within some rounds, and what was handed over."""
    for _ in range(within):
        found = run_state.hand_over
        run_state = go(run_state, 1, **how)
        if found:
            return run_state, found[0]
    raise AssertionError(f"no hand-over in {within} rounds")


def first_of(run_state: RunState, reserves: Collection[PeerId]) -> PeerId:
    return min(reserves, key=lambda one: rotation._place(run_state.rotation.order, one))


def test_a_seat_of_a_holder_that_resigns_goes_to_the_first_ready_reserve():
    run_state = ready(go(a_start(), 4), RESERVES[0], RESERVES[2])
    run_state = told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))
    run_state, given = handed_over(run_state, 12)

    assert given == HandOver(seat=SEAT, holder=first_of(run_state, {RESERVES[0], RESERVES[2]}))
    configuration = run_state.rotation.configuration
    assert configuration.number == 1 and configuration.key(SEAT) == given.holder
    assert go(run_state, 40).rotation.configuration == configuration, "no cause is left"


def test_no_seat_is_handed_over_without_a_cause_or_without_a_ready_reserve():
    run_state = go(ready(go(a_start(), 4), *RESERVES), 90)
    assert not run_state.rotation.configuration.number
    run_state = go(told(run_state, a_notice(SEAT, RESIGN, int(run_state.round))), 30)
    assert not run_state.rotation.configuration.number, "what made them ready is over"
    run_state, given = handed_over(ready(run_state, RESERVES[1]), 12)
    assert given == HandOver(seat=SEAT, holder=RESERVES[1])


@pytest.mark.parametrize(("after", "counts"), [(64, True), (65, False)])
def test_a_reserve_is_ready_for_64_rounds(after: int, counts: bool):
    run_state = ready(go(a_start(), 4), RESERVES[0])
    run_state = go(run_state, 4 + after - int(run_state.round))
    holder = run_state.rotation.next_holder(RESERVES, int(run_state.round))
    assert (holder == RESERVES[0]) is counts


def test_a_seat_that_retires_is_drawn_no_more_and_waits_until_no_audit_binds_its_holder():
    run_state = ready(go(a_start(), 6), RESERVES[0])
    run_state = told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))
    opened = set(run_state.audits)
    assert run_state.disqualified == (SEAT,)
    assert any(audit.binds(SEAT) for audit in run_state.audits.values())
    while not run_state.hand_over:
        assert any(audit.binds(SEAT) for audit in run_state.audits.values())
        run_state = go(run_state, 1)
        later = [audit for step, audit in run_state.audits.items() if step not in opened]
        assert later and not any(SEAT in audit.order for audit in later)
    assert not any(audit.binds(SEAT) for audit in run_state.audits.values())
    run_state = go(run_state, 2)
    assert any(SEAT in audit.order for audit in run_state.audits.values()), "the new holder is drawn"


def test_a_commitment_to_an_evaluation_goes_with_its_holder_and_what_was_opened_stays_its_own():
    start_state = a_start(rounds=40, audit_rounds=12)
    accept = AcceptSpec(share_ppm=1, sequences=2, milestones=(Milestone(epoch=1, most_loss_micro=9),))
    spec = replace(start_state.spec, money=replace(start_state.spec.money, accept=accept))
    score = Score(loss_micro=8, acc_count=0, acc_norm_count=0)
    found = {seat: Evaluation(run_id=RUN_ID, epoch=1, verifier=seat, score=score) for seat in (SEAT, OTHER)}
    sealed = [UNSIGNED.evaluation_commitment(an_evaluation_commitment(one)) for one in found.values()]
    run_state = go(ready(go(replace(start_state, spec=spec), 6), RESERVES[0]), 1)
    notice = a_notice(SEAT, RESIGN, int(run_state.round))
    run_state = told(run_state, notice, evaluation_commitments=tuple(sealed))
    while not run_state.hand_over:
        run_state = go(run_state, 1)
    opened = EvaluationRecord(holder=SEAT, commitment=digest(found[SEAT]), score=score)
    later = go(replace(run_state, evaluations={(1, SEAT): opened}), 1)
    assert later.evaluations == {(1, SEAT): opened}

    assert run_state.evaluations.keys() == {(1, SEAT), (1, OTHER)}
    run_state = go(run_state, 1)
    assert run_state.evaluations.keys() == {(1, OTHER)}
    assert may_commit_evaluation(run_state, sealed[0].commitment), "the next holder's"
    run_state = go(run_state, 1, evaluation_commitments=(sealed[0],))
    assert run_state.evaluations[1, SEAT].holder == RESERVES[0]
    settled_at = run_state.calendar.settled_at(1)
    run_state = go(run_state, settled_at - int(run_state.round))
    run_state = go(run_state, 1, evaluations=tuple(map(UNSIGNED.evaluation, found.values())))
    paid, unpaid = (
        {row.peer: row.amount for row in settle(one, 1).rows if row.role == "verifier"}
        for one in (run_state, replace(run_state, evaluations={}))
    )
    gained = {peer for peer, amount in paid.items() if amount > unpaid.get(peer, 0)}
    assert gained == {RESERVES[0], OTHER}


def test_the_new_holder_starts_with_a_clean_record_and_its_share_is_awaited():
    run_state = ready(go(a_start(), 6), RESERVES[0])
    run_state = told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))
    while not run_state.hand_over:
        run_state = go(run_state, 1)
    record = run_state.verifiers[SEAT]
    assert record.judged
    run_state = go(run_state, 1)
    assert run_state.verifiers[SEAT] == record and not run_state.verifiers[RESERVES[0]].judged
    assert SEAT in run_state.beacon


def test_a_seat_at_fault_is_handed_over_and_the_fault_stays_its_former_holders():
    run_state = ready(go(a_start(), 2), RESERVES[0])
    pair = a_double_vote(SEAT, 1)
    run_state = told(run_state, double_votes=(pair,))
    assert run_state.verifiers[SEAT].is_disqualified
    run_state, given = handed_over(run_state, 14)
    assert given.seat == SEAT and run_state.disqualified == ()
    assert run_state.verifiers[SEAT].is_disqualified


def a_double_vote(seat: PeerId, iteration: int, holder: PeerId | None = None):
    def vote(name: str) -> SignedVote:
        one = Vote(
            run_id=RUN_ID, iteration=Iteration(iteration), kind=VoteKind.NOTARISE, block=a_digest(name)
        )
        key = a_peer_key(name_of(seat if holder is None else holder))
        return SignedVote(vote=one, verifier=seat, signature=sign(key, DOMAIN, one))

    return double_vote(vote("one"), vote("other"))


def a_successor() -> RunState:
    run_state = ready(go(a_start(), 2), RESERVES[0])
    run_state = told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))
    return handed_over(run_state, 12)[0]


def test_a_double_vote_is_the_fault_of_whoever_held_the_seat_in_its_iteration():
    run_state, late = a_successor(), a_double_vote(SEAT, 9)
    after = told(run_state, double_votes=(late,))
    assert after.verifiers[SEAT].is_disqualified and not after.verifiers[RESERVES[0]].is_disqualified
    assert not may_show_double_vote(after, late), "once is enough"

    own = a_double_vote(SEAT, 1 << 32 | 3, holder=RESERVES[0])
    after = told(after, double_votes=(own,))
    assert after.verifiers[RESERVES[0]].is_disqualified


@pytest.mark.parametrize("holder", [SEAT, RESERVES[1]])
def test_a_double_vote_with_another_key_than_its_iterations_is_none(holder: PeerId):
    run_state = a_successor()
    with pytest.raises(MalformedMessage, match="double vote"):
        told(run_state, double_votes=(a_double_vote(SEAT, 1 << 32 | 3, holder=holder),))


def test_a_double_vote_of_a_configuration_to_come_or_of_noise_may_not_be_shown():
    run_state = a_successor()
    assert not may_show_double_vote(run_state, a_double_vote(SEAT, 2 << 32 | 3))
    assert not may_show_double_vote(run_state, replace(a_double_vote(SEAT, 9), first=b"noise"))


def handing_over() -> RunState:
    """A run whose next manifest hands SEAT over."""
    run_state = ready(go(a_start(), 6), RESERVES[0])
    run_state = told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))
    while not run_state.hand_over:
        run_state = go(run_state, 1)
    return run_state


@pytest.mark.parametrize(("count", "after", "waits"), [(1, 0, True), (1, 1, False), (0, 0, False)])
def test_a_seat_waits_while_a_step_that_its_holder_passed_may_be_shown_to_be_a_known_answer_task(
    count: int, after: int, waits: bool
):
    """Else the fault would be the next holder's."""
    run_state = handing_over()
    rules = replace(run_state.spec.audit, known_answer_count=count)
    began = RoundId(int(run_state.round) - rules.audit_rounds - after)
    audit = replace(next(iter(run_state.audits.values())), round=began, ruling=AuditStatus.PASSED)
    passed = replace(audit, verdicts=(a_verdict(audit, SEAT),))
    run_state = replace(
        run_state, spec=replace(run_state.spec, audit=rules), audits={(began, audit.node): passed}
    )
    assert (not run_state.hand_over) is waits


def test_the_manifest_that_hands_a_seat_over_has_no_commitment_of_its_holder():
    """The next holder could not open it."""
    run_state = handing_over()
    open_audits = [
        one
        for one in run_state.audits.values()
        if one.is_open and one.open_from < 0 and SEAT not in one.order
    ]
    audit = replace(open_audits[0], order=(SEAT,), commitments=(), round=RoundId(int(run_state.round) - 2))
    resigned = replace(run_state.rotation, resigned=frozenset())
    assert not may_commit_verdict(run_state, audit, SEAT)
    assert may_commit_verdict(replace(run_state, rotation=resigned), audit, SEAT)


def test_an_audit_binds_whoever_said_something_in_it_until_it_has_ended():
    run_state = go(a_start(), 3)
    audit = next(audit for audit in run_state.audits.values() if audit.commitments)
    (said,) = audit.commitments
    quiet, verdict = replace(audit, commitments=()), a_verdict(audit, said.verifier)
    assert audit.binds(said.verifier) and not quiet.binds(said.verifier)
    assert replace(quiet, verdicts=(verdict,)).binds(said.verifier)
    assert not any(replace(audit, verdicts=(verdict,)).binds(one) for one in RESERVES)
    ended = replace(audit, ruling=AuditStatus.PASSED)
    assert ended.has_ended and not ended.binds(said.verifier)


@pytest.mark.parametrize(
    ("outcome", "binds"), [(Outcome.MISMATCH, True), (Outcome.WITHHELD, False), (Outcome.MATCH, False)]
)
def test_an_overdue_opening_binds_who_accused_its_step_and_nobody_else(outcome: Outcome, binds: bool):
    """It may be overdue for hours; once its node returns, no other verdict of before counts."""
    run_state = go(a_start(), 3)
    audit = next(iter(run_state.audits.values()))
    verdict = a_verdict(audit, SEAT, outcome)
    overdue = replace(audit, ruling=AuditStatus.OVERDUE, due_s=9, commitments=(), verdicts=(verdict,))
    assert overdue.binds(SEAT) is binds and not overdue.binds(OTHER)
    assert not replace(overdue, verdicts=(), withheld=(verdict,)).binds(SEAT)


def overdue_for(run_state: RunState, *said: tuple[PeerId, Outcome]) -> RunState:
    """The state in which an opening is overdue, of which these verdicts were given."""
    step, audit = next((step, one) for step, one in run_state.audits.items() if one.is_open)
    verdicts = tuple(a_verdict(audit, seat, outcome) for seat, outcome in said)
    late = replace(audit, ruling=AuditStatus.OVERDUE, due_s=10**9, commitments=(), verdicts=verdicts)
    return replace(run_state, audits={**run_state.audits, step: late})


def test_what_a_holder_said_of_an_overdue_opening_stays_its_own_when_its_seat_is_anothers():
    run_state = ready(go(a_start(), 6), RESERVES[0])
    run_state = overdue_for(run_state, (SEAT, Outcome.WITHHELD), (OTHER, Outcome.WITHHELD))
    step = next(step for step, one in run_state.audits.items() if one.ruling is AuditStatus.OVERDUE)
    run_state = told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))
    run_state, given = handed_over(run_state, 12)
    audit = run_state.audits[step]
    own, others = audit.verdicts
    assert audit.ruling is AuditStatus.OVERDUE and given.seat == SEAT
    assert run_state.author(audit, own) == SEAT and run_state.author(audit, others) == OTHER
    again = replace(own, salt=a_digest("successor"))
    ended = replace(audit, ruling=AuditStatus.CONFIRMED, closed_round=int(run_state.round))
    assert run_state.author(ended, again) == RESERVES[0] and run_state.author(ended, own) == SEAT
    assert ended.after_hand_over(OTHER, OTHER) == ended, "of what ended, the seat's holder then is the author"


def test_a_seat_that_no_audit_binds_does_not_wait_for_one_that_is_bound():
    run_state = ready(go(a_start(), 6), RESERVES[0])
    run_state = overdue_for(run_state, (SEAT, Outcome.MISMATCH))
    said = (a_notice(one, RESIGN, int(run_state.round)) for one in (SEAT, OTHER))
    run_state, given = handed_over(told(run_state, *said), 12)
    assert given.seat == OTHER, "the first is bound for as long as the opening is overdue"


def test_of_seats_that_may_not_all_retire_one_that_an_overdue_opening_binds_is_the_last():
    run_state = go(a_start(), 6)
    run_state = ready(overdue_for(run_state, (SEAT, Outcome.MISMATCH)), RESERVES[0])
    leaving = told(run_state, *(a_notice(one, RESIGN, int(run_state.round)) for one in (SEAT, OTHER)))
    assert leaving.disqualified == (OTHER,)
    alone = told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))
    assert alone.disqualified == (SEAT,)


@pytest.mark.parametrize(
    ("verifiers", "at_fault", "resigned", "out"),
    [
        (4, 0, 1, 1), (4, 0, 2, 1), (4, 1, 1, 2), (4, 1, 2, 2), (4, 2, 1, 2), (4, 3, 1, 3),
        (7, 0, 3, 2), (7, 1, 3, 3), (7, 2, 3, 4), (7, 3, 3, 4), (7, 4, 3, 4),
    ],
)  # fmt: skip
def test_at_most_f_seats_retire_at_once_beside_those_at_fault_and_leave_enough_judges(
    verifiers: int, at_fault: int, resigned: int, out: int
):
    """n - 2f at least, while no more than f are at fault."""
    seats = peers("verifier", verifiers)
    run_state = ready(go(a_start(verifiers=seats), 2), RESERVES[0])
    records = {one: VerifierRecord(fault_round=0) for one in seats[:at_fault]}
    gone = frozenset(seats[at_fault : at_fault + resigned])
    run_state = replace(
        run_state,
        verifiers={**run_state.verifiers, **records},
        rotation=replace(run_state.rotation, resigned=gone),
    )
    assert run_state.disqualified == seats[:out]
    judges = judges_of(run_state.spec, run_state.disqualified)
    f = (verifiers - 1) // 3
    assert judges == (seats[out:] if verifiers - out >= verifiers - 2 * f else seats)


def test_without_reserves_all_judge_where_fewer_than_a_quorum_are_not_at_fault():
    spec = a_spec()
    assert judges_of(spec, VERIFIERS[:1]) == VERIFIERS[1:]
    assert judges_of(spec, VERIFIERS[:2]) == VERIFIERS


def test_three_that_judge_while_the_fourth_retires_tolerate_as_many_liars_as_four():
    run_state = ready(go(a_start(), 6), RESERVES[0])
    run_state = go(told(run_state, a_notice(SEAT, RESIGN, int(run_state.round))), 2)
    newest = max(run_state.audits.values(), key=lambda one: one.round)
    assert len(newest.order) == 3 and newest.f == 1
    one, two = (tuple(a_verdict(newest, by, Outcome.MISMATCH) for by in newest.order[:n]) for n in (1, 2))
    assert not replace(newest, verdicts=one).is_false and replace(newest, verdicts=two).is_false


# ---- absence


def unheard(run_state: RunState, rounds: int, leaders: Collection[int] = (1, 2, 3)) -> RunState:
    """This many rounds later, led by these in turn, of which no manifest has anything of SEAT."""
    for led_by in itertools.islice(itertools.cycle(leaders), rounds):
        run_state = go(run_state, 1, missing=(SEAT,), led_by=led_by)
    return run_state


def absent(run_state: RunState, rounds: int, leaders: Collection[int] = (1, 2, 3)) -> RunState:
    """The same, with a reserve that is ready at the end."""
    run_state = unheard(run_state, rounds - 1, leaders)
    said = a_notice(RESERVES[0], READY, int(run_state.round))
    return told(run_state, said, missing=(SEAT,), led_by=next(iter(leaders)))


@pytest.mark.parametrize(("rounds", "retires"), [(63, False), (64, True)])
def test_a_holder_that_says_nothing_in_64_manifests_is_absent(rounds: int, retires: bool):
    run_state = absent(go(a_start(), 4), rounds)
    assert run_state.rotation.absent[SEAT].count == rounds
    assert (run_state.disqualified == (SEAT,)) is retires
    run_state = unheard(run_state, 1)
    assert (run_state.rotation.configuration.key(SEAT) == RESERVES[0]) is retires
    assert (SEAT in run_state.rotation.absent or SEAT in run_state.missed_shares) is not retires
    assert (SEAT in run_state.beacon) is retires, "the new holder is asked for its share"


def test_a_single_leader_retires_nobody_however_often_it_leaves_everything_out():
    run_state = absent(go(a_start(), 4), 100, leaders=(3,))
    assert run_state.rotation.absent[SEAT].leaders == {VERIFIERS[3]}
    assert not run_state.disqualified
    run_state = unheard(run_state, 1, leaders=(2,))
    assert run_state.disqualified == (SEAT,), "one more leader is more than f"


@pytest.mark.parametrize("what", ["beacon_shares", "inclusion_lists", "commitments", "verdicts"])
def test_anything_that_its_holder_signed_ends_an_absence(what: str):
    """Whether its share is asked for or not: one whose share was late is not asked for a while."""
    run_state = unheard(go(a_start(), 4), 14)
    assert SEAT not in run_state.beacon
    whole = next_manifest(run_state)
    share = BeaconShare(run_id=RUN_ID, round=RoundId(run_state.round - 1), verifier=SEAT, proof=bytes(80))
    audit = next(one for one in run_state.audits.values() if one.is_open)
    said = a_verdict(audit, SEAT)
    carried = {
        "beacon_shares": (share,),
        "inclusion_lists": whole.inclusion_lists,
        "commitments": (UNSIGNED.commitment(a_verdict_commitment(said, audit.pattern)),),
        "verdicts": (UNSIGNED.verdict(said),),
    }
    nothing: dict[str, Any] = dict.fromkeys(carried, ())
    after, asked = run_state.rotation.after, run_state.beacon
    assert after(replace(whole, **nothing), VERIFIERS, asked, OTHER).absent[SEAT].count == 15
    heard = after(replace(whole, **{**nothing, what: carried[what]}), VERIFIERS, asked, OTHER)
    assert SEAT not in heard.absent


@pytest.mark.parametrize(("asked", "has_commits", "counts"), [
    (True, True, True), (True, False, True), (False, True, True), (False, False, False),
])  # fmt: skip
def test_only_a_manifest_that_could_have_had_anything_of_it_counts(
    asked: bool, has_commits: bool, counts: bool
):
    """Without commits there are no lists: who is not asked for its share has nothing to say then."""
    run_state = go(a_start(), 4)
    manifest = next_manifest(run_state, missing=(SEAT,), **({} if has_commits else {"commits": ()}))
    found = run_state.rotation.after(manifest, VERIFIERS, (SEAT,) if asked else (), OTHER)
    assert (SEAT in found.absent) is counts


@pytest.mark.parametrize("reserves", [True, False])
def test_a_share_that_is_missing_once_has_its_verifier_pause_at_once(reserves: bool):
    run_state = go(a_start() if reserves else start(a_spec(rounds=400), RUN_ID), 3)
    run_state = go(run_state, 1, missing=(SEAT,))
    assert SEAT not in run_state.beacon and run_state.away[SEAT] == int(run_state.round) + BEACON_PAUSE


def test_absence_is_long_after_64_manifests_of_more_than_f_leaders():
    two = frozenset(VERIFIERS[:2])
    assert rotation.Absence(count=64, leaders=two).is_long(4)
    assert not rotation.Absence(count=63, leaders=two).is_long(4)
    assert not rotation.Absence(count=640, leaders=frozenset(VERIFIERS[:1])).is_long(4)
    assert not rotation.Absence(count=640, leaders=two).is_long(7)


# ---- notices


@pytest.mark.parametrize(
    ("holder", "kind", "age", "expected"),
    [
        (RESERVES[0], READY, 0, True),
        (RESERVES[0], READY, 16, True),
        (RESERVES[0], READY, 17, False),
        (RESERVES[0], READY, -1, False),
        (RESERVES[0], RESIGN, 0, True),
        (SEAT, RESIGN, 0, True),
        (SEAT, READY, 0, False),
        (peers("stranger", 1)[0], READY, 0, False),
        (peers("stranger", 1)[0], RESIGN, 0, False),
    ],
)
def test_notices_are_of_holders_and_reserves_and_not_old(
    holder: PeerId, kind: SeatNoticeKind, age: int, expected: bool
):
    run_state = go(a_start(), 20)
    said = a_notice(holder, kind, int(run_state.round) - age)
    if expected:
        told(run_state, said)
    else:
        with pytest.raises(MalformedMessage, match=r"notice of .*, not admissible now"):
            told(run_state, said)


def test_a_notice_with_another_signature_is_refused():
    run_state = go(a_start(), 2)
    said = replace(a_notice(RESERVES[0], READY, 2), signature=a_notice(RESERVES[1], READY, 2).signature)
    with pytest.raises(AssayError, match="signature"):
        told(run_state, said)


def test_notices_ascend_by_holder_one_each():
    run_state = go(a_start(), 2)
    first, second = (a_notice(one, READY, 2) for one in RESERVES[:2])
    for said in ((second, first), (first, first)):
        with pytest.raises(MalformedMessage, match="ascend"):
            check_place(run_state, replace(next_manifest(run_state), seat_notices=said))


@pytest.mark.parametrize(("pause", "expected"), [(31, False), (32, True)])
def test_a_reserve_is_ready_again_after_half_the_time(pause: int, expected: bool):
    run_state = go(ready(go(a_start(), 2), RESERVES[0]), pause - 1)
    said = a_notice(RESERVES[0], READY, int(run_state.round))
    assert int(run_state.round) == 2 + pause
    if expected:
        told(run_state, said)
    else:
        with pytest.raises(MalformedMessage, match="ready notice"):
            told(run_state, said)


def test_who_resigned_or_held_a_seat_takes_none():
    run_state = ready(go(a_start(), 2), *RESERVES)
    run_state = told(run_state, a_notice(RESERVES[1], RESIGN, int(run_state.round)))
    run_state = told(run_state, *(a_notice(one, RESIGN, int(run_state.round)) for one in VERIFIERS[:3]))
    taken = []
    for _ in range(2):
        run_state, given = handed_over(run_state, 20)
        taken.append((given.seat, given.holder))
    order = sorted({RESERVES[0], RESERVES[2]}, key=lambda one: rotation._place(run_state.rotation.order, one))
    assert [holder for _, holder in taken] == order
    assert len({seat for seat, _ in taken} & set(VERIFIERS[:3])) == 2
    run_state = go(run_state, 20)
    assert run_state.rotation.configuration.number == 2, "nobody is left to take the third"
    with pytest.raises(MalformedMessage, match="resign notice"):
        told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))


# ---- manifests


def test_a_leader_neither_leaves_out_a_hand_over_nor_makes_one_up():
    run_state = ready(go(a_start(), 2), *RESERVES)
    with pytest.raises(MalformedMessage, match="hands over another seat"):
        told(run_state, hand_over=(HandOver(seat=SEAT, holder=RESERVES[0]),))
    run_state = told(run_state, a_notice(SEAT, RESIGN, int(run_state.round)))
    while not run_state.hand_over:
        run_state = go(run_state, 1)
    (due,) = run_state.hand_over
    for other in ((), (replace(due, seat=OTHER),), (replace(due, holder=SEAT),)):
        with pytest.raises(MalformedMessage, match="hands over another seat"):
            told(run_state, hand_over=other)


def test_nothing_is_handed_over_in_round_0_or_once_training_is_over():
    run_state = a_start(rounds=12)
    with pytest.raises(MalformedMessage, match="resign notice"):
        told(go(run_state, 12), a_notice(SEAT, RESIGN, 12))
    run_state = ready(go(run_state, 10), RESERVES[0])
    run_state = told(run_state, a_notice(SEAT, RESIGN, 11))
    while not run_state.is_complete:
        run_state = go(run_state, 1)
    assert not run_state.rotation.configuration.number


def test_a_run_without_reserves_has_no_notices_no_iterations_and_no_hand_over():
    run_state = start(a_spec(), RUN_ID)
    check_place(run_state, a_manifest(run_state))
    for change in (
        {"iteration": Iteration(1)},
        {"hand_over": (HandOver(seat=SEAT, holder=OTHER),)},
        {"seat_notices": (a_notice(SEAT, RESIGN, 0),)},
    ):
        with pytest.raises(MalformedMessage):
            check_place(run_state, replace(a_manifest(run_state), **change))  # type: ignore[arg-type]
    with pytest.raises(MalformedMessage, match="iteration"):
        told(a_start(), iteration=NO_ITERATION)


def test_the_first_drand_round_of_the_chain_orders_the_reserves_and_no_later_one():
    run_state = a_start()
    before = run_state.rotation
    carried = replace(next_manifest(go(run_state, 1)), drand=b"first")
    after = before.after(carried, VERIFIERS, (), SEAT)
    assert after.order != before.order
    assert after.after(replace(carried, drand=b"second"), VERIFIERS, (), SEAT).order == after.order


# ---- the spec


def test_reserves_are_other_members_than_verifiers_and_nodes():
    spec = a_start().spec
    for reserves, reason in (
        ((a_member(SEAT),), "one account"),
        ((replace(a_member(SEAT), account=a_member(RESERVES[0]).account),), "verifier of this run already"),
        (spec.reserves[::-1], "ascend"),
        (tuple(map(a_member, peers("reserve", 13))), "17|13 reserves"),
    ):
        with pytest.raises(ValueError, match=reason):
            check_spec(replace(spec, reserves=reserves))


@pytest.mark.parametrize(("verifiers", "most"), [(4, 2), (5, 1), (6, 0), (7, 2), (10, 2)])
def test_reserves_are_so_few_that_all_judges_tolerate_no_more_liars_than_the_seats(verifiers: int, most: int):
    spec = a_spec(verifiers=peers("verifier", verifiers))
    for count in range(most + 1):
        check_spec(replace(spec, reserves=tuple(map(a_member, peers("reserve", count)))))
    with pytest.raises(ValueError, match=r"tolerate \d faults, with \d reserves \d: expected as many"):
        check_spec(replace(spec, reserves=tuple(map(a_member, peers("reserve", most + 1)))))
