"""Accusations while a run goes on: of whom they are heard, and how much of a verifier's machine they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from assay.protocol.encoding.codec import encode
from assay.protocol.errors import NotYet, Unavailable
from assay.protocol.known_answers import drawn_tasks
from assay.protocol.messages import TaskList
from assay.protocol.types import NO_DIGEST, RoundId
from assay.redteam.court.accusations import (
    FINDER,
    LIE,
    NODE,
    ROUNDS,
    Court,
    KnowingWorker,
    Past,
    a_left_run,
    a_listed_run,
    a_past_run,
    a_verifier,
    answer_of,
    answered,
)
from assay.testing.members import RUN_ID, a_digest, peer
from assay.verifier.audit.messages import RemakeStep
from assay.verifier.service.accusations import LIST_S, REST, Accusations, Refused
from assay.verifier.service.chain_duties import ChainDuties

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


def test_of_a_node_with_data_of_its_own_nothing_is_heard(monkeypatch):
    """Nobody else can make its steps again."""
    past = a_left_run(1)
    monkeypatch.setattr(type(past[0].spec), "brings_data", lambda _spec, node: node == peer(NODE))

    found = answered(1, [(FINDER, LIE)], false={LIE}, past=past)

    assert found.answers == ["its node trains on data that only it has: nobody else can make its steps again"]
    assert found.made == [0]


SECRET = a_digest("secret")
SHOWN = TaskList(run_id=RUN_ID, node=peer(NODE), secret=SECRET)


def of_a_list(
    at: int, *, shown: TaskList | None = SHOWN, now_s: int = 0, false: Sequence[int] = (), **changes: Any
) -> bytes | str:
    """What a verifier answers of this round's step of a node with a task."""
    past, tasks = a_listed_run(1, SECRET)
    past = a_run_in_which(past, **changes)
    given = {"false": false, "tasks": tasks, "shown": shown, "now_s": now_s}
    (answer,) = answered(1, [(FINDER, at)], past=past, **given).answers
    return answer


def test_a_task_that_no_audit_drew_is_no_lie_and_neither_is_what_follows_it():
    (task,) = a_listed_run(1, SECRET)[1]
    assert 0 < task < ROUNDS - 1

    assert of_a_list(task) == "the step holds: a known-answer task, false on order"
    assert of_a_list(task - 1) == of_a_list(task + 1) == "the step holds"
    assert len(of_a_list(task + 1, false=[task + 1])) == 65


def test_a_node_has_an_hour_to_show_its_list_which_excuses_only_what_came_after_it():
    past, (task,) = a_listed_run(1, SECRET)
    ends_s = past[2].time_s + LIST_S

    assert "may yet show" in str(of_a_list(task, shown=None))
    assert "may yet show" in str(of_a_list(task, shown=None, now_s=ends_s - 1))
    assert len(of_a_list(task, shown=None, now_s=ends_s)) == 65
    assert len(of_a_list(task, tasks_from=task + 1)) == 65


def test_where_openings_may_be_overdue_for_longer_than_an_hour_so_may_lists():
    began, links, state = a_listed_run(1, SECRET)[0]
    (task,) = a_listed_run(1, SECRET)[1]
    spec = replace(began.spec, audit=replace(began.spec.audit, absence_s=2 * LIST_S))
    past = replace(began, spec=spec), links, replace(state, spec=spec)
    given = {"past": past, "tasks": {task}}

    (early,) = answered(1, [(FINDER, task)], now_s=state.time_s + 2 * LIST_S - 1, **given).answers
    (late,) = answered(1, [(FINDER, task)], now_s=state.time_s + 2 * LIST_S, **given).answers

    assert "may yet show" in str(early) and len(late) == 65


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"tasks": NO_DIGEST}, {}),
        ({}, {"secret": a_digest("other")}),
        ({}, {"run_id": a_digest("other")}),
        ({}, {"node": peer("nora")}),
    ],
)
def test_a_list_that_was_not_announced_is_refused(changes, shown):
    past = a_run_in_which(a_listed_run(1, SECRET)[0], **changes)

    async def main(service: Accusations) -> None:
        with pytest.raises(Refused, match="announced another list, or none"):
            await service.handlers["list"](peer(NODE), encode(replace(SHOWN, **shown)))

    with a_verifier(1, KnowingWorker(()), Court(), past=past) as (service, _):
        trio.run(main, service)


def test_who_leaves_is_discharged_and_accused_once_it_has_shown_its_list():
    began, links, state = a_left_run(1)
    spec = replace(began.spec, audit=replace(began.spec.audit, known_answer_count=1))
    root = drawn_tasks(SECRET, spec, RUN_ID, peer(NODE)).root
    listed = a_run_in_which((replace(began, spec=spec), links, replace(state, spec=spec)), tasks=root)
    steps = {**state.steps, (state.round, peer(NODE)): 1}
    undrained = (began, links, replace(listed[2], steps=steps))

    async def early(service: Accusations) -> None:
        with pytest.raises(NotYet, match="may yet be drawn or judged"):
            await service.handlers["list"](peer(NODE), encode(SHOWN))

    async def main(service: Accusations, duties: ChainDuties) -> None:
        sign = duties.handlers["sign-discharge"]
        with pytest.raises(Unavailable, match="not shown its list"):
            await sign(peer(NODE), peer(NODE))
        assert "may yet show" in str(await answer_of(service, FINDER, LIE))
        await service.handlers["list"](peer(NODE), encode(SHOWN))
        assert len(await sign(peer(NODE), peer(NODE))) == 65

    with a_verifier(1, KnowingWorker(()), Court(), past=(listed[0], *undrained[1:])) as (service, _):
        trio.run(early, service)
    with a_verifier(1, KnowingWorker(()), Court(), past=listed, now_s=1 << 40) as (service, duties):
        trio.run(main, service, duties)


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
