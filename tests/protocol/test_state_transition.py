"""The fold over the chain: who may train, what is audited, and who can be convicted by whom."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from assay.participant.links import check_words
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Outcome
from assay.protocol.state_transition import advance, next_chain, start
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from tests.protocol.chains import (
    NODES,
    RUN_ID,
    VERIFIERS,
    a_commit,
    a_history,
    a_manifest,
    a_spec,
    grow,
    words,
)

NODE = NODES[0]
STEP = (0, NODE)


def audited(**changes):
    """A history in which the steps of round 0 are drawn; the verifiers of NODE's audit in their order."""
    history = grow(a_history(**changes), 2)
    return history, history.audits[STEP].order


# ---- training ----


def test_every_commit_of_a_final_round_counts_and_its_momentum_is_known():
    history = grow(a_history(), 3)

    record = history.nodes[NODE]
    assert record.accepted == 3
    assert record.momentum == a_commit(2, NODE).momentum_after
    assert history.steps == {(r, n): 16 for r in range(3) for n in NODES}


def test_a_run_trains_then_closes_audits_and_disputes_then_is_complete():
    spec = a_spec(rounds=4)
    history = grow(start(spec, RUN_ID), 4)
    assert not history.is_training and history.active == () and not history.is_complete

    history = grow(history, spec.last_round + 1 - 4)

    assert spec.last_round == 3 + 6 + 3
    assert history.is_complete
    assert not any(audit.is_open for audit in history.audits.values())


def test_the_chain_digest_binds_nodes_updates_order_and_aggregate():
    first, second = a_commit(0, NODES[0]), a_commit(0, NODES[1])
    base = next_chain(Digest(bytes(32)), (first, second), Digest(bytes(32)))

    others = [
        next_chain(Digest(b"\1" * 32), (first, second), Digest(bytes(32))),
        next_chain(Digest(bytes(32)), (second, first), Digest(bytes(32))),
        next_chain(Digest(bytes(32)), (first,), Digest(bytes(32))),
        next_chain(Digest(bytes(32)), (first, second), Digest(b"\1" * 32)),
        next_chain(Digest(bytes(32)), (replace(first, update=second.update), second), Digest(bytes(32))),
    ]

    assert len({base, *others}) == 6


def test_a_manifest_out_of_turn_stops_the_fold():
    history = a_history()
    manifest = a_manifest(history)

    for wrong in (replace(manifest, round=1), replace(manifest, parent=Digest(bytes(32)))):
        with pytest.raises(AssertionError):
            advance(history, wrong)
    assert advance(history, manifest).round == 1
    assert history.round == 0  # the old one is not modified


# ---- draws ----


def test_all_parties_draw_alike_and_another_manifest_draws_otherwise():
    first, again = grow(a_history(), 2), grow(a_history(), 2)
    other = grow(advance(a_history(), a_manifest(a_history(), nodes=NODES[1:])), 1)

    assert first.audits == again.audits
    assert first.audits[(0, NODES[1])].seed != other.audits[(0, NODES[1])].seed


def test_a_newcomer_is_always_drawn_and_a_proven_node_less_often():
    history = a_history(rounds=60, probation=2, floor_ppm=100_000)
    drawn = []
    for _ in range(60):
        new = grow(history, 1, {step: {a.order[0]: Outcome.MATCH} for step, a in history.audits.items()})
        drawn.append(len(set(new.audits) - set(history.audits)))
        history = new

    assert drawn[1:6] == [3] * 5  # until two audits of each are clean
    assert 0 < sum(drawn[20:]) < 3 * 40 // 2


def test_the_draw_of_a_round_falls_only_with_the_manifest_after_it():
    history = grow(a_history(), 1)
    assert history.audits == {}

    assert set(grow(history, 1).audits) == {(0, node) for node in NODES}


# ---- what is forgotten ----


def test_audits_steps_and_reveals_are_kept_until_their_epoch_is_settled_and_then_forgotten():
    spec = a_spec(rounds=8)
    history = start(spec, RUN_ID)
    kept = {}
    while not history.is_complete:
        history = grow(history, 1)
        kept[int(history.round) - 1] = {step[0] // 4 for step in history.steps}

    assert spec.settled_at(0) == 3 + 6 + 3
    assert 0 in kept[spec.settled_at(0)]
    assert 0 in kept[spec.settled_at(0) + 1]  # one manifest of grace
    assert 0 not in kept[spec.settled_at(0) + 2]
    assert 1 in kept[spec.settled_at(1)]


def test_every_audit_of_an_epoch_is_ruled_when_the_epoch_settles():
    spec = a_spec(rounds=8)
    history = start(spec, RUN_ID)
    for _ in range(spec.settled_at(0) + 1):
        votes = {step: {a.order[3]: Outcome.MISMATCH} for step, a in history.audits.items()}
        history = grow(history, 1, votes)

    first = [audit for step, audit in history.audits.items() if step[0] < 4]
    assert first
    assert not any(audit.is_open for audit in first)


# ---- drift between execution classes ----


def leaning_history(leaning):
    """Rounds in which every auditor of another class says MATCH, and these say that NODE leans."""
    history = a_history(rounds=40, limits=Digest(b"l" * 32), probation=1)
    cleans = []
    for _ in range(20):
        votes = {
            step: {
                verifier: (
                    Outcome.MATCH,
                    {"exec_class": Digest(b"c" * 32), "leans": audit.node == NODE and verifier in leaning},
                )
                for verifier in VERIFIERS
            }
            for step, audit in history.audits.items()
        }
        history = grow(history, 1, votes)
        cleans.append((history.nodes[NODE].clean, history.nodes[NODES[1]].clean))
    return history, cleans


def test_a_node_that_more_than_f_verifiers_see_leaning_is_on_probation_again():
    none, before = leaning_history(())
    assert max(clean for clean, _ in before) > 5 and none.nodes[NODE].leans == frozenset()

    history, cleans = leaning_history(VERIFIERS)

    assert any(later < earlier for (earlier, _), (later, _) in pairwise(cleans))
    assert all(later >= earlier for (_, earlier), (_, later) in pairwise(cleans))
    assert not history.nodes[NODE].barred


def test_one_liar_of_four_puts_nobody_on_probation():
    heard: set[PeerId] = set()
    for liar in VERIFIERS:  # whom the draw sends to NODE depends on the run
        history, cleans = leaning_history((liar,))
        assert history.nodes[NODE].leans <= {liar}
        assert all(later >= earlier for (earlier, _), (later, _) in pairwise(cleans))
        heard |= history.nodes[NODE].leans

    assert heard


@pytest.mark.parametrize(
    ("outcome", "exec_class", "is_taken"),
    [
        (Outcome.MATCH, Digest(b"c" * 32), True),
        (Outcome.MATCH, NO_DIGEST, False),  # of the node's own class: there every bit is equal
        (Outcome.MISMATCH, Digest(b"c" * 32), False),
        (Outcome.BORDERLINE, Digest(b"c" * 32), False),
    ],
)
def test_only_a_match_between_classes_can_say_that_a_node_leans(outcome, exec_class, is_taken):
    history = grow(a_history(limits=Digest(b"l" * 32)), 2)
    audit = history.audits[STEP]
    votes = {STEP: {audit.order[0]: (outcome, {"exec_class": exec_class, "leans": True})}}
    while history.audits[STEP].reveal_from != history.round:
        history = grow(history, 1, votes)
    manifest = a_manifest(history, **words(history, votes))
    assert len(manifest.verdicts) == 1

    if is_taken:
        check_words(history, manifest)
    else:
        with pytest.raises(MalformedMessage, match="leans"):
            check_words(history, manifest)
