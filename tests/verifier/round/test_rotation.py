"""What a verifier takes for the next manifest once a seat has another holder; signatures are real."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from assay.protocol.errors import AssayError, MalformedMessage, PeerFault
from assay.protocol.identity import sign
from assay.protocol.messages import (
    Admission,
    BeaconShare,
    FundingReport,
    Manifest,
    SeatNoticeKind,
    SignedAdmission,
    SignedFundingReport,
    SignedInclusionList,
    SignedVerdictCommitment,
)
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import Iteration, PeerId
from assay.testing.members import DOMAIN, RUN_ID, VERIFIERS, a_digest, a_member, a_peer_key, name_of, peers
from assay.testing.messages import a_funding_report, a_verdict, a_verdict_commitment, an_inclusion_list
from assay.testing.run import a_manifest
from assay.testing.signed import STATE, a_reveal
from assay.verifier.round.beacon import valid_shares
from assay.verifier.round.examination import examine
from assay.verifier.round.leader import manifest_of
from assay.verifier.round.machine import Advanced, Round, step
from tests.protocol.test_rotation import (
    OTHER,
    RESERVES,
    SEAT,
    a_double_vote,
    a_notice,
    a_start,
    a_successor,
    go,
    next_manifest,
    ready,
    told,
)
from tests.verifier.round.test_machine import RULES

HOLDER = RESERVES[0]


def a_round(run_state: RunState) -> Round:
    return Round(rules=RULES, run_state=run_state, state=STATE, opened_ms=0)


def a_report(run_state: RunState, by: PeerId, seat: PeerId = SEAT) -> SignedFundingReport:
    block = 1 + max(one.block for one in run_state.funding_reports.values())
    report: FundingReport = a_funding_report(seat, block=block, epochs=1001)
    return SignedFundingReport(funding_report=report, signature=sign(a_peer_key(name_of(by)), DOMAIN, report))


def a_list(run_state: RunState, by: PeerId) -> SignedInclusionList:
    one = an_inclusion_list(run_state, SEAT, tuple(run_state.nodes))
    return SignedInclusionList(inclusion_list=one, signature=sign(a_peer_key(name_of(by)), DOMAIN, one))


def a_committed(run_state: RunState, by: PeerId) -> SignedVerdictCommitment:
    audit = max((one for one in run_state.audits.values() if one.is_open), key=lambda one: one.round)
    one = a_verdict_commitment(a_verdict(audit, SEAT), audit.pattern)
    return SignedVerdictCommitment(commitment=one, signature=sign(a_peer_key(name_of(by)), DOMAIN, one))


def an_admission(run_state: RunState, by: PeerId) -> SignedAdmission:
    member = a_member(peers("newcomer", 1)[0])
    one = Admission(run_id=RUN_ID, time_s=run_state.time_s, member=member, verifier=SEAT)
    return SignedAdmission(admission=one, signature=sign(a_peer_key(name_of(by)), DOMAIN, one))


def about_to_hand_over() -> RunState:
    """Its next manifest hands over the seat to HOLDER."""
    run_state = ready(go(a_start(), 2), HOLDER)
    run_state = told(run_state, a_notice(SEAT, SeatNoticeKind.RESIGN, int(run_state.round)))
    while not run_state.hand_over:
        run_state = go(run_state, 1)
    return run_state


def with_a_free_seat(run_state: RunState) -> RunState:
    return replace(run_state, spec=replace(run_state.spec, seats=run_state.spec.seats + 1))


@pytest.mark.parametrize("make", [a_report, a_list, a_committed, an_admission])
def test_the_present_holder_signs_for_its_seat_and_the_former_one_no_more(make: Any):
    run_state = with_a_free_seat(a_successor())
    state = a_round(run_state)
    assert step(state, make(run_state, HOLDER))[0] != state
    for former in (SEAT, RESERVES[1]):
        with pytest.raises(AssayError, match="signature"):
            step(state, make(run_state, former))


def test_a_share_is_of_the_present_holders_key():
    run_state = a_successor()
    state = a_round(run_state)
    for by, counts in ((SEAT, False), (HOLDER, True)):
        share = a_reveal(name_of(by), run_state, verifier=SEAT)
        state, _ = step(state, share)
        assert (valid_shares(state.beacon_shares, run_state) == (share,)) is counts


def reveals(run_state: RunState, by: PeerId) -> tuple[BeaconShare, ...]:
    """The share of every verifier for the manifest before, SEAT's by this key."""
    return tuple(
        a_reveal(name_of(by if seat == SEAT else seat), run_state, verifier=seat) for seat in run_state.beacon
    )


