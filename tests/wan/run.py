"""Run: a local network whose participants are a real distance apart, measured.

    python -m tests.wan.run examples/quickstart.toml --nodes 8 --rounds 30

Room: tests (edge; needs root). Every participant is started by its own command in a network namespace of its
own, see `tests.wan.namespaces`. After the run, which must keep every invariant that `assay localnet` checks,
it prints where a round's time and bytes went. Times are from the participants' own logs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from assay.devnet.run import run_localnet
from tests.wan.namespaces import Namespaces

WORK = ("TakeStep", "WorkAhead")  # of a trainer; the rest is bookkeeping


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("order", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/wan"))
    for name in ("nodes", "verifiers", "rounds"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--behave", action="append", default=[], help="NAME=BEHAVIOUR, as for localnet")
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--rtt-ms", type=float, default=100.0, help="between any two participants")
    parser.add_argument("--loss", type=float, default=0.0, help="share of frames that are lost")
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--cut", nargs=3, metavar=("NAME", "ROUND", "SECONDS"), help="cut a line for a while")
    given = parser.parse_args()
    keys = ("nodes", "verifiers", "rounds")
    overrides = {key: getattr(given, key) for key in keys if getattr(given, key) is not None}
    out = given.out.resolve()
    with Namespaces(mbit=given.mbit, delay_ms=given.rtt_ms / 4, loss=given.loss, mtu=given.mtu) as machines:
        watch = Watch(machines, out / "participants" / "ledger" / "status.jsonl")
        if given.cut:
            name, at, seconds = given.cut
            threading.Thread(target=watch.cut, args=(name, int(at), float(seconds)), daemon=True).start()
        threading.Thread(target=watch.count_bytes, daemon=True).start()
        kept = run_localnet(given.order, overrides, given.behave, out, as_json=True, machines=machines)
    print_figures(out, watch.bytes_at, given.rtt_ms)
    sys.exit(0 if kept else 1)


class Watch:
    """Follows the rounds while the network runs."""

    def __init__(self, machines: Namespaces, status: Path) -> None:
        self._machines, self._status = machines, status
        self.bytes_at: dict[int, dict[str, tuple[int, int]]] = {}

    def cut(self, name: str, at: int, seconds: float) -> None:
        """Cut one participant's line from a round on."""
        while self._round() < at:
            time.sleep(0.05)
        print(f"cut {name} in round {self._round()}", file=sys.stderr)
        self._machines.tell("cut", name)
        time.sleep(seconds)
        print(f"heal {name} in round {self._round()}", file=sys.stderr)
        self._machines.tell("heal", name)

    def count_bytes(self) -> None:
        """Note each participant's bytes as each round is reported."""
        while True:
            now = self._round()
            if now >= 0 and now not in self.bytes_at:
                self.bytes_at[now] = {name: self._machines.bytes_of(name) for name in self._machines.names}
            time.sleep(0.05)

    def _round(self) -> int:
        try:
            lines = self._status.read_bytes().split(b"\n")[:-1]
        except OSError:
            return -1
        found = (json.loads(line) for line in lines)
        return max((line["round"] for line in found if line.get("kind") == "round"), default=-1)


def print_figures(out: Path, bytes_at: Mapping[int, Mapping[str, tuple[int, int]]], rtt_ms: float) -> None:
    """Where time and bytes went, from the second round in which all take part."""
    final: dict[int, dict[str, float]] = defaultdict(dict)  # round -> verifier -> when it was final
    known: dict[int, dict[str, float]] = defaultdict(dict)  # round -> node -> when it knew
    for log in sorted((out / "logs").glob("*.log")):
        for line in _lines(log):
            if line["event"] == "round finalised" and line["commits"]:
                final[line["round"]].setdefault(log.stem, _seconds(line))
            elif line["event"] == "round final" and log.stem.startswith("node"):
                known[line["round"]].setdefault(log.stem, _seconds(line))
    applied: dict[int, dict[str, float]] = defaultdict(dict)
    taken: dict[int, list[float]] = defaultdict(list)  # round -> when each node had its step
    busy: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for log in sorted((out / "participants").glob("node-*/trainer.log")):
        node, at = log.parent.name, 0
        for line in _lines(log):
            if line["event"] != "answered":
                continue
            if line["request"] == "Apply":
                at += 1
                applied[at].setdefault(node, _seconds(line))
            elif line["request"] in WORK:
                if line["request"] == "TakeStep":
                    taken[at].append(_seconds(line))
                busy[node].append((_seconds(line), line["wall_ms"] / 1000))
    rounds = [r for r in sorted(final) if r >= 4 and r - 1 in final and known.get(r)]
    if not rounds:
        raise SystemExit("too few rounds to measure")
    begin, end = min(final[rounds[0] - 1].values()), min(final[rounds[-1]].values())
    lengths = [min(final[r].values()) - min(final[r - 1].values()) for r in rounds]
    worked = [sum(took for at, took in steps if begin < at <= end) / (end - begin) for steps in busy.values()]
    steps = [took for rows in busy.values() for at, took in rows if begin < at <= end]
    print(f"rounds {rounds[0]} to {rounds[-1]}, {len(busy)} nodes, {rtt_ms:g} ms")
    _print("round, s", lengths)
    longest = sorted(zip(lengths, rounds, strict=True), reverse=True)[:4]
    print("longest rounds:", ", ".join(f"{at} took {took:.1f} s" for took, at in longest))
    _print("work in one call of a trainer, s", steps)
    _print("utilisation: share of time in which a trainer works", worked)
    stepped = [r for r in rounds if taken.get(r)]
    _print("last node's step -> final, s", [min(final[r].values()) - max(taken[r]) for r in stepped])
    _print("final -> last node's next step, s", [max(taken[r]) - min(final[r - 1].values()) for r in stepped])
    _print("final at the first verifier -> known to a node, s", _since(final, known, rounds))
    _print("known to a node -> aggregate applied, s", _between(known, applied, rounds))
    for role in ("node", "verifier", "ledger", "buyer"):
        for at, name in enumerate(("sends", "receives")):
            _print(f"a {role} {name} in a round, kB", list(_traffic(bytes_at, role, at)))


def _since(
    first: Mapping[int, Mapping[str, float]], then: Mapping[int, Mapping[str, float]], rounds: list[int]
) -> list[float]:
    return [at - min(first[r].values()) for r in rounds for at in then.get(r, {}).values()]


def _between(
    known: Mapping[int, Mapping[str, float]], applied: Mapping[int, Mapping[str, float]], rounds: list[int]
) -> list[float]:
    """A node applies the aggregate of round r to come to round r + 1."""
    return [
        applied[r + 1][node] - at
        for r in rounds
        for node, at in known.get(r, {}).items()
        if node in applied.get(r + 1, {})
    ]


def _traffic(bytes_at: Mapping[int, Mapping[str, tuple[int, int]]], role: str, way: int) -> Iterator[float]:
    seen = [r for r in sorted(bytes_at) if r >= 4]
    for before, after in pairwise(seen):
        for name, counts in bytes_at[after].items():
            if name.startswith(role):
                yield (counts[way] - bytes_at[before][name][way]) / (after - before) / 1000


def _print(what: str, values: list[float]) -> None:
    if values:
        tenths = sorted(values)
        high = tenths[min(len(tenths) - 1, len(tenths) * 9 // 10)]
        middle, mean = statistics.median(values), statistics.mean(values)
        print(f"{what:58s} median {middle:8.3f}  mean {mean:8.3f}  p90 {high:8.3f}")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _seconds(line: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(line["t"].replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    main()
