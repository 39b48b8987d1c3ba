"""Acceptance: what verifiers' evaluations of the model add up to, and which share of a price follows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from assay.ledger.settlement.payouts import evaluation_weight, gross_of, settle
from assay.participant.links import check_place
from assay.protocol.acceptance import agreed_score
from assay.protocol.agreement.quorum import (
    faults_tolerated,
    least_audit_rounds,
    least_dispute_rounds,
    opening_rounds,
)
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import LOSS_MICRO_MAX, Closing, Evaluation, Score
from assay.protocol.params import AcceptSpec, ChoicesSpec, Milestone, check_spec, closing_rounds
from assay.protocol.permitted import awaited_evaluations, may_commit_evaluation, may_open_evaluation
from assay.protocol.run_state import EvaluationRecord, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.testing.members import NODES, RUN_ID, VERIFIERS, peers
from assay.testing.messages import UNSIGNED, a_funding_report, an_evaluation_commitment
from assay.testing.run import a_manifest, a_spec, grow

MOST = 3_000_000
ACCEPT = AcceptSpec(
    share_ppm=250_001,
    sequences=2,
    milestones=(Milestone(epoch=1, most_loss_micro=MOST),),
)
ENDS, OPENS, SETTLES = 8, 13, 16  # rounds: after epoch 1, with its first openings, with its last
PLAIN = a_spec(rounds=12)
SPEC = replace(PLAIN, money=replace(PLAIN.money, accept=ACCEPT))
ITEMS = 8
CHOICES = ChoicesSpec(digest=Digest(b"c" * 32), items=ITEMS)
BOTH = replace(ACCEPT.milestones[0], least_acc_ppm=625_000, least_acc_norm_ppm=500_000)  # 5 and 4 of 8


def names(n):
    return tuple(PeerId(bytes([i]) * 32) for i in range(n))


def with_choices(milestone=BOTH):
    """The run's spec with eight items, and this milestone."""
    accept = replace(ACCEPT, milestones=(milestone,))
    return replace(SPEC, choices=CHOICES, money=replace(SPEC.money, accept=accept))


def a_run(spec=SPEC):
    """A run of twelve rounds in epochs of four, before its first manifest; epoch 1 has a milestone."""
    return start(spec, RUN_ID)


def a_score(loss=MOST, acc=0, acc_norm=0):
    return Score(loss_micro=loss, acc_count=acc, acc_norm_count=acc_norm)


def after(run_state, round_id):
    """The state before the manifest of this round."""
    return grow(run_state, round_id - int(run_state.round))


def an_evaluation(verifier, **changes):
    found = Evaluation(run_id=RUN_ID, epoch=1, verifier=verifier, score=a_score())
    return replace(found, **changes)


def with_manifest(run_state, **changes):
    """The state after a manifest with this in it."""
    manifest = a_manifest(run_state, **changes)
    check_place(run_state, manifest)
    return advance(run_state, manifest)


def committed(run_state, *evaluations):
    """The state after a manifest with commitments to these evaluations."""
    sealed = (UNSIGNED.evaluation_commitment(an_evaluation_commitment(one)) for one in evaluations)
    return with_manifest(run_state, evaluation_commitments=tuple(sealed))


def opened(run_state, *evaluations):
    """The state after a manifest with these evaluations."""
    return with_manifest(run_state, evaluations=tuple(map(UNSIGNED.evaluation, evaluations)))


def evaluated(run_state, *scores):
    """The state before the second openings: these scores of the first verifiers are sealed and opened."""
    found = [an_evaluation(verifier, score=score) for verifier, score in zip(VERIFIERS, scores, strict=False)]
    return opened(after(committed(run_state, *found), OPENS), *found)


def ripe(run_state, epoch=1):
    return after(run_state, run_state.calendar.settled_at(epoch) + 1)


# ---- what is agreed


@pytest.mark.parametrize("lie", [a_score(loss=1), a_score(acc=8), a_score(acc_norm=8)])
def test_whatever_f_verifiers_say_the_agreed_score_is_that_of_the_honest(lie):
    truth = a_score()
    for n in range(4, 12):
        verifiers, f = names(n), faults_tolerated(n)
        for lies in product((None, lie, a_score(loss=2)), repeat=f):
            told = dict(zip(verifiers, lies, strict=False)) | dict.fromkeys(verifiers[f:], truth)
            said = {peer: score for peer, score in told.items() if score is not None}
            assert agreed_score(said, verifiers) == truth
            false = {peer: score for peer, score in said.items() if score != truth}
            assert agreed_score(false, verifiers) is None


