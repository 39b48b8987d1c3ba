"""One audit: who may speak when, what follows, and what liars on either side can do about it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.participant.links import check_place
from assay.protocol.auditing.audits import (
    REFERENCE,
    AuditStatus,
    FaultKind,
    awaits,
    draw_replication,
    judges_in_reference,
    last_verdict,
    may_open_sketch,
    may_show_known_answer,
)
from assay.protocol.auditing.commitments import known_answer_proofs, known_answer_root
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import Outcome
from assay.protocol.params import PPM
from assay.protocol.permitted import may_commit_verdict, may_open_verdict
from assay.protocol.run_state import start
from assay.protocol.state_transition import advance, judges_of
from assay.protocol.types import NO_DIGEST, Digest, PeerId, RoundId
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.messages import UNSIGNED, a_sketch_opening, a_verdict, a_verdict_commitment
from assay.testing.run import Network, a_manifest, a_spec, a_start, funded_start, grow, vote_messages

MATCH, MISMATCH, WITHHELD = Outcome.MATCH, Outcome.MISMATCH, Outcome.WITHHELD
UNSURE, BORDERLINE = Outcome.INCONCLUSIVE, Outcome.BORDERLINE
NODE = NODES[0]
STEP = (0, NODE)
GUESS = {"recomputed": Digest(b"g" * 32)}  # of somebody who has not done the work
SEVEN = tuple(sorted(PeerId(bytes([n]) * 32) for n in range(40, 47)))


def a_commitment(verdict, pattern=NO_DIGEST, **changes):
    return UNSIGNED.commitment(a_verdict_commitment(verdict, pattern, **changes))


def audited(**changes):
    """A history in which the steps of round 0 are drawn; the verifiers of NODE's audit in their order."""
    run_state = grow(a_start(**changes), 2)
    return run_state, run_state.audits[STEP].order


def judged(outcomes, *, rounds=3, mute=(), **changes):
    """NODE's first audit after its verifiers say this, most responsible first; None says nothing."""
    run_state, order = audited(**changes)
    votes = {v: outcome for v, outcome in zip(order, outcomes, strict=False) if outcome is not None}
    run_state = grow(run_state, rounds, {STEP: votes}, mute)
    return run_state, run_state.audits[STEP]


# ---- the investigation ----


def test_a_match_clears_once_its_seal_is_final_and_the_node_has_opened_its_own():
    run_state, order = audited()
    votes = {STEP: {order[0]: MATCH}}

    seen = []
    for _ in range(3):
        run_state = grow(run_state, 1, votes)
        audit = run_state.audits[STEP]
        seen.append((len(audit.commitments), len(audit.verdicts), audit.sketch is not None, audit.ruling))

    assert seen == [
        (1, 0, False, AuditStatus.OPEN),  # sealed
        (1, 0, False, AuditStatus.OPEN),  # the beacon says that nobody else looks
        (1, 1, True, AuditStatus.PASSED),
    ]
    assert run_state.nodes[NODE].clean == 1
    assert audit.closed_round == 4


def test_no_verdict_and_no_sketch_is_shown_before_all_who_look_are_bound():
    run_state, order = audited(replication_ppm=PPM)
    votes = {STEP: dict.fromkeys(order[:2], MATCH)}
    while run_state.audits[STEP].open_from < 0:
        audit = run_state.audits[STEP]
        assert not may_open_sketch(audit, int(run_state.round))
        assert not may_open_verdict(run_state, audit, a_verdict(audit, order[0], MATCH))
        run_state = grow(run_state, 1, votes)

    assert {commitment.verifier for commitment in run_state.audits[STEP].commitments} == set(order[:2])
    assert grow(run_state, 1, votes).audits[STEP].ruling is AuditStatus.PASSED


