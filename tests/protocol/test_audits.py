"""One audit: who may speak when, what follows, and what liars on either side can do about it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.participant.links import check_place
from assay.protocol.audits import Failing, Ruling, awaits, may_plant, may_unseal
from assay.protocol.commitments import canary_root, planted
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Outcome
from assay.protocol.params import PPM
from assay.protocol.state_transition import advance, judges_of, may_reveal, may_seal, start
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from tests.protocol.chains import (
    NODES,
    RUN_ID,
    VERIFIERS,
    a_history,
    a_manifest,
    a_seal,
    a_spec,
    a_verdict,
    an_unsealing,
    grow,
    words,
)

MATCH, MISMATCH, WITHHELD = Outcome.MATCH, Outcome.MISMATCH, Outcome.WITHHELD
UNSURE, BORDERLINE = Outcome.INCONCLUSIVE, Outcome.BORDERLINE
NODE = NODES[0]
STEP = (0, NODE)
GUESS = {"recomputed": Digest(b"g" * 32)}  # of somebody who has not done the work
SEVEN = tuple(sorted(PeerId(bytes([n]) * 32) for n in range(40, 47)))


def audited(**changes):
    """A history in which the steps of round 0 are drawn; the verifiers of NODE's audit in their order."""
    history = grow(a_history(**changes), 2)
    return history, history.audits[STEP].order


def judged(outcomes, *, rounds=3, mute=(), **changes):
    """NODE's first audit after its verifiers say this, most responsible first; None says nothing."""
    history, order = audited(**changes)
    votes = {v: outcome for v, outcome in zip(order, outcomes, strict=False) if outcome is not None}
    history = grow(history, rounds, {STEP: votes}, mute)
    return history, history.audits[STEP]


# ---- the investigation ----


def test_a_match_clears_once_its_seal_is_final_and_the_node_has_opened_its_own():
    history, order = audited()
    votes = {STEP: {order[0]: MATCH}}

    seen = []
    for _ in range(3):
        history = grow(history, 1, votes)
        audit = history.audits[STEP]
        seen.append((len(audit.seals), len(audit.verdicts), audit.sketch is not None, audit.ruling))

    assert seen == [
        (1, 0, False, Ruling.OPEN),  # sealed
        (1, 0, False, Ruling.OPEN),  # the beacon says that nobody else looks
        (1, 1, True, Ruling.CLEARED),
    ]
    assert history.nodes[NODE].clean == 1
    assert audit.closed_round == 4


def test_no_verdict_and_no_sketch_is_shown_before_all_who_look_are_bound():
    history, order = audited(looks_ppm=PPM)
    votes = {STEP: dict.fromkeys(order[:2], MATCH)}
    while history.audits[STEP].reveal_from < 0:
        audit = history.audits[STEP]
        assert not may_unseal(audit, int(history.round))
        assert not may_reveal(history, audit, a_verdict(audit, order[0], MATCH).verdict)
        history = grow(history, 1, votes)

    assert {seal.verifier for seal in history.audits[STEP].seals} == set(order[:2])
    assert grow(history, 1, votes).audits[STEP].ruling is Ruling.CLEARED


def test_the_second_look_is_drawn_only_after_the_first_auditor_is_bound():
    history, _ = audited(looks_ppm=500_000)
    votes = {step: {audit.order[0]: MATCH} for step, audit in history.audits.items()}

    bound = grow(history, 1, votes)
    assert {audit.looks for audit in bound.audits.values() if audit.seals} == {0}
    looks = [grow(bound, 1).audits[step].looks for step in votes]
    assert set(looks) <= {1, 2}


def test_second_looks_come_as_often_as_the_spec_says():
    counts = {1: 0, 2: 0}
    history = a_history(rounds=140, looks_ppm=200_000)
    for _ in range(140):
        votes = {s: dict.fromkeys(a.order[:2], MATCH) for s, a in history.audits.items()}
        new = grow(history, 1, votes)
        for step, audit in new.audits.items():
            if audit.looks and not (step in history.audits and history.audits[step].looks):
                counts[audit.looks] += 1
        history = new

    drawn = counts[1] + counts[2]
    assert drawn > 350
    assert abs(counts[2] / drawn - 0.2) < 0.07  # three standard deviations


