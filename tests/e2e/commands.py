"""Commands: calls of `assay`, each in a process of its own that begins with its imports done.

A command spends two seconds on imports and a tenth of that on its work. Here its process is forked from one
that has imported what most commands need, and from then on is like any other: folder, arguments, exit status.
"""

from __future__ import annotations

import atexit
import os
import signal
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from assay.devnet.fork_server import COMMAND, Client, ForkServer

MODULES = ("assay.cli.main", "assay.chain.client", "assay.orders.place")


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


@cache
def _server() -> Client:
    open_ = ExitStack()
    atexit.register(open_.close)
    folder = Path(open_.enter_context(TemporaryDirectory()))
    return open_.enter_context(ForkServer((), MODULES, folder / "log")).client
