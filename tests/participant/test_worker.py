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

from assay.devnet.fork_server import ForkServer
from assay.participant.compute import AtRound
from assay.participant.worker import STARTER, WorkerProcess
from assay.protocol.errors import AssayError, ConfigError, Diverged, MalformedMessage, OutOfPhase, Unavailable
from tests.participant.a_worker import Crash, Echo, GetPid, Kill, Pid, Raise, Shout, Start, WaitFor

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.participant.a_worker"
GONE_S = 60.0  # a process that has not ended by then never will
OWNER = """
import sys, trio
from pathlib import Path
from assay.participant.worker import WorkerProcess
from tests.participant.a_worker import GetPid, Pid, Start
async def main():
    child = WorkerProcess("tests.participant.a_worker", Start(), Path(sys.argv[1]), lambda _: None)
    print((await child.call(GetPid(), Pid)).pid, flush=True)
    await trio.sleep_forever()
trio.run(main)
"""


@pytest.fixture(scope="module", params=["by a new interpreter", "forked"])
def starter(request, tmp_path_factory):
    """Every test of this file, for each way to start a worker."""
    if request.param != "forked":
        yield None
        return
    with ForkServer((), ["assay.participant.worker"], tmp_path_factory.mktemp("server") / "log") as server:
        yield server.client.start_worker


@pytest.fixture(autouse=True)
def started_so(starter):
    before = STARTER.set(starter) if starter is not None else None
    yield
    if before is not None:
        STARTER.reset(before)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "worker.log"


@asynccontextmanager
async def a_child(log, start=None, started=lambda _: None):
    child = WorkerProcess(MODULE, start or Start(), log, started)
    try:
        yield child
    finally:
        await child.close()


async def pid_of(child):
    return (await child.call(GetPid(), Pid)).pid


async def echoed(child, value):
    return (await child.call(Echo(value=value), Echo)).value


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


def test_a_large_value_goes_both_ways_whole(log):
    async def main():
        async with a_child(log) as child:
            assert await echoed(child, bytes(5 << 20)) == bytes(5 << 20)

    run(main)


@pytest.mark.parametrize("kind", [AssayError, MalformedMessage, ConfigError, Unavailable, Diverged])
def test_an_error_of_ours_arrives_with_its_class_and_its_words_and_the_worker_lives(log, kind):
    async def main():
        async with a_child(log) as child:
            pid = await pid_of(child)
            with pytest.raises(kind, match="these words") as caught:
                await child.call(Raise(kind=kind.__name__), AtRound)
            assert type(caught.value) is kind
            assert await pid_of(child) == pid

    run(main)


@pytest.mark.parametrize("kind", ["PeerFault", OutOfPhase.__name__])
def test_a_fault_of_a_peer_arrives_as_words_that_name_the_peer(log, kind):
    async def main():
        async with a_child(log) as child:
            with pytest.raises(AssayError, match="peer 00000000: these words"):
                await child.call(Raise(kind=kind), AtRound)

    run(main)


def test_what_the_worker_prints_goes_to_its_log_and_not_into_the_answers(log):
    async def main():
        async with a_child(log) as child:
            assert (await child.call(Shout(), AtRound)).round == 7
            assert await echoed(child, b"1") == b"1"

    run(main)
    assert "a library greets" in log.read_text()
    assert "and so does its C part" in log.read_text()


@pytest.mark.parametrize("end", [Crash(), Kill()])
def test_a_worker_that_dies_is_unavailable_and_the_next_call_starts_another_and_tells_its_round(log, end):
    rounds = []

    async def main():
        async with a_child(log, started=rounds.append) as child:
            first = await pid_of(child)
            with pytest.raises(Unavailable, match=r"a_worker worker died during (Crash|Kill)"):
                await child.call(end, AtRound)
            assert await pid_of(child) != first

    run(main)
    assert rounds == [7, 7]


