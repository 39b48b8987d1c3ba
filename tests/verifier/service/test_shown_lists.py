"""Lists of known-answer tasks among verifiers: what one has, all have, and may make them look again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from assay.participant.store import Store
from assay.participant.task_lists import ASK, SHOW, SHOW_S, SHOWN_S
from assay.protocol.encoding.codec import decode, encode
from assay.protocol.errors import Unavailable
from assay.protocol.messages import TaskList
from assay.redteam.court.accusations import (
    FINDER,
    FRIEND,
    NODE,
    Court,
    KnowingWorker,
    Lines,
    a_listed_run,
    a_verifier,
    answer_of,
)
from assay.testing.members import RUN_ID, a_digest, peer
from assay.testing.signed import VERIFIERS
from assay.verifier.audit.messages import RemakeStep, TraceStep
from assay.verifier.service.accusations import LIST_S, Accusations

SECRET = a_digest("secret")
SHOWN = TaskList(run_id=RUN_ID, node=peer(NODE), secret=SECRET)
PAST, (TASK,) = a_listed_run(1, SECRET)
LATE_S = PAST[2].time_s + LIST_S
LIE = TASK + 1
HOLDS = "the step holds: a known-answer task, false on order"
Services = list[Accusations]


@contextmanager
def verifiers(lines: Lines, worker: KnowingWorker, count: int = 2, now_s: int = LATE_S) -> Iterator[Services]:
    """As many verifiers, which reach each other once they are in `lines`."""
    with ExitStack() as opened:
        yield [
            opened.enter_context(
                a_verifier(1, worker, Court(), name=name, lines=lines, past=PAST, now_s=now_s)
            )[0]
            for name in VERIFIERS[:count]
        ]


def played(services: Services, act: Callable[[], Awaitable[None]]) -> None:
    """`act` while the services run, in simulated time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for service in services:
                nursery.start_soon(service.run)
            await act()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def everybody(lines: Lines, services: Services) -> None:
    lines.services.update(zip(map(peer, VERIFIERS), services, strict=False))


async def has_list(service: Accusations) -> bool:
    try:
        body = await service.handlers[ASK](peer("whoever"), peer(NODE))
    except Unavailable:
        return False
    assert decode(TaskList, body) == SHOWN
    return True


def test_who_takes_a_list_passes_it_on_to_whoever_can_be_reached_until_all_have_it():
    lines = Lines()

    async def act() -> None:
        first, second, third = services
        everybody(lines, [first, second])
        await first.handlers[SHOW](peer(NODE), encode(SHOWN))
        await trio.sleep(SHOW_S)
        assert await has_list(first) and await has_list(second) and not await has_list(third)
        everybody(lines, services)  # the third is back
        await trio.sleep(2 * SHOW_S)
        assert await has_list(third)

    with verifiers(lines, KnowingWorker(()), count=3) as services:
        played(services, act)


def test_a_verifier_that_is_started_again_passes_on_what_it_has():
    lines = Lines()

    async def before() -> None:
        await services[0].handlers[SHOW](peer(NODE), encode(SHOWN))
        await trio.sleep(2 * SHOWN_S)  # nobody was there
        assert not await has_list(services[1])

    async def after() -> None:
        everybody(lines, services)
        await trio.sleep(SHOW_S)
        assert await has_list(services[1])

    with verifiers(lines, KnowingWorker(())) as services:
        played(services, before)
        played(services, after)


def test_who_has_no_list_asks_the_others_before_it_looks():
    lines, worker = Lines(), KnowingWorker({LIE}, tasks={TASK})

    async def act() -> None:
        first, second = services
        await first.handlers[SHOW](peer(NODE), encode(SHOWN))
        await trio.sleep(2 * SHOWN_S)  # the second was down
        everybody(lines, services)
        assert not await has_list(second)
        assert await answer_of(second, FINDER, TASK) == HOLDS
        assert await has_list(second)
        assert len(await answer_of(second, FRIEND, LIE)) == 65

    with verifiers(lines, worker) as services:
        played(services, act)