def test_no_more_than_f_verifiers_and_strangers_agree_on_nothing():
    verifiers, score = names(7), a_score()
    assert agreed_score(dict.fromkeys(verifiers[:2], score), verifiers) is None
    assert agreed_score(dict.fromkeys(verifiers[:3], score), verifiers) == score
    assert agreed_score({**dict.fromkeys(verifiers[:2], score), NODES[0]: score}, verifiers) is None


# ---- which a manifest may carry


def test_commitments_come_first_and_openings_after_the_last_of_them():
    run_state, found = a_run(), an_evaluation(VERIFIERS[0])
    sealing, opening, awaited = [], [], ([], [])
    assert run_state.calendar.settled_at(1) == SETTLES
    while not run_state.is_complete:
        if may_commit_evaluation(run_state, an_evaluation_commitment(found)):
            sealing.append(int(run_state.round))
        sealed = committed(run_state, found) if int(run_state.round) == ENDS else run_state
        record = EvaluationRecord(holder=VERIFIERS[0], commitment=digest(found))
        forced = replace(run_state, evaluations={(1, VERIFIERS[0]): record})
        if may_open_evaluation(forced, found):
            opening.append(int(run_state.round))
        assert not awaited_evaluations(forced)[0] & {(1, VERIFIERS[0])}
        found_now = awaited_evaluations(run_state)[0], awaited_evaluations(forced)[1]
        for rounds, who in zip(awaited, found_now, strict=True):
            if who:
                assert who in ({(1, verifier) for verifier in VERIFIERS}, {(1, VERIFIERS[0])})
                rounds.append(int(run_state.round))
        run_state = grow(run_state, 1)
        assert sealed.round <= run_state.round
    assert sealing == list(range(ENDS, OPENS))
    assert opening == list(range(OPENS, SETTLES + 1))
    assert awaited == ([OPENS - 2, OPENS - 1], [SETTLES - 1, SETTLES])  # f + 1


WRONG = [
    {"run_id": Digest(b"o" * 32)},
    {"epoch": 0},  # it has no milestone
    {"epoch": 2},
    {"verifier": NODES[0]},
]


@pytest.mark.parametrize("changes", WRONG)
def test_commitments_of_other_runs_epochs_or_parties_are_refused(changes):
    run_state = after(a_run(), ENDS)
    good = an_evaluation_commitment(an_evaluation(VERIFIERS[0]))
    assert may_commit_evaluation(run_state, good)

    bad = UNSIGNED.evaluation_commitment(replace(good, **changes))

    with pytest.raises(MalformedMessage, match=r"commitment to an evaluation by .* not admissible"):
        check_place(run_state, a_manifest(run_state, evaluation_commitments=(bad,)))


@pytest.mark.parametrize(
    "changes",
    [
        *WRONG,
        {"score": a_score(loss=LOSS_MICRO_MAX + 1)},
        {"score": a_score(acc=ITEMS + 1)},
        {"score": a_score(acc_norm=ITEMS + 1)},
    ],
)
def test_evaluations_of_other_runs_epochs_or_parties_are_refused_though_their_verifier_committed(changes):
    most = an_evaluation(VERIFIERS[0], score=a_score(LOSS_MICRO_MAX, ITEMS, ITEMS))
    bad = replace(most, **changes)
    run_state = after(a_run(with_choices()), OPENS)
    for one, may in ((most, True), (bad, False)):
        record = EvaluationRecord(holder=one.verifier, commitment=digest(one))
        forced = replace(run_state, evaluations={(one.epoch, one.verifier): record})
        assert may_open_evaluation(forced, one) is may

    with pytest.raises(MalformedMessage, match=r"evaluation by .* not admissible"):
        check_place(forced, a_manifest(forced, evaluations=(UNSIGNED.evaluation(bad),)))


def test_nobody_opens_what_it_did_not_commit_to():
    mine, other = (an_evaluation(one, salt=Digest(b"s" * 32)) for one in VERIFIERS[:2])
    run_state = after(committed(after(a_run(), ENDS), mine), OPENS)

    assert may_open_evaluation(run_state, mine)
    for lie in (
        other,
        replace(mine, score=a_score(1)),
        replace(mine, salt=Digest(b"t" * 32)),
        replace(other, salt=NO_DIGEST),
    ):
        assert not may_open_evaluation(run_state, lie)


