"""Children: keeps the processes of an operator's nodes up, each in its folder, with its log beside it.

Room: fleet (edge: child processes). A child ends when its supervisor does, however that ends: the pipe to it
closes. Until it has, it holds its folder's lock, so a supervisor that is started again never starts a second
process on the same keys. One that dies is started again, later each time; what it said last is kept.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import trio

from assay.fleet.config import FleetConfig, holding
from assay.fleet.seats import CONFIG, LOG, LOG_BYTES_MAX, RUNNING, last_words
from assay.participant.worker import ONE_THREAD
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest

log = logging.getLogger(__name__)
FIRST_S, MOST_S = 2.0, 600.0  # between an end and the next start
STEADY_S = 600.0  # after a process ran for as long, its next end is the first one again
STOP_S = 20.0
MENDED = 2  # exit status of a process that somebody has to mend


@dataclass(slots=True)
class Child:
    """What is known of one node's process."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    pid: int | None = None  # None: it does not run now
    starts: int = 0
    is_done: bool = False  # it ended with status 0, and is not started again
    fault: str | None = None  # its last words, if it ended for good reason


class Children:
    """The processes of those runs that are wanted."""

    def __init__(self, config: FleetConfig, nursery: trio.Nursery, ended: Callable[[], None]) -> None:
        """
        Args:
            config: Where the nodes' folders are.
            nursery: In which the processes are waited for.
            ended: Called when one of them ends.
        """
        self._config, self._nursery, self._ended = config, nursery, ended
        self._children: dict[Digest, Child] = {}

    def of(self, run_id: Digest) -> Child:
        """What is known of a run's process; of one that was never wanted, nothing."""
        return self._children.get(run_id, Child())

    def want(self, run_ids: Collection[Digest]) -> None:
        """Keep up the processes of these runs, and end all others."""
        for run_id, child in self._children.items():
            if run_id not in run_ids:
                child.scope.cancel()
        for run_id in run_ids:
            if run_id not in self._children:
                self._children[run_id] = child = Child()
                self._nursery.start_soon(self._keep_up, run_id, child)

    def forget(self, run_id: Digest) -> None:
        """Forget a process that is wanted no more."""
        child = self._children.pop(run_id, None)
        if child is not None:
            child.scope.cancel()

    async def _keep_up(self, run_id: Digest, child: Child) -> None:
        folder, wait_s = self._config.seat_folder(run_id), FIRST_S
        with child.scope:
            while True:
                began_s = trio.current_time()
                status = await self._run_once(folder, child)
                if status == 0:
                    child.is_done = True
                    self._ended()
                    return
                child.fault = last_words(folder) if status == MENDED else None
                log.warning(
                    "a node's process ended",
                    extra={"run": run_id.hex()[:16], "status": status, "reason": last_words(folder)},
                )
                self._ended()
                if trio.current_time() - began_s > STEADY_S:
                    wait_s = FIRST_S
                await trio.sleep(MOST_S if status == MENDED else wait_s)
                wait_s = min(2 * wait_s, MOST_S)

    async def _run_once(self, folder: Path, child: Child) -> int | None:
        """Start the process and wait for its end; its status, None if another still runs there."""
        _put_aside(folder / LOG)
        try:
            with holding(folder / RUNNING, "this node") as lock, open(folder / LOG, "ab") as log_file:
                process = await trio.lowlevel.open_process(
                    [
                        sys.executable,
                        "-m",
                        "assay.cli.main",
                        "node",
                        "run",
                        str(folder / CONFIG),
                        "--tethered",
                    ],
                    stdin=subprocess.PIPE,
                    stdout=log_file,
                    stderr=log_file,
                    start_new_session=True,
                    pass_fds=(lock,),  # held until the child has ended, even if we are killed before
                    env={**ONE_THREAD, **os.environ},
                )
        except ConfigError:
            return None
        child.pid, child.starts = process.pid, child.starts + 1
        try:
            return await process.wait()
        finally:
            child.pid = None
            if process.poll() is None:
                with trio.CancelScope(shield=True):
                    process.terminate()
                    with trio.move_on_after(STOP_S):
                        await process.wait()
                    if process.poll() is None:
                        process.kill()
                        await process.wait()
            if process.stdin is not None:
                with trio.CancelScope(shield=True):
                    await process.stdin.aclose()


def _put_aside(path: Path) -> None:
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        os.replace(path, path.with_name(f"{path.name}.1"))
