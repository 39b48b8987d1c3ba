"""Nets: small local networks of real processes, always ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from assay import contracts
from assay.chain.deployment.anvil import find_anvil
from assay.devnet.summary import invariants, read_summary
from assay.protocol.errors import ConfigError

WAIT_S = 540.0  # nothing here depends on speed; this only ends a test that hangs

TINY = """
[run]
name = "tiny"
rounds = {rounds}
nodes = 4
[model]
layers = 1
width = 64
heads = 2
context = 32
[[data]]
source = "{data}"
licence = "none"
[train]
sequences = 2
{train}
[verify]
probation = 2
blocks = 8
audit_rounds = 7
dispute_rounds = 4
absence_s = 20
[budget]
epoch_rounds = 5
price_per_mtoken = 900_000_000
[timing]
collect_s = 8
iteration_s = 20

"""
DEMO = "warmup = 2"
# The text repeats; a model that learns its bytes tells what goes on from what never occurs in it.
ITEMS = [
    {"query": "5 bottles on the", "choices": ["wall,", "WXYZ,"], "gold": 0},
    {"query": "bottles on the wall, 7", "choices": ["QJK?", "left;"], "gold": 1},
]
SCORED = """
[evaluate]
choices = "items.jsonl"
[accept]
share = 0.2
sequences = 2
acc = { 1 = 0.5 }
"""
SPARSELOCO = """
steps = 4
segment = 2
inner_lr = 0.01
[comm]
method = "sparseloco"
k = 64
"""


def need_anvil() -> None:
    try:
        find_anvil(Path(contracts.__file__).parent)
    except ConfigError as missing:
        pytest.skip(f"needs a local chain: {missing}")


def write_order(
    folder: Path, *, rounds: int = 10, cheat: str = "stale-parameters@2", train: str = DEMO
) -> Path:
    """A run file with data to learn, digits that repeat, and a scenario in which the last node cheats."""
    text = folder / "text.txt"
    text.write_text("".join(f"{n % 97} bottles on the wall, {n % 89} left; " for n in range(3000)))
    path = folder / "run.toml"
    path.write_text(TINY.format(rounds=rounds, data=text, train=train))
    (folder / "items.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in ITEMS))
    path.with_suffix(".scenario.toml").write_text(f'[nodes]\n3 = "{cheat}"\n')
    return path


@contextmanager
def localnet(
    folder: Path,
    order: Path,
    *options: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    module: str = "assay.cli.main",
) -> Iterator[subprocess.Popen[str]]:
    """`assay localnet` as a child in a group of its own; the whole group is ended."""
    command = [
        sys.executable,
        "-m",
        module,
        "localnet",
        str(order),
        "--out",
        str(folder / "run"),
        "--json",
    ]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def summary_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end and read what was printed."""
    out, error = process.communicate(timeout=WAIT_S)
    assert out, error
    found: dict[str, Any] = json.loads(out)
    return found


def slashed(summary: dict[str, Any]) -> list[str]:
    """Behaviours of the nodes that lost stake, sorted."""
    return sorted(node["behaviour"] for node in summary["nodes"] if node["slashed"])


def broken_invariants(summary: dict[str, Any]) -> list[str]:
    """The invariants that a printed summary breaks."""
    return invariants(read_summary(json.dumps(summary)))


def pid_of(run: Path, name: str) -> int:
    """The process that writes this participant's log.

    Raises:
        ProcessLookupError: it does not run now.
    """
    wanted = str((run / "logs" / f"{name}.log").resolve())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "fd" / "2") == wanted:
                    return int(entry.name)
            except OSError:
                continue
    raise ProcessLookupError(name)


def kill(run: Path, name: str) -> None:
    """kill -9 of a participant."""
    os.kill(pid_of(run, name), signal.SIGKILL)


def reports(run: Path) -> list[dict[str, Any]]:
    """What the ledger has reported so far."""
    path = run / "participants" / "ledger" / "status.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def wait_for_round(process: subprocess.Popen[str], run: Path, round_id: int) -> None:
    """Until the ledger has seen this round final."""
    _wait(process, lambda: any(r["kind"] == "round" and r["round"] >= round_id for r in reports(run)))


def wait_for_contributions(process: subprocess.Popen[str], run: Path, after: int, count: int) -> None:
    """Until the ledger has seen a later round final with steps of so many nodes."""

    def found() -> bool:
        rounds = (one for one in reports(run) if one["kind"] == "round")
        return any(one["round"] > after and one["nodes"] >= count for one in rounds)

    _wait(process, found)


def cancel(run: Path) -> None:
    """The buyer ends the run, by the product's own command."""
    buyer = str(run / "participants" / "buyer" / "config.toml")
    command = [sys.executable, "-m", "assay.cli.main", "order", "cancel", buyer]
    assert "closing" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def wait_for_start(process: subprocess.Popen[str], run: Path, name: str, times: int) -> None:
    """Until a participant's process has come up so many times."""
    log = run / "logs" / f"{name}.log"
    _wait(process, lambda: log.exists() and log.read_text().count(' is up"') >= times)


def _wait(process: subprocess.Popen[str], is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert process.poll() is None, "the network ended early"
        assert time.monotonic() < deadline
        time.sleep(0.1)