def test_an_audit_says_at_which_rate_its_step_was_drawn():
    run_state, rates = a_start(rounds=60, probation=2, floor_ppm=100_000), set()
    for _ in range(60):
        clean = {node: record.clean for node, record in run_state.nodes.items()}
        due = {(commit.round, commit.node) for commit in run_state.last_commits}
        known = set(run_state.audits)
        votes = {step: {audit.order[0]: MATCH} for step, audit in run_state.audits.items()}
        run_state = grow(run_state, 1, votes)
        for step in set(run_state.audits) - known:
            expected = PPM if clean[step[1]] < 2 else max(100_000, PPM * 2 // clean[step[1]])
            assert step in due and run_state.audits[step].rate_ppm == expected
            rates.add(expected)

    assert PPM in rates and len(rates) > 2


def test_the_second_look_is_drawn_only_after_the_first_auditor_is_bound():
    run_state, _ = audited(replication_ppm=500_000)
    votes = {step: {audit.order[0]: MATCH} for step, audit in run_state.audits.items()}

    bound = grow(run_state, 1, votes)
    assert {audit.auditors_wanted for audit in bound.audits.values() if audit.commitments} == {0}
    auditors_wanted = [grow(bound, 1).audits[step].auditors_wanted for step in votes]
    assert set(auditors_wanted) <= {1, 2}


def test_two_audits_of_one_node_are_replicated_apart_though_one_beacon_decides_on_both():
    run_state, order = audited()
    rules = replace(run_state.spec.audit, replication_ppm=500_000)
    audit = grow(run_state, 1, {STEP: {order[0]: MATCH}}).audits[STEP]
    seed, now = Digest(b"s" * 32), audit.commitments[0].round + 1

    wanted = [
        draw_replication(
            replace(audit, round=RoundId(round_id)), now, seed, rules, is_partial=False
        ).auditors_wanted
        for round_id in range(40)
    ]

    assert 10 < wanted.count(2) < 30
    assert set(wanted) == {1, 2}


def test_replicated_audits_come_as_often_as_the_spec_says():
    counts = {1: 0, 2: 0}
    run_state = a_start(rounds=140, replication_ppm=200_000)
    for _ in range(140):
        votes = {s: dict.fromkeys(a.order[:2], MATCH) for s, a in run_state.audits.items()}
        new = grow(run_state, 1, votes)
        for step, audit in new.audits.items():
            if audit.auditors_wanted and not (
                step in run_state.audits and run_state.audits[step].auditors_wanted
            ):
                counts[audit.auditors_wanted] += 1
        run_state = new

    drawn = counts[1] + counts[2]
    assert drawn > 350
    assert abs(counts[2] / drawn - 0.2) < 0.07  # three standard deviations


def test_only_the_verdict_that_was_sealed_opens_the_seal():
    run_state, order = audited()
    run_state = grow(run_state, 2, {STEP: {order[0]: MATCH}})
    audit = run_state.audits[STEP]

    assert may_open_verdict(run_state, audit, a_verdict(audit, order[0], MATCH))
    for other in (
        a_verdict(audit, order[0], MISMATCH),
        a_verdict(audit, order[0], MATCH, salt=Digest(b"x" * 32)),
        a_verdict(audit, order[1], MATCH),
    ):
        assert not may_open_verdict(run_state, audit, other)


def test_verifiers_take_over_in_turn_while_nobody_has_sealed():
    run_state, order = audited(takeover_rounds=1)

    for count in (1, 2, 3):
        audit = run_state.audits[STEP]
        assert [v for v in order if may_commit_verdict(run_state, audit, v)] == list(order[:count])
        assert not may_commit_verdict(run_state, audit, PeerId(bytes(32)))
        run_state = grow(run_state, 1)


def test_nobody_else_works_once_enough_have_sealed():
    run_state, order = audited()
    run_state = grow(run_state, 1, {STEP: {order[0]: MATCH}})

    assert not any(may_commit_verdict(run_state, run_state.audits[STEP], v) for v in VERIFIERS)


def test_an_inconclusive_verdict_calls_the_next_auditor():
    run_state, order = audited(audit_rounds=9)
    run_state = grow(run_state, 3, {STEP: {order[0]: UNSURE, order[1]: MATCH}})
    assert run_state.audits[STEP].ruling is AuditStatus.OPEN
    assert may_commit_verdict(run_state, run_state.audits[STEP], order[1])

    run_state = grow(run_state, 3, {STEP: {order[0]: UNSURE, order[1]: MATCH}})
    assert run_state.audits[STEP].ruling is AuditStatus.PASSED


def test_one_match_of_two_that_are_wanted_is_not_enough_while_a_third_may_look():
    run_state, order = audited(audit_rounds=12, replication_ppm=PPM)
    votes = {order[0]: MATCH, order[1]: UNSURE}
    run_state = grow(run_state, 6, {STEP: votes})

    audit = run_state.audits[STEP]
    assert ({v.outcome for v in audit.verdicts}, audit.ruling) == ({MATCH, UNSURE}, AuditStatus.OPEN)
    run_state = grow(run_state, 3, {STEP: votes | {order[2]: MATCH}})
    assert run_state.audits[STEP].ruling is AuditStatus.PASSED


def test_who_seals_and_does_not_open_is_replaced_and_counted():
    run_state, order = audited(audit_rounds=9)
    votes = {STEP: {order[0]: MATCH, order[1]: MATCH}}
    run_state = grow(run_state, 7, votes, mute=[order[0]])

    audit = run_state.audits[STEP]
    assert audit.silent == (order[0],)
    assert run_state.verifiers[order[0]].silent == 1
    assert audit.ruling is AuditStatus.PASSED
    assert [verdict.verifier for verdict in audit.verdicts] == [order[1]]


def test_a_commitment_that_stays_shut_counts_as_an_opening_withheld():
    run_state, order = audited()
    run_state = grow(run_state, 5, {STEP: {order[0]: MATCH}}, mute=[NODE])
    assert run_state.audits[STEP].ruling is AuditStatus.DISPUTED

    run_state = grow(run_state, 2, {STEP: dict.fromkeys(order, WITHHELD)}, mute=[NODE])

    assert run_state.audits[STEP].ruling is AuditStatus.CONFIRMED
    assert not run_state.audits[STEP].is_false
    assert run_state.nodes[NODE].banned
    assert run_state.disqualified == ()


def test_a_commitment_that_is_opened_in_the_dispute_clears_its_node():
    run_state, order = audited()
    run_state = grow(run_state, 5, {STEP: {order[0]: MATCH}}, mute=[NODE])
    audit = run_state.audits[STEP]
    assert may_open_sketch(
        audit, int(run_state.round)
    )  # before the committee commits: it was cut off, and is back

    run_state = grow(run_state, 2, {STEP: dict.fromkeys(order, MATCH)})

    assert run_state.audits[STEP].ruling is AuditStatus.DISMISSED
    assert run_state.audits[STEP].sketch is not None
    assert run_state.nodes[NODE].clean == 1
    assert run_state.disqualified == ()


def test_an_audit_without_verdict_lapses_and_harms_nobody():
    run_state, audit = judged([], rounds=5)

    assert audit.ruling is AuditStatus.EXPIRED
    assert run_state.nodes[NODE].clean == 0
    assert not run_state.nodes[NODE].banned


def test_words_count_up_to_their_last_round_and_no_further():
    run_state, order = audited()
    last = grow(run_state, 3)  # before the manifest of round 5
    assert may_commit_verdict(last, last.audits[STEP], order[0])
    assert not may_commit_verdict(grow(last, 1), grow(last, 1).audits[STEP], order[0])

    committed = grow(last, 1, {STEP: {order[0]: MATCH}})
    assert grow(committed, 1, {STEP: {order[0]: MATCH}}).audits[STEP].ruling is AuditStatus.PASSED
    assert grow(committed, 1).audits[STEP].ruling is AuditStatus.DISPUTED


def test_an_auditor_that_could_not_tell_or_kept_silent_at_the_last_chance_is_not_the_last_word():
    """A node's accomplice would let a false step go: nobody was left who could look."""
    run_state, order = audited()
    late = grow(grow(run_state, 3), 2, {STEP: {order[0]: UNSURE}})
    assert late.audits[STEP].ruling is AuditStatus.DISPUTED

    silent = grow(grow(grow(run_state, 3), 1, {STEP: {order[0]: MATCH}}), 1)
    assert silent.audits[STEP].ruling is AuditStatus.DISPUTED
    assert (
        grow(silent, 2, {STEP: dict.fromkeys(order, MISMATCH)}).audits[STEP].ruling is AuditStatus.CONFIRMED
    )


@pytest.mark.parametrize("unsure", [1, 2])
def test_no_committee_judges_what_an_honest_auditor_could_not(unsure):
    outcomes = [UNSURE] * unsure
    audit = judged(outcomes, rounds=5, replication_ppm=PPM)[1]

    assert len(audit.verdicts) == unsure
    assert audit.ruling is (AuditStatus.DISPUTED, AuditStatus.EXPIRED)[unsure - 1]


@pytest.mark.parametrize(
    ("outcomes", "clean"),
    [([UNSURE, UNSURE], 0), ([BORDERLINE] * 4, 0), ([MISMATCH] * 2, 0), ([], 7), ([MATCH], 8)],
)
def test_a_step_that_verifiers_could_not_judge_begins_its_nodes_probation_anew(outcomes, clean):
    """Else who makes steps that nobody can judge is drawn as rarely as a proven node, and paid for others."""
    run_state, order = audited(replication_ppm=PPM if len(outcomes) == 2 else 0)
    known = {**run_state.nodes, NODE: replace(run_state.nodes[NODE], clean=7)}
    votes = {STEP: dict(zip(order, outcomes, strict=False))}

    run_state = grow(replace(run_state, nodes=known), 8, votes)

    is_judged = MATCH in outcomes
    assert run_state.audits[STEP].ruling is (AuditStatus.PASSED if is_judged else AuditStatus.EXPIRED)
    assert run_state.nodes[NODE].clean == clean


@pytest.mark.parametrize(
    ("is_borderline", "is_kept"),
    [
        (lambda at: at < 4, True),
        (lambda at: at < 5, False),
        (lambda at: at % 5 == 0, True),
        (lambda at: at % 4 == 0, False),
    ],
)
def test_whose_borderline_steps_outweigh_those_passed_loses_its_seat_and_no_stake(is_borderline, is_kept):
    """Else each of its steps costs every verifier a dispute and is in the aggregate, and none is slashed."""

    def judge(_network, audit):
        return (BORDERLINE if audit.node == NODE and is_borderline(int(audit.round)) else MATCH), {}

    network = Network(funded_start(a_spec(rounds=100)), minds=dict.fromkeys(VERIFIERS, judge)).grow(100)
    nodes = network.run_state.nodes
    assert nodes[NODE].is_seated is is_kept
    assert not nodes[NODE].banned and all(nodes[one].is_seated for one in NODES if one != NODE)


def test_f_verifiers_that_say_borderline_take_nobodys_seat():
    run_state, order = audited()
    votes = {order[0]: BORDERLINE} | dict.fromkeys(order[1:], UNSURE)
    run_state = grow(run_state, 8, {STEP: votes})
    assert run_state.audits[STEP].ruling is AuditStatus.EXPIRED
    assert run_state.nodes[NODE].borderline == 0


def test_a_leader_waits_where_only_liars_may_lead_what_is_left_and_no_earlier():
    run_state, order = audited()
    rules = run_state.spec.audit

    def waits(run_state):
        return awaits(rules, run_state.audits[STEP], int(run_state.round))

    for rounds, able in enumerate((0, 0, 3, 4)):  # one of four may lie: the last two that may bind an auditor
        assert waits(grow(run_state, rounds)) == (set(order[:able]), frozenset(), False)
    committed = {STEP: {order[0]: MATCH}}
    for rounds, late in ((2, frozenset()), (3, {order[0]}), (4, {order[0]})):
        found = waits(grow(run_state, rounds, committed, mute=[order[0], NODE]))
        assert found == (frozenset(), late, bool(late))
    alarmed = grow(run_state, 3, {STEP: {order[0]: MISMATCH}})
    assert [waits(grow(alarmed, rounds))[0] for rounds in (0, 1, 2)] == [set(order[1:])] * 2 + [frozenset()]


# ---- the dispute ----


@pytest.mark.parametrize(
    "adverse", [(MISMATCH, MISMATCH, MISMATCH), (WITHHELD, MISMATCH, WITHHELD), (WITHHELD,) * 4]
)
def test_three_of_four_against_a_node_uphold_the_fault_and_bar_it(adverse):
    run_state, audit = judged(adverse, rounds=6)

    assert audit.ruling is AuditStatus.CONFIRMED
    assert audit.is_false == (adverse.count(MISMATCH) > 1)
    assert run_state.nodes[NODE].banned
    assert run_state.nodes[NODE].clean == 0
    assert set(run_state.active) == set(NODES[1:])
    assert not audit.faults


def test_two_of_four_against_a_node_do_not():
    run_state, audit = judged([MISMATCH, MISMATCH], rounds=8)

    assert audit.ruling is AuditStatus.EXPIRED
    assert audit.dispute_opened_round == 4
    assert not run_state.nodes[NODE].banned


def test_a_committee_is_bound_before_any_of_it_speaks():
    run_state, order = audited()
    votes = {STEP: dict.fromkeys(order, MISMATCH)}
    alarmed = grow(run_state, 3, votes)
    assert [v for v in order if may_commit_verdict(alarmed, alarmed.audits[STEP], v)] == list(order[1:])

    committed = grow(alarmed, 1, votes)
    assert len(committed.audits[STEP].commitments) == 3
    assert len(committed.audits[STEP].verdicts) == 1  # the accuser's, from before
    assert grow(committed, 1, votes).audits[STEP].ruling is AuditStatus.CONFIRMED


def test_a_seal_from_before_the_alarm_binds_nobody_in_the_dispute():
    """A leader kept it back; carried now, it would leave its verifier with nothing that it could open."""
    run_state, order = audited()
    early = a_commitment(a_verdict(run_state.audits[STEP], order[1], MATCH))
    alarmed = grow(run_state, 3, {STEP: {order[0]: MISMATCH}})
    audit = alarmed.audits[STEP]
    assert may_commit_verdict(alarmed, audit, order[1])

    with pytest.raises(MalformedMessage, match="another dispute round"):
        check_place(alarmed, a_manifest(alarmed, commitments=(early,)))
    fresh = a_commitment(a_verdict(audit, order[1], MATCH), audit.pattern)
    check_place(alarmed, a_manifest(alarmed, commitments=(fresh,)))


def test_an_alarm_gives_the_committee_a_pattern_that_nobody_knew():
    one = judged([MISMATCH])[1]
    run_state, order = audited()
    run_state = grow(run_state, 2, {STEP: {order[0]: MISMATCH}})
    run_state = advance(
        run_state,
        a_manifest(run_state, nodes=NODES[1:], **vote_messages(run_state, {STEP: {order[0]: MISMATCH}})),
    )

    assert one.ruling is run_state.audits[STEP].ruling is AuditStatus.DISPUTED
    assert NO_DIGEST != one.pattern != run_state.audits[STEP].pattern != NO_DIGEST


def test_matches_dismiss_an_alarm_and_the_false_accuser_is_at_fault():
    run_state, audit = judged([MISMATCH, MATCH, MATCH, MATCH], rounds=5)

    assert audit.ruling is AuditStatus.DISMISSED
    assert run_state.nodes[NODE].clean == 1
    assert NODE in run_state.active
    accuser = audit.order[0]
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(accuser, FaultKind.ACCUSED)]
    assert run_state.disqualified == (accuser,)


