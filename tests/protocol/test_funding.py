"""Funding reports: what f liars can do with them, and which rounds train, wherever a run closes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from assay.ledger.settlement.payouts import settle
from assay.participant.links import check_place
from assay.protocol.agreement.quorum import faults_tolerated, quorum
from assay.protocol.calendar import Calendar
from assay.protocol.errors import MalformedMessage
from assay.protocol.funding import closing, funded_epochs
from assay.protocol.messages import Closing, FundingReport, Outcome
from assay.protocol.run_state import next_chain, start
from assay.protocol.state_transition import advance
from assay.protocol.types import NO_DIGEST, Digest, PeerId
from assay.testing.members import NODES, RUN_ID, VERIFIERS
from assay.testing.messages import UNSIGNED, a_funding_report
from assay.testing.run import a_manifest, a_spec, a_start, vote_messages

SIZES = (4, 7, 10)
NO, BY_BUYER, BY_DEADLINE = Closing.NO, Closing.BY_BUYER, Closing.BY_DEADLINE


def a_report(verifier, **changes):
    return UNSIGNED.funding_report(a_funding_report(verifier, **changes))


def names(n):
    return tuple(PeerId(bytes([i]) * 32) for i in range(n))


def told(verifiers, figures):
    """Reports by verifier, of (epochs, closing); None has not reported."""
    return {
        peer: FundingReport(run_id=RUN_ID, verifier=peer, block=1, epochs=one[0], closing=one[1])
        for peer, one in zip(verifiers, figures, strict=True)
        if one is not None
    }


def placements(n, honest, lies):
    """Every placement of f liars among n, with all of them telling one of the lies, or each another."""
    f = faults_tolerated(n)
    for liars in itertools.combinations(range(n), f):
        for each in itertools.product(lies, repeat=f):
            said = dict(zip(liars, each, strict=True))
            yield [said.get(i, honest) for i in range(n)]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("true", [0, 1, 5])
def test_f_liars_neither_fund_an_epoch_nor_hold_one_up(n, true):
    verifiers = names(n)
    for figures in placements(n, (true, NO), (None, (0, NO), (1 << 62, NO))):
        assert funded_epochs(told(verifiers, figures), verifiers) == true


@pytest.mark.parametrize("n", SIZES)
def test_f_liars_neither_close_a_run_nor_keep_a_closing_one_open(n):
    verifiers, lies = names(n), (None, (0, NO), (0, BY_BUYER), (0, BY_DEADLINE))
    for true in (NO, BY_BUYER, BY_DEADLINE):
        for figures in placements(n, (5, true), lies):
            assert closing(told(verifiers, figures), verifiers) is true


@pytest.mark.parametrize("n", SIZES)
def test_while_honest_verifiers_see_blocks_of_different_age_the_figure_is_one_that_some_of_them_saw(n):
    verifiers, f = names(n), faults_tolerated(n)
    for late in range(n - f + 1):
        honest = [(2, NO)] * late + [(7, BY_BUYER)] * (n - f - late)
        for lie in ((0, NO), (1 << 62, BY_DEADLINE)):
            reports = told(verifiers, honest + [lie] * f)
            assert 2 <= funded_epochs(reports, verifiers) <= 7
            if late == n - f:
                assert closing(reports, verifiers) is NO
            if not late:
                assert closing(reports, verifiers) is BY_BUYER


def test_a_quorum_without_the_last_honest_verifier_funds_nothing():
    for n in SIZES:
        verifiers = names(n)
        few = [(3, NO)] * (quorum(n) - 1) + [None] * (n - quorum(n) + 1)
        assert funded_epochs(told(verifiers, few), verifiers) == 0


# ---- what a manifest may carry


def reporting(run_state, *reports, nodes=None):
    """The next manifest with these reports, and commits of these nodes (of all, if left out)."""
    manifest = a_manifest(run_state, nodes=nodes)
    ordered = sorted(reports, key=lambda one: one.funding_report.verifier)
    return replace(manifest, funding_reports=tuple(ordered))


def empty(run_state, *reports):
    """The next manifest with these reports and nobody's commit."""
    return without_commits(run_state, reporting(run_state, *reports))