def test_a_worker_killed_between_two_calls_is_replaced(log):
    async def main():
        async with a_child(log) as child:
            first = await pid_of(child)
            os.kill(first, signal.SIGKILL)
            await until_ended(first)
            try:
                second = await pid_of(child)
            except Unavailable:  # the kernel had not told us yet when we wrote
                second = await pid_of(child)
            assert second != first

    run(main)


def test_the_reason_of_a_crash_is_in_the_log(log):
    async def main():
        async with a_child(log) as child:
            with pytest.raises(Unavailable, match=r"worker\.log"):
                await child.call(Crash(), AtRound)

    run(main)
    assert "RuntimeError: a bug" in log.read_text()


def test_a_module_that_is_no_worker_is_unavailable(log):
    async def main():
        child = WorkerProcess("tests.participant.no_such_module", Start(), log, lambda _: None)
        with pytest.raises(Unavailable):
            await pid_of(child)
        await child.close()

    run(main)


def test_a_cancelled_caller_does_not_shift_the_answers_of_the_next(log, tmp_path):
    async def main():
        async with a_child(log) as child:
            await pid_of(child)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(abandon, child, nursery.cancel_scope)
            assert await echoed(child, b"mine") == b"mine"

    async def abandon(child, scope):
        async with trio.open_nursery() as inner:
            inner.start_soon(cancel_when_begun, scope, tmp_path / "go")
            await child.call(WaitFor(path=str(tmp_path / "go")), AtRound)

    run(main)


async def cancel_when_begun(scope, path):
    """Cancel once the worker waits for `path`, and only then let it go on."""
    with trio.fail_after(GONE_S):
        while not path.with_name(f"{path.name}.begun").exists():
            await trio.sleep(0.01)
    scope.cancel()
    path.touch()


def test_a_caller_cancelled_while_the_worker_starts_leaves_it_started_and_in_step(log, tmp_path):
    """A node's step is cancelled whenever a round ends, often while torch is still being imported."""
    rounds, scope = [], trio.CancelScope()

    async def abandon(child):
        with scope:
            await echoed(child, b"abandoned")

    async def main():
        start = Start(wait_for=str(tmp_path / "go"))
        async with a_child(log, start, rounds.append) as child:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel_when_begun, scope, tmp_path / "go")
                nursery.start_soon(abandon, child)
            assert await echoed(child, b"mine") == b"mine"

    run(main)
    assert rounds == [7]  # rounds may be shorter than a start


def test_a_worker_whose_start_failed_is_started_again_and_never_used_as_it_is(log, tmp_path):
    async def main():
        async with a_child(log, Start(needs=str(tmp_path / "data"))) as child:
            with pytest.raises(ConfigError, match="no data"):
                await pid_of(child)
            with pytest.raises(ConfigError, match="no data"):
                await pid_of(child)
            (tmp_path / "data").touch()
            assert await pid_of(child)

    run(main)


def test_a_worker_works_in_the_folder_of_its_parent(log, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    Path("data").touch()

    async def main():
        async with a_child(log, Start(needs="data")) as child:
            assert await pid_of(child)

    run(main)


def test_calls_of_many_tasks_each_get_their_own_answer(log):
    answers = {}

    async def ask(child, number):
        answers[number] = await echoed(child, b"%d" % number)

    async def main():
        async with a_child(log) as child, trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, child, number)

    run(main)
    assert answers == {number: b"%d" % number for number in range(50)}


def test_closing_ends_the_worker(log):
    async def main():
        async with a_child(log) as child:
            pid = await pid_of(child)
        assert has_ended(pid)
        await child.close()

    run(main)


def test_the_child_ends_when_its_parent_is_killed(log):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(log)], stdout=subprocess.PIPE, cwd=ROOT)
    assert owner.stdout is not None
    try:
        assert b"greets" in owner.stdout.readline()
        child_pid = int(owner.stdout.readline())
        assert not has_ended(child_pid)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()

    trio.run(until_ended, child_pid)