def test_few_matches_that_a_leader_chose_dismiss_nothing_while_others_have_to_reveal():
    run_state, order = audited()
    rules, votes = run_state.spec.audit, {STEP: {order[0]: MISMATCH, **dict.fromkeys(order[1:], MATCH)}}
    while run_state.audits[STEP].ruling is not AuditStatus.DISPUTED or run_state.audits[STEP].open_from < 0:
        run_state = grow(run_state, 1, votes)
    said = vote_messages(run_state, votes)
    few = tuple(one for one in said["verdicts"] if one.verdict.verifier in order[1:3])
    assert len(few) == 2 > run_state.audits[STEP].f
    after = advance(run_state, a_manifest(run_state, **{**said, "verdicts": few}))

    assert after.audits[STEP].ruling is AuditStatus.DISPUTED
    assert grow(after, 1, votes).audits[STEP].ruling is AuditStatus.DISMISSED
    last = last_verdict(rules, after.audits[STEP])  # until which one that stays silent holds it open
    before = grow(after, last - int(after.round), mute=(order[3],))
    assert before.audits[STEP].ruling is AuditStatus.DISPUTED
    assert grow(before, 1, mute=(order[3],)).audits[STEP].ruling is AuditStatus.DISMISSED


def test_who_could_not_fetch_an_opening_is_mistaken_and_not_at_fault():
    run_state, audit = judged([WITHHELD, MATCH, MATCH, MATCH], rounds=5)

    assert audit.ruling is AuditStatus.DISMISSED
    assert not audit.faults
    assert run_state.disqualified == ()


