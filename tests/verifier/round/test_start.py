"""The start in a verifier's round: when a leader proposes it, or the end, and what others vote for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.errors import MalformedMessage, PeerFault
from assay.protocol.identity import sign
from assay.protocol.messages import Admission, Closing, SignedAdmission
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST
from assay.testing.members import DOMAIN, RUN_ID, a_peer_key, peer
from assay.testing.signed import VERIFIERS, a_funding_report, a_history, a_member
from assay.verifier.round.examination import AHEAD_S, examine
from assay.verifier.round.leader import (
    awaits_funding,
    awaits_nodes,
    due_list,
    manifest_of,
    may_propose,
    missing,
    ready_count,
)
from assay.verifier.round.machine import step
from tests.verifier.round.test_machine import a_round as a_funded_round

BY, LATE = 1_000, 1 << 40
NEW = [a_member(f"newcomer {i}") for i in range(3)]


def the_start():
    return a_history(nodes=(), seats=3, least_nodes=2, start_by_s=BY)


def vote(name, member, time_s=BY, key=None):
    one = Admission(run_id=RUN_ID, time_s=time_s, member=member, verifier=peer(name))
    return SignedAdmission(admission=one, signature=sign(a_peer_key(key or name), DOMAIN, one))


def a_round(*members, verifiers=VERIFIERS[:3], time_s=BY, reports=None):
    """A funded round that holds a quorum's votes for these."""
    state = a_funded_round(the_start())
    if reports is not None:
        state = replace(state, funding_reports={})
    for event in (*(vote(name, one, time_s) for one in members for name in verifiers), *(reports or ())):
        state, _ = step(state, event)
    return state


def proposes(state, wall_s):
    return may_propose(state, (), LATE, follows=True, wall_s=wall_s)


def test_a_leader_waits_for_the_last_node_that_is_needed_and_for_no_other():
    one = a_round(NEW[0])
    assert awaits_nodes(one, (), BY) and missing(one, wall_s=BY) == ("nodes",)
    assert not proposes(one, BY) and ready_count(one, BY) == 1

    two = a_round(*NEW[:2])
    assert not awaits_nodes(two, (), BY) and missing(two, wall_s=BY) == ()
    assert may_propose(two, (), 0, follows=True, wall_s=BY)
    manifest = manifest_of(two, (), NO_DIGEST, wall_s=BY)
    examine(a_round(), (), manifest, follows=True, wall_s=BY)
    assert len(advance(the_start(), manifest).active) == 2


def test_votes_that_are_too_few_or_too_old_do_not_count():
    assert awaits_nodes(a_round(*NEW[:2], verifiers=VERIFIERS[:2]), (), BY)
    old = a_round(*NEW[:2], time_s=BY - 61)
    assert awaits_nodes(old, (), BY) and not awaits_nodes(old, (), BY - 1)


def test_after_the_last_second_a_leader_ends_the_run_with_or_without_nodes_and_money():
    unfunded = a_round(reports=())
    assert awaits_funding(unfunded, (), BY) and not proposes(unfunded, BY)
    for state in (a_round(), a_round(*NEW), unfunded):
        assert not awaits_nodes(state, (), BY + 1) and not awaits_funding(state, (), BY + 1)
        assert missing(state, wall_s=BY + 1) == () and proposes(state, BY + 1)
        manifest = manifest_of(state, (), NO_DIGEST, wall_s=BY + 1)
        assert manifest.admissions == ()
        examine(a_round(), (), manifest, follows=True, wall_s=BY + 1)
        assert advance(the_start(), manifest).has_lapsed


def test_nobody_votes_for_a_start_or_an_end_of_another_time_than_its_own_clocks():
    begins = manifest_of(a_round(*NEW[:2]), (), NO_DIGEST, wall_s=BY)
    ends = manifest_of(a_round(), (), NO_DIGEST, wall_s=BY + 1)
    for manifest in (begins, ends):
        for sign_of in (-1, 1):
            last, beyond = (manifest.time_s + sign_of * (AHEAD_S + more) for more in (0, 1))
            examine(a_round(), (), manifest, follows=True, wall_s=last)
            with pytest.raises(MalformedMessage, match="of another time"):
                examine(a_round(), (), manifest, follows=True, wall_s=beyond)


def test_a_lying_leader_starts_no_run_with_votes_of_its_own_making():
    state = a_round(NEW[0])
    good = manifest_of(a_round(*NEW[:2]), (), NO_DIGEST, wall_s=BY)
    own = [vote(name, NEW[2], key="mallory") for name in VERIFIERS[:3]]
    for wrong, refusal in (
        (manifest_of(state, (), NO_DIGEST, wall_s=BY), "fewer than 2 nodes"),
        (replace(good, admissions=good.admissions[:5]), "other admissions"),
        (replace(good, admissions=good.admissions[:3] + good.admissions[:3]), "other admissions"),
    ):
        with pytest.raises(MalformedMessage, match=refusal):
            examine(state, (), wrong, follows=True, wall_s=BY)
    forged = sorted(
        (*good.admissions[:3], *own), key=lambda s: (s.admission.member.peer, s.admission.verifier)
    )
    with pytest.raises(PeerFault, match="signature"):
        examine(state, (), replace(good, admissions=tuple(forged)), follows=True, wall_s=BY)


def test_a_buyer_that_cancels_is_not_kept_waiting_for_nodes():
    reports = [a_funding_report(name, epochs=0, closing=Closing.BY_BUYER) for name in VERIFIERS[:2]]
    state = a_round(reports=reports)
    assert not awaits_nodes(state, (), BY) and proposes(state, BY)
    manifest = manifest_of(state, (), NO_DIGEST, wall_s=BY)
    examine(a_round(), (), manifest, follows=True, wall_s=BY)
    assert not advance(the_start(), manifest).is_training


def test_no_lists_of_commits_are_needed_where_nobody_may_train():
    state = a_round(*NEW[:2])
    assert due_list(state, peer(VERIFIERS[0]), LATE) is None
    assert manifest_of(state, (), NO_DIGEST, wall_s=BY).inclusion_lists == ()
