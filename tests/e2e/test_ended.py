"""A local network that is asked to end takes its chain and every participant along."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.nets import localnet, need_anvil, wait_for_start, write_order

pytestmark = pytest.mark.slow

NAMES = ("verifier-0", "node-0", "ledger", "buyer")


def living() -> dict[tuple[int, str], tuple[str, int]]:
    """Name and parent of every process that runs, by its number and the time of its start."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:  # it has just ended
            continue
        state, parent, *_ = fields = rest.split()
        if state != "Z":
            found[int(path.parent.name), fields[19]] = name, int(parent)
    return found


def below(ancestor: int, processes: dict[tuple[int, str], tuple[str, int]]) -> Iterator[tuple[int, str]]:
    """Those that descend from this process."""
    for one, (_, parent) in processes.items():
        if parent == ancestor:
            yield one
            yield from below(one[0], processes)


def test_a_network_that_is_terminated_leaves_no_process_behind(tmp_path: Path) -> None:
    need_anvil()
    with localnet(tmp_path, write_order(tmp_path)) as process:
        for name in NAMES:
            wait_for_start(process, tmp_path / "run", name, 1)
        everybody = living()
        mine = {one: everybody[one][0] for one in below(process.pid, everybody)}
        process.terminate()
        process.communicate(timeout=60)
        until_s = time.monotonic() + 10
        while (left := mine.keys() & living().keys()) and time.monotonic() < until_s:
            time.sleep(0.1)
    for number, _ in left:
        os.kill(number, signal.SIGKILL)

    assert {"anvil", *NAMES} <= set(mine.values())
    assert [mine[one] for one in left] == []
    assert process.returncode != 0