def test_only_the_verdict_that_was_sealed_opens_the_seal():
    history, order = audited()
    history = grow(history, 2, {STEP: {order[0]: MATCH}})
    audit = history.audits[STEP]

    assert may_reveal(history, audit, a_verdict(audit, order[0], MATCH).verdict)
    for other in (
        a_verdict(audit, order[0], MISMATCH),
        a_verdict(audit, order[0], MATCH, salt=Digest(b"x" * 32)),
        a_verdict(audit, order[1], MATCH),
    ):
        assert not may_reveal(history, audit, other.verdict)


def test_verifiers_take_over_in_turn_while_nobody_has_sealed():
    history, order = audited(turn_rounds=1)

    for count in (1, 2, 3):
        audit = history.audits[STEP]
        assert [v for v in order if may_seal(history, audit, v)] == list(order[:count])
        assert not may_seal(history, audit, PeerId(bytes(32)))
        history = grow(history, 1)


def test_nobody_else_works_once_enough_have_sealed():
    history, order = audited()
    history = grow(history, 1, {STEP: {order[0]: MATCH}})

    assert not any(may_seal(history, history.audits[STEP], v) for v in VERIFIERS)


def test_an_inconclusive_verdict_calls_the_next_auditor():
    history, order = audited(audit_rounds=9)
    history = grow(history, 3, {STEP: {order[0]: UNSURE, order[1]: MATCH}})
    assert history.audits[STEP].ruling is Ruling.OPEN
    assert may_seal(history, history.audits[STEP], order[1])

    history = grow(history, 3, {STEP: {order[0]: UNSURE, order[1]: MATCH}})
    assert history.audits[STEP].ruling is Ruling.CLEARED


def test_who_seals_and_does_not_open_is_replaced_and_counted():
    history, order = audited(audit_rounds=9)
    votes = {STEP: {order[0]: MATCH, order[1]: MATCH}}
    history = grow(history, 7, votes, mute=[order[0]])

    audit = history.audits[STEP]
    assert audit.silent == (order[0],)
    assert history.verifiers[order[0]].silent == 1
    assert audit.ruling is Ruling.CLEARED
    assert [verdict.verifier for verdict in audit.verdicts] == [order[1]]


def test_a_node_that_does_not_open_its_seal_is_not_cleared():
    history, audit = judged([MATCH], rounds=5, mute=[NODE])

    assert audit.ruling is Ruling.LAPSED
    assert history.nodes[NODE].clean == 0
    assert not history.nodes[NODE].barred


def test_an_audit_without_verdict_lapses_and_harms_nobody():
    history, audit = judged([], rounds=5)

    assert audit.ruling is Ruling.LAPSED
    assert history.nodes[NODE].clean == 0
    assert not history.nodes[NODE].barred


def test_words_count_up_to_their_last_round_and_no_further():
    history, order = audited()
    last = grow(history, 3)  # before the manifest of round 5
    assert may_seal(last, last.audits[STEP], order[0])
    assert not may_seal(grow(last, 1), grow(last, 1).audits[STEP], order[0])

    sealed = grow(last, 1, {STEP: {order[0]: MATCH}})
    assert grow(sealed, 1, {STEP: {order[0]: MATCH}}).audits[STEP].ruling is Ruling.CLEARED
    assert grow(sealed, 1).audits[STEP].ruling is Ruling.LAPSED


def test_a_leader_waits_for_an_audits_last_chance_and_for_no_other():
    history, order = audited()
    rules = history.spec.audit

    def waits(history):
        return awaits(rules, history.audits[STEP], int(history.round))

    assert waits(history) == (frozenset(), frozenset(), False)
    assert waits(grow(history, 3))[0] == set(VERIFIERS)
    sealed = grow(history, 4, {STEP: {order[0]: MATCH}}, mute=[order[0], NODE])
    assert waits(sealed) == (frozenset(), {order[0]}, True)
    alarmed = grow(history, 3, {STEP: {order[0]: MISMATCH}})
    assert waits(alarmed)[0] == frozenset()
    assert waits(grow(alarmed, 1))[0] == set(order[1:])


# ---- the dispute ----


@pytest.mark.parametrize(
    "adverse", [(MISMATCH, MISMATCH, MISMATCH), (WITHHELD, MISMATCH, WITHHELD), (WITHHELD,) * 4]
)
def test_three_of_four_against_a_node_uphold_the_fault_and_bar_it(adverse):
    history, audit = judged(adverse, rounds=6)

    assert audit.ruling is Ruling.UPHELD
    assert audit.is_false == (adverse.count(MISMATCH) > 1)
    assert history.nodes[NODE].barred
    assert history.nodes[NODE].clean == 0
    assert set(history.active) == set(NODES[1:])
    assert not audit.faults


