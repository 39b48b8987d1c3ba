"""Stake reports: which a verifier pools, and which and how many of them a leader's manifest carries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.errors import OutOfPhase, PeerFault
from assay.protocol.identity import sign
from assay.protocol.messages import (
    STAKE_REPORTS_MAX,
    HandOver,
    SeatNotice,
    SeatNoticeKind,
    SignedSeatNotice,
    SignedStakeReport,
    StakeReport,
)
from assay.protocol.permitted import STAKE_REPORT_ROUNDS, may_report_stake
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, RoundId
from assay.testing.members import DOMAIN, RUN_ID, a_member, a_peer_key, peer
from assay.testing.signed import NODES, STATE, VERIFIERS
from assay.testing.signed import a_history as the_start
from assay.testing.signed import a_manifest as the_next
from assay.verifier.round.examination import examine
from assay.verifier.round.leader import manifest_of
from assay.verifier.round.machine import Advanced, step
from tests.verifier.round.test_machine import a_round


def a_report(
    run_state: RunState, name: str = "vera", node: str = "nora", key: str | None = None
) -> SignedStakeReport:
    report = StakeReport(
        run_id=RUN_ID, round=RoundId(int(run_state.round) - 1), node=peer(node), verifier=peer(name),
        is_whole=False,
    )  # fmt: skip
    return SignedStakeReport(stake_report=report, signature=sign(a_peer_key(key or name), DOMAIN, report))


MORE = [f"node {number}" for number in range(STAKE_REPORTS_MAX)]


def with_nodes(run_state: RunState) -> RunState:
    """The run with more nodes."""
    record = run_state.nodes[peer("nora")]
    return replace(run_state, nodes={**run_state.nodes, **{peer(name): record for name in MORE}})


def test_a_leader_carries_reports_and_every_verifier_checks_whose_they_are():
    run_state = advance(the_start(), the_next(the_start(), NODES))
    state, _ = step(a_round(run_state), a_report(run_state))

    carried = manifest_of(state, (), NO_DIGEST).stake_reports

    assert carried == (a_report(run_state),)
    examine(a_round(run_state), (), the_next(run_state, NODES, stake_reports=carried))
    forged = a_report(run_state, key="vito")
    with pytest.raises(PeerFault):
        step(a_round(run_state), forged)
    with pytest.raises(PeerFault):
        examine(a_round(run_state), (), the_next(run_state, NODES, stake_reports=(forged,)))
    with pytest.raises(OutOfPhase):
        step(
            a_round(advance(run_state, the_next(run_state, NODES, stake_reports=carried))),
            a_report(run_state),
        )


def test_a_manifest_takes_so_many_and_the_oldest_first():
    run_state = advance(the_start(), the_next(the_start(), NODES))
    later = advance(run_state, the_next(run_state, NODES))
    reports = [a_report(later, verifier, node) for verifier in VERIFIERS for node in NODES]
    old = a_report(run_state, VERIFIERS[-1], NODES[-1])
    state = a_round(later)
    for report in [*reports, old]:
        state, _ = step(state, report)
    assert len(reports) > STAKE_REPORTS_MAX

    carried = manifest_of(state, (), NO_DIGEST).stake_reports

    assert len(carried) == STAKE_REPORTS_MAX and old in carried
    examine(a_round(later), (), the_next(later, NODES, stake_reports=carried))


def test_reports_that_a_liar_dates_back_leave_the_others_their_turns():
    run_state = advance(the_start(), the_next(the_start(), NODES))
    later = advance(run_state, the_next(run_state, NODES))
    liar, *others = VERIFIERS
    dated_back = [a_report(run_state, liar, node) for node in (*NODES, *MORE)]
    honest = [a_report(later, other, NODES[0]) for other in others]
    pool = {(one.stake_report.node, one.stake_report.verifier): one for one in dated_back + honest}
    state = replace(a_round(with_nodes(later)), stake_reports=pool)

    carried = manifest_of(state, (), NO_DIGEST).stake_reports

    assert len(dated_back) >= STAKE_REPORTS_MAX == len(carried)
    assert {*honest} <= {*carried}
    assert [(one.stake_report.node, one.stake_report.verifier) for one in carried] == sorted(
        (one.stake_report.node, one.stake_report.verifier) for one in carried
    )


def test_a_report_said_again_keeps_the_place_of_the_first():
    run_state = advance(the_start(), the_next(the_start(), NODES))
    later = advance(run_state, the_next(run_state, NODES))
    first, again = a_report(run_state), a_report(later)

    for said in ((first, again), (again, first)):
        state = a_round(later)
        for report in said:
            state, _ = step(state, report)
        assert list(state.stake_reports.values()) == [first]


@pytest.mark.parametrize("reserves", [(), ("rosa",)])
def test_a_seat_is_reported_where_it_may_change_hands(reserves: tuple[str, ...]):
    start = the_start(reserves=tuple(a_member(peer(name)) for name in reserves))
    run_state = advance(start, the_next(start, NODES))
    about = [a_report(run_state, node=name).stake_report for name in (*VERIFIERS, "rosa", "nobody")]

    taken = [may_report_stake(run_state, one) for one in about]

    assert taken == [bool(reserves)] * (len(VERIFIERS) + 1) + [False]


def test_a_seat_retires_once_more_than_f_say_that_its_account_left_it():
    start = the_start(reserves=(a_member(peer("rosa")),))
    ready = SeatNotice(run_id=RUN_ID, holder=peer("rosa"), round=RoundId(0), kind=SeatNoticeKind.READY)
    run_state = advance(
        start,
        replace(
            the_next(start, NODES),
            seat_notices=(SignedSeatNotice(notice=ready, signature=sign(a_peer_key("rosa"), DOMAIN, ready)),),
        ),
    )
    left, *others = VERIFIERS
    said = [a_report(run_state, other, left) for other in others[:2]]
    spare = [a_report(run_state, other, "rosa") for other in others[:2]]
    handed = (HandOver(seat=peer(left), holder=peer("rosa")),)

    for reports, expected in ((said[:1], ()), (said, handed), (said + spare[:1], handed), (said + spare, ())):
        carried = tuple(sorted(reports, key=lambda one: (one.stake_report.node, one.stake_report.verifier)))
        after = advance(run_state, replace(the_next(run_state, NODES), stake_reports=carried))
        assert (after.disqualified, after.hand_over) == (tuple(one.seat for one in expected), expected)


def test_a_report_is_pooled_as_long_as_a_manifest_may_carry_it():
    run_state = advance(the_start(rounds=30), the_next(the_start(rounds=30), NODES))
    state, _ = step(a_round(run_state), a_report(run_state))

    for rounds_later, is_kept in ((STAKE_REPORT_ROUNDS - 1, True), (STAKE_REPORT_ROUNDS, False)):
        later = replace(run_state, round=RoundId(int(run_state.round) + rounds_later))
        advanced, _ = step(state, Advanced(later, STATE, 0))
        assert bool(advanced.stake_reports) == is_kept
