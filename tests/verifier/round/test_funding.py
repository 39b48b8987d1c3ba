"""Money in a verifier's round: what a leader waits for and proposes, and what another verifier accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.errors import MalformedMessage, OutOfPhase, PeerFault
from assay.protocol.messages import Closing
from assay.protocol.state_transition import advance
from assay.testing.members import a_digest as a_name
from assay.testing.members import peer
from assay.testing.signed import (
    NODES,
    STATE,
    VERIFIERS,
    a_funding_report,
    a_reveal,
    a_signed_commit,
    an_inclusion_list,
)
from assay.testing.signed import a_history as the_start
from assay.testing.signed import a_manifest as the_next
from assay.verifier.round.examination import examine
from assay.verifier.round.leader import awaits_funding, manifest_of, may_propose, missing, waited
from assay.verifier.round.machine import Advanced, step
from tests.verifier.round.test_machine import a_round as a_funded_round

LATE = 1 << 40


def a_round(run_state=None, *events):
    """A round that holds these messages, and no report of a verifier but those among them."""
    state = replace(a_funded_round(run_state), funding_reports={})
    for event in events:
        state, _ = step(state, event)
    return state


def commits(run_state):
    """Every node's commit, and every verifier's list of them."""
    lists = [an_inclusion_list(name, run_state, NODES) for name in VERIFIERS]
    return [a_signed_commit(name, run_state) for name in NODES] + lists


def reports(count=3, **fields):
    return [a_funding_report(name, **fields) for name in VERIFIERS[:count]]


def test_without_money_nothing_is_proposed_however_late_it_is():
    run_state = the_start()
    state = a_round(run_state, *commits(run_state), *reports(2))

    assert awaits_funding(state) and missing(state) == ("funding",)
    assert not may_propose(state, (), LATE, follows=False)


def test_the_report_that_completes_a_quorum_lets_the_round_be_proposed_with_its_commits():
    run_state = the_start()
    state = a_round(run_state, *commits(run_state), *reports(3))

    manifest = manifest_of(state, (), a_name("aggregate"))

    assert missing(state) == () and may_propose(state, (), 0, follows=True)
    assert len(manifest.commits) == len(NODES) and len(manifest.funding_reports) == 3
    examine(a_round(run_state), (), manifest)


def test_a_leader_without_money_carries_no_commit_but_what_ends_the_run():
    run_state = the_start()
    state = a_round(run_state, *commits(run_state), *reports(2, epochs=0, closing=Closing.BY_BUYER))

    assert missing(state) == () and may_propose(state, (), LATE, follows=True)
    manifest = manifest_of(state, (), a_name("none")[:0] or bytes(32))
    examine(a_round(run_state), (), manifest)
    assert not manifest.commits and not advance(run_state, manifest).is_training


def test_a_round_under_way_still_counts_when_the_run_closes():
    run_state = advance(the_start(), the_next(the_start(), NODES))
    shares = [a_reveal(name, run_state) for name in VERIFIERS]
    closing = reports(2, block=2, closing=Closing.BY_DEADLINE)
    state = a_round(run_state, *shares, *commits(run_state), *closing)

    manifest = manifest_of(state, (), a_name("aggregate"))
    examine(a_round(run_state), (), manifest, follows=True)

    assert len(manifest.commits) == len(NODES)
    assert advance(run_state, manifest).calendar.rounds == 2


def test_a_closing_run_ends_without_any_commit_too():
    run_state = advance(the_start(), the_next(the_start(), NODES))
    shares = [a_reveal(name, run_state) for name in VERIFIERS]
    state = a_round(run_state, *shares)
    assert not may_propose(state, (), LATE, follows=True)
    for report in reports(2, block=2, closing=Closing.BY_BUYER):
        state, _ = step(state, report)
    assert not may_propose(state, (), LATE, follows=True)
    for name in VERIFIERS[:3]:
        state, _ = step(state, an_inclusion_list(name, run_state, ()))
    assert may_propose(state, (), LATE, follows=True)


def test_a_proposal_with_commits_that_nobody_pays_for_is_refused():
    run_state = the_start()
    unpaid = replace(the_next(run_state, NODES), funding_reports=())
    with pytest.raises(MalformedMessage, match="not funded"):
        examine(a_round(run_state, *reports(3)), (), unpaid)


def test_a_proposal_with_a_report_that_its_verifier_did_not_sign_is_refused():
    run_state = the_start()
    manifest = the_next(run_state, NODES)
    first, *rest = manifest.funding_reports
    more = replace(first.funding_report, epochs=first.funding_report.epochs + 1)
    forged = replace(manifest, funding_reports=(replace(first, funding_report=more), *rest))
    with pytest.raises(PeerFault, match="signature"):
        examine(a_round(run_state), (), forged)


def test_a_report_counts_if_its_verifier_signed_it_and_says_something_new():
    good = a_funding_report("vera")
    with pytest.raises(PeerFault, match="signature"):
        step(a_round(), replace(good, funding_report=replace(good.funding_report, epochs=7)))
    with pytest.raises(OutOfPhase):
        step(a_round(), a_funding_report("vera", epochs=0))
    with pytest.raises(OutOfPhase):
        step(a_round(), a_funding_report("nora"))


def test_of_two_reports_the_one_of_the_later_block_is_kept_in_whatever_order_they_come():
    old, new = a_funding_report("vera", block=4), a_funding_report("vera", block=5, epochs=2)
    other = a_funding_report("vera", block=5, epochs=3)  # of one block, the first that came stays
    for events in ((old, new), (new, old), (new, other)):
        assert a_round(None, *events).funding_reports == {peer("vera"): new}


def test_a_report_that_the_chain_has_is_dropped_and_one_that_waits_is_kept():
    run_state = the_start()
    state = a_round(run_state, *reports(3), a_funding_report("vito", block=9, epochs=2))
    manifest = the_next(
        run_state,
        NODES,
        funding_reports=tuple(sorted(reports(2), key=lambda one: one.funding_report.verifier)),
    )

    state, _ = step(state, Advanced(advance(run_state, manifest), STATE, 1))

    told = {one.funding_report.verifier for one in manifest.funding_reports}
    assert set(state.funding_reports) == {
        one
        for one in map(peer, VERIFIERS)
        if one in a_round(run_state, *reports(3)).funding_reports and one not in told
    } | {peer("vito")}


def test_a_round_that_waited_for_money_gives_its_nodes_their_whole_time():
    run_state = the_start()
    collect_ms = run_state.spec.timing.collect_ms
    state = waited(a_round(run_state), 10_000)
    lists = [an_inclusion_list(name, run_state, NODES[:1]) for name in VERIFIERS]
    for event in (*reports(3), a_signed_commit(NODES[0], run_state), *lists):
        state, _ = step(state, event)

    assert not may_propose(state, (), 10_000 + collect_ms - 1, follows=True)
    assert may_propose(state, (), 10_000 + collect_ms, follows=True)