def test_two_of_four_against_a_node_do_not():
    history, audit = judged([MISMATCH, MISMATCH], rounds=8)

    assert audit.ruling is Ruling.LAPSED
    assert audit.alarm_round == 4
    assert not history.nodes[NODE].barred


def test_a_committee_is_bound_before_any_of_it_speaks():
    history, order = audited()
    votes = {STEP: dict.fromkeys(order, MISMATCH)}
    alarmed = grow(history, 3, votes)
    assert [v for v in order if may_seal(alarmed, alarmed.audits[STEP], v)] == list(order[1:])

    sealed = grow(alarmed, 1, votes)
    assert len(sealed.audits[STEP].seals) == 3
    assert len(sealed.audits[STEP].verdicts) == 1  # the accuser's, from before
    assert grow(sealed, 1, votes).audits[STEP].ruling is Ruling.UPHELD


def test_a_seal_from_before_the_alarm_binds_nobody_in_the_dispute():
    """A leader kept it back; carried now, it would leave its verifier with nothing that it could open."""
    history, order = audited()
    early = a_seal(a_verdict(history.audits[STEP], order[1], MATCH).verdict)
    alarmed = grow(history, 3, {STEP: {order[0]: MISMATCH}})
    audit = alarmed.audits[STEP]
    assert may_seal(alarmed, audit, order[1])

    with pytest.raises(MalformedMessage, match="another hearing"):
        check_place(alarmed, a_manifest(alarmed, seals=[early]))
    fresh = a_seal(a_verdict(audit, order[1], MATCH).verdict, audit.pattern)
    check_place(alarmed, a_manifest(alarmed, seals=[fresh]))


def test_an_alarm_gives_the_committee_a_pattern_that_nobody_knew():
    one = judged([MISMATCH])[1]
    history, order = audited()
    history = grow(history, 2, {STEP: {order[0]: MISMATCH}})
    history = advance(
        history, a_manifest(history, nodes=NODES[1:], **words(history, {STEP: {order[0]: MISMATCH}}))
    )

    assert one.ruling is history.audits[STEP].ruling is Ruling.ALARM
    assert NO_DIGEST != one.pattern != history.audits[STEP].pattern != NO_DIGEST


def test_matches_dismiss_an_alarm_and_the_false_accuser_is_at_fault():
    history, audit = judged([MISMATCH, MATCH, MATCH, MATCH], rounds=5)

    assert audit.ruling is Ruling.DISMISSED
    assert history.nodes[NODE].clean == 1
    assert NODE in history.active
    accuser = audit.order[0]
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(accuser, Failing.ACCUSED)]
    assert history.excluded == (accuser,)


def test_who_could_not_fetch_an_opening_is_mistaken_and_not_at_fault():
    history, audit = judged([WITHHELD, MATCH, MATCH, MATCH], rounds=5)

    assert audit.ruling is Ruling.DISMISSED
    assert not audit.faults
    assert history.excluded == ()


def test_a_borderline_verdict_calls_the_committee_and_accuses_nobody():
    _, audit = judged([BORDERLINE])
    assert audit.ruling is Ruling.ALARM
    assert audit.adverse == ()

    _, audit = judged([BORDERLINE, MATCH, MATCH, MATCH], rounds=5)
    assert audit.ruling is Ruling.DISMISSED
    assert not audit.faults


def test_a_split_committee_calls_a_larger_one_once():
    verifiers = tuple(sorted(PeerId(bytes([n]) * 32) for n in range(40, 47)))
    history = grow(start(a_spec(verifiers=verifiers, dispute_rounds=3), RUN_ID), 2)
    order = history.audits[STEP].order
    votes = {v: MISMATCH if place < 3 else MATCH for place, v in enumerate(order)}
    votes |= dict.fromkeys(order[3:5], UNSURE)

    history = grow(history, 6, {STEP: votes})
    assert history.audits[STEP].committee == order
    assert history.audits[STEP].hearing == 1
    history = grow(history, 3, {STEP: votes})
    assert history.audits[STEP].ruling is Ruling.LAPSED
    assert history.spec.closing_rounds == 6 + 2 * 3


