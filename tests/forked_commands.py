"""Commands: calls of `assay`, and workers, each in a process of its own that begins with its imports done.

A command spends two seconds on imports and a tenth of that on its work. Here its process is forked from one
that has imported what commands and participants need, and from then on is like any other.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from assay.devnet.fork_server import COMMAND, MODULES, Client, ForkedProcess, ForkServer
from assay.participant.worker import STARTER

STOP_S = 30.0


def command(folder: Path, *words: object, timeout_s: float) -> tuple[int | None, str, str]:
    """Call one command in a folder: its exit status, None if it took too long, and what it wrote."""
    with TemporaryDirectory() as scratch:
        out, err = Path(scratch) / "out", Path(scratch) / "err"
        with open(os.devnull, "rb") as empty, open(out, "wb") as stdout, open(err, "wb") as stderr:
            streams = [one.fileno() for one in (empty, stdout, stderr)]
            process = _server().start(
                "assay", COMMAND, [str(word) for word in words], *streams, folder=folder
            )
        status = process.wait(timeout_s)
        if status is None:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout_s)
        return status, out.read_text(), err.read_text()


@contextmanager
def running(log: Path, *words: object) -> Iterator[ForkedProcess]:
    """A command that goes on, in the folder of its log; it is ended with the block."""
    with open(os.devnull, "rb") as empty, open(log, "ab") as out:
        streams = (empty.fileno(), out.fileno(), out.fileno())
        process = _server().start(
            "assay", COMMAND, [str(word) for word in words], *streams, may_ask=True, folder=log.parent
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):  # of an operator's process the second one ends it
            process.send_signal(number)
            time.sleep(0.2)
        if process.wait(STOP_S) is None:
            process.send_signal(signal.SIGKILL)
            process.wait(STOP_S)


@contextmanager
def forked_workers() -> Iterator[None]:
    """Workers that this context starts meanwhile are forked too, as a local network's are."""
    before = STARTER.set(_server().start_worker)
    try:
        yield
    finally:
        STARTER.reset(before)


@cache
def _server() -> Client:
    open_ = ExitStack()
    atexit.register(open_.close)
    folder = Path(open_.enter_context(TemporaryDirectory()))
    return open_.enter_context(ForkServer((), [*MODULES, "assay.orders.place"], folder / "log")).client
