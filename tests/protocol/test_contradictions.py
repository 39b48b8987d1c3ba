"""Two commits of one node for one round, in the chain: it is out, and unpaid from that round on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.participant.links import check_place
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Contradiction, SignedCommit
from assay.protocol.permitted import may_contradict
from assay.protocol.state_transition import advance
from assay.protocol.types import Digest, HotSignature, RoundId, Signature
from assay.testing.members import NODES, peer
from assay.testing.messages import a_commit
from assay.testing.run import a_manifest, a_start, grow
from assay.verifier.round.commits import contradiction

NODE, OTHER = NODES[:2]


def signed(commit):
    return SignedCommit(commit=commit, signature=Signature(bytes(64)), statement=HotSignature(bytes(65)))


def a_pair(round_id, node=NODE, **changes):
    twin = a_commit(round_id, node, **({"update": Digest(b"u" * 32)} | changes))
    return contradiction(signed(a_commit(round_id, node)), signed(twin))


def shown(run_state, *pairs):
    return advance(run_state, replace(a_manifest(run_state), contradictions=pairs))


def test_whoever_contradicts_itself_trains_no_more_and_its_open_audits_are_moot():
    run_state = shown(grow(a_start(), 3), a_pair(2))

    record = run_state.nodes[NODE]
    assert (record.banned, record.fault_round, record.has_contradicted, record.clean) == (True, 2, True, 0)
    assert NODE not in run_state.active and OTHER in run_state.active
    rulings = {audit.ruling for audit in run_state.audits.values() if audit.node == NODE}
    assert rulings == {AuditStatus.SUPERSEDED}
    assert not run_state.nodes[OTHER].banned


def test_a_pair_counts_while_pay_for_its_round_can_be_kept_back_and_once():
    run_state = grow(a_start(rounds=40), 20)
    span = run_state.spec.closing_rounds

    ages = [age for age in range(-2, span + 3) if may_contradict(run_state, a_pair(20 - age))]

    assert ages == list(range(span + 1))
    assert not may_contradict(shown(run_state, a_pair(19)), a_pair(18))  # it is barred already


@pytest.mark.parametrize(
    "change",
    [
        {"round": RoundId(1)},
        {"node": OTHER},
        {"run_id": Digest(b"r" * 32)},
    ],
    ids=str,
)
def test_commits_of_two_rounds_nodes_or_runs_do_not_contradict_each_other(change):
    run_state = grow(a_start(), 3)
    good = a_pair(2)
    assert may_contradict(run_state, good)

    bad = replace(good, second=signed(replace(good.second.commit, **change)))

    assert not may_contradict(run_state, bad)
    assert not may_contradict(run_state, Contradiction(first=bad.second, second=bad.first))


def test_one_commit_twice_a_pair_the_wrong_way_round_and_a_strangers_are_none():
    run_state = grow(a_start(), 3)
    good = a_pair(2)

    assert not may_contradict(run_state, Contradiction(first=good.first, second=good.first))
    assert not may_contradict(run_state, Contradiction(first=good.second, second=good.first))
    assert not may_contradict(run_state, a_pair(2, peer("a stranger")))
    assert not may_contradict(
        run_state,
        contradiction(
            *(signed(replace(one.commit, run_id=Digest(b"r" * 32))) for one in (good.first, good.second))
        ),
    )


def test_a_manifest_with_a_pair_that_is_none_or_in_another_order_is_refused():
    run_state = grow(a_start(), 3)
    one, other = a_pair(2, NODE), a_pair(2, OTHER)
    check_place(run_state, replace(a_manifest(run_state), contradictions=(one, other)))

    for pairs, match in (
        ((other, one), "contradictions must ascend"),
        ((one, one), "contradictions must ascend"),
        ((Contradiction(first=one.second, second=one.first),), "that its two commits do not prove"),
    ):
        with pytest.raises(MalformedMessage, match=match):
            check_place(run_state, replace(a_manifest(run_state), contradictions=pairs))
