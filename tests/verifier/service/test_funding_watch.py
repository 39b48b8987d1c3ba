"""Funding watch: what a verifier reports of the escrow that it reads."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from assay.chain.state import FinalEscrow
from assay.ledger.settlement.funding import UNPOSTED_MAX
from assay.protocol.encoding.codec import digest
from assay.protocol.messages import Closing
from assay.protocol.state_transition import advance
from assay.testing.members import RUN_ID, peer
from assay.testing.signed import NODES, VERIFIERS, a_funding_report, by_peer
from assay.testing.signed import a_history as the_start
from assay.testing.signed import a_manifest as the_next
from assay.verifier.service.funding_watch import FundingWatch
from tests.ledger.settlement.test_funding import DEADLINE, JUDGES, LAST, PRICE, SPEC, an_escrow

DELAY = 300


def a_watch(run_state, spec=SPEC) -> FundingWatch:
    me: Any = SimpleNamespace(run_id=RUN_ID, me=peer("vera"), spec=spec)
    follower: Any = SimpleNamespace(run_state=run_state)
    watch = FundingWatch(me, follower, lambda _: None)
    watch._close_delay_s = DELAY
    return watch


def final(block=7, time_s=0, **changes) -> FinalEscrow:
    return FinalEscrow(
        block=block, time_s=time_s, newest_s=time_s, escrow=an_escrow(**changes), judges=JUDGES
    )


def test_a_run_that_is_not_open_is_nothing_to_report():
    nothing = FinalEscrow(block=7, time_s=0, newest_s=0, escrow=None, judges=())
    assert a_watch(the_start(rounds=8)).due_report(nothing) is None


def test_a_funded_run_is_reported_with_its_block_until_a_manifest_carries_it():
    run_state = the_start(rounds=8)
    watch = a_watch(run_state)
    report = watch.due_report(final())
    assert report is not None
    assert (report.block, report.epochs, report.closing) == (7, 3, Closing.NO)
    assert watch.due_report(final(block=8)) is not None

    heard = [a_funding_report(name, epochs=3, block=7) for name in by_peer(list(VERIFIERS))]
    run_state = advance(run_state, the_next(run_state, NODES, funding_reports=tuple(heard)))
    watch = a_watch(run_state)
    assert watch.due_report(final(block=9)) is None
    closing = watch.due_report(final(block=10, time_s=DEADLINE - DELAY))
    assert closing is not None and closing.closing is Closing.BY_DEADLINE


def test_a_top_up_is_reported():
    watch = a_watch(the_start(rounds=8))
    first, second = watch.due_report(final(budget=PRICE)), watch.due_report(final(8, budget=2 * PRICE + LAST))
    assert first is not None and second is not None
    assert (first.epochs, second.epochs) == (1, 3)


def test_a_reading_of_a_run_of_endless_epochs_holds_nobody_up():
    spec = replace(SPEC, rounds=2**40, money=replace(SPEC.money, epoch_rounds=1))
    watch, begun = a_watch(the_start(rounds=8), spec), time.process_time()
    watch._posted = 2**32

    report = watch.due_report(final(budget=2**200, epochs=2**32 - 1, spec_hash=digest(spec)))

    assert report is not None and report.epochs == 2**32 - 1
    assert time.process_time() - begun < 1.0


def test_an_epoch_is_funded_once_enough_results_before_it_are_posted():
    """What is not posted when the escrow closes goes back to the buyer."""
    spec = replace(SPEC, rounds=10**6, money=replace(SPEC.money, epoch_rounds=1, price_per_mtoken=0))
    escrow, posted = final(epochs=10**6, spec_hash=digest(spec)), [5]
    watch = a_watch(the_start(rounds=8), spec)
    chain: Any = SimpleNamespace(
        final_escrow=lambda _run: escrow, posted_epochs=lambda _run, known: max(known, posted.pop())
    )
    watch._chain = chain

    first = watch.due_report(watch._read())
    posted.append(9)
    second = watch.due_report(watch._read())
    posted.append(2)  # an endpoint that lags, or a result that fell
    third = watch.due_report(watch._read())
    assert first is not None and second is not None and third is not None
    assert second.epochs == third.epochs == first.epochs + 4
    assert first.epochs == 5 + spec.closing_rounds + 1 + UNPOSTED_MAX


def test_an_endpoint_that_goes_back_is_not_followed():
    watch = a_watch(the_start(rounds=8))
    assert watch.due_report(final(block=9)) is not None
    assert watch.due_report(final(block=8, budget=PRICE)) is None
    assert watch.due_report(final(block=9)) is not None
