"""The fold over the chain: who may train, what is audited, and who can be convicted by whom."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.history import Ruling, advance, may_judge, next_chain, start, verdicts_due
from protocol.messages import Outcome
from protocol.types import Digest, PeerId
from tests.protocol.chains import (
    NODES,
    RUN_ID,
    VERIFIERS,
    a_commit,
    a_history,
    a_manifest,
    a_spec,
    a_verdict,
    grow,
)

MATCH, MISMATCH, WITHHELD, UNSURE = Outcome.MATCH, Outcome.MISMATCH, Outcome.WITHHELD, Outcome.INCONCLUSIVE
NODE = NODES[0]
STEP = (0, NODE)


def audited(**changes):
    """A history in which the steps of round 0 are drawn; the verifiers of NODE's audit in their order."""
    history = grow(a_history(**changes), 2)
    return history, history.audits[STEP].order


def judged(outcomes, *, rounds: int = 1, **changes):
    """NODE's first audit after its verifiers said this, most responsible first; None says nothing."""
    history, order = audited(**changes)
    votes = {v: outcome for v, outcome in zip(order, outcomes, strict=False) if outcome is not None}
    history = grow(history, rounds, {STEP: votes})
    return history, history.audits[STEP]


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

    assert spec.last_round == 3 + 4 + 3
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
        new = grow(history, 1, {step: {a.order[0]: MATCH} for step, a in history.audits.items()})
        drawn.append(len(set(new.audits) - set(history.audits)))
        history = new

    assert drawn[1:5] == [3, 3, 3, 3]  # until two audits of each are clean
    assert 0 < sum(drawn[20:]) < 3 * 40 // 2


def test_the_draw_of_a_round_falls_only_with_the_manifest_after_it():
    history = grow(a_history(), 1)
    assert history.audits == {}

    assert set(grow(history, 1).audits) == {(0, node) for node in NODES}


# ---- one audit ----


def test_one_match_clears():
    history, audit = judged([MATCH])

    assert audit.ruling is Ruling.CLEARED
    assert audit.closed_round == 2
    assert history.nodes[NODE].clean == 1


def test_a_verdict_counts_up_to_its_last_round_and_no_further():
    history, order = audited()
    late = grow(history, 2)  # before the manifest of round 4
    assert may_judge(late, late.audits[STEP], order[0], 4)
    assert not may_judge(late, late.audits[STEP], order[0], 5)

    assert grow(late, 1, {STEP: {order[0]: MATCH}}).audits[STEP].ruling is Ruling.CLEARED
    assert grow(late, 1).audits[STEP].ruling is Ruling.LAPSED


def test_an_audit_without_verdict_lapses_and_harms_nobody():
    history, audit = judged([], rounds=4)

    assert audit.ruling is Ruling.LAPSED
    assert history.nodes[NODE].clean == 0
    assert not history.nodes[NODE].barred


def test_an_inconclusive_verdict_neither_clears_nor_alarms():
    _, audit = judged([UNSURE])
    assert audit.ruling is Ruling.OPEN

    _, audit = judged([UNSURE], rounds=4)
    assert audit.ruling is Ruling.LAPSED


def test_verifiers_take_over_in_turn():
    history, order = audited(turn_rounds=1)
    audit = history.audits[STEP]

    for at_round, count in ((2, 1), (3, 2), (4, 3)):
        allowed = [v for v in order if may_judge(history, audit, v, at_round)]
        assert allowed == list(order[:count])
    assert not may_judge(history, audit, PeerId(bytes(32)), 4)


@pytest.mark.parametrize("adverse", [(MISMATCH, MISMATCH, MISMATCH), (WITHHELD, MISMATCH, WITHHELD)])
def test_three_of_four_against_a_node_uphold_the_fault_and_bar_it(adverse):
    history, audit = judged(adverse, rounds=2)

    assert audit.ruling is Ruling.UPHELD
    assert history.nodes[NODE].barred
    assert history.nodes[NODE].clean == 0
    assert NODE not in history.active
    assert set(history.active) == set(NODES[1:])


