"""The process that starts the others: each is one of its own, told from its siblings, and outlives nobody."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from assay.devnet.fork_server import MODULES, ForkServer
from assay.protocol.errors import AssayError
from tests.participant.test_worker import GONE_S, has_ended, until_ended

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "web3", "libp2p", "numba", "sqlalchemy")
OWNER = """
import os, sys, time
from pathlib import Path
from assay.devnet.fork_server import ForkServer
server = ForkServer((), ["tests.devnet.test_fork_server"], Path(sys.argv[1])).__enter__()
tether, ours = os.pipe()
child = server.client.start("child", "tests.devnet.test_fork_server:read_to_the_end", [], tether, 1, 2)
print(child.pid, server._process.pid, flush=True)
time.sleep(600)
"""


def tell():
    """A child: what it is."""
    print(json.dumps({
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "session": os.getsid(0) == os.getpid(),
        "name": Path("/proc/self/comm").read_text().strip(),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "child_signal": signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
        "heavy": [name for name in HEAVY if name in sys.modules],
        "files": len(os.listdir("/proc/self/fd")),
    }))  # fmt: skip


def fail():
    """A child that ends with a status of its own."""
    sys.exit(7)


def give_up():
    """A child that raises."""
    raise ValueError("given up")


class Kept:
    """Says so if an interpreter takes it apart."""

    def __del__(self, write=os.write):
        write(1, b", taken apart")


def put_off():
    """A child with output in its buffer and something to do at its end."""
    globals()["kept"] = Kept()
    sys.stdout.write("buffered")
    atexit.register(lambda: sys.stdout.write(", at its end"))
    sys.exit("a text" if len(sys.argv) > 1 else None)


def read_to_the_end():
    """A child that ends when its standard input does."""
    while os.read(0, 1):
        pass


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with ForkServer((), [__name__], folder / "log") as server:
        yield server.client


def start(client, call, *arguments, stdin=None, folder=None, out=None):
    """A child that calls one of the functions above, with no input if none is given."""
    with open(os.devnull, "rb") as empty, open(out or os.devnull, "wb") as stdout:
        streams = (stdin if stdin is not None else empty.fileno(), stdout.fileno(), 2)
        return client.start("a child", f"{__name__}:{call}", arguments, *streams, folder=folder)


def told(client, tmp_path, **options):
    child = start(client, "tell", "--a", "b c", out=tmp_path / "out", **options)
    assert child.wait(GONE_S) == 0
    return json.loads((tmp_path / "out").read_text())


def test_a_child_is_a_process_of_its_own_with_what_was_asked_for(client, tmp_path):
    found = told(client, tmp_path, folder=tmp_path)
    assert found["arguments"] == ["--a", "b c"]
    assert found["folder"] == str(tmp_path)
    assert found["name"] == "a child"
    assert found["session"]  # a Ctrl-C of whoever asked does not reach it
    assert found["interrupt"] and found["child_signal"]


def test_no_child_holds_the_files_of_another(client, tmp_path):
    alone = told(client, tmp_path)["files"]
    ends = [os.pipe() for _ in range(5)]
    others = [start(client, "read_to_the_end", stdin=theirs) for theirs, _ in ends]
    assert all(other.pid for other in others)
    assert told(client, tmp_path)["files"] == alone
    for (theirs, ours), other in zip(ends, others, strict=True):
        os.close(theirs)
        assert other.poll() is None
        os.close(ours)  # each ends with its own input, though the others still read theirs
        assert other.wait(GONE_S) == 0


def test_each_has_its_own_status_and_one_that_is_killed_the_signal(client):
    theirs, ours = os.pipe()
    failed, done, killed = (
        start(client, "fail"),
        start(client, "tell"),
        start(client, "read_to_the_end", stdin=theirs),
    )
    assert killed.poll() is None
    killed.send_signal(signal.SIGKILL)
    assert [child.wait(GONE_S) for child in (failed, done, killed)] == [7, 0, -signal.SIGKILL]
    assert len({child.pid for child in (failed, done, killed)}) == 3
    killed.send_signal(signal.SIGKILL)  # nobody else, whoever has its number now
    os.close(theirs)
    os.close(ours)


def test_a_child_writes_all_it_has_and_ends_without_being_taken_apart(client, tmp_path):
    child = start(client, "put_off", out=tmp_path / "out")
    assert child.wait(GONE_S) == 0
    assert (tmp_path / "out").read_text() == "buffered, at its end"


def test_a_child_that_raises_or_exits_with_a_text_has_status_one(client, tmp_path):
    raised, texted = start(client, "give_up"), start(client, "put_off", "text", out=tmp_path / "out")
    assert [raised.wait(GONE_S), texted.wait(GONE_S)] == [1, 1]
    assert (tmp_path / "out").read_text().startswith("buffered, at its end")


def test_participants_find_their_imports_made(tmp_path):
    with ForkServer((), [*MODULES, __name__], tmp_path / "log") as server:
        assert tuple(told(server.client, tmp_path)["heavy"]) == HEAVY


def test_a_server_that_has_ended_is_named_with_its_log(tmp_path):
    with ForkServer((), ["no.such.module"], tmp_path / "log") as server:
        with pytest.raises(AssayError, match=f"has ended; its log is {tmp_path}/log"):
            start(server.client, "tell").wait(GONE_S)
        with pytest.raises(AssayError, match="has ended"):
            start(server.client, "tell")
    assert "No module named 'no'" in (tmp_path / "log").read_text()


def test_server_and_children_end_with_whoever_asked_however_that_ends(tmp_path):
    command = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert not any(map(has_ended, pids))
        owner.kill()
    for pid in pids:
        trio.run(until_ended, pid)