def test_a_proposal_carries_what_the_present_holder_signed():
    run_state = a_successor()
    first = next_manifest(run_state)
    after, state = advance(run_state, first), a_round(run_state)

    def proposal(by: PeerId, reported_by: PeerId) -> Manifest:
        reports = (a_report(after, reported_by),)
        return a_manifest(
            after, nodes=(), inclusion_lists=(), beacon_shares=reveals(after, by), funding_reports=reports
        )

    iteration = proposal(HOLDER, HOLDER).iteration
    examine(state, (first,), proposal(HOLDER, HOLDER), follows=True, iteration=iteration)
    for by, reported_by in ((SEAT, HOLDER), (HOLDER, SEAT)):
        with pytest.raises(PeerFault, match=r"signature|VRF"):
            examine(state, (first,), proposal(by, reported_by), follows=True, iteration=iteration)


def test_what_the_former_holder_signed_is_dropped_with_the_hand_over_and_evidence_is_not():
    run_state, pair = about_to_hand_over(), a_double_vote(OTHER, 3)
    own = replace(a_double_vote(SEAT, 3), verifier=SEAT)
    kept = a_report(run_state, OTHER, OTHER)
    state = a_round(run_state)
    assert a_committed(run_state, SEAT).commitment.verifier == SEAT
    for event in (a_report(run_state, SEAT), kept, pair, own, a_committed(run_state, SEAT)):
        state, _ = step(state, event)
    assert set(state.funding_reports) == {SEAT, OTHER} and state.commitments

    after = advance(run_state, next_manifest(run_state))
    state, _ = step(state, Advanced(after, STATE, 1))
    assert after.rotation.configuration.number == 1
    assert not state.commitments and any(audit.is_open for audit in after.audits.values())
    assert state.funding_reports == {OTHER: kept} and state.double_votes == {OTHER: pair, SEAT: own}
    state, _ = step(state, a_report(after, HOLDER))
    assert set(state.funding_reports) == {SEAT, OTHER}
    again, _ = step(state, Advanced(go(after, 1), STATE, 2))
    assert SEAT in again.funding_reports, "only what was signed before the hand-over is dropped"


def test_a_leaders_manifest_carries_notices_that_it_heard_and_the_hand_over_that_is_due():
    run_state = go(a_start(), 2)
    said = a_notice(HOLDER, SeatNoticeKind.READY, int(run_state.round))
    state, _ = step(a_round(run_state), said)
    made = manifest_of(state, (), a_digest("aggregate"), iteration=Iteration(9))
    assert made.seat_notices == (said,) and made.iteration == 9 and made.hand_over == ()

    run_state = about_to_hand_over()
    made = manifest_of(a_round(run_state), (), a_digest("aggregate"), iteration=Iteration(9))
    assert made.hand_over == run_state.hand_over != ()


def test_a_notice_that_no_manifest_may_carry_is_not_kept():
    run_state = go(a_start(), 2)
    state = a_round(run_state)
    for said in (
        a_notice(VERIFIERS[2], SeatNoticeKind.READY, 2),
        a_notice(HOLDER, SeatNoticeKind.READY, 3),
        replace(
            a_notice(HOLDER, SeatNoticeKind.READY, 2),
            signature=a_notice(SEAT, SeatNoticeKind.RESIGN, 2).signature,
        ),
    ):
        with pytest.raises(AssayError):
            step(state, said)
    state, _ = step(state, a_notice(HOLDER, SeatNoticeKind.READY, 2))
    told_of = told(run_state, a_notice(HOLDER, SeatNoticeKind.READY, 2))
    after, _ = step(state, Advanced(told_of, STATE, 1))
    assert state.seat_notices and not after.seat_notices, "the chain has it"


def test_a_manifest_says_the_iteration_in_which_it_is_proposed():
    run_state = a_start()
    manifest = next_manifest(run_state, iteration=Iteration(7))
    state = a_round(run_state)
    with pytest.raises(MalformedMessage, match="manifest of iteration 7, expected 8"):
        examine(state, (), manifest, follows=True, iteration=Iteration(8))
    with pytest.raises(AssayError) as found:  # for what is unsigned in it
        examine(state, (), manifest, follows=True, iteration=Iteration(7))
    assert "iteration" not in str(found.value)
