"""Fork server: starts the processes of a local network from one that has made their imports already.

Room: devnet (edge: processes). A participant spends three seconds of a core on its imports, and its worker
as many on torch. Forked from a process that has made them, each starts in a tenth of a second and shares
their memory; from then on it is a process like any other.

    request = one datagram, JSON: what to call and its arguments; with it go the child's standard input,
              output and error, a pipe for its status, and the client's end of this socket if it may ask too
    status  = i64 process id, then i64 exit status (negative: the signal that ended it)
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NoReturn

import trio

from assay.participant.worker import ONE_THREAD, STARTER, WorkerChild
from assay.protocol.errors import AssayError

COMMAND = "assay.cli.main:run"
WORKER = "assay.participant.worker:main"
# What participants and their workers import as they start.
MODULES = (
    "assay.cli.main",
    "assay.cli.process",
    "assay.node.service",
    "assay.verifier.service.process",
    "assay.observer.ledger_service.service",
    "assay.observer.buyer.service",
    "assay.observer.watchtower",
    "assay.node.trainer",
    "assay.verifier.audit.worker",
)
_I64 = struct.Struct("<q")
_REQUEST_BYTES_MAX = 1 << 14
_FDS_MAX = 5


@dataclass(slots=True)
class ForkedProcess:
    """A process that a fork server started, seen from the one that asked for it."""

    _status: int  # read end of its pipe
    _log: Path  # the server's
    _pid: int | None = None
    returncode: int | None = None

    @property
    def pid(self) -> int:
        """Its process id; waits until it has started.

        Raises:
            AssayError: the server has ended.
        """
        if self._pid is None:
            self._pid = self._read()
        return self._pid

    def poll(self) -> int | None:
        """Its exit status, None while it runs.

        Raises:
            AssayError: the server has ended, so nobody knows.
        """
        while self.returncode is None and self._is_told(0.0):
            if self._pid is None:
                self._pid = self._read()
            else:
                self._end(self._read())
        return self.returncode

    def wait(self, timeout_s: float) -> int | None:
        """Its exit status, None if it still runs after `timeout_s`."""
        _ = self.pid
        if self.returncode is None and self._is_told(timeout_s):
            self._end(self._read())
        return self.returncode

    async def until_ended(self) -> int:
        """Its exit status, once it has ended."""
        while (status := self.poll()) is None:
            await trio.lowlevel.wait_readable(self._status)
        return status

    def send_signal(self, sig: signal.Signals) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def _is_told(self, timeout_s: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def _end(self, status: int) -> None:
        self.returncode = status
        os.close(self._status)

    def _read(self) -> int:
        data = os.read(self._status, _I64.size)
        if len(data) != _I64.size:
            raise AssayError(f"the process that starts the others has ended; its log is {self._log}")
        return int(_I64.unpack(data)[0])


@dataclass(slots=True)
class ForkedWorker:
    """A worker that a fork server started, as `WorkerProcess` calls it."""

    stdin: trio.lowlevel.FdStream
    stdout: trio.lowlevel.FdStream
    _process: ForkedProcess

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._process.poll()

    def send_signal(self, sig: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(sig)

    async def wait(self) -> int:
        """Its exit status, once it has ended."""
        return await self._process.until_ended()


@dataclass(slots=True)
class Client:
    """What asks a fork server: the supervisor, and each participant for its worker."""

    _socket: socket.socket
    _log: Path

    def start(
        self,
        name: str,
        call: str,
        arguments: Sequence[str],
        stdin: int,
        stdout: int,
        stderr: int,
        *,
        may_ask: bool = False,
        folder: Path | None = None,
    ) -> ForkedProcess:
        """Start a process, in a session of its own.

        Args:
            name: What `ps -o comm` calls it, where the system has /proc; 15 bytes of it.
            call: What it calls: MODULE:FUNCTION, without arguments.
            arguments: Its `sys.argv[1:]`.
            stdin, stdout, stderr: File descriptors, which stay the caller's too.
            may_ask: Whether its own workers are forked as well.
            folder: Its working folder, if not the server's.

        Raises:
            AssayError: the server has ended.
        """
        request = {"name": name, "call": call, "arguments": list(arguments), "log": str(self._log)}
        if folder is not None:
            request["folder"] = str(folder)
        status, told = os.pipe()
        try:
            fds = [stdin, stdout, stderr, told, *([self._socket.fileno()] if may_ask else [])]
            socket.send_fds(self._socket, [json.dumps(request).encode()], fds)
        except OSError as error:
            os.close(status)
            raise AssayError(f"the process that starts the others has ended ({error.strerror})") from None
        finally:
            os.close(told)
        return ForkedProcess(status, self._log)

    async def start_worker(self, module: str, log_file: BinaryIO) -> WorkerChild:
        """As `STARTER` says."""
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        try:
            process = self.start(
                "worker", WORKER, [module], theirs_in, theirs_out, log_file.fileno(), folder=Path.cwd()
            )
        except AssayError:
            os.close(ours_in)
            os.close(ours_out)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return ForkedWorker(trio.lowlevel.FdStream(ours_in), trio.lowlevel.FdStream(ours_out), process)


@dataclass(slots=True)
class ForkServer:
    """The server's process; leaving this context manager ends it. What it started goes on."""

    prefix: Sequence[str]  # before its command line
    modules: Sequence[str]
    log: Path
    client: Client = field(init=False)
    _process: subprocess.Popen[bytes] = field(init=False)

    def __enter__(self) -> ForkServer:
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        command = [*self.prefix, sys.executable, "-m", "assay.devnet.fork_server", str(theirs.fileno())]
        with open(self.log, "ab") as log_file:
            # It ends when standard input closes, that is, when we end in any way.
            self._process = subprocess.Popen(
                [*command, *self.modules],
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                env={**ONE_THREAD, **os.environ},
            )
        theirs.close()
        self.client = Client(ours, self.log)
        return self

    def __exit__(self, *_: object) -> None:
        self.client._socket.close()
        with self._process:  # its standard input is closed
            self._process.terminate()


