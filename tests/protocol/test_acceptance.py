"""Acceptance: what verifiers' evaluations of the model add up to, and which share of a price follows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from assay.ledger.settlement.payouts import gross_of, settle
from assay.participant.links import check_place
from assay.protocol.acceptance import agreed_score
from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import LOSS_MICRO_MAX, Closing, Evaluation, Score
from assay.protocol.params import AcceptSpec, ChoicesSpec, Milestone, check_spec
from assay.protocol.state_transition import advance, may_evaluate, start
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.messages import UNSIGNED, a_funding_report
from assay.testing.run import a_manifest, a_spec, grow

MOST = 3_000_000
ACCEPT = AcceptSpec(share_ppm=250_001, sequences=2, milestones=(Milestone(epoch=1, most_loss_micro=MOST),))
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


def evaluated(run_state, *scores):
    """The state after a manifest with these scores of the first verifiers."""
    signed = tuple(
        UNSIGNED.evaluation(an_evaluation(verifier, score=score))
        for verifier, score in zip(VERIFIERS, scores, strict=False)
    )
    manifest = a_manifest(run_state, evaluations=signed)
    check_place(run_state, manifest)
    return advance(run_state, manifest)


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


def test_an_evaluation_may_come_from_the_epochs_last_step_until_it_is_settled():
    run_state = a_run()
    first, last = 8, run_state.calendar.settled_at(1)
    fit = []
    while not run_state.is_complete:
        if may_evaluate(run_state, an_evaluation(VERIFIERS[0])):
            fit.append(int(run_state.round))
        run_state = grow(run_state, 1)
    assert fit == list(range(first, last + 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": Digest(b"o" * 32)},
        {"epoch": 0},  # it has no milestone
        {"epoch": 2},
        {"verifier": NODES[0]},
        {"score": a_score(loss=LOSS_MICRO_MAX + 1)},
        {"score": a_score(acc=ITEMS + 1)},
        {"score": a_score(acc_norm=ITEMS + 1)},
    ],
)
def test_evaluations_of_other_runs_epochs_or_parties_are_refused(changes):
    run_state = after(a_run(with_choices()), 8)
    good = an_evaluation(VERIFIERS[0])
    assert may_evaluate(run_state, good)
    assert may_evaluate(run_state, replace(good, score=a_score(LOSS_MICRO_MAX, ITEMS, ITEMS)))

    bad = a_manifest(run_state, evaluations=(UNSIGNED.evaluation(replace(good, **changes)),))

    with pytest.raises(MalformedMessage, match=r"evaluation by .* not admissible"):
        check_place(run_state, bad)


def test_a_verifier_evaluates_an_epoch_once_and_evaluations_ascend():
    run_state = after(a_run(), 8)
    two = tuple(UNSIGNED.evaluation(an_evaluation(one)) for one in VERIFIERS[:2])
    for wrong in (two[::-1], (two[0], *two)):
        with pytest.raises(MalformedMessage, match="evaluations must ascend"):
            check_place(run_state, a_manifest(run_state, evaluations=wrong))
    later = evaluated(run_state, a_score(1))
    assert not may_evaluate(later, an_evaluation(VERIFIERS[0], score=a_score(2)))
    assert later.evaluations == {(1, VERIFIERS[0]): a_score(1)}


def test_a_run_without_choices_has_no_right_answers():
    run_state = after(a_run(), 8)
    assert not may_evaluate(run_state, an_evaluation(VERIFIERS[0], score=a_score(acc=1)))


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
    assert {row.peer for row in table.rows} == {row.peer for row in full.rows}
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

    assert not may_evaluate(run_state, an_evaluation(VERIFIERS[0]))
    forced = {(1, one): a_score(MOST + 1) for one in VERIFIERS}
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
    most = replace(SPEC, money=replace(SPEC.money, accept=replace(ACCEPT, share_ppm=500_000)))
    check_spec(most)
    with pytest.raises(ValueError, match=reason):
        check_spec(replace(SPEC, money=replace(SPEC.money, accept=replace(ACCEPT, **changes))))


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
