"""Supervisor: starts, restarts and always ends the child processes of a local network.

Room: devnet (edge). A process that dies is started again, because every process may be killed at any instant;
one that the operator must fix (exit status 2) ends the run.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from assay.devnet.faults.behaviours import HONEST
from assay.devnet.fork_server import COMMAND, MODULES, ForkedProcess, ForkServer
from assay.devnet.machines import Loopback, Machines
from assay.devnet.provision import LocalMember
from assay.protocol.errors import AssayError

COMMANDS = {
    "node": ("node", "run"),
    "verifier": ("verifier", "run"),
    "ledger": ("ledger", "serve"),
    "buyer": ("buyer", "run"),
}
FAULTY = ("misbehave", "--as")  # instead, and a behaviour
RESTARTS_MAX = 20
STOP_S = 10.0


@dataclass
class Supervisor:
    """A context manager: leaving it ends every process it started."""

    logs: Path
    machines: Machines = field(default_factory=Loopback)
    restarts: int = 0
    _running: dict[str, tuple[LocalMember, ForkedProcess]] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _tethers: list[int] = field(default_factory=list)  # of every child: they close when we end, in any way
    _servers: dict[tuple[str, ...], ForkServer] = field(default_factory=dict)  # by their prefix
    _open: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Supervisor:
        self.logs.mkdir(parents=True, exist_ok=True)
        if self.machines.is_one:
            self._server(())  # it makes its imports while the network is set up
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._open.close()

    def start(self, member: LocalMember) -> None:
        """Start one participant."""
        subcommand = COMMANDS[member.role] if member.behaviour == HONEST else (*FAULTY, member.behaviour)
        server = self._server(tuple(self.machines.prefix(member.name)))
        theirs, ours = os.pipe()
        try:
            with open(self.logs / f"{member.name}.log", "ab") as log:
                process = server.client.start(
                    member.name,
                    COMMAND,
                    [*subcommand, str(member.config_path), "--tethered"],
                    theirs,
                    log.fileno(),
                    log.fileno(),
                    may_ask=True,
                )
        finally:
            os.close(theirs)
        self._tethers.append(ours)
        self._running[member.name] = (member, process)

    def pid(self, name: str) -> int:
        """Process id of a participant."""
        return self._running[name][1].pid

    def check(self) -> list[str]:
        """Restart processes that died; returns their names.

        Raises:
            AssayError: a process cannot run at all; the message holds the end of its log.
        """
        revived = []
        for name, (member, process) in list(self._running.items()):
            code = process.poll()
            if code is None or name in self._done:
                continue
            if code == 0 and member.role != "verifier":
                self._done.add(name)
                continue
            self.restarts += 1
            if code == 2 or self.restarts > RESTARTS_MAX:
                raise AssayError(f"{name} ended with status {code}: {self._last_words(name)}")
            self.start(member)
            revived.append(name)
        return revived

    def is_done(self, name: str) -> bool:
        """Whether a participant has finished its work and exited."""
        return name in self._done

    def stop(self) -> None:
        """Ask every process to end, then kill the rest.

        Raises:
            AssayError: a fork server has ended, so that nobody can say which of its processes still run; all
                of them are told to end.
        """
        try:
            for _, process in self._running.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_S
            for _, process in self._running.values():
                if process.wait(max(deadline - time.monotonic(), 0.1)) is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait(STOP_S)
        finally:
            for tether in self._tethers:  # without a server, it is their end that ends a process
                os.close(tether)
            self._tethers.clear()

    def _server(self, prefix: tuple[str, ...]) -> ForkServer:
        if prefix not in self._servers:
            log = self.logs / (f"fork_server_{len(self._servers)}.log" if prefix else "fork_server.log")
            self._servers[prefix] = self._open.enter_context(ForkServer(prefix, MODULES, log))
        return self._servers[prefix]

    def _last_words(self, name: str) -> str:
        text = (self.logs / f"{name}.log").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else "no output"