def test_four_of_five_are_needed_to_convict():
    for against, ruling in ((3, Ruling.LAPSED), (4, Ruling.UPHELD)):
        history = grow(start(a_spec(verifiers=SEVEN), RUN_ID), 2)
        votes = dict.fromkeys(history.audits[STEP].order[:against], MISMATCH)
        assert grow(history, 10, {STEP: votes}).audits[STEP].ruling is ruling


def test_a_verifier_outside_the_committee_cannot_decide_a_dispute():
    history = grow(start(a_spec(verifiers=SEVEN), RUN_ID), 2)
    order = history.audits[STEP].order
    alarmed = grow(history, 3, {STEP: {order[0]: MISMATCH}})

    audit = alarmed.audits[STEP]
    assert audit.committee == order[:5]
    assert [v for v in order if may_seal(alarmed, audit, v)] == list(order[1:5])


def test_a_convicted_nodes_other_audits_are_moot_whatever_was_said_in_them():
    history, _ = audited()
    everyone = dict.fromkeys(VERIFIERS, MISMATCH)
    history = grow(history, 6, {STEP: everyone, (1, NODE): everyone, (2, NODE): everyone})

    rulings = {step: audit.ruling for step, audit in history.audits.items() if step[1] == NODE}
    assert rulings[STEP] is Ruling.UPHELD
    assert set(rulings.values()) == {Ruling.UPHELD, Ruling.MOOT}
    assert list(rulings.values()).count(Ruling.UPHELD) == 1  # one slash
    assert history.nodes[NODE].fault_round == 0
    assert history.audits[(0, NODES[1])].ruling is not Ruling.MOOT


# ---- verifiers are verified ----


def test_who_passes_a_step_without_recomputing_is_found_out_by_the_nodes_own_sketch():
    history, order = audited()
    votes = {STEP: {order[0]: (MATCH, GUESS), **dict.fromkeys(order[1:], MATCH)}}
    history = grow(history, 3, votes)
    assert history.audits[STEP].ruling is Ruling.ALARM

    history = grow(history, 2, votes)
    audit = history.audits[STEP]
    assert audit.ruling is Ruling.DISMISSED
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(order[0], Failing.NOT_RECOMPUTED)]
    assert history.excluded == (order[0],)
    assert NODE in history.active


def test_a_node_that_sealed_another_sketch_than_it_earned_is_convicted_and_its_auditor_is_not():
    history, order = audited()
    true = {"recomputed": Digest(b"t" * 32)}  # what everybody recomputes is not what the node sealed
    votes = {STEP: {order[0]: (MATCH, true), **dict.fromkeys(order[1:], (MISMATCH, true))}}

    history = grow(history, 5, votes)

    audit = history.audits[STEP]
    assert audit.ruling is Ruling.UPHELD
    assert audit.is_false
    assert history.nodes[NODE].barred
    # His blocks agreed and his sketch is true: but he called a step a match that is false.
    assert {f.failing for f in audit.faults} <= {Failing.PASSED}


def test_who_passes_a_false_step_is_at_fault_when_another_looks():
    _, audit = judged([MATCH, MISMATCH, MISMATCH, MISMATCH], rounds=8, looks_ppm=PPM)

    assert audit.ruling is Ruling.UPHELD
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(audit.order[0], Failing.PASSED)]


def test_a_committee_member_who_copies_what_is_public_is_found_out_by_his_witness():
    history, order = audited()
    copied = {"witness": Digest(b"c" * 32)}
    votes = {STEP: {order[0]: MISMATCH, order[1]: MATCH, order[2]: MATCH, order[3]: (MATCH, copied)}}

    audit = grow(history, 5, votes).audits[STEP]

    assert audit.ruling is Ruling.DISMISSED
    assert {(f.verdict.verifier, f.failing) for f in audit.faults} == {
        (order[0], Failing.ACCUSED),
        (order[3], Failing.NOT_RECOMPUTED),
    }
    without = {STEP: {**votes[STEP], order[3]: (MATCH, {"witness": NO_DIGEST})}}
    assert len(grow(history, 5, without).audits[STEP].faults) == 2


def test_a_verifier_at_fault_is_drawn_no_more():
    history, audit = judged([MISMATCH, MATCH, MATCH, MATCH], rounds=5)
    out = audit.order[0]

    later = grow(history, 2)
    fresh = {step: a for step, a in later.audits.items() if step not in history.audits}
    assert fresh
    assert all(out not in audit.order for audit in fresh.values())
    assert all(out in audit.order for step, audit in history.audits.items())


