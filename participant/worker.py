"""Worker: a child process for torch computations, called over pipes, so that they never block the network.

Room: participant (edge). The parent is a trio process that owns the sockets; the child
answers one request after the other over its pipes. The child
ends when its parent does, however the parent ends; if the child dies, the call
in flight raises `Unavailable` and the next call starts a new one.

    frame = u32 length | message. The first request of a child is its start, answered by `AtRound`.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, ClassVar, Protocol, TypeVar

import trio

from assay.participant.compute import AtRound, ComputeWorker, GetRound
from assay.participant.telemetry.json_log import log_as_json
from assay.protocol import errors
from assay.protocol.encoding.codec import INT_MAX, Max, Message, decode, decode_any, encode
from assay.protocol.errors import AssayError, PeerFault, Unavailable
from assay.protocol.types import RoundId
from assay.training.compiled import compile_all

log = logging.getLogger("assay.participant.worker")  # the worker runs this file as __main__
_LENGTH = struct.Struct(">I")
# numpy's BLAS would use a thread per core for every product; its work here is small or exact.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
A = TypeVar("A", bound=Message)
S = TypeVar("S", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The answer to a request that ended in an error: its class and its text."""

    TAG: ClassVar[bytes] = b"assay/worker/failure/1"
    kind: Annotated[str, Max(64)]
    text: Annotated[str, Max(INT_MAX)]


class WorkerChild(Protocol):
    """A worker's process, as `trio.Process` has it."""

    @property
    def stdin(self) -> trio.abc.SendStream | None:
        """The pipe to it."""

    @property
    def stdout(self) -> trio.abc.ReceiveStream | None:
        """The pipe from it."""

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""

    def send_signal(self, sig: signal.Signals) -> None:
        """Send it a signal."""

    async def wait(self) -> int:
        """Its exit status, once it has ended."""


async def _start(module: str, log_file: BinaryIO) -> WorkerChild:
    """Start the worker of a module by a new interpreter; `log_file` is its standard error."""
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", "assay.participant.worker", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log_file,
        env={**ONE_THREAD, **os.environ},
    )


# How this process starts workers; a local network's are forked from one that has made their imports.
STARTER: ContextVar[Callable[[str, BinaryIO], Awaitable[WorkerChild]]] = ContextVar("STARTER", default=_start)


class WorkerProcess:
    """A worker process."""

    def __init__(
        self,
        module: str,
        start: Message,
        log_path: Path,
        started: Callable[[RoundId], None],
        worked: Callable[[Message, float], None] = lambda _request, _seconds: None,
    ) -> None:
        """Configure the worker; it starts with the first call.

        Args:
            module: Import name of a module with `START`, a type of message, and
                `open_worker(start) -> ComputeWorker`.
            start: The first request to each new process.
            log_path: File for its standard error.
            started: Told the round that a new process is at, before the call that caused it.
            worked: Told of each answered request, and the seconds it took.
        """
        self._worked = worked
        self._module, self._start, self._log_path, self._started = module, start, log_path, started
        self._process: WorkerChild | None = None
        self._lock = trio.Lock()

    async def call(self, request: Message, answer: type[A]) -> A:
        """Have the worker do what a request asks for.

        A call that has begun, or a restart, is awaited even if its caller is cancelled: half an
        exchange would desynchronise the pipe, and work under way is rarely useless.

        Args:
            request: One of the worker's `REQUESTS`.
            answer: The type of its answer.

        Raises:
            AssayError: the worker raised it, with the same text.
            Unavailable: the worker died.
        """
        async with self._lock:
            with trio.CancelScope(shield=True):
                if self._process is None or self._process.poll() is not None:
                    await self._restart()
                began_s = trio.current_time()
                try:
                    return await self._exchange(request, answer)
                finally:
                    self._worked(request, trio.current_time() - began_s)

    async def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                await process.wait()

    async def _restart(self) -> None:
        with open(self._log_path, "ab") as log_file:
            self._process = await STARTER.get()(self._module, log_file)
        try:
            self._started((await self._exchange(self._start, AtRound)).round)
        except BaseException:
            await self.close()  # a worker that did not start must not be used as one that did
            raise

    async def _exchange(self, request: Message, answer: type[A]) -> A:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        body = encode(request)
        try:
            await process.stdin.send_all(_LENGTH.pack(len(body)) + body)
            (length,) = _LENGTH.unpack(await self._receive(process, 4))
            received = await self._receive(process, length)
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            await self.close()
            raise Unavailable(
                f"the {self._module} worker died during {type(request).__name__}; its log is {self._log_path}"
            ) from None
        kinds: dict[bytes, type[A] | type[Failure]] = {answer.TAG: answer, Failure.TAG: Failure}
        found = decode_any(kinds, received, INT_MAX)
        if not isinstance(found, Failure):
            return found
        kind = getattr(errors, found.kind, AssayError)
        raise (AssayError if issubclass(kind, PeerFault) else kind)(found.text)  # a fault's text has its peer

    @staticmethod
    async def _receive(process: WorkerChild, length: int) -> bytes:
        assert process.stdout is not None
        data = bytearray()
        while len(data) < length:
            part = await process.stdout.receive_some(min(1 << 20, length - len(data)))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def serve(
    start: type[S], open_worker: Callable[[S], ComputeWorker], source: BinaryIO, sink: BinaryIO
) -> None:
    """Start a worker and answer requests until the parent has ended."""
    answer = answering(start, open_worker)
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        body = answer(source.read(*_LENGTH.unpack(head)))
        sink.write(_LENGTH.pack(len(body)) + body)
        sink.flush()


def answering(start: type[S], open_worker: Callable[[S], ComputeWorker]) -> Callable[[bytes], bytes]:
    """A function that answers the messages of a worker's frames one after another; the first is a start."""
    worker: ComputeWorker | None = None

    def answer(body: bytes) -> bytes:
        nonlocal worker
        since_s, began_s = time.process_time(), time.monotonic()
        request: Message = GetRound()
        found: Message
        try:
            if worker is None:
                worker = open_worker(decode(start, body, INT_MAX))
            else:
                request = decode_any({kind.TAG: kind for kind in worker.REQUESTS}, body, INT_MAX)
            found = worker.answer(request)
        except AssayError as error:
            found = Failure(kind=type(error).__name__, text=str(error))
        cpu_ms = round(1e3 * (time.process_time() - since_s), 1)
        wall_ms = round(1e3 * (time.monotonic() - began_s), 1)
        fields = {"request": type(request).__name__, "cpu_ms": cpu_ms, "wall_ms": wall_ms}
        log.info("answered", extra=fields)
        return encode(found)

    return answer


def main() -> None:
    """Be the worker of the module that the command line names, on standard input and output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's prints go to the log, not into the frames
    log_as_json()
    module = importlib.import_module(sys.argv[1])
    compile_all()
    serve(module.START, module.open_worker, sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
