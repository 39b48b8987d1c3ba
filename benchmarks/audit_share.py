"""The share of verification in a network's compute: real processes, their CPU time, and what it went into.

    python -m benchmarks.audit_share [--rounds 60] [--floor 0.2] [--settled 20]

`assay localnet` with 8 honest nodes and 4 verifiers, the quickstart's model and batch, probation of
one audit so that the rate soon falls to the floor (after 1 / floor audits). Training compute is the
CPU time of the trainers' `step` calls, recomputation that of the examiners' `examine`
calls, both from the workers' logs, whole and from the round on from which nodes are at the floor;
everything else is the processes' own
total (/proc, sampled: Linux only). Then, with q the rate, m the examinations an audit takes (1 + the
share of second looks, and more where auditors are late and others take their turn), e and t
the CPU time of one examination and one step:

    recomputation / training = q m e / t
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.machine import machine

NODES, LOOKS = 8, 0.2
FLOORS = (0.2, 0.05)  # what is measured, and the order's default
REACH = 0.07
ORDER = f"""
[run]
name = "share"
rounds = {{rounds}}
nodes = {NODES}
verifiers = 4
[verify]
probation = 1
floor = {{floor}}
replicated = {LOOKS}
blocks = 64
known_answers = 0
"""


def main() -> None:
    """Run the network and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--floor", type=float, default=FLOORS[0])
    parser.add_argument("--settled", type=int, default=20, help="the round from which nodes are at the floor")
    args = parser.parse_args()
    print(f"machine: {machine()}")
    print_share(args.rounds, args.floor, args.settled)


def print_share(rounds: int, floor: float = FLOORS[0], settled: int = 20) -> None:
    """Run a network for this many rounds and print where its CPU time went.

    Raises:
        RuntimeError: the network did not end well; its last words are in the message.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        order = Path(folder) / "share.toml"
        order.write_text(ORDER.format(rounds=rounds, floor=floor))
        command = [sys.executable, "-m", "assay.cli.main", "localnet", str(order), "--out", str(out)]
        with open(Path(folder) / "log", "wb") as log:
            network = subprocess.Popen(command, stdout=log, stderr=log)
            try:
                seconds = _watch(network)
            finally:
                network.terminate()
        if network.returncode:
            raise RuntimeError((Path(folder) / "log").read_text()[-2000:])
        steps = [s for log in out.rglob("trainer.log") for s in _calls(log, "TakeStep")]
        examined = [s for log in out.rglob("recompute-worker.log") for s in _calls(log, "Examine")]
        drawn = json.loads((out / "summary.json").read_text())["audits"]["drawn"]
        applied = [s for log in out.rglob("*er.log") for s in _calls(log, "Apply")]
    _print(settled, drawn, seconds, steps, examined, applied)


def _print(
    settled: int,
    drawn: int,
    seconds: dict[str, float],
    steps: list[tuple[int, float]],
    examined: list[tuple[int, float]],
    applied: list[tuple[int, float]],
) -> None:
    for kind, spent_s in sorted(seconds.items(), key=lambda one: -one[1]):
        print(f"- {kind}: {spent_s:.1f} CPU s in all")
    t, e = (float(np.mean([s for _, s in calls])) for calls in (steps, examined))
    at_floor = [s for at, s in examined if at >= settled]
    training_s = sum(s for at, s in steps if at >= settled)
    whole = sum(s for _, s in examined) / sum(s for _, s in steps)
    m = len(examined) / drawn
    print(
        f"- {len(steps)} steps of {t * 1e3:.1f} ms; {drawn} audits, {len(examined)} examinations of "
        f"{e * 1e3:.1f} ms: m = {m:.2f}, e / t = {e / t:.2f}"
    )
    print(f"- {len(applied)} times parameters were followed, {np.mean([s for _, s in applied]) * 1e3:.1f} ms")
    print(
        f"- recomputation / training: {whole:.1%} over the whole run, first audits at rate 1 included; "
        f"{sum(at_floor) / training_s:.1%} from round {settled} on"
    )
    for floor in FLOORS:
        shares = " and ".join(f"m = {n:.2f}: {floor * n * e / t:.1%}" for n in (1 + LOOKS, m))
        print(f"- at q = {floor}, q m e / t with {shares} (to reach: {REACH:.0%})")


def _calls(log: Path, request: str) -> Iterator[tuple[int, float]]:
    """The round by whose count of steps over the parameters a call came, and its CPU seconds."""
    followed = 0
    for line in log.read_text().splitlines():
        found = json.loads(line)
        if found.get("event") == "answered":
            if found["request"] == request:
                yield followed, found["cpu_ms"] / 1e3
            followed += found["request"] == "Apply"


def _watch(network: subprocess.Popen[bytes]) -> dict[str, float]:
    """CPU seconds of all its processes by kind, sampled until it ends."""
    last: dict[int, tuple[str, float]] = {}
    while network.poll() is None:
        for pid, (kind, spent_s) in _descendants(network.pid).items():
            last[pid] = (kind or last.get(pid, ("",))[0], spent_s)  # one that has ended has no name left
        time.sleep(0.5)
    seconds: dict[str, float] = defaultdict(float)
    for kind, spent_s in last.values():
        seconds[kind] += spent_s
    return seconds


def _descendants(root: int) -> dict[int, tuple[str, float]]:
    """Kind and CPU seconds of a process and of all below it."""
    found: dict[int, tuple[int, str, float]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            kind = _kind(entry)
        except OSError:
            continue  # it has just ended
        spent_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found[int(entry.name)] = (int(fields[1]), kind, spent_s)
    family, grown = {root}, 0
    while grown != len(family):
        grown = len(family)
        family |= {pid for pid, (parent, _, _) in found.items() if parent in family}
    return {pid: found[pid][1:] for pid in family if pid in found}


def _kind(process: Path) -> str:
    """By the file of its standard error, which is its log: node-0.log, trainer.log."""
    log = Path(os.readlink(process / "fd" / "2"))
    return log.stem.rstrip("-0123456789") if log.suffix == ".log" else (process / "comm").read_text().strip()


if __name__ == "__main__":
    main()