def without_commits(run_state, manifest):
    chain = next_chain(run_state.chain, (), NO_DIGEST)
    return replace(manifest, commits=(), inclusion_lists=(), aggregate=NO_DIGEST, chain=chain)


def everybody(**fields):
    return [a_report(peer, **fields) for peer in VERIFIERS]


def taken(run_state, manifest):
    """The state after a manifest that a light client accepts."""
    check_place(run_state, manifest)
    return advance(run_state, manifest)


def test_a_round_takes_commits_once_a_quorum_reports_in_it_or_before_that_its_epoch_is_paid():
    run_state = a_start()
    few = everybody(epochs=1)[:2]
    with pytest.raises(MalformedMessage, match="epoch 0 is not funded"):
        check_place(run_state, reporting(run_state))
    with pytest.raises(MalformedMessage, match="epoch 0 is not funded"):
        check_place(run_state, reporting(run_state, *few))

    run_state = taken(run_state, reporting(run_state, *everybody(epochs=1)[:3]))
    for _ in range(3):
        run_state = taken(run_state, reporting(run_state))

    assert run_state.round == 4 and run_state.awaits_funding
    with pytest.raises(MalformedMessage, match="epoch 1 is not funded"):
        check_place(run_state, reporting(run_state))
    topped_up = everybody(epochs=2, block=9)
    assert taken(run_state, reporting(run_state, *topped_up)).round == 5


def test_waiting_for_money_takes_up_no_round():
    run_state = a_start()
    with pytest.raises(MalformedMessage, match="takes up a round"):
        check_place(run_state, empty(run_state))
    with pytest.raises(MalformedMessage, match="takes up a round"):
        check_place(run_state, empty(run_state, *everybody(epochs=1)[:2]))
    assert taken(run_state, empty(run_state, *everybody(epochs=1))).round == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": Digest(b"o" * 32)},
        {"block": 5},  # not later than what it said
        {"block": 4},
        {"block": 6, "epochs": 3},  # nothing new
    ],
)
def test_a_report_of_another_run_or_an_earlier_block_or_without_news_is_refused(changes):
    run_state = taken(a_start(), reporting(a_start(), *everybody(epochs=3, block=5)))
    report = a_report(VERIFIERS[0], **{"epochs": 4, "block": 6, **changes})
    with pytest.raises(MalformedMessage, match="not admissible now"):
        check_place(run_state, reporting(run_state, report))
    check_place(run_state, reporting(run_state, a_report(VERIFIERS[0], epochs=4, block=6)))


def test_a_first_report_that_says_what_is_assumed_anyway_is_refused():
    run_state = a_start()
    nothing = a_report(VERIFIERS[0], epochs=0)
    with pytest.raises(MalformedMessage, match="not admissible now"):
        check_place(run_state, reporting(run_state, nothing))


def test_reports_of_strangers_or_out_of_order_are_refused():
    run_state = a_start()
    good = everybody(epochs=3)
    with pytest.raises(MalformedMessage, match="not admissible now"):
        check_place(run_state, reporting(run_state, *good[:3], a_report(NODES[0])))
    with pytest.raises(MalformedMessage, match="must ascend"):
        check_place(run_state, replace(reporting(run_state), funding_reports=tuple(good[::-1])))
    with pytest.raises(MalformedMessage, match="must ascend"):
        check_place(run_state, replace(reporting(run_state), funding_reports=(good[0], *good)))


# ---- closing, at every round


def matching(run_state):
    """The next manifest of a run in which every auditor finds a match."""
    votes = {step: dict.fromkeys(audit.order, Outcome.MATCH) for step, audit in run_state.audits.items()}
    manifest = a_manifest(run_state, **vote_messages(run_state, votes))
    return manifest if manifest.commits else without_commits(run_state, manifest)


def finished(run_state):
    """The state at the end, and every epoch's payout table."""
    tables = {}
    while not run_state.is_complete:
        run_state = taken(run_state, matching(run_state))
        ripe = run_state.calendar.ripe_at(int(run_state.round) - 1)
        if ripe is not None:
            assert ripe not in tables
            tables[ripe] = settle(run_state, ripe)
    return run_state, tables


