"""Commands: calls of `assay`, each in a process of its own that begins with its imports done.

A command spends two seconds on imports and a tenth of that on its work. Here its process is forked from one
that has imported what most commands need, and from then on is like any other: folder, arguments, exit status.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

_CONTEXT = multiprocessing.get_context("forkserver")
# A start also collects the exit statuses of others, and each can be read once: without a lock, a thread that
# waits for its own finds none (255).
_COLLECTING = Lock()
_CONTEXT.set_forkserver_preload(["assay.cli.main", "assay.chain.client", "assay.orders.place", __name__])


def command(folder: Path, *words: object, timeout_s: float) -> tuple[int | None, str, str]:
    """Call one command in a folder: its exit status, None if it took too long, and what it wrote."""
    with TemporaryDirectory() as scratch:
        out, err = Path(scratch) / "out", Path(scratch) / "err"
        process = _CONTEXT.Process(target=_run, args=(folder, [str(word) for word in words], out, err))
        with _COLLECTING:
            process.start()
        ended = bool(wait([process.sentinel], timeout_s))
        if not ended:
            process.kill()
        with _COLLECTING:
            process.join()
        return process.exitcode if ended else None, out.read_text(), err.read_text()


def _run(folder: Path, words: list[str], out: Path, err: Path) -> None:
    from assay.cli.main import run

    os.chdir(folder)
    for path, target in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), target)
    sys.argv = ["assay", *words]
    run()