@pytest.mark.parametrize(
    "lie", [{"secret": a_digest("other")}, {"node": peer("nora")}, {"run_id": a_digest("other")}]
)
def test_a_list_that_a_liar_makes_up_is_not_believed_and_the_next_one_is_asked(lie):
    lines, worker = Lines(), KnowingWorker({LIE}, tasks={TASK})

    async def made_up(_peer: object, _body: bytes) -> bytes:
        return encode(replace(SHOWN, **lie))

    async def garbage(_peer: object, _body: bytes) -> bytes:
        return b"\xff" * 40

    async def act() -> None:
        first, second, third, fourth = services
        await third.handlers[SHOW](peer(NODE), encode(SHOWN))
        await trio.sleep(2 * SHOWN_S)
        everybody(lines, services)
        first.handlers = {**first.handlers, ASK: made_up}
        second.handlers = {**second.handlers, ASK: garbage}
        assert len(await answer_of(fourth, FINDER, LIE)) == 65

    with verifiers(lines, worker, count=4) as services:
        played(services, act)


def test_a_list_that_comes_late_opens_again_what_was_found_without_it():
    lines, worker = Lines(), KnowingWorker({LIE}, tasks={TASK})

    async def act() -> None:
        service, other = services
        everybody(lines, services)
        for account in (FINDER, FRIEND):
            assert "earlier step of the node is false" in str(await answer_of(service, account, LIE))
        assert "from which no order follows: 1" in str(await answer_of(service, FINDER, LIE - 1))
        assert len(await answer_of(other, FINDER, TASK)) == 65
        await service.handlers[SHOW](peer(NODE), encode(SHOWN))
        await trio.sleep(SHOW_S)
        assert len(await answer_of(service, FINDER, LIE)) == 65
        assert await answer_of(other, FINDER, TASK) == HOLDS

    with verifiers(lines, worker) as services:
        played(services, act)


def test_a_verifier_whose_disk_fails_while_it_takes_a_list_takes_it_anew(monkeypatch):
    """Else the list would be known, and what was found without it closed for good."""
    lines, worker = Lines(), KnowingWorker({LIE}, tasks={TASK})

    def full(*_: object) -> None:
        raise Unavailable("cannot write to the store: the disk is full")

    async def act() -> None:
        (service,) = services
        assert "earlier step of the node is false" in str(await answer_of(service, FINDER, LIE))
        with monkeypatch.context() as patch:
            patch.setattr(Store, "drop_values", full)
            with pytest.raises(Unavailable):
                await service.handlers[SHOW](peer(NODE), encode(SHOWN))
        assert not await has_list(service)
        await service.handlers[SHOW](peer(NODE), encode(SHOWN))
        assert len(await answer_of(service, FINDER, LIE)) == 65

    with verifiers(lines, worker, count=1) as services:
        played(services, act)


@dataclass
class Watched(KnowingWorker):
    """Has something happen once before it answers a certain request."""

    before: Any = None
    happens: Any = None

    async def call(self, request: Any, answer: type) -> Any:
        if self.happens is not None and self.before(request):
            happens, self.happens = self.happens, None
            await happens()
        return await KnowingWorker.call(self, request, answer)


@pytest.mark.parametrize(
    ("accused", "before"),
    [
        (LIE, lambda request: isinstance(request, RemakeStep) and request.is_compared),
        (TASK, lambda request: isinstance(request, TraceStep)),
    ],
)
def test_a_list_that_comes_while_a_verifier_looks_has_it_look_again(accused, before):
    lines, worker = Lines(), Watched({LIE}, tasks={TASK}, before=before)

    async def act() -> None:
        (service,) = services
        worker.happens = partial(service.handlers[SHOW], peer(NODE), encode(SHOWN))
        answer = await answer_of(service, FINDER, accused)
        assert worker.happens is None and worker.made.count(accused) == 2
        assert answer == HOLDS if accused == TASK else len(answer) == 65

    with verifiers(lines, worker, count=1) as services:
        played(services, act)


def test_what_is_behind_a_lie_with_the_list_at_hand_stays_refused_and_its_accuser_is_not_heard_again():
    lines, worker = Lines(), KnowingWorker({LIE}, tasks={TASK})

    async def act() -> None:
        (service,) = services
        await service.handlers[SHOW](peer(NODE), encode(SHOWN))
        assert "earlier step of the node is false" in str(await answer_of(service, FINDER, LIE + 1))
        await service.handlers[SHOW](peer(NODE), encode(SHOWN))
        assert "from which no order follows: 1" in str(await answer_of(service, FINDER, LIE))

    with verifiers(lines, worker, count=1) as services:
        played(services, act)
