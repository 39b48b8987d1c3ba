"""Stake reports: which a verifier pools, and which and how many of them a leader's manifest carries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.errors import OutOfPhase, PeerFault
from assay.protocol.identity import sign
from assay.protocol.messages import STAKE_REPORTS_MAX, SignedStakeReport, StakeReport
from assay.protocol.permitted import STAKE_REPORT_ROUNDS
from assay.protocol.run_state import RunState
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, RoundId
from assay.testing.members import DOMAIN, RUN_ID, a_peer_key, peer
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


def test_a_report_is_pooled_as_long_as_a_manifest_may_carry_it():
    run_state = advance(the_start(rounds=30), the_next(the_start(rounds=30), NODES))
    state, _ = step(a_round(run_state), a_report(run_state))

    for rounds_later, is_kept in ((STAKE_REPORT_ROUNDS - 1, True), (STAKE_REPORT_ROUNDS, False)):
        later = replace(run_state, round=RoundId(int(run_state.round) + rounds_later))
        advanced, _ = step(state, Advanced(later, STATE, 0))
        assert bool(advanced.stake_reports) == is_kept