def test_the_commitment_of_another_verifier_cannot_be_opened_by_who_repeats_it():
    mine = an_evaluation(VERIFIERS[0], salt=Digest(b"s" * 32))
    copied = an_evaluation_commitment(mine, verifier=VERIFIERS[1])
    run_state = after(a_run(), ENDS)
    sealed = map(UNSIGNED.evaluation_commitment, (an_evaluation_commitment(mine), copied))
    run_state = opened(after(with_manifest(run_state, evaluation_commitments=tuple(sealed)), OPENS), mine)

    assert not may_open_evaluation(run_state, replace(mine, verifier=VERIFIERS[1]))
    assert run_state.score(1) is None  # one of four states it


def test_a_verifiers_first_commitment_counts_and_both_kinds_ascend():
    run_state = after(a_run(), ENDS)
    found = [an_evaluation(one) for one in VERIFIERS[:2]]
    two = tuple(UNSIGNED.evaluation_commitment(an_evaluation_commitment(one)) for one in found)
    for wrong in (two[::-1], (two[0], *two)):
        with pytest.raises(MalformedMessage, match="commitments to evaluations must ascend"):
            check_place(run_state, a_manifest(run_state, evaluation_commitments=wrong))
    run_state = committed(run_state, *found)
    second = replace(found[0], score=a_score(2))
    assert not may_commit_evaluation(run_state, an_evaluation_commitment(second))
    run_state = after(run_state, OPENS)
    assert not may_open_evaluation(run_state, second)
    two = tuple(map(UNSIGNED.evaluation, found))
    for wrong in (two[::-1], (two[0], *two)):
        with pytest.raises(MalformedMessage, match="evaluations must ascend"):
            check_place(run_state, a_manifest(run_state, evaluations=wrong))
    run_state = opened(run_state, found[0])
    record = EvaluationRecord(holder=VERIFIERS[0], commitment=digest(found[0]), score=a_score())
    assert run_state.evaluations[1, VERIFIERS[0]] == record
    assert run_state.evaluations[1, VERIFIERS[1]].score is None
    assert not may_open_evaluation(run_state, found[0])


def test_a_run_without_choices_has_no_right_answers():
    wrong = an_evaluation(VERIFIERS[0], score=a_score(acc=1))
    run_state = after(committed(after(a_run(), ENDS), wrong), OPENS)
    assert not may_open_evaluation(run_state, wrong)


def test_a_run_with_milestones_has_manifests_for_commitments_and_openings():
    seven = peers("verifier", 7)
    short = a_spec(rounds=12, verifiers=seven, audit_rounds=4, dispute_rounds=2)
    assert short.closing_rounds == 8

    check_spec(short)
    with pytest.raises(ValueError, match="8 manifests until an epoch is settled, expected 9 to evaluate it"):
        check_spec(replace(short, money=replace(short.money, accept=ACCEPT)))


@pytest.mark.parametrize("n", range(1, 17))
def test_the_shortest_run_that_may_be_ordered_has_an_honest_leader_in_both_windows(n):
    rules = replace(SPEC.audit, audit_rounds=least_audit_rounds(n), dispute_rounds=least_dispute_rounds(n))
    whole, opens = closing_rounds(rules, n), opening_rounds(n)
    assert min(opens, whole - opens) > faults_tolerated(n)
    assert (whole - opens) * 5 >= whole * 3


# ---- what it costs