def test_a_borderline_verdict_calls_the_committee_and_accuses_nobody():
    _, audit = judged([BORDERLINE])
    assert audit.ruling is AuditStatus.DISPUTED
    assert audit.adverse == ()

    _, audit = judged([BORDERLINE, MATCH, MATCH, MATCH], rounds=5)
    assert audit.ruling is AuditStatus.DISMISSED
    assert not audit.faults


def test_a_split_committee_calls_a_larger_one_once():
    verifiers = tuple(sorted(PeerId(bytes([n]) * 32) for n in range(40, 47)))
    run_state = grow(start(a_spec(verifiers=verifiers, dispute_rounds=3), RUN_ID), 2)
    order = run_state.audits[STEP].order
    votes = {v: MISMATCH if place < 3 else MATCH for place, v in enumerate(order)}
    votes |= dict.fromkeys(order[3:5], UNSURE)

    run_state = grow(run_state, 6, {STEP: votes})
    assert run_state.audits[STEP].committee == order
    assert run_state.audits[STEP].dispute_round == 1
    run_state = grow(run_state, 3, {STEP: votes})
    assert run_state.audits[STEP].ruling is AuditStatus.EXPIRED
    assert run_state.spec.closing_rounds == 6 + 2 * 3


def test_four_of_five_are_needed_to_convict():
    for against, ruling in ((3, AuditStatus.EXPIRED), (4, AuditStatus.CONFIRMED)):
        run_state = grow(start(a_spec(verifiers=SEVEN), RUN_ID), 2)
        votes = dict.fromkeys(run_state.audits[STEP].order[:against], MISMATCH)
        assert grow(run_state, 10, {STEP: votes}).audits[STEP].ruling is ruling