def _serve(requests: socket.socket) -> Callable[[], None] | None:
    """Answer requests until standard input closes: None then, and in each child what it has to call."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    told: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        for source in (requests, woken, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sys.stdin in ready:
                return None
            if woken in ready:
                woken.recv(1 << 12)
                _collect(told)
            if requests not in ready:
                continue
            text, (stdin, stdout, stderr, status, *asks), _, _ = socket.recv_fds(
                requests, _REQUEST_BYTES_MAX, _FDS_MAX
            )
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (requests, woken, wakes):
                    end.close()
                for fd in (*told.values(), status):
                    os.close(fd)
                return lambda: _become(json.loads(text), (stdin, stdout, stderr), asks)
            for fd in (stdin, stdout, stderr, *asks):
                os.close(fd)
            told[pid] = status
            _tell(status, pid)


def _collect(told: dict[int, int]) -> None:
    """Tell of each child that has ended how it has."""
    while told:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        _tell(told[pid], os.waitstatus_to_exitcode(ended))
        os.close(told.pop(pid))


def _tell(status: int, number: int) -> None:
    with suppress(BrokenPipeError):  # whoever asked has ended
        os.write(status, _I64.pack(number))


def _become(request: dict[str, object], streams: Sequence[int], asks: Sequence[int]) -> None:
    """Be the process that was asked for."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
        os.close(fd)
    call, arguments = str(request["call"]), request["arguments"]
    assert isinstance(arguments, list)
    with suppress(OSError):
        Path("/proc/self/comm").write_text(str(request["name"]))
    if "folder" in request:
        os.chdir(str(request["folder"]))
    sys.argv = ["assay", *arguments]
    for fd in asks:
        STARTER.set(Client(socket.socket(fileno=fd), Path(str(request["log"]))).start_worker)
    pkgutil.resolve_name(call)()


def _run(job: Callable[[], None]) -> NoReturn:
    """Run what a child has to do, then its exit functions, and end it.

    Nothing is taken apart before: that touches each object that the child shares with its server, so the
    kernel would copy all their pages, which takes longer than most commands.
    """
    status: int | None = 0
    try:
        job()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        status = ended.code
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def _main() -> None:
    from assay.training.compiled import compile_all

    fd, *modules = sys.argv[1:]
    for module in modules:
        importlib.import_module(module)
    compile_all()
    for stream in (sys.stdout, sys.stderr):  # else each child says again what an import has said
        stream.flush()
    gc.freeze()  # a collection would write to what all share
    job = _serve(socket.socket(fileno=int(fd)))
    if job is not None:
        _run(job)


if __name__ == "__main__":
    _main()
