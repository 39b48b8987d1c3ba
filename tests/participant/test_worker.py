"""The process that computes: it may raise, print, crash or be killed, and the caller goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from assay.participant.worker import WorkerProcess
from assay.protocol.errors import AssayError, ConfigError, Diverged, MalformedMessage, OutOfPhase, Unavailable

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.participant.a_worker"
GONE_S = 60.0  # a process that has not ended by then never will
OWNER = """
import sys, trio
from pathlib import Path
from assay.participant.worker import WorkerProcess
async def main():
    child = WorkerProcess("tests.participant.a_worker", Path(sys.argv[1]))
    print(await child.call("pid"), flush=True)
    await trio.sleep_forever()
trio.run(main)
"""


@pytest.fixture
def log(tmp_path):
    return tmp_path / "worker.log"


@asynccontextmanager
async def a_child(log, prepare=None):
    child = WorkerProcess(MODULE, log, prepare)
    try:
        yield child
    finally:
        await child.close()


def run(main):
    trio.run(main)


def has_ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie has ended too; nobody but init may reap it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def until_ended(pid):
    with trio.fail_after(GONE_S):
        while not has_ended(pid):
            await trio.sleep(0.02)


def test_a_call_returns_what_the_function_returned(log):
    async def main():
        async with a_child(log) as child:
            assert await child.call("echo", value=[1, b"two", "three", None]) == [1, b"two", "three", None]

    run(main)


def test_a_large_value_goes_both_ways_whole(log):
    async def main():
        async with a_child(log) as child:
            assert await child.call("echo", value=bytes(5 << 20)) == bytes(5 << 20)

    run(main)


@pytest.mark.parametrize("kind", [AssayError, MalformedMessage, ConfigError, Unavailable, Diverged])
def test_an_error_of_ours_arrives_with_its_class_and_its_words_and_the_worker_lives(log, kind):
    async def main():
        async with a_child(log) as child:
            pid = await child.call("pid")
            with pytest.raises(kind, match="these words") as caught:
                await child.call("raise", kind=kind.__name__, words="these words")
            assert type(caught.value) is kind
            assert await child.call("pid") == pid

    run(main)


@pytest.mark.parametrize("kind", ["PeerFault", OutOfPhase.__name__])
def test_a_fault_of_a_peer_arrives_as_words_that_name_the_peer(log, kind):
    async def main():
        async with a_child(log) as child:
            with pytest.raises(AssayError, match="peer 00000000: these words"):
                await child.call("raise", kind=kind, words="these words")

    run(main)


def test_what_the_worker_prints_goes_to_its_log_and_not_into_the_answers(log):
    async def main():
        async with a_child(log) as child:
            assert await child.call("shout") == "heard"
            assert await child.call("echo", value=1) == 1

    run(main)
    assert "a library greets" in log.read_text()
    assert "and so does its C part" in log.read_text()


@pytest.mark.parametrize("end", ["crash", "kill"])
def test_a_worker_that_dies_is_unavailable_and_the_next_call_starts_and_prepares_another(log, end):
    prepared = []

    async def prepare(child):
        prepared.append(await child.call_now("open", value=len(prepared)))

    async def main():
        async with a_child(log, prepare) as child:
            first = await child.call("pid")
            with pytest.raises(Unavailable, match=r"a_worker worker died during (crash|kill)"):
                await child.call(end)
            assert await child.call("pid") != first
            assert await child.call("held") == {"value": 1}

    run(main)
    assert prepared == ["opened", "opened"]


def test_a_worker_killed_between_two_calls_is_replaced(log):
    async def main():
        async with a_child(log) as child:
            first = await child.call("pid")
            os.kill(first, signal.SIGKILL)
            await until_ended(first)
            try:
                second = await child.call("pid")
            except Unavailable:  # the kernel had not told us yet when we wrote
                second = await child.call("pid")
            assert second != first

    run(main)


def test_the_reason_of_a_crash_is_in_the_log(log):
    async def main():
        async with a_child(log) as child:
            with pytest.raises(Unavailable, match=r"worker\.log"):
                await child.call("crash")

    run(main)
    assert "RuntimeError: a bug" in log.read_text()


def test_a_module_that_is_no_worker_is_unavailable(log):
    async def main():
        child = WorkerProcess("tests.participant.no_such_module", log)
        with pytest.raises(Unavailable):
            await child.call("pid")
        await child.close()

    run(main)


def test_a_cancelled_caller_does_not_shift_the_answers_of_the_next(log, tmp_path):
    async def main():
        async with a_child(log) as child:
            await child.call("pid")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(abandon, child, nursery.cancel_scope)
            assert await child.call("echo", value="mine") == "mine"

    async def abandon(child, scope):
        async with trio.open_nursery() as inner:
            inner.start_soon(cancel_when_begun, scope, tmp_path / "go")
            await child.call("wait_for", path=str(tmp_path / "go"))

    run(main)


async def cancel_when_begun(scope, path):
    """Cancel once the worker waits for `path`, and only then let it go on."""
    with trio.fail_after(GONE_S):
        while not path.with_name(f"{path.name}.begun").exists():
            await trio.sleep(0.01)
    scope.cancel()
    path.touch()


def test_a_caller_cancelled_while_the_worker_starts_leaves_it_prepared_and_in_step(log, tmp_path):
    """A node's step is cancelled whenever a round ends, often while torch is still being imported."""
    starts, scope = [], trio.CancelScope()

    async def prepare(child):
        starts.append(await child.call_now("pid"))
        await child.call_now("wait_for", path=str(tmp_path / "go"))
        await child.call_now("open", value=1)

    async def abandon(child):
        with scope:
            await child.call("echo", value="abandoned")

    async def main():
        async with a_child(log, prepare) as child:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_when_begun, scope, tmp_path / "go")
                nursery.start_soon(abandon, child)
            assert await child.call("echo", value="mine") == "mine"
            assert await child.call("held") == {"value": 1}

    run(main)
    assert len(starts) == 1  # rounds may be shorter than a start


def test_a_worker_whose_preparation_failed_is_prepared_again_and_never_used_as_it_is(log):
    attempts = []

    async def prepare(child):
        attempts.append(await child.call_now("pid"))
        if len(attempts) == 1:
            await child.call_now("raise", kind="ConfigError", words="no data")
        await child.call_now("open", value=2)

    async def main():
        async with a_child(log, prepare) as child:
            with pytest.raises(ConfigError, match="no data"):
                await child.call("held")
            assert await child.call("held") == {"value": 2}

    run(main)
    assert len(set(attempts)) == 2


def test_calls_of_many_tasks_each_get_their_own_answer(log):
    answers = {}

    async def ask(child, number):
        answers[number] = await child.call("echo", value=number)

    async def main():
        async with a_child(log) as child, trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, child, number)

    run(main)
    assert answers == {number: number for number in range(50)}


def test_closing_ends_the_worker(log):
    async def main():
        async with a_child(log) as child:
            pid = await child.call("pid")
        assert has_ended(pid)
        await child.close()

    run(main)


def test_the_child_ends_when_its_parent_is_killed(log):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(log)], stdout=subprocess.PIPE, cwd=ROOT)
    assert owner.stdout is not None
    try:
        child_pid = int(owner.stdout.readline())
        assert not has_ended(child_pid)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()

    trio.run(until_ended, child_pid)
