"""Accusations while a run goes on: of whom they are heard, and how much of a verifier's machine they take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from assay.protocol.types import RoundId
from assay.redteam.court.accusations import (
    FINDER,
    LIE,
    NODE,
    Court,
    KnowingWorker,
    Past,
    a_left_run,
    a_past_run,
    a_verifier,
    answer_of,
    answered,
)
from assay.testing.members import a_digest, peer
from assay.verifier.audit.messages import RemakeStep
from assay.verifier.service.accusations import REST, Accusations

STEP_S = 10  # of a slow worker


@dataclass(slots=True)
class SlowWorker(KnowingWorker):
    """Takes its time for each step."""

    async def call(self, request: Any, answer: type) -> Any:
        if isinstance(request, RemakeStep):
            await trio.sleep(STEP_S)
        return await KnowingWorker.call(self, request, answer)


def a_run_in_which(past: Past, **changes: Any) -> Past:
    """The run, but for what its state says of the node."""
    began, links, state = past
    record = replace(state.nodes[peer(NODE)], **changes)
    return began, links, replace(state, nodes={**state.nodes, peer(NODE): record})


def test_a_false_step_of_a_node_that_left_is_accused_while_the_run_goes_on():
    (answer,) = answered(1, [(FINDER, LIE)], false={LIE}, past=a_left_run(1)).answers

    assert isinstance(answer, bytes) and len(answer) == 65


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"has_left": False}, "it has not left"),
        ({"fault_round": RoundId(3)}, "its fault in round 3 is proven"),
    ],
)
def test_of_a_node_that_is_bound_to_the_run_nothing_is_heard_before_its_end(changes, reason):
    past = a_run_in_which(a_left_run(1), **changes)

    found = answered(1, [(FINDER, LIE)], false={LIE}, past=past)

    (answer,) = found.answers
    assert isinstance(answer, str) and answer.endswith(f"the node is bound to it: {reason}")
    assert found.made == [0]


@pytest.mark.parametrize(("tasks_from", "is_heard"), [(LIE, False), (LIE + 1, True)])
def test_a_step_that_may_be_a_known_answer_task_is_not_looked_into(tasks_from: int, is_heard: bool):
    """An honest node's task that no audit drew is false, and nobody asks it for the list any more."""
    listed = {"tasks": a_digest("list"), "tasks_from": tasks_from}
    for past in (a_past_run(1), a_left_run(1)):
        found = answered(1, [(FINDER, LIE)], false={LIE}, past=a_run_in_which(past, **listed))

        (answer,) = found.answers
        assert isinstance(answer, bytes) is is_heard
        assert is_heard or ("may be a known-answer task" in str(answer) and found.made == [0])


def test_nothing_is_heard_while_a_step_of_it_is_not_settled():
    began, links, state = a_left_run(1)
    undrained = replace(state, steps={**state.steps, (state.round, peer(NODE)): 1})

    (answer,) = answered(1, [(FINDER, LIE)], false={LIE}, past=(began, links, undrained)).answers

    assert isinstance(answer, str) and "not all of its steps are settled" in answer


@pytest.mark.parametrize(("is_going_on", "times"), [(True, 1 + REST), (False, 1)])
def test_while_the_run_goes_on_its_audits_keep_most_of_the_machine(is_going_on, times):
    worker = SlowWorker({LIE})
    past = a_left_run(1) if is_going_on else a_past_run(1)

    async def main(service: Accusations) -> float:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            await answer_of(service, FINDER, LIE)
            nursery.cancel_scope.cancel()
        return trio.current_time() - began

    with a_verifier(1, worker, Court(), past=past) as (service, _duties):
        took = trio.run(main, service, clock=MockClock(autojump_threshold=0))

    assert len(worker.made) == LIE + 1
    assert took == pytest.approx(times * STEP_S * len(worker.made), abs=2)


@pytest.mark.parametrize(
    ("past", "is_open"),
    [
        (a_past_run(1), True),
        (a_left_run(1), True),
        (a_run_in_which(a_left_run(1), has_left=False), False),
    ],
    ids=["over", "left", "seated"],
)
def test_strangers_may_connect_once_somebody_may_be_accused(past, is_open):
    with a_verifier(1, KnowingWorker(()), Court(), past=past) as (service, _duties):
        assert service.is_open() is is_open
