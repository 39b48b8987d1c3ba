"""Evaluator: a milestone is measured once, at the parameters after its epoch, and told until it counts."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from assay.protocol.errors import Unavailable
from assay.protocol.identity import verify
from assay.protocol.messages import SignedEvaluation
from assay.protocol.state_transition import RunState, advance
from assay.testing.members import DOMAIN, RUN_ID, VERIFIERS, a_peer_key, name_of
from assay.testing.messages import UNSIGNED
from assay.testing.run import a_manifest
from assay.verifier.audit.messages import AnswerItem, Evaluate, Evaluated, ItemAnswered
from assay.verifier.service.evaluator import REPEAT_S, Evaluator
from tests.protocol.test_acceptance import BOTH, ITEMS, a_run, a_score, after, an_evaluation, with_choices

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


def an_evaluator(run_state: RunState, worker: AWorker) -> tuple[Evaluator, Any, list[SignedEvaluation]]:
    keys = SimpleNamespace(peer=a_peer_key(name_of(ME)))
    me: Any = SimpleNamespace(run_id=RUN_ID, me=ME, spec=run_state.spec, keys=keys, domain=DOMAIN)
    follower: Any = SimpleNamespace(run_state=run_state)
    told: list[SignedEvaluation] = []
    return Evaluator(me, follower, worker, told.append), follower, told  # type: ignore[arg-type]


def run_for(evaluator: Evaluator, seconds: float) -> None:
    async def whole() -> None:
        with trio.move_on_after(seconds):
            await evaluator.run()

    trio.run(whole, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_milestone_is_measured_once_and_repeated_until_a_manifest_carries_it():
    worker = AWorker()
    evaluator, follower, told = an_evaluator(after(a_run(), 8), worker)

    run_for(evaluator, 2.5 * REPEAT_S)

    assert worker.asked == ["reach 8", "measure 0 at 8", "measure 1 at 8"]
    assert len(told) == 3 and len(set(told)) == 1
    found = told[0].evaluation
    assert (found.epoch, found.verifier, found.score) == (1, ME, a_score(4_200_000))
    verify(ME, DOMAIN, found, told[0].signature)
    state = follower.run_state
    carried = UNSIGNED.evaluation(an_evaluation(ME, score=a_score(4_200_000)))
    follower.run_state = advance(state, a_manifest(state, evaluations=(carried,)))
    run_for(evaluator, 2.5 * REPEAT_S)
    assert len(told) == 3


def test_every_item_is_answered_after_the_held_out_units_and_right_answers_are_counted():
    worker = AWorker()
    evaluator, _, told = an_evaluator(after(a_run(with_choices(BOTH)), 8), worker)

    run_for(evaluator, 0.5 * REPEAT_S)

    assert worker.asked[3:] == [f"answer {item} at 8" for item in range(ITEMS)]
    assert told[0].evaluation.score == a_score(4_200_000, acc=5, acc_norm=2)


def test_nothing_is_measured_before_the_epoch_has_ended_or_after_it_is_settled():
    for round_id in (7, a_run().calendar.settled_at(1) + 1):
        worker = AWorker()
        evaluator, _, told = an_evaluator(after(a_run(), round_id), worker)
        run_for(evaluator, 2.5)
        assert (worker.asked, told) == ([], [])


def test_a_measurement_that_lasts_beyond_the_settlement_is_given_up():
    worker = AWorker()
    evaluator, follower, told = an_evaluator(after(a_run(), 8), worker)
    measured = worker.call

    async def slowly(request, answer):
        follower.run_state = after(a_run(), a_run().calendar.settled_at(1) + 1)
        return await measured(request, answer)

    worker.call = slowly  # type: ignore[method-assign]
    run_for(evaluator, 1.5 * REPEAT_S)

    assert worker.asked == ["reach 8", "measure 0 at 8"]
    assert not told


def test_a_worker_that_fails_is_asked_again():
    worker = AWorker(failures=1)
    evaluator, _, told = an_evaluator(after(a_run(), 8), worker)
    run_for(evaluator, 1.5 * REPEAT_S)
    assert worker.asked == ["reach 8", "reach 8", "measure 0 at 8", "measure 1 at 8"]
    assert len(told) == 1
