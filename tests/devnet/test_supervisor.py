"""The supervisor of a local network: whatever ends, nothing that it started is left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from assay.devnet import supervisor
from assay.devnet.faults.behaviours import HONEST
from assay.devnet.provision import LocalMember
from assay.devnet.supervisor import Supervisor
from assay.protocol.errors import AssayError
from tests.participant.test_worker import until_ended

pytestmark = pytest.mark.slow


def a_member(name: str, folder: Path) -> LocalMember:
    member: Any = SimpleNamespace(
        name=name, role="node", behaviour=HONEST, config_path=folder / "config.toml"
    )
    found: LocalMember = member
    return found


def test_without_the_process_that_started_them_all_are_still_told_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "MODULES", ("tests.devnet.test_fork_server",))
    monkeypatch.setattr(supervisor, "COMMAND", "tests.devnet.test_fork_server:read_to_the_end")
    pids = []

    def lose_the_server() -> None:
        with Supervisor(tmp_path / "logs") as found:
            for name in ("node0", "node1"):
                found.start(a_member(name, tmp_path))
                pids.append(found.pid(name))
            server = found._servers[()]._process
            os.kill(server.pid, signal.SIGKILL)
            server.wait()

    with pytest.raises(AssayError, match=r"the process that starts the others has ended"):
        lose_the_server()

    for pid in pids:
        trio.run(until_ended, pid)