def test_so_few_auditors_are_never_left_that_liars_are_a_committee():
    spec = a_spec()

    assert judges_of(spec, VERIFIERS[:1]) == VERIFIERS[1:]
    assert judges_of(spec, VERIFIERS[:2]) == VERIFIERS
    assert judges_of(spec, VERIFIERS) == VERIFIERS


def test_a_manifest_that_hides_a_fault_or_invents_one_is_refused():
    history, _ = judged([MISMATCH, MATCH, MATCH, MATCH], rounds=5)
    manifest = a_manifest(history)

    check_place(history, manifest)
    for excluded in ((), VERIFIERS[:2]):
        with pytest.raises(MalformedMessage, match="at fault"):
            check_place(history, replace(manifest, excluded=excluded))


# ---- planted faults ----

SALT = Digest(b"s" * 32)
FAULTS = [(SALT, RoundId(3), NODES[1]), (SALT, RoundId(0), NODE)]
CANARIES = {"canaries": canary_root(FAULTS), "canary_count": 2, "rounds": 20}
PLANTED = planted(RUN_ID, FAULTS, 1)


def show(history, votes):
    """The next manifest, with the proof that the fault was planted."""
    said = words(history, {STEP: votes})
    manifest = a_manifest(history, planted=[PLANTED], **said)
    check_place(history, manifest)
    return advance(history, manifest)


def test_a_planted_fault_that_is_found_costs_its_node_nothing():
    history, order = audited(**CANARIES)
    history = grow(history, 3, {STEP: {order[0]: MISMATCH}})
    assert history.audits[STEP].ruling is Ruling.ALARM

    history = show(history, {})

    assert history.audits[STEP].ruling is Ruling.PLANTED
    assert not history.nodes[NODE].barred
    assert history.excluded == ()


def test_who_passes_a_planted_fault_is_at_fault_once_a_committee_has_looked():
    history, order = audited(**CANARIES, audit_rounds=9)
    votes = {order[0]: MATCH, **dict.fromkeys(order[1:], MISMATCH)}
    history = grow(history, 3, {STEP: votes})
    assert history.audits[STEP].ruling is Ruling.CLEARED

    history = show(history, votes)
    assert history.audits[STEP].ruling is Ruling.ALARM
    history = grow(history, 2, {STEP: votes})

    audit = history.audits[STEP]
    assert audit.ruling is Ruling.PLANTED
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(order[0], Failing.PASSED)]
    assert not history.nodes[NODE].barred


def test_a_canary_that_did_its_step_honestly_frames_nobody():
    history, order = audited(**CANARIES, audit_rounds=9)
    votes = dict.fromkeys(order, MATCH)
    history = show(grow(history, 3, {STEP: votes}), votes)
    history = grow(history, 2, {STEP: votes})

    assert history.audits[STEP].ruling is Ruling.DISMISSED
    assert history.excluded == ()


def test_one_liar_and_a_canary_that_did_its_step_frame_nobody():
    history, order = audited(**CANARIES, looks_ppm=PPM, audit_rounds=9)
    votes = {**dict.fromkeys(order, MATCH), order[0]: MISMATCH}
    history = grow(history, 3, {STEP: votes})
    while history.audits[STEP].ruling is not Ruling.ALARM:
        history = grow(history, 1, {STEP: votes})
    history = show(history, votes)
    history = grow(history, 2, {STEP: votes})

    audit = history.audits[STEP]
    assert audit.ruling is Ruling.DISMISSED
    assert history.excluded == (order[0],)


def test_a_fault_counts_as_planted_only_if_the_spec_lists_it_and_somebody_has_judged_it():
    history, order = audited(**CANARIES)
    assert not may_plant(history.spec.audit, history.audits[STEP], int(history.round))
    history = grow(history, 3, {STEP: {order[0]: MISMATCH}})

    for lie in (
        replace(PLANTED, salt=Digest(b"t" * 32)),
        replace(PLANTED, index=0),
        replace(PLANTED, path=()),
        replace(PLANTED, node=NODES[2]),
    ):
        with pytest.raises(MalformedMessage):
            check_place(history, a_manifest(history, planted=[lie]))
    bare, order = audited()
    bare = grow(bare, 3, {STEP: {order[0]: MISMATCH}})
    with pytest.raises(MalformedMessage):
        check_place(bare, a_manifest(bare, planted=[PLANTED]))


# ---- what a manifest may carry ----


