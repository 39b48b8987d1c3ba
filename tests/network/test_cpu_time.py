"""CPU time: expensive work for some peers costs another two steps of theirs at a time, whatever they do."""

from __future__ import annotations

import threading

import pytest
import trio
import trio.testing

from assay.network import limits
from assay.network.cpu_time import CpuTime
from assay.protocol.types import PeerId
from tests.network.loopback import PATIENCE_S, burn

QUIET, LOUD, OTHER = PeerId(b"q" * 32), PeerId(b"l" * 32), PeerId(b"o" * 32)
DEAR_S = 0.003


@pytest.fixture
def none_is_light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIGHT_S", 0.0)


@pytest.mark.usefixtures("none_is_light")
@pytest.mark.parametrize("is_begun", [True, False])
def test_ten_peers_with_dear_requests_cost_another_two_steps_of_theirs_for_each_of_its_own(is_begun):
    cpu_time, steps = CpuTime(), []

    async def dear() -> None:
        for _ in range(3):
            burn(DEAR_S)
            steps.append("dear")
            await trio.lowlevel.checkpoint()

    async def cheap() -> None:
        for _ in range(5):
            steps.append("cheap")
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        if is_begun:  # else nobody knows yet what a flooder's requests cost
            for number in range(10):
                cpu_time.charge(PeerId(bytes([number]) * 32), DEAR_S)
        async with trio.open_nursery() as nursery:
            for number in range(10):
                for _ in range(4):
                    nursery.start_soon(cpu_time.share, PeerId(bytes([number]) * 32), dear())
            nursery.start_soon(cpu_time.share, QUIET, cheap())

    trio.run(main)
    last = max(index for index, step in enumerate(steps) if step == "cheap")
    # One may be under way when the cheap one is ready again, and one chosen.
    assert steps[: last + 1].count("dear") <= 2 * 6 + (0 if is_begun else 10)
    assert steps.count("dear") == 120  # and nobody starves


def test_who_took_little_waits_for_no_turn_and_who_took_much_does():
    cpu_time, passes, ended = CpuTime(), [], dict[str, int]()

    async def work(name: str) -> None:
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        ended[name] = len(passes)

    async def main() -> None:
        for one in (LOUD, OTHER):
            cpu_time.charge(one, limits.LIGHT_S)
        cpu_time.charge(QUIET, limits.LIGHT_S * 0.9)
        async with trio.open_nursery() as nursery:
            for name, one in (("loud", LOUD), ("other", OTHER), ("quiet", QUIET)):
                nursery.start_soon(cpu_time.share, one, work(name))
            while len(ended) < 3:
                passes.append(None)
                await trio.lowlevel.checkpoint()

    trio.run(main, clock=trio.testing.MockClock())
    assert ended["quiet"] <= 22 and min(ended["loud"], ended["other"]) >= 38


@pytest.mark.usefixtures("none_is_light")
def test_steps_of_peers_run_one_in_a_pass_of_the_loop():
    cpu_time, passes, steps = CpuTime(), [], []

    async def work() -> None:
        for _ in range(5):
            steps.append(len(passes))
            await trio.lowlevel.checkpoint()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(cpu_time.share, PeerId(bytes([number]) * 32), work())
            while len(steps) < 50:
                passes.append(None)
                await trio.lowlevel.checkpoint()

    trio.run(main)
    assert max(steps.count(one) for one in steps) <= 2  # our own task runs first or second in a pass


