"""Bounded: calls functions that read strangers' programs in a child process, with limited memory and time.

Room: training (edge: a process). A few bytes of a tokenizer's normaliser or of a chat template can ask for
any amount of memory, and where there is none a library ends the whole process: no `except` sees it. Here a
child ends in its place, and that is a `ValueError`.

    parent -- pickle of (function, arguments) --> child
    parent <-- line of JSON: [class of the error or "", result or text] -- child
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

from assay.protocol.errors import ConfigError

MEMORY_BYTES = 4 << 30  # of address space; a tokenizer of 262,000 tokens takes a sixteenth
CPU_S = 60.0  # of one call, on all its threads
ANSWER_BYTES_MAX = 1 << 26
REASON_CHARS_MAX = 1000
# Threads reserve address space, and there is nothing here to divide among them.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_MAIN = """\
import sys
sys.path[:] = {path!r}
from assay.training.data.bounded import serve
serve({memory}, {cpu})
"""


class BoundedProcess:
    """A child process that calls functions one after the other, and ends when nobody has this any more."""

    def __init__(self, reading: str) -> None:
        """Start it. It imports from where this process does, and not from the working directory.

        Args:
            reading: What it reads of a stranger's, for the error when it ends.
        """
        self._reading, self._lock = reading, Lock()
        main = _MAIN.format(path=sys.path, memory=MEMORY_BYTES, cpu=CPU_S)
        self._process = subprocess.Popen(
            [sys.executable, "-c", main],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a library's last words
            env={**os.environ, **_ONE_THREAD},
        )
        weakref.finalize(self, _end, self._process)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function that a module has by name returns, as JSON has it: a list for a tuple.

        Raises:
            ValueError: the function raised it, or the process ended, as it does beyond its limits.
            ConfigError: the function raised it.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        line = b""
        with self._lock, suppress(BrokenPipeError):
            if self._process.returncode is None:
                pickle.dump((function, arguments), self._process.stdin)
                self._process.stdin.flush()
                line = self._process.stdout.readline(ANSWER_BYTES_MAX)
        if not line.endswith(b"\n"):
            self._process.kill()  # it may have said too much
            self._process.wait()
            limits = f"{MEMORY_BYTES >> 30} GiB of memory and {CPU_S:g} s of processor time"
            raise ValueError(f"the process that reads {self._reading} ended, which may take {limits}")
        kind, found = json.loads(line)
        if kind:
            raise (ConfigError if kind == ConfigError.__name__ else ValueError)(found)
        return found


def bounded(reading: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """One call in a process of its own; see `BoundedProcess`."""
    return BoundedProcess(reading).call(function, *arguments)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def serve(memory_bytes: int, cpu_s: float) -> None:
    """Be the child: answer calls until the parent has ended; a passed limit ends this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's prints are no answers
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends the process, whatever code runs
        try:
            answer = ("", function(*arguments))
        except (ConfigError, ValueError) as error:
            answer = (type(error).__name__, str(error)[:REASON_CHARS_MAX])
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(json.dumps(answer).encode() + b"\n")
        sink.flush()
