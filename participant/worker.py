"""Worker: a child process for torch computations, called over pipes, so that they never block the network.

Room: participant (edge). The parent is a trio process that owns the sockets; the child
answers one call after the other over its pipes. The child
ends when its parent does, however the parent ends; if the child dies, the call
in flight raises `Unavailable` and the next call starts a new one.

    frame = u32 length | CBOR of [method, arguments] or of [ok, result]
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
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import cbor2
import trio

from assay.participant.json_log import log_as_json
from assay.protocol import errors
from assay.protocol.errors import AssayError, PeerFault, Unavailable

log = logging.getLogger("assay.participant.worker")  # the worker runs this file as __main__
_LENGTH = struct.Struct(">I")
# numpy's BLAS would use a thread per core for every product; its work here is small or exact.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}


class WorkerProcess:
    """A worker process serving the functions of one module's `methods()`."""

    def __init__(
        self, module: str, log_path: Path, prepare: Callable[[WorkerProcess], Awaitable[None]] | None = None
    ) -> None:
        """Configure the worker; it starts with the first call.

        Args:
            module: Import name of a module with `methods() -> Mapping[str, function]`.
            log_path: File for its standard error.
            prepare: Called after each (re)start, before the call that caused it.
        """
        self._module, self._log_path, self._prepare = module, log_path, prepare
        self._process: trio.Process | None = None
        self._lock = trio.Lock()

    async def call(self, method: str, **arguments: Any) -> Any:
        """Run one function in the worker and return its result.

        A call that has begun, or a restart, is awaited even if its caller is cancelled: half an
        exchange would desynchronise the pipe, and work under way is rarely useless.

        Raises:
            AssayError: the function raised it, with the same text.
            Unavailable: the worker died.
        """
        async with self._lock:
            with trio.CancelScope(shield=True):
                if self._process is None or self._process.poll() is not None:
                    await self._restart()
                return await self._exchange(method, arguments)

    async def call_now(self, method: str, **arguments: Any) -> Any:
        """Like `call`, for use inside `prepare` only: the lock is already held."""
        return await self._exchange(method, arguments)

    async def close(self) -> None:
        """End the worker."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            with trio.CancelScope(shield=True), trio.move_on_after(5):
                await process.wait()

    async def _restart(self) -> None:
        with open(self._log_path, "ab") as log_file:
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "assay.participant.worker", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env={**ONE_THREAD, **os.environ},
            )
        try:
            if self._prepare is not None:
                await self._prepare(self)
        except BaseException:
            await self.close()  # an unprepared worker must not be used as a prepared one
            raise

    async def _exchange(self, method: str, arguments: Mapping[str, Any]) -> Any:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        body = cbor2.dumps([method, dict(arguments)])
        try:
            await process.stdin.send_all(_LENGTH.pack(len(body)) + body)
            (length,) = _LENGTH.unpack(await self._receive(process, 4))
            is_ok, result = cbor2.loads(await self._receive(process, length))
        except (trio.BrokenResourceError, trio.ClosedResourceError, EOFError):
            await self.close()
            raise Unavailable(
                f"the {self._module} worker died during {method}; its log is {self._log_path}"
            ) from None
        if not is_ok:
            kind = getattr(errors, result[0], AssayError)
            raise (AssayError if issubclass(kind, PeerFault) else kind)(
                result[1]
            )  # a fault's text names its peer
        return result

    @staticmethod
    async def _receive(process: trio.Process, length: int) -> bytes:
        assert process.stdout is not None
        data = bytearray()
        while len(data) < length:
            part = await process.stdout.receive_some(min(1 << 20, length - len(data)))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


def serve(methods: Mapping[str, Callable[..., Any]], source: BinaryIO, sink: BinaryIO) -> None:
    """Serve calls until the parent has ended."""
    while True:
        head = source.read(4)
        if len(head) < 4:
            return
        (length,) = _LENGTH.unpack(head)
        method, arguments = cbor2.loads(source.read(length))
        since_s = time.process_time()
        try:
            answer = [True, methods[method](**arguments)]
        except AssayError as error:
            answer = [False, [type(error).__name__, str(error)]]
        cpu_ms = round(1e3 * (time.process_time() - since_s), 1)
        log.info("answered", extra={"method": method, "cpu_ms": cpu_ms})  # for CPU time accounting
        body = cbor2.dumps(answer)
        sink.write(_LENGTH.pack(len(body)) + body)
        sink.flush()


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's prints go to the log, not into the frames
    log_as_json()
    serve(importlib.import_module(sys.argv[1]).methods(), sys.stdin.buffer, sink)


if __name__ == "__main__":
    _main()