@pytest.mark.slow
@pytest.mark.usefixtures("none_is_light")
def test_steps_begin_at_once_until_they_have_taken_their_moment_of_a_pass(monkeypatch):
    monkeypatch.setattr(limits, "PASS_S", 10 * DEAR_S)

    async def passes(step_s: float) -> int:
        """Passes of the loop that ten steps of each of ten peers take."""
        cpu_time, ended, count = CpuTime(), [], 0

        async def work() -> None:
            for _ in range(10):
                burn(step_s)
                await trio.lowlevel.checkpoint()
            ended.append(None)

        trio.lowlevel.add_instrument(cpu_time)
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(cpu_time.share, PeerId(bytes([number]) * 32), work())
            while len(ended) < 10:
                count += 1
                await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(cpu_time)
        return count

    assert trio.run(passes, 0.0) <= 15
    assert trio.run(passes, 5 * DEAR_S) >= 30  # two in a pass, then one in each while others wait


def test_what_was_taken_is_halved_in_a_while_and_a_sum_never_overflows():
    async def main() -> None:
        cpu_time = CpuTime()
        cpu_time.charge(LOUD, 8.0)
        await trio.sleep(limits.SPENT_HALF_S)
        cpu_time.charge(QUIET, 3.0)
        assert cpu_time.spent_s(LOUD) == pytest.approx(4.0)
        await trio.sleep(2 * limits.SPENT_HALF_S)
        assert cpu_time.spent_s(LOUD) == pytest.approx(1.0)
        assert cpu_time.least([LOUD, QUIET]) == QUIET

        for _ in range(30):
            await trio.sleep(99.5 * limits.SPENT_HALF_S)
            cpu_time.charge(OTHER, 2.0)
            assert cpu_time.spent_s(OTHER) == pytest.approx(2.0)
        await trio.sleep(10**7 * limits.SPENT_HALF_S)
        assert cpu_time.spent_s(OTHER) == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_step_cancelled_before_its_turn_still_takes_what_it_waited_for():
    async def main() -> None:
        cpu_time, lock, ended = CpuTime(), trio.Lock(), []
        cpu_time.charge(LOUD, 1.0)

        async def take() -> None:
            async with lock:
                try:
                    await trio.sleep_forever()
                finally:
                    ended.append("with the lock")

        async def fill() -> None:
            for _ in range(20):
                await trio.lowlevel.checkpoint()

        await lock.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cpu_time.share, LOUD, take())
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(cpu_time.share, QUIET, fill())
            for _ in range(4):
                await trio.lowlevel.checkpoint()
            lock.release()  # the loud one has the lock now, and no turn
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert ended == ["with the lock"]
        assert not lock.locked()

    trio.run(main)


def test_what_work_returns_or_raises_comes_out_and_the_next_runs():
    async def give(value: int) -> int:
        await trio.lowlevel.checkpoint()
        if not value:
            raise ZeroDivisionError("as it is")
        return value

    async def main() -> None:
        cpu_time = CpuTime()
        assert await cpu_time.share(QUIET, give(1)) == 1
        with pytest.raises(ZeroDivisionError, match="as it is"):
            await cpu_time.share(QUIET, give(0))
        with trio.move_on_after(0) as scope:
            await cpu_time.share(QUIET, give(1))
        assert scope.cancelled_caught
        assert await cpu_time.share(LOUD, give(2)) == 2

    trio.run(main)


def test_threads_go_first_to_who_took_the_least_and_who_is_cancelled_leaves_its_place(monkeypatch):
    monkeypatch.setattr(limits, "SERVE_THREADS", 1)
    cpu_time, order, gate = CpuTime(), [], threading.Event()

    async def read(peer: PeerId, name: str) -> None:
        await cpu_time.in_thread(peer, gate.wait, PATIENCE_S)
        order.append(name)

    async def main() -> None:
        cpu_time.charge(LOUD, 1.0)
        with trio.fail_after(PATIENCE_S):
            await read_all()

    async def read_all() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(read, LOUD, "loud")
            await trio.lowlevel.checkpoint()
            for _ in range(limits.SERVE_THREADS):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await read(QUIET, "nobody")
            nursery.start_soon(read, QUIET, "quiet")
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            gate.set()
        assert len(order) == 7
        assert order.index("quiet") == 1
        await read(QUIET, "again")

    trio.run(main)