def test_a_verifier_outside_the_committee_cannot_decide_a_dispute():
    run_state = grow(start(a_spec(verifiers=SEVEN), RUN_ID), 2)
    order = run_state.audits[STEP].order
    alarmed = grow(run_state, 3, {STEP: {order[0]: MISMATCH}})

    audit = alarmed.audits[STEP]
    assert audit.committee == order[:5]
    assert [v for v in order if may_commit_verdict(alarmed, audit, v)] == list(order[1:5])


def test_a_convicted_nodes_other_audits_are_moot_whatever_was_said_in_them():
    run_state, _ = audited()
    everyone = dict.fromkeys(VERIFIERS, MISMATCH)
    run_state = grow(run_state, 6, {STEP: everyone, (1, NODE): everyone, (2, NODE): everyone})

    rulings = {step: audit.ruling for step, audit in run_state.audits.items() if step[1] == NODE}
    assert rulings[STEP] is AuditStatus.CONFIRMED
    assert set(rulings.values()) == {AuditStatus.CONFIRMED, AuditStatus.SUPERSEDED}
    assert list(rulings.values()).count(AuditStatus.CONFIRMED) == 1  # one slash
    assert run_state.nodes[NODE].fault_round == 0
    assert run_state.audits[(0, NODES[1])].ruling is not AuditStatus.SUPERSEDED


# ---- verifiers are verified ----


def test_who_passes_a_step_without_recomputing_is_found_out_by_the_nodes_own_sketch():
    run_state, order = audited()
    votes = {STEP: {order[0]: (MATCH, GUESS), **dict.fromkeys(order[1:], MATCH)}}
    run_state = grow(run_state, 3, votes)
    assert run_state.audits[STEP].ruling is AuditStatus.DISPUTED

    run_state = grow(run_state, 2, votes)
    audit = run_state.audits[STEP]
    assert audit.ruling is AuditStatus.DISMISSED
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(order[0], FaultKind.NOT_RECOMPUTED)]
    assert run_state.disqualified == (order[0],)
    assert NODE in run_state.active


def test_a_node_that_sealed_another_sketch_than_it_earned_is_convicted_and_its_auditor_is_not():
    run_state, order = audited()
    true = {"recomputed": Digest(b"t" * 32)}  # what everybody recomputes is not what the node sealed
    votes = {STEP: {order[0]: (MATCH, true), **dict.fromkeys(order[1:], (MISMATCH, true))}}

    run_state = grow(run_state, 5, votes)

    audit = run_state.audits[STEP]
    assert audit.ruling is AuditStatus.CONFIRMED
    assert audit.is_false
    assert run_state.nodes[NODE].banned
    assert not audit.faults  # the blocks did agree, and the auditor could not know the node's sketch


def test_matches_from_before_a_dispute_do_not_clear_a_node_whose_sketch_is_false():
    run_state, order = audited(replication_ppm=PPM, audit_rounds=9)
    true = {"recomputed": Digest(b"t" * 32)}
    votes = {STEP: dict.fromkeys(order[:2], (MATCH, true))}
    while run_state.audits[STEP].ruling is not AuditStatus.DISPUTED:
        run_state = grow(run_state, 1, votes)
    assert len(run_state.audits[STEP].verdicts) == 2  # more than f
    assert all(may_commit_verdict(run_state, run_state.audits[STEP], verifier) for verifier in order)

    audit = grow(run_state, 3, {STEP: dict.fromkeys(order, (MISMATCH, true))}).audits[STEP]

    assert audit.ruling is AuditStatus.CONFIRMED
    assert not audit.faults


def test_who_passes_a_false_step_is_at_fault_when_another_looks():
    _, audit = judged([MATCH, MISMATCH, MISMATCH, MISMATCH], rounds=8, replication_ppm=PPM)

    assert audit.ruling is AuditStatus.CONFIRMED
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(audit.order[0], FaultKind.PASSED)]


def test_a_second_auditor_of_the_nodes_class_judges_there_unless_another_judged_in_the_reference_class():
    run_state, order = audited(limits=Digest(b"l" * 32), replication_ppm=PPM)
    assert not judges_in_reference(run_state.audits[STEP])
    own = grow(run_state, 2, {STEP: {order[0]: MATCH}}).audits[STEP]
    assert own.commitments and not judges_in_reference(own)
    there = {"exec_class": REFERENCE, "recomputed": Digest(b"t" * 32)}
    assert judges_in_reference(grow(run_state, 2, {STEP: {order[0]: (MATCH, there)}}).audits[STEP])