def test_two_of_four_against_a_node_do_not():
    history, audit = judged([MISMATCH, MISMATCH], rounds=5)

    assert audit.ruling is Ruling.LAPSED
    assert audit.alarm_round == 2
    assert not history.nodes[NODE].barred


def test_two_matches_dismiss_an_alarm_and_the_node_gains_by_it():
    history, audit = judged([MISMATCH, MATCH, MATCH], rounds=2)

    assert audit.ruling is Ruling.DISMISSED
    assert history.nodes[NODE].clean == 1
    assert NODE in history.active


def test_a_dispute_ends_on_its_last_round():
    history, order = audited()
    alarmed = grow(history, 1, {STEP: {order[0]: MISMATCH}})
    assert alarmed.audits[STEP].ruling is Ruling.ALARM

    last = grow(alarmed, 2)
    others = {STEP: dict.fromkeys(order[1:], MISMATCH)}
    assert grow(last, 1, others).audits[STEP].ruling is Ruling.UPHELD
    assert grow(last, 1).audits[STEP].ruling is Ruling.LAPSED
    assert not any(may_judge(last, last.audits[STEP], v, 6) for v in order)


def test_nobody_judges_twice():
    history, order = audited()
    alarmed = grow(history, 1, {STEP: {order[0]: MISMATCH}})

    assert not may_judge(alarmed, alarmed.audits[STEP], order[0], 3)
    assert may_judge(alarmed, alarmed.audits[STEP], order[1], 3)


def test_a_closed_audit_takes_no_more_verdicts():
    history, audit = judged([MATCH])

    assert not any(may_judge(history, audit, v, 3) for v in VERIFIERS)


def test_a_convicted_nodes_other_audits_are_moot_whatever_was_said_in_them():
    history, order = audited()
    history = grow(history, 1, {STEP: {order[0]: MISMATCH}})
    everyone = dict.fromkeys(VERIFIERS, MISMATCH)

    history = grow(history, 2, {STEP: everyone, (1, NODE): everyone, (2, NODE): everyone})

    rulings = {step: audit.ruling for step, audit in history.audits.items() if step[1] == NODE}
    assert rulings[STEP] is Ruling.UPHELD
    assert set(rulings.values()) == {Ruling.UPHELD, Ruling.MOOT}
    assert list(rulings.values()).count(Ruling.UPHELD) == 1  # one slash
    assert history.nodes[NODE].fault_round == 0


def test_two_faults_proven_in_one_manifest_are_one_offence_and_the_earlier_counts():
    history, order = audited()
    second = grow(history, 1)
    alarm = {STEP: {order[0]: MISMATCH}, (1, NODE): {second.audits[(1, NODE)].order[0]: MISMATCH}}
    history = grow(second, 1, alarm)
    everyone = dict.fromkeys(VERIFIERS, MISMATCH)

    history = grow(history, 1, {STEP: everyone, (1, NODE): everyone})

    assert history.audits[STEP].ruling is Ruling.UPHELD
    assert history.audits[(1, NODE)].ruling is Ruling.MOOT
    assert history.nodes[NODE].fault_round == 0


def test_a_conviction_leaves_other_nodes_as_they_were():
    history, _ = judged([MISMATCH] * 4, rounds=2)

    assert history.audits[(0, NODES[1])].ruling is Ruling.OPEN
    assert not history.nodes[NODES[1]].barred


def test_a_leader_waits_for_an_audits_last_chance():
    history, order = audited()

    assert verdicts_due(history, 3) == ()
    assert verdicts_due(history, 4) == tuple((0, node) for node in NODES)
    alarmed = grow(history, 1, {STEP: {order[0]: MISMATCH}})
    assert STEP not in verdicts_due(alarmed, 4)
    assert STEP in verdicts_due(alarmed, 5)


def test_offences_have_one_name_each():
    history, _ = audited()

    assert len({audit.offence_id for audit in history.audits.values()}) == 3


# ---- what liars can and cannot do ----

OUTCOMES = st.sampled_from([None, *Outcome])