@pytest.mark.parametrize(
    ("losses", "agreed", "is_missed"),
    [
        ((MOST, MOST), MOST, False),
        ((MOST + 1, MOST + 1), MOST + 1, True),
        ((MOST + 1, MOST, MOST), MOST, False),
        ((1, MOST + 1, MOST + 1, MOST + 1), MOST + 1, True),
        ((MOST + 1,), None, False),
        ((), None, False),
    ],
)
def test_a_missed_milestone_costs_its_share_of_the_epochs_price_and_nothing_else(losses, agreed, is_missed):
    run_state = ripe(evaluated(after(a_run(), 8), *map(a_score, losses)))
    full = settle(replace(run_state, spec=PLAIN), 1)

    table = settle(run_state, 1)

    assert table.score == (None if agreed is None else a_score(agreed))
    assert run_state.falls_short(1) == is_missed
    assert full.total == full.tokens_paid * run_state.spec.money.price_per_mtoken // 10**6 > 0
    assert table.total == (full.total - full.total * 250_001 // 10**6 if is_missed else full.total)
    assert (table.tokens_paid, table.unpaid) == (full.tokens_paid, full.unpaid)
    paid = {row.peer for row in table.rows if row.role != "verifier"}
    assert paid == {row.peer for row in full.rows}
    assert gross_of(run_state.spec, table.tokens_paid, falls_short=is_missed) == table.total


@pytest.mark.parametrize(
    ("score", "is_missed"),
    [
        (a_score(MOST, 5, 4), False),
        (a_score(MOST, 4, 8), True),
        (a_score(MOST, 8, 3), True),
        (a_score(MOST + 1, 8, 8), True),
    ],
)
def test_a_milestone_is_reached_only_within_each_of_its_bounds(score, is_missed):
    run_state = ripe(evaluated(after(a_run(with_choices()), 8), score, score, a_score(1, 8, 8)))

    assert (run_state.score(1), run_state.falls_short(1)) == (score, is_missed)


@pytest.mark.parametrize("name", ["acc", "acc_norm"])
def test_a_milestone_of_one_accuracy_alone_takes_any_loss_and_any_other_accuracy(name):
    only = Milestone(epoch=1, most_loss_micro=LOSS_MICRO_MAX, **{f"least_{name}_ppm": 625_000})
    check_spec(with_choices(only))
    for count, is_missed in ((4, True), (5, False)):
        score = a_score(LOSS_MICRO_MAX, **{name: count})
        run_state = ripe(evaluated(after(a_run(with_choices(only)), 8), score, score))
        assert run_state.falls_short(1) == is_missed


@pytest.mark.parametrize(
    ("sequences", "items", "local", "weight"),
    [
        (1, 0, {"sequences": 100}, 1),  # a little is not nothing
        (6, 0, {"sequences": 2}, 10),  # as much as a verdict: three passes over a step's sequences
        (7, 0, {"sequences": 2}, 12),  # 11 2/3
        (4, 8, {"sequences": 2}, 20),  # an item counts as a sequence
        (60, 0, {"sequences": 2, "steps": 25, "segment": 10}, 10),  # an audit recomputes one segment
    ],
)
def test_an_evaluation_weighs_as_much_as_verdicts_that_cost_as_much(sequences, items, local, weight):
    accept = replace(ACCEPT, sequences=sequences)
    rule = replace(SPEC.rule, local=replace(SPEC.rule.local, **local))
    spec = replace(
        SPEC,
        money=replace(SPEC.money, accept=accept),
        rule=rule,
        choices=replace(CHOICES, items=items),
    )
    assert evaluation_weight(spec) == weight


def test_whoever_states_the_agreed_score_is_paid_for_it_and_nobody_else():
    truth, lie = a_score(), a_score(1)
    found = [
        an_evaluation(verifier, score=score)
        for verifier, score in zip(VERIFIERS, (truth, truth, lie, truth), strict=True)
    ]
    run_state = opened(after(committed(after(a_run(), ENDS), *found), OPENS), *found[:3])
    weight = evaluation_weight(SPEC)
    assert run_state.score(1) == truth and weight == 4  # 10 * 2 / (3 * 2), rounded up

    table = settle(ripe(run_state), 1)

    # Nobody did anything else: grown manifests carry no verdicts and no shares of the beacon.
    share = table.total * SPEC.money.verifiers_ppm // 10**6
    assert {row.peer: row.amount for row in table.rows if row.role == "verifier"} == dict.fromkeys(
        VERIFIERS[:2], share // 2
    )
    # Another epoch's evaluations, which the state holds at the same time, are not paid with this one's.
    other = {(2, VERIFIERS[3]): EvaluationRecord(holder=VERIFIERS[3], commitment=NO_DIGEST, score=truth)}
    at = replace(ripe(run_state), evaluations={**run_state.evaluations, **other})
    assert settle(at, 1).rows == table.rows


def test_a_verifier_at_fault_is_not_paid_for_its_evaluation():
    run_state = ripe(evaluated(after(a_run(), ENDS), a_score(), a_score()))
    guilty = replace(run_state.verifiers[VERIFIERS[0]], fault_round=ENDS - 1)
    run_state = replace(run_state, verifiers={**run_state.verifiers, VERIFIERS[0]: guilty})
    rows = [row.peer for row in settle(run_state, 1).rows if row.role == "verifier"]
    assert rows == [VERIFIERS[1]]


def test_where_no_score_is_agreed_no_evaluation_is_paid():
    run_state = evaluated(after(a_run(), ENDS), a_score(1), a_score(2), a_score(3))
    assert run_state.score(1) is None
    assert not [row for row in settle(ripe(run_state), 1).rows if row.role == "verifier"]


def test_other_epochs_are_paid_in_full():
    run_state = evaluated(after(a_run(), 8), a_score(MOST + 1), a_score(MOST + 1))
    assert settle(ripe(run_state, 2), 2).score is None
    assert settle(ripe(run_state, 2), 2).total == settle(ripe(a_run(), 2), 2).total


def test_an_epoch_that_its_buyer_cuts_short_has_no_milestone():
    closing = tuple(
        UNSIGNED.funding_report(a_funding_report(one, epochs=4, block=9, closing=Closing.BY_BUYER))
        for one in VERIFIERS
    )
    run_state = after(a_run(), 6)
    run_state = advance(run_state, a_manifest(run_state, funding_reports=closing))
    assert run_state.calendar.epoch_end(1) == 7
    run_state = grow(run_state, 1)

    found = {one: an_evaluation(one, score=a_score(MOST + 1)) for one in VERIFIERS}
    assert not may_commit_evaluation(run_state, an_evaluation_commitment(found[VERIFIERS[0]]))
    forced = {
        (1, one): EvaluationRecord(holder=one, commitment=digest(evaluation), score=evaluation.score)
        for one, evaluation in found.items()
    }
    assert not replace(run_state, evaluations=forced).falls_short(1)


def test_evaluations_are_forgotten_when_their_epoch_is_settled():
    run_state = ripe(evaluated(after(a_run(), 8), a_score(), a_score()))
    assert run_state.evaluations
    assert not grow(run_state, 2).evaluations


# ---- which terms a spec may name


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"share_ppm": 0}, "0 ppm depend on milestones"),
        ({"share_ppm": 500_001}, "500001 ppm depend on milestones"),
        ({"sequences": 0}, "0 sequences to measure"),
        ({"sequences": 10**6}, "1000000 sequences to measure"),
        ({"milestones": ()}, "be at least one"),
        ({"milestones": (Milestone(epoch=3, most_loss_micro=1),)}, "below 3"),
        ({"milestones": (Milestone(epoch=1, most_loss_micro=1),) * 2}, "each once"),
        ({"milestones": (Milestone(epoch=1, most_loss_micro=0),)}, "above 0"),
        ({"milestones": (Milestone(epoch=1, most_loss_micro=LOSS_MICRO_MAX + 1),)}, "at most 1000000000"),
        ({"milestones": (Milestone(epoch=1, most_loss_micro=LOSS_MICRO_MAX),)}, "asks for nothing"),
        ({"milestones": (BOTH,)}, "the run has no choices"),
    ],
)
def test_terms_out_of_bounds_are_refused(changes, reason):
    check_spec(replace(SPEC, money=replace(SPEC.money, accept=replace(ACCEPT, share_ppm=500_000))))
    with pytest.raises(ValueError, match=reason):
        check_spec(replace(SPEC, money=replace(SPEC.money, accept=replace(ACCEPT, **changes))))