@pytest.mark.parametrize("said", [True, False])
def test_a_verdict_is_of_the_class_that_its_commitment_names(said):
    run_state, order = audited(limits=Digest(b"l" * 32))
    audit = run_state.audits[STEP]
    there = a_verdict(audit, order[0], MATCH, exec_class=REFERENCE)
    committed = a_manifest(run_state, commitments=(a_commitment(there, in_reference=said),))
    run_state = advance(run_state, committed)
    while run_state.audits[STEP].open_from < 0:
        run_state = grow(run_state, 1)

    assert may_open_verdict(run_state, run_state.audits[STEP], there) is said
    withheld = a_verdict(audit, order[0], WITHHELD)
    blind = replace(run_state.audits[STEP].commitments[0], verdict=digest(withheld))
    assert may_open_verdict(run_state, replace(run_state.audits[STEP], commitments=(blind,)), withheld)


def test_who_invents_a_recompute_in_the_reference_class_is_found_out_by_a_second_look():
    run_state, order = audited(limits=Digest(b"l" * 32), replication_ppm=PPM)
    assert not judges_in_reference(run_state.audits[STEP])
    there = {"exec_class": REFERENCE, "recomputed": Digest(b"t" * 32)}
    invented = {"exec_class": REFERENCE, **GUESS}
    run_state = grow(run_state, 2, {STEP: {order[0]: (MATCH, invented), order[1]: (MATCH, there)}})
    assert judges_in_reference(run_state.audits[STEP])
    run_state = grow(run_state, 2, {STEP: {order[0]: (MATCH, invented), order[1]: (MATCH, there)}})
    assert run_state.audits[STEP].ruling is AuditStatus.DISPUTED

    assert judges_in_reference(run_state.audits[STEP])
    honest = dict.fromkeys(order[1:], (MATCH, there))
    audit = grow(run_state, 4, {STEP: {order[0]: (MATCH, invented), **honest}}).audits[STEP]

    assert audit.ruling is AuditStatus.DISMISSED
    assert {(f.verdict.verifier, f.failing) for f in audit.faults} == {(order[0], FaultKind.NOT_RECOMPUTED)}


def test_bits_of_the_nodes_class_and_the_reference_class_prove_nothing_against_each_other():
    run_state, order = audited(limits=Digest(b"l" * 32))
    there = {"exec_class": REFERENCE, "recomputed": Digest(b"t" * 32)}
    slight = {STEP: {order[0]: MISMATCH, **dict.fromkeys(order[1:], (MATCH, there))}}
    audit = grow(run_state, 6, slight).audits[STEP]
    assert (audit.ruling, audit.faults) == (AuditStatus.DISMISSED, ())

    against = {STEP: {**dict.fromkeys(order[:3], MISMATCH), order[3]: (MATCH, there)}}
    audit = grow(run_state, 6, against).audits[STEP]
    assert (audit.ruling, audit.faults) == (AuditStatus.CONFIRMED, ())


def test_a_committee_member_who_copies_what_is_public_is_found_out_by_his_witness():
    run_state, order = audited()
    copied = {"witness": Digest(b"c" * 32)}
    votes = {STEP: {order[0]: MISMATCH, order[1]: MATCH, order[2]: MATCH, order[3]: (MATCH, copied)}}

    audit = grow(run_state, 5, votes).audits[STEP]

    assert audit.ruling is AuditStatus.DISMISSED
    assert {(f.verdict.verifier, f.failing) for f in audit.faults} == {
        (order[0], FaultKind.ACCUSED),
        (order[3], FaultKind.NOT_RECOMPUTED),
    }
    without = {STEP: {**votes[STEP], order[3]: (MATCH, {"witness": NO_DIGEST})}}
    assert len(grow(run_state, 5, without).audits[STEP].faults) == 2


def test_a_verifier_at_fault_is_drawn_no_more():
    run_state, audit = judged([MISMATCH, MATCH, MATCH, MATCH], rounds=5)
    out = audit.order[0]

    later = grow(run_state, 2)
    fresh = {step: a for step, a in later.audits.items() if step not in run_state.audits}
    assert fresh
    assert all(out not in audit.order and audit.f == 1 for audit in fresh.values())
    assert all(out in audit.order for step, audit in run_state.audits.items())


def test_so_few_auditors_are_never_left_that_liars_are_a_committee():
    spec = a_spec()

    assert judges_of(spec, VERIFIERS[:1]) == VERIFIERS[1:]
    assert judges_of(spec, VERIFIERS[:2]) == VERIFIERS
    assert judges_of(spec, VERIFIERS) == VERIFIERS


def test_a_manifest_that_hides_a_fault_or_invents_one_is_refused():
    run_state, _ = judged([MISMATCH, MATCH, MATCH, MATCH], rounds=5)
    manifest = a_manifest(run_state)

    check_place(run_state, manifest)
    for disqualified in ((), VERIFIERS[:2]):
        with pytest.raises(MalformedMessage, match="at fault"):
            check_place(run_state, replace(manifest, disqualified=disqualified))


# ---- known-answer tasks ----

SALT = Digest(b"s" * 32)
TASKS = [(SALT, RoundId(3), NODE), (SALT, RoundId(0), NODE)]
KNOWN_ANSWER = known_answer_proofs(RUN_ID, TASKS)[1]


def with_a_list(**changes):
    """As `audited`, of a node that announced its list before the run's first step."""
    run_state = a_start(**{"known_answer_count": 2, "rounds": 40, **changes})
    record = replace(run_state.nodes[NODE], tasks=known_answer_root(TASKS))
    run_state = grow(replace(run_state, nodes={**run_state.nodes, NODE: record}), 2)
    return run_state, run_state.audits[STEP].order


