"""Evaluator: a milestone is measured once, committed to, and opened when nobody can copy it any more."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from assay.participant.store import Store
from assay.protocol.encoding.codec import digest
from assay.protocol.errors import Unavailable
from assay.protocol.identity import verify
from assay.protocol.messages import SignedEvaluation, SignedEvaluationCommitment
from assay.protocol.run_state import RunState
from assay.protocol.types import NO_DIGEST
from assay.testing.members import DOMAIN, RUN_ID, VERIFIERS, a_peer_key, name_of
from assay.testing.messages import an_evaluation_commitment
from assay.verifier.audit.messages import AnswerItem, Evaluate, Evaluated, ItemAnswered
from assay.verifier.service.evaluator import REPEAT_S, Evaluator
from tests.protocol.test_acceptance import (
    BOTH,
    ENDS,
    ITEMS,
    OPENS,
    SETTLES,
    a_run,
    a_score,
    after,
    committed,
    opened,
    with_choices,
)

ME = VERIFIERS[0]


class AWorker:
    """A recompute worker that fails as often as it is told, and then measures."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.asked = failures, []
        self.child = self

    async def reach(self, round_id: int) -> None:
        self.asked.append(f"reach {round_id}")
        if self.failures:
            self.failures -= 1
            raise Unavailable("no aggregate yet")

    async def call(self, request: Evaluate | AnswerItem, _answer: type) -> Evaluated | ItemAnswered:
        if isinstance(request, AnswerItem):
            self.asked.append(f"answer {request.item} at {request.round}")
            return ItemAnswered(acc=request.item > 2, acc_norm=request.item > 5)
        self.asked.append(f"measure {request.unit} at {request.round}")
        return Evaluated(loss=struct.pack(">d", 8.4 * (request.unit + 1)), targets=3)


class AFollower:
    """A chain that the test lets grow."""

    def __init__(self, run_state: RunState) -> None:
        self.run_state = run_state

    async def grown(self, beyond: int) -> RunState:
        while self.run_state.round <= beyond:
            await trio.sleep(REPEAT_S / 8)
        return self.run_state


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.db")


Told = list[SignedEvaluationCommitment | SignedEvaluation]


def an_evaluator(run_state: RunState, worker: AWorker, store: Store) -> tuple[Evaluator, AFollower, Told]:
    keys = SimpleNamespace(peer=a_peer_key(name_of(ME)))
    me: Any = SimpleNamespace(
        run_id=RUN_ID, me=ME, spec=run_state.spec, keys=keys, domain=DOMAIN, store=store
    )
    follower, told = AFollower(run_state), Told()
    return Evaluator(me, follower, worker, told.append), follower, told  # type: ignore[arg-type]