def test_a_manifest_carries_only_words_that_may_come():
    history, order = audited()
    audit = history.audits[STEP]
    seal = a_seal(a_verdict(audit, order[0], MATCH).verdict)
    check_place(history, a_manifest(history, seals=[seal]))
    open_now = grow(history, 2, {STEP: {order[0]: MATCH}})
    verdict, shown = a_verdict(audit, order[0], MATCH), an_unsealing(audit)
    check_place(open_now, a_manifest(open_now, verdicts=[verdict], unsealed=[shown]))

    stranger = a_seal(a_verdict(audit, PeerId(b"z" * 32), MATCH).verdict)
    elsewhere = replace(seal, seal=replace(seal.seal, round=RoundId(9)))
    for manifest, words_ in (
        (a_manifest(history, seals=[a_seal(a_verdict(audit, order[3], MATCH).verdict)]), "may not seal"),
        (a_manifest(history, seals=[stranger]), "may not seal"),
        (a_manifest(history, seals=[elsewhere]), "not audited"),
        (replace(a_manifest(history), seals=(seal, seal)), "ascend"),
        (a_manifest(history, verdicts=[verdict]), "may not judge"),
        (a_manifest(history, unsealed=[shown]), "wrong time"),
    ):
        with pytest.raises(MalformedMessage, match=words_):
            check_place(history, manifest)
    for lie in (replace(shown, salt=Digest(b"x" * 32)), replace(shown, sketch=NO_DIGEST)):
        with pytest.raises(MalformedMessage, match="do not open"):
            check_place(open_now, a_manifest(open_now, unsealed=[lie]))


def test_nobody_of_another_class_says_match_where_no_limits_were_agreed():
    history, order = audited()
    other = {"exec_class": Digest(b"o" * 32)}
    votes = {STEP: {order[0]: (MATCH, other)}}
    assert grow(history, 4, votes).audits[STEP].verdicts == ()

    history, order = audited(limits=Digest(b"l" * 32))
    votes = {STEP: {order[0]: (MATCH, other)}}
    assert grow(history, 4, votes).audits[STEP].ruling is Ruling.CLEARED


# ---- what liars can and cannot do ----

OUTCOMES = st.sampled_from([None, *Outcome])
LIES = st.sampled_from([{}, GUESS, {"witness": Digest(b"c" * 32)}, {"exec_class": Digest(b"o" * 32)}])


@settings(max_examples=200, deadline=None)
@given(
    liar=st.integers(0, 3),
    lies=st.lists(st.tuples(OUTCOMES, LIES), min_size=12, max_size=12),
    silent=st.sets(st.integers(0, 3)),
    delay=st.integers(0, 3),
    looks=st.sampled_from([0, PPM]),
    is_mute=st.booleans(),
)
def test_a_single_liar_never_convicts_an_honest_node_or_verifier(liar, lies, silent, delay, looks, is_mute):
    """f = 1 of 4: the others say MATCH, or nothing, or say it late."""
    history, votes = a_history(looks_ppm=looks), {}
    told = {}
    for number in range(12):
        for step in history.audits:
            honest = {v: MATCH for i, v in enumerate(VERIFIERS) if i != liar and i not in silent}
            is_late = int(history.round) < step[0] + 2 + delay
            outcome, lie = told.setdefault(step, lies[number])
            votes[step] = {} if is_late else dict(honest)
            if outcome is not None:
                votes[step][VERIFIERS[liar]] = (outcome, lie)
        history = grow(history, 1, votes, mute=[VERIFIERS[liar]] if is_mute else [])
        assert not any(a.ruling is Ruling.UPHELD for a in history.audits.values())
        assert not any(record.barred for record in history.nodes.values())
        assert set(history.excluded) <= {VERIFIERS[liar]}


@pytest.mark.parametrize("order", list(itertools.permutations([MISMATCH, MISMATCH, MISMATCH, MATCH])))
@pytest.mark.parametrize("looks", [0, PPM])
def test_three_honest_verifiers_convict_a_cheat_once_anyone_honest_looked(order, looks):
    history, audit = judged(order, rounds=9, looks_ppm=looks)

    looked = order[: 2 if looks else 1]
    expected = Ruling.UPHELD if MISMATCH in looked else Ruling.CLEARED
    assert audit.ruling is expected
    liar = audit.order[order.index(MATCH)]
    # The node's sketch is what everybody recomputes here, so only the ruling can show the lie.
    assert history.excluded == ((liar,) if expected is Ruling.UPHELD else ())