def show(run_state, votes):
    """The next manifest, with the proof that the fault was planted."""
    said = vote_messages(run_state, {STEP: votes})
    manifest = a_manifest(run_state, known_answers=(KNOWN_ANSWER,), **said)
    check_place(run_state, manifest)
    return advance(run_state, manifest)


def test_a_planted_fault_that_is_found_costs_its_node_nothing():
    run_state, order = with_a_list()
    run_state = grow(run_state, 3, {STEP: {order[0]: MISMATCH}})
    assert run_state.audits[STEP].ruling is AuditStatus.DISPUTED

    run_state = show(run_state, {})

    assert run_state.audits[STEP].ruling is AuditStatus.KNOWN_ANSWER
    assert not run_state.nodes[NODE].banned
    assert run_state.disqualified == ()


def test_a_quorum_of_auditors_convicts_nobody_before_a_task_can_be_shown_to_be_one():
    run_state, order = with_a_list()
    rules, votes = run_state.spec.audit, {STEP: dict.fromkeys(order, MISMATCH)}
    run_state = grow(run_state, 3, votes)
    last = run_state.audits[STEP].dispute_opened_round + rules.dispute_rounds
    assert run_state.audits[STEP].ruling is AuditStatus.DISPUTED

    before_last = grow(run_state, last - int(run_state.round), votes)
    audit = before_last.audits[STEP]
    assert int(before_last.round) == last and len(audit.verdicts) == len(order)
    assert [awaits(rules, audit, last - left)[2] for left in (2, 1, 0)] == [False, True, True]
    assert show(before_last, {}).audits[STEP].ruling is AuditStatus.KNOWN_ANSWER

    after = grow(before_last, 1, votes)
    assert after.audits[STEP].ruling is AuditStatus.CONFIRMED and after.nodes[NODE].banned


def test_who_says_of_a_task_that_it_is_false_and_has_made_that_up_is_at_fault():
    """A task pays its finders: to accuse whatever comes must not pay."""
    run_state, order = with_a_list()
    made_up = {"recomputed": Digest(b"m" * 32)}
    votes = {STEP: {**dict.fromkeys(order[:3], MISMATCH), order[3]: (MISMATCH, made_up)}}
    run_state = grow(run_state, 5, votes)
    assert run_state.audits[STEP].ruling is AuditStatus.DISPUTED and len(run_state.audits[STEP].verdicts) == 4

    shown = show(run_state, {})

    audit = shown.audits[STEP]
    assert audit.ruling is AuditStatus.KNOWN_ANSWER and not shown.nodes[NODE].banned
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(order[3], FaultKind.NOT_RECOMPUTED)]
    assert shown.disqualified == (order[3],)


def test_a_known_answer_task_that_is_found_at_the_last_chance_is_still_shown():
    run_state, order = with_a_list()
    run_state = grow(run_state, 3)  # nobody judges in time but in the last two manifests
    run_state = grow(run_state, 2, {STEP: {order[0]: MISMATCH}})
    assert run_state.audits[STEP].ruling is AuditStatus.DISPUTED
    assert int(run_state.round) > run_state.spec.audit.audit_rounds

    run_state = show(run_state, {})

    assert run_state.audits[STEP].ruling is AuditStatus.KNOWN_ANSWER
    assert not run_state.nodes[NODE].banned


def test_who_passes_a_planted_fault_is_at_fault_once_a_committee_has_looked():
    run_state, order = with_a_list(audit_rounds=9)
    votes = {order[0]: MATCH, **dict.fromkeys(order[1:], MISMATCH)}
    run_state = grow(run_state, 3, {STEP: votes})
    assert run_state.audits[STEP].ruling is AuditStatus.PASSED

    run_state = show(run_state, votes)
    assert run_state.audits[STEP].ruling is AuditStatus.DISPUTED
    run_state = grow(run_state, 2, {STEP: votes})

    audit = run_state.audits[STEP]
    assert audit.ruling is AuditStatus.KNOWN_ANSWER
    assert [(f.verdict.verifier, f.failing) for f in audit.faults] == [(order[0], FaultKind.PASSED)]
    assert not run_state.nodes[NODE].banned


def test_a_canary_that_did_its_step_honestly_frames_nobody():
    run_state, order = with_a_list(audit_rounds=9)
    votes = dict.fromkeys(order, MATCH)
    run_state = show(grow(run_state, 3, {STEP: votes}), votes)
    run_state = grow(run_state, 2, {STEP: votes})

    assert run_state.audits[STEP].ruling is AuditStatus.DISMISSED
    assert run_state.disqualified == ()


def test_one_liar_and_a_canary_that_did_its_step_frame_nobody():
    run_state, order = with_a_list(replication_ppm=PPM, audit_rounds=9)
    votes = {**dict.fromkeys(order, MATCH), order[0]: MISMATCH}
    run_state = grow(run_state, 3, {STEP: votes})
    while run_state.audits[STEP].ruling is not AuditStatus.DISPUTED:
        run_state = grow(run_state, 1, {STEP: votes})
    run_state = show(run_state, votes)
    run_state = grow(run_state, 2, {STEP: votes})

    audit = run_state.audits[STEP]
    assert audit.ruling is AuditStatus.DISMISSED
    assert run_state.disqualified == (order[0],)


