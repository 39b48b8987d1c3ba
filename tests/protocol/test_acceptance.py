"""Acceptance: what verifiers' evaluations of the model add up to, and which share of a price follows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from assay.ledger.settlement.payouts import gross_of, settle
from assay.participant.links import check_place
from assay.protocol.acceptance import agreed_loss
from assay.protocol.agreement.quorum import faults_tolerated
from assay.protocol.errors import MalformedMessage
from assay.protocol.messages import LOSS_MICRO_MAX, Closing, Evaluation
from assay.protocol.params import AcceptSpec, Milestone, check_spec
from assay.protocol.state_transition import advance, may_evaluate, start
from assay.protocol.types import Digest, PeerId
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.messages import UNSIGNED, a_funding_report
from assay.testing.run import a_manifest, a_spec, grow

MOST = 3_000_000
ACCEPT = AcceptSpec(share_ppm=250_001, sequences=2, milestones=(Milestone(epoch=1, most_loss_micro=MOST),))
PLAIN = a_spec(rounds=12)
SPEC = replace(PLAIN, money=replace(PLAIN.money, accept=ACCEPT))


def names(n):
    return tuple(PeerId(bytes([i]) * 32) for i in range(n))


def a_run():
    """A run of twelve rounds in epochs of four, before its first manifest; epoch 1 has a milestone."""
    return start(SPEC, RUN_ID)


def after(run_state, round_id):
    """The state before the manifest of this round."""
    return grow(run_state, round_id - int(run_state.round))


def an_evaluation(verifier, **changes):
    found = Evaluation(run_id=RUN_ID, epoch=1, verifier=verifier, loss_micro=MOST)
    return replace(found, **changes)


def evaluated(run_state, *losses):
    """The state after a manifest with these losses of the first verifiers."""
    signed = tuple(
        UNSIGNED.evaluation(an_evaluation(verifier, loss_micro=loss))
        for verifier, loss in zip(VERIFIERS, losses, strict=False)
    )
    manifest = a_manifest(run_state, evaluations=signed)
    check_place(run_state, manifest)
    return advance(run_state, manifest)


def ripe(run_state, epoch=1):
    return after(run_state, run_state.calendar.settled_at(epoch) + 1)


# ---- what is agreed


def test_whatever_f_verifiers_say_the_agreed_loss_is_that_of_the_honest():
    for n in range(4, 12):
        verifiers, f = names(n), faults_tolerated(n)
        for lies in product((None, 1, 2), repeat=f):
            told = dict(zip(verifiers, lies, strict=False)) | dict.fromkeys(verifiers[f:], 7)
            said = {peer: loss for peer, loss in told.items() if loss is not None}
            assert agreed_loss(said, verifiers) == 7
            assert agreed_loss({peer: said[peer] for peer in said if said[peer] != 7}, verifiers) is None


def test_no_more_than_f_verifiers_and_strangers_agree_on_nothing():
    verifiers = names(7)
    assert agreed_loss(dict.fromkeys(verifiers[:2], 5), verifiers) is None
    assert agreed_loss(dict.fromkeys(verifiers[:3], 5), verifiers) == 5
    assert agreed_loss({**dict.fromkeys(verifiers[:2], 5), NODES[0]: 5}, verifiers) is None


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
        {"loss_micro": LOSS_MICRO_MAX + 1},
    ],
)
def test_evaluations_of_other_runs_epochs_or_parties_are_refused(changes):
    run_state = after(a_run(), 8)
    good = an_evaluation(VERIFIERS[0])
    assert may_evaluate(run_state, good)
    assert may_evaluate(run_state, replace(good, loss_micro=LOSS_MICRO_MAX))

    bad = a_manifest(run_state, evaluations=(UNSIGNED.evaluation(replace(good, **changes)),))

    with pytest.raises(MalformedMessage, match=r"evaluation by .* not admissible"):
        check_place(run_state, bad)


def test_a_verifier_evaluates_an_epoch_once_and_evaluations_ascend():
    run_state = after(a_run(), 8)
    two = tuple(UNSIGNED.evaluation(an_evaluation(one)) for one in VERIFIERS[:2])
    for wrong in (two[::-1], (two[0], *two)):
        with pytest.raises(MalformedMessage, match="evaluations must ascend"):
            check_place(run_state, a_manifest(run_state, evaluations=wrong))
    later = evaluated(run_state, 1)
    assert not may_evaluate(later, an_evaluation(VERIFIERS[0], loss_micro=2))
    assert later.evaluations == {(1, VERIFIERS[0]): 1}


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
    run_state = ripe(evaluated(after(a_run(), 8), *losses))
    full = settle(replace(run_state, spec=PLAIN), 1)

    table = settle(run_state, 1)

    assert (table.loss_micro, run_state.falls_short(1)) == (agreed, is_missed)
    assert full.total == full.tokens_paid * run_state.spec.money.price_per_mtoken // 10**6 > 0
    assert table.total == (full.total - full.total * 250_001 // 10**6 if is_missed else full.total)
    assert (table.tokens_paid, table.unpaid) == (full.tokens_paid, full.unpaid)
    assert {row.peer for row in table.rows} == {row.peer for row in full.rows}
    assert gross_of(run_state.spec, table.tokens_paid, falls_short=is_missed) == table.total


def test_other_epochs_are_paid_in_full():
    run_state = evaluated(after(a_run(), 8), MOST + 1, MOST + 1)
    assert not settle(ripe(run_state, 2), 2).loss_micro
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
    forced = {(1, one): MOST + 1 for one in VERIFIERS}
    assert not replace(run_state, evaluations=forced).falls_short(1)


def test_evaluations_are_forgotten_when_their_epoch_is_settled():
    run_state = ripe(evaluated(after(a_run(), 8), MOST, MOST))
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
        ({"milestones": (Milestone(epoch=1, most_loss_micro=LOSS_MICRO_MAX),)}, "below 1000000000"),
    ],
)
def test_terms_out_of_bounds_are_refused(changes, reason):
    most = replace(SPEC, money=replace(SPEC.money, accept=replace(ACCEPT, share_ppm=500_000)))
    check_spec(most)
    with pytest.raises(ValueError, match=reason):
        check_spec(replace(SPEC, money=replace(SPEC.money, accept=replace(ACCEPT, **changes))))