def run_for(evaluator: Evaluator, seconds: float) -> None:
    async def whole() -> None:
        with trio.move_on_after(seconds):
            await evaluator.run()

    trio.run(whole, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_milestone_is_measured_once_committed_to_until_a_manifest_has_it_and_opened_after_the_last(
    store: Store,
) -> None:
    worker = AWorker()
    evaluator, follower, told = an_evaluator(after(a_run(), ENDS), worker, store)

    run_for(evaluator, 2.5 * REPEAT_S)

    assert worker.asked == ["reach 8", "measure 0 at 8", "measure 1 at 8"]
    assert len(told) >= 2, "said again: it may have been lost"
    (sealed,) = set(told)
    assert isinstance(sealed, SignedEvaluationCommitment)
    assert (sealed.commitment.epoch, sealed.commitment.verifier) == (1, ME)
    verify(ME, DOMAIN, sealed.commitment, sealed.signature)
    state = follower.run_state
    follower.run_state = after(a_run(), OPENS)  # it came too late
    told.clear()
    run_for(evaluator, 2.5 * REPEAT_S)
    assert told == []

    found = evaluator._evaluation(1, a_score(4_200_000))
    assert sealed.commitment == an_evaluation_commitment(found) and found.salt != NO_DIGEST
    follower.run_state = committed(state, found)
    while follower.run_state.round < OPENS:
        run_for(evaluator, 0.5 * REPEAT_S)
        assert told == [], "nothing is shown while others may commit"
        follower.run_state = after(follower.run_state, int(follower.run_state.round) + 1)
    run_for(evaluator, 1.5 * REPEAT_S)
    assert len(told) >= 2
    (shown,) = set(told)
    assert isinstance(shown, SignedEvaluation) and shown.evaluation == found
    verify(ME, DOMAIN, found, shown.signature)
    follower.run_state = opened(follower.run_state, found)
    told.clear()
    run_for(evaluator, 1.5 * REPEAT_S)
    assert told == []
    assert len(worker.asked) == 3


def test_after_a_restart_it_says_the_same_without_measuring_again(store: Store) -> None:
    state = after(a_run(), ENDS)
    first, _, told = an_evaluator(state, AWorker(), store)
    run_for(first, 1.5 * REPEAT_S)
    worker = AWorker()
    second, _, again = an_evaluator(state, worker, store)

    run_for(second, 0.5 * REPEAT_S)

    assert set(again) == set(told) and worker.asked == []


def test_whoever_lost_its_store_measures_again_and_opens_what_it_committed_to(
    store: Store, tmp_path: Path
) -> None:
    first, _, _ = an_evaluator(after(a_run(), ENDS), AWorker(), store)
    found = first._evaluation(1, a_score(4_200_000))
    state = after(committed(after(a_run(), ENDS), found), OPENS)
    worker = AWorker()
    second, _, told = an_evaluator(state, worker, Store(tmp_path / "new.db"))

    run_for(second, 1.5 * REPEAT_S)

    assert worker.asked == ["reach 8", "measure 0 at 8", "measure 1 at 8"]
    assert {one.evaluation for one in told if isinstance(one, SignedEvaluation)} == {found}


def test_what_is_said_follows_each_manifest_at_once(store: Store) -> None:
    evaluator, follower, told = an_evaluator(after(a_run(), ENDS), AWorker(), store)
    run_for(evaluator, 1.5 * REPEAT_S)
    found = evaluator._evaluation(1, a_score(4_200_000))
    follower.run_state = after(committed(after(a_run(), ENDS), found), OPENS - 1)
    told.clear()

    async def whole() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(evaluator.run)
            await trio.sleep(REPEAT_S / 4)
            follower.run_state = after(follower.run_state, OPENS)
            await trio.sleep(REPEAT_S / 4)
            assert {type(one) for one in told} == {SignedEvaluation}
            nursery.cancel_scope.cancel()

    trio.run(whole, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_measurement_that_lasts_keeps_no_earlier_one_from_being_opened(store: Store) -> None:
    spec = a_run().spec
    accept = spec.money.accept
    both = replace(
        spec,
        money=replace(
            spec.money,
            accept=replace(accept, milestones=(*accept.milestones, replace(accept.milestones[0], epoch=2))),
        ),
    )
    evaluator, _, told = an_evaluator(after(a_run(both), ENDS), AWorker(), store)
    run_for(evaluator, 1.5 * REPEAT_S)
    found = evaluator._evaluation(1, a_score(4_200_000))
    stuck = AWorker()
    stuck.call = forever  # type: ignore[method-assign]
    evaluator, _, told = an_evaluator(after(committed(after(a_run(both), ENDS), found), OPENS), stuck, store)

    run_for(evaluator, 1.5 * REPEAT_S)

    assert stuck.asked == ["reach 12"]
    assert {one.evaluation for one in told if isinstance(one, SignedEvaluation)} == {found}


async def forever(_request: object, _answer: type) -> Any:
    await trio.sleep_forever()


def test_every_item_is_answered_after_the_held_out_units_and_right_answers_are_counted(store: Store) -> None:
    worker = AWorker()
    evaluator, _, told = an_evaluator(after(a_run(with_choices(BOTH)), ENDS), worker, store)

    run_for(evaluator, 1.5 * REPEAT_S)

    assert worker.asked[3:] == [f"answer {item} at 8" for item in range(ITEMS)]
    (sealed,) = set(told)
    assert isinstance(sealed, SignedEvaluationCommitment)
    found = evaluator._evaluation(1, a_score(4_200_000, acc=5, acc_norm=2))
    assert sealed.commitment.evaluation == digest(found)


def test_nothing_is_measured_before_the_epoch_has_ended_or_after_the_last_commitments(store: Store) -> None:
    for round_id in (ENDS - 1, OPENS, SETTLES + 1):
        worker = AWorker()
        evaluator, _, told = an_evaluator(after(a_run(), round_id), worker, store)
        run_for(evaluator, 2.5)
        assert (worker.asked, told) == ([], [])


def test_a_measurement_that_lasts_beyond_the_last_commitments_is_given_up(store: Store) -> None:
    worker = AWorker()
    evaluator, follower, told = an_evaluator(after(a_run(), ENDS), worker, store)
    measured = worker.call

    async def slowly(request, answer):
        follower.run_state = after(a_run(), OPENS)
        return await measured(request, answer)

    worker.call = slowly  # type: ignore[method-assign]
    run_for(evaluator, 1.5 * REPEAT_S)

    assert worker.asked == ["reach 8", "measure 0 at 8"]
    assert not told


def test_a_worker_that_fails_is_asked_again(store: Store) -> None:
    worker = AWorker(failures=1)
    evaluator, _, told = an_evaluator(after(a_run(), ENDS), worker, store)
    run_for(evaluator, 2.5 * REPEAT_S)
    assert worker.asked == ["reach 8", "reach 8", "measure 0 at 8", "measure 1 at 8"]
    assert len(set(told)) == 1