def test_a_step_counts_as_a_task_only_if_its_node_listed_it_and_somebody_has_judged_it():
    run_state, order = with_a_list()
    assert not may_show_known_answer(run_state.spec.audit, run_state.audits[STEP], int(run_state.round))
    run_state = grow(run_state, 3, {STEP: {order[0]: MISMATCH}})

    for lie in (
        replace(KNOWN_ANSWER, salt=Digest(b"t" * 32)),
        replace(KNOWN_ANSWER, index=0),
        replace(KNOWN_ANSWER, path=()),
        replace(KNOWN_ANSWER, node=NODES[2]),
    ):
        with pytest.raises(MalformedMessage):
            check_place(run_state, a_manifest(run_state, known_answers=(lie,)))
    bare, order = audited()
    bare = grow(bare, 3, {STEP: {order[0]: MISMATCH}})
    with pytest.raises(MalformedMessage):
        check_place(bare, a_manifest(bare, known_answers=(KNOWN_ANSWER,)))


# ---- what a manifest may carry ----


def test_a_manifest_carries_only_words_that_may_come():
    run_state, order = audited()
    audit = run_state.audits[STEP]
    commitment = a_commitment(a_verdict(audit, order[0], MATCH))
    check_place(run_state, a_manifest(run_state, commitments=(commitment,)))
    open_now = grow(run_state, 2, {STEP: {order[0]: MATCH}})
    said, shown = UNSIGNED.verdict(a_verdict(audit, order[0], MATCH)), a_sketch_opening(audit)
    check_place(open_now, a_manifest(open_now, verdicts=(said,), sketch_openings=(shown,)))

    stranger = a_commitment(a_verdict(audit, PeerId(b"z" * 32), MATCH))
    elsewhere = replace(commitment, commitment=replace(commitment.commitment, round=RoundId(9)))
    for manifest, words_ in (
        (
            a_manifest(run_state, commitments=(a_commitment(a_verdict(audit, order[3], MATCH)),)),
            "may not commit to a verdict",
        ),
        (a_manifest(run_state, commitments=(stranger,)), "may not commit to a verdict"),
        (a_manifest(run_state, commitments=(elsewhere,)), "not audited"),
        (replace(a_manifest(run_state), commitments=(commitment, commitment)), "ascend"),
        (a_manifest(run_state, verdicts=(said,)), "may not judge"),
        (a_manifest(run_state, sketch_openings=(shown,)), "wrong time"),
    ):
        with pytest.raises(MalformedMessage, match=words_):
            check_place(run_state, manifest)
    for lie in (replace(shown, salt=Digest(b"x" * 32)), replace(shown, sketch=NO_DIGEST)):
        with pytest.raises(MalformedMessage, match="do not open"):
            check_place(open_now, a_manifest(open_now, sketch_openings=(lie,)))


def test_a_recompute_is_of_the_nodes_class_or_of_the_reference_class_where_limits_were_agreed():
    run_state, order = audited()
    other = {"exec_class": Digest(b"o" * 32)}
    votes = {STEP: {order[0]: (MATCH, other)}}
    assert grow(run_state, 4, votes).audits[STEP].verdicts == ()

    run_state, order = audited(limits=Digest(b"l" * 32))
    assert grow(run_state, 4, votes).audits[STEP].verdicts == ()
    votes = {STEP: {order[0]: (MATCH, {"exec_class": REFERENCE})}}
    assert grow(run_state, 4, votes).audits[STEP].ruling is AuditStatus.PASSED


# ---- what liars can and cannot do ----

OUTCOMES = st.sampled_from([None, *Outcome])
LIES = st.sampled_from([{}, GUESS, {"witness": Digest(b"c" * 32)}, {"exec_class": REFERENCE}])


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    liar=st.integers(0, 3),
    lies=st.lists(st.tuples(OUTCOMES, LIES), min_size=12, max_size=12),
    silent=st.sets(st.integers(0, 3)),
    delay=st.integers(0, 3),
    auditors_wanted=st.sampled_from([0, PPM]),
    is_mute=st.booleans(),
)
def test_a_single_liar_never_convicts_an_honest_node_or_verifier(
    liar, lies, silent, delay, auditors_wanted, is_mute
):
    """f = 1 of 4: the others say MATCH, or nothing, or say it late."""
    run_state, votes = a_start(replication_ppm=auditors_wanted), {}
    told = {}
    for number in range(12):
        for step in run_state.audits:
            honest = {v: MATCH for i, v in enumerate(VERIFIERS) if i != liar and i not in silent}
            is_late = int(run_state.round) < step[0] + 2 + delay
            outcome, lie = told.setdefault(step, lies[number])
            votes[step] = {} if is_late else dict(honest)
            if outcome is not None:
                votes[step][VERIFIERS[liar]] = (outcome, lie)
        run_state = grow(run_state, 1, votes, mute=[VERIFIERS[liar]] if is_mute else [])
        assert not any(a.ruling is AuditStatus.CONFIRMED for a in run_state.audits.values())
        assert not any(record.banned for record in run_state.nodes.values())
        assert set(run_state.disqualified) <= {VERIFIERS[liar]}


@pytest.mark.parametrize("order", list(itertools.permutations([MISMATCH, MISMATCH, MISMATCH, MATCH])))
@pytest.mark.parametrize("auditors_wanted", [0, PPM])
def test_three_honest_verifiers_convict_a_cheat_once_anyone_honest_looked(order, auditors_wanted):
    run_state, audit = judged(order, rounds=9, replication_ppm=auditors_wanted)

    looked = order[: 2 if auditors_wanted else 1]
    expected = AuditStatus.CONFIRMED if MISMATCH in looked else AuditStatus.PASSED
    assert audit.ruling is expected
    liar = audit.order[order.index(MATCH)]
    # The node's sketch is what everybody recomputes here, so only the ruling can show the lie.
    assert run_state.disqualified == ((liar,) if expected is AuditStatus.CONFIRMED else ())