def test_that_a_run_closes_lets_no_round_be_trained_that_is_not_paid_for():
    run_state = a_start()
    closing_now = everybody(epochs=0, closing=BY_BUYER)
    with pytest.raises(MalformedMessage, match="carries commits, but epoch 0 is not funded"):
        check_place(run_state, reporting(run_state, *closing_now))
    ended = taken(run_state, empty(run_state, *closing_now))
    assert ended.calendar.rounds == ended.calendar.epochs == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [BY_BUYER, BY_DEADLINE])
@pytest.mark.parametrize("has_commits", [True, False])
@pytest.mark.parametrize("at", range(12))
def test_whenever_a_run_closes_what_was_accepted_is_paid_and_nothing_is_trained_after(at, has_commits, how):
    run_state = start(a_spec(), RUN_ID)
    for _ in range(at):
        run_state = taken(run_state, matching(run_state))
    seen = everybody(epochs=3, block=2, closing=how)
    if at:
        seen = seen[:2]  # f + 1 close; before the first round it takes a quorum to fund it too
    manifest = reporting(run_state, *seen) if has_commits else empty(run_state, *seen)
    steps = 3 * (at + has_commits)
    run_state = taken(run_state, manifest)

    assert run_state.closing is how
    assert run_state.calendar.rounds == at + has_commits and not run_state.is_training
    run_state, tables = finished(run_state)

    money = run_state.spec.money
    assert run_state.round == at + has_commits + run_state.spec.closing_rounds
    assert set(tables) == set(range(-(-(at + has_commits) // 4)))
    tokens = steps * run_state.spec.tokens_per_step
    assert sum(table.tokens_paid for table in tables.values()) == tokens
    assert sum(table.total for table in tables.values()) == tokens * money.price_per_mtoken // 10**6
    assert not any(table.unpaid for table in tables.values())


def test_a_run_that_closes_after_its_last_round_is_a_run_as_ordered():
    run_state = start(a_spec(), RUN_ID)
    for _ in range(12):
        run_state = taken(run_state, matching(run_state))

    run_state = taken(run_state, empty(run_state, *everybody(block=2, closing=BY_BUYER)))

    assert run_state.calendar == run_state.spec.ordered


def test_once_closed_a_run_stays_closed_whatever_is_reported_then():
    run_state = taken(a_start(), matching(a_start()))
    run_state = taken(run_state, reporting(run_state, *everybody(block=2, closing=BY_BUYER)))
    ended = run_state.calendar
    run_state = taken(run_state, empty(run_state, *everybody(block=3)))

    assert run_state.closing is NO
    assert run_state.calendar == ended and ended.rounds == 2
    late = replace(empty(run_state), commits=a_manifest(a_start(), nodes=NODES).commits)
    with pytest.raises(MalformedMessage, match="may not train"):
        check_place(run_state, late)


def test_a_figure_that_falls_stops_the_next_round():
    run_state = taken(a_start(), matching(a_start()))
    fewer = everybody(epochs=0, block=2)
    with pytest.raises(MalformedMessage, match="epoch 0 is not funded"):
        check_place(run_state, reporting(run_state, *fewer[:2]))
    check_place(run_state, reporting(run_state, *fewer[:1]))


def test_every_step_belongs_to_one_epoch_and_every_epoch_ripens_once():
    for rounds, epoch_rounds, closing_rounds in itertools.product(range(15), range(1, 6), range(4, 9)):
        calendar = Calendar(rounds=rounds, epoch_rounds=epoch_rounds, closing_rounds=closing_rounds)
        ripe = [calendar.ripe_at(at) for at in range(calendar.last_round + 3)]
        assert [one for one in ripe if one is not None] == list(range(calendar.epochs))
        assert calendar.last_round == max(
            (calendar.settled_at(e) for e in range(calendar.epochs)), default=(closing_rounds - 1)
        )
        for epoch in range(calendar.epochs):
            last = calendar.epoch_end(epoch) - 1
            assert calendar.epoch_of(last) == epoch and ripe[last + closing_rounds] == epoch
        for at in range(calendar.last_round + 1):
            settled = [calendar.settled_at(calendar.epoch_of(one)) for one in range(rounds)]
            kept = [one for one in range(rounds) if at <= settled[one] + 1]
            assert [one for one in range(rounds) if one >= calendar.kept_from(at)] == kept