@settings(max_examples=200)
@given(
    liar=st.integers(0, 3),
    lies=st.lists(OUTCOMES, min_size=12, max_size=12),
    silent=st.sets(st.integers(0, 3)),
    delay=st.integers(0, 3),
)
def test_a_single_liar_never_convicts_an_honest_node_whoever_else_is_silent(liar, lies, silent, delay):
    """f = 1 of 4: the others say MATCH, or nothing, or say it late."""
    history, truth = a_history(), {}
    for lie in lies:
        for step in history.audits:
            honest = {v: MATCH for i, v in enumerate(VERIFIERS) if i != liar and i not in silent}
            is_late = int(history.round) < step[0] + 2 + delay
            truth[step] = {} if is_late else honest
            if lie is not None:
                truth[step] = {**truth[step], VERIFIERS[liar]: lie}
        history = grow(history, 1, truth)
        assert not any(a.ruling is Ruling.UPHELD for a in history.audits.values())
        assert not any(record.barred for record in history.nodes.values())


@pytest.mark.parametrize("order", list(itertools.permutations([MISMATCH, MISMATCH, MISMATCH, MATCH])))
def test_three_honest_verifiers_convict_a_cheat_once_anyone_honest_raised_the_alarm(order):
    _, audit = judged(order, rounds=5)

    first_to_speak = order[0]
    expected = Ruling.CLEARED if first_to_speak is MATCH else Ruling.UPHELD
    assert audit.ruling is expected


def test_a_verifier_outside_the_committee_cannot_decide_a_dispute():
    verifiers = tuple(sorted(PeerId(bytes([n]) * 32) for n in range(40, 47)))
    history = grow(start(a_spec(verifiers=verifiers), RUN_ID), 2)
    order = history.audits[STEP].order
    alarmed = grow(history, 1, {STEP: {order[0]: MISMATCH}})

    audit = alarmed.audits[STEP]
    assert audit.committee == order[:5]
    assert [v for v in order if may_judge(alarmed, audit, v, 3)] == list(order[1:5])


def test_four_of_five_are_needed_to_convict():
    verifiers = tuple(sorted(PeerId(bytes([n]) * 32) for n in range(40, 47)))
    for against, ruling in ((3, Ruling.LAPSED), (4, Ruling.UPHELD)):
        history = grow(start(a_spec(verifiers=verifiers), RUN_ID), 2)
        votes = dict.fromkeys(history.audits[STEP].order[:against], MISMATCH)
        assert grow(history, 5, {STEP: votes}).audits[STEP].ruling is ruling


# ---- what is forgotten ----


def test_audits_steps_and_reveals_are_kept_until_their_epoch_is_settled_and_then_forgotten():
    spec = a_spec(rounds=8)
    history = start(spec, RUN_ID)
    kept = {}
    while not history.is_complete:
        history = grow(history, 1)
        kept[int(history.round) - 1] = {step[0] // 4 for step in history.steps}

    assert spec.settled_at(0) == 3 + 4 + 3
    assert 0 in kept[spec.settled_at(0)]
    assert 0 in kept[spec.settled_at(0) + 1]  # one manifest of grace
    assert 0 not in kept[spec.settled_at(0) + 2]
    assert 1 in kept[spec.settled_at(1)]


def test_every_audit_of_an_epoch_is_ruled_when_the_epoch_settles():
    spec = a_spec(rounds=8)
    history = start(spec, RUN_ID)
    for _ in range(spec.settled_at(0) + 1):
        votes = {step: {a.order[0]: MISMATCH} for step, a in history.audits.items()}  # the slowest way
        history = grow(history, 1, votes)

    first = [audit for step, audit in history.audits.items() if step[0] < 4]
    assert first
    assert not any(audit.is_open for audit in first)


def test_a_verdict_in_a_manifest_is_judged_with_the_audit_it_names():
    history, _ = audited()
    other = history.audits[(0, NODES[1])]

    history = advance(history, a_manifest(history, verdicts=[a_verdict(other, other.order[0], MATCH)]))

    assert history.audits[(0, NODES[1])].ruling is Ruling.CLEARED
    assert history.audits[STEP].ruling is Ruling.OPEN