def test_at_most_4096_sequences_are_measured_however_many_are_held_out():
    data = replace(SPEC.data, tokens=10**6, validation_tokens=5000 * (SPEC.model.context + 1))

    def measured(count):
        accept = replace(ACCEPT, sequences=count)
        return replace(SPEC, data=data, money=replace(SPEC.money, accept=accept))

    check_spec(measured(4096))
    with pytest.raises(ValueError, match="4097 sequences to measure, expected 1 to 4096"):
        check_spec(measured(4097))


@pytest.mark.parametrize(
    ("choices", "changes", "reason"),
    [
        (CHOICES, {"least_acc_ppm": 1_000_001}, "least_acc_ppm is 1000001, expected at most 1000000"),
        (CHOICES, {"least_acc_norm_ppm": 1_000_001}, "least_acc_norm_ppm is 1000001"),
        (replace(CHOICES, items=1025), {}, "1025 multiple-choice items, expected 1 to 1024"),
        (replace(CHOICES, items=0), {}, "0 multiple-choice items"),
        (replace(CHOICES, digest=NO_DIGEST), {}, "8 multiple-choice items"),
    ],
)
def test_items_and_accuracies_out_of_bounds_are_refused(choices, changes, reason):
    check_spec(with_choices(replace(BOTH, least_acc_ppm=10**6, least_acc_norm_ppm=10**6)))
    check_spec(replace(with_choices(), choices=replace(CHOICES, items=1024)))
    with pytest.raises(ValueError, match=reason):
        check_spec(replace(with_choices(replace(BOTH, **changes)), choices=choices))
