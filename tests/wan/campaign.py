"""Campaign: whole networks of real processes, each with faults that follow from its seed.

    python -m tests.wan.campaign --seeds 20 --start 0

Room: tests (edge). Each seed is one run of a local network: four verifiers, nodes, a chain, a ledger and a
buyer, all processes of their own. While it trains, participants are killed, their workers too, or stopped for
a while (SIGSTOP), find their disk full for a while, the chain stands still or loses its newest block, bits of
blobs, parameters and steps on disk flip, and of their stores while they are down; some clocks are wrong; at
most one node and one verifier cheat. Promised whatever happens: the run ends, every
invariant of its summary holds (honest parties lose no stake, cheaters do, no unit is lost, honest processes
hold the same parameters), and its folder verifies. A line is printed for each seed; the folder of a broken
run stays.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.bundle.read import read
from assay.bundle.verify import verify
from assay.devnet.faults.behaviours import HONEST, NODE_BEHAVIOURS, VERIFIER_BEHAVIOURS
from assay.protocol.errors import AssayError
from tests.e2e.nets import broken_invariants, localnet, need_anvil, pid_of, reports, write_order

VERIFIERS, ROUNDS, ROUNDS_LEFT = 4, 24, 4  # no fault begins in the last ones
PATIENCE_S = 900.0
KINDS = (
    "kill", "kill worker", "freeze", "freeze chain", "reorganise chain", "rot", "rot store", "fill disk"
)  # fmt: skip
LASTING = ("freeze", "freeze chain", "fill disk")
SKEWED = Path(__file__).parent / "skewed"  # makes clocks wrong
SKEW_S = 4.0  # that a clock is off at most; docs/protocol.md says what a larger difference does


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that comes from outside."""

    round: int
    kind: str
    name: str  # of the participant
    seconds: float  # that it lasts

    def __str__(self) -> str:
        return f"{self.kind} {self.name} at {self.round}" + (
            f" for {self.seconds:.0f} s" if self.seconds else ""
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens in one run."""

    seed: int
    nodes: int
    behaviours: tuple[str, ...]
    skews: dict[str, float]  # seconds by which clocks are ahead
    faults: tuple[Fault, ...]  # ascending by round


def planned(seed: int) -> Scenario:
    """The scenario of a seed."""
    draw = random.Random(seed)
    nodes = draw.choice((3, 4, 5))
    names = [f"verifier-{n}" for n in range(VERIFIERS)] + [f"node-{n}" for n in range(nodes)]
    names += ["ledger", "buyer"]
    chosen = {
        f"{draw.randrange(nodes)}": draw.choice((HONEST, *NODE_BEHAVIOURS)),
        f"v{draw.randrange(VERIFIERS)}": draw.choice((HONEST, HONEST, *VERIFIER_BEHAVIOURS)),
    }
    faults = []
    for _ in range(draw.randrange(1, 7)):
        kind = draw.choice(KINDS)
        lasts_s = draw.uniform(1, 25) if kind in LASTING else 0.0
        faults.append(Fault(draw.randrange(ROUNDS - ROUNDS_LEFT), kind, draw.choice(names), lasts_s))
    behaviours = tuple(f"{who}={what}" for who, what in chosen.items() if what != HONEST)
    skews = {name: draw.uniform(-SKEW_S, SKEW_S) for name in names if draw.random() < 0.2}
    return Scenario(seed, nodes, behaviours, skews, tuple(sorted(faults, key=lambda one: one.round)))


def play(scenario: Scenario, folder: Path) -> list[str]:
    """Run it; the promises that did not hold."""
    order = write_order(folder, rounds=ROUNDS, cheat=HONEST)
    order.with_suffix(".scenario.toml").unlink()
    options = ["--nodes", str(scenario.nodes), "--verifiers", str(VERIFIERS)]
    options += [word for one in scenario.behaviours for word in ("--behave", one)]
    run, over = folder / "run", threading.Event()
    clocks = {"PYTHONPATH": str(SKEWED), "CLOCK_SKEWS": json.dumps(scenario.skews)}
    with (
        localnet(folder, order, *options, environment=clocks) as network,
        ThreadPoolExecutor(1) as beside,
    ):
        brought = beside.submit(_bring, scenario, network, run, over)
        try:
            told, complaint = network.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return [f"the run did not end in {PATIENCE_S:.0f} s"]
        finally:
            over.set()
    missed = len(scenario.faults) - brought.result()  # raises what kept a fault from being brought
    if not told:
        return [f"it ended with status {network.returncode}: {complaint.strip()[-500:]}"]
    broken = broken_invariants(json.loads(told))
    if missed:
        print(f"seed {scenario.seed}: {missed} faults found nothing to harm", flush=True)
    try:
        verify(read(run))
    except AssayError as error:
        broken.append(f"it does not verify: {error}")
    return broken


def _bring(scenario: Scenario, network: subprocess.Popen[str], run: Path, over: threading.Event) -> int:
    """Bring every fault when its round is final; how many there was something to harm for."""
    draw, woken, count = random.Random(~scenario.seed), list[threading.Thread](), 0
    for fault in scenario.faults:
        while not any(one["kind"] == "round" and one["round"] >= fault.round for one in reports(run)):
            if over.wait(0.1):
                return count
        with suppress(ProcessLookupError, FileNotFoundError):  # it ended by itself, or is being started again
            if fault.kind == "reorganise chain":
                _reorganise(_chain(network.pid))
                count += 1
                continue
            if fault.kind == "rot":
                files = _files(run / "participants" / fault.name)
                if files:
                    _flip(draw.choice(files), draw)
                    count += 1
                continue
            if fault.kind == "rot store":
                count += _rot_store(run / "participants" / fault.name, pid_of(run, fault.name), draw)
                continue
            if fault.kind == "fill disk":
                processes = [pid_of(run, fault.name), *_workers(run, fault.name)]
                woken.append(threading.Thread(target=_fill_disk, args=(processes, fault.seconds, over)))
                woken[-1].start()
                count += 1
                continue
            process = _chain(network.pid) if fault.kind == "freeze chain" else pid_of(run, fault.name)
            if fault.kind == "kill worker":
                process = draw.choice(_workers(run, fault.name) or [process])
            os.kill(process, signal.SIGSTOP if fault.seconds else signal.SIGKILL)
            if fault.seconds:
                woken.append(threading.Thread(target=_wake, args=(process, fault.seconds, over)))
                woken[-1].start()
            count += 1
    for thread in woken:
        thread.join()
    return count


def _wake(process: int, after_s: float, over: threading.Event) -> None:
    over.wait(after_s)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGCONT)


def _fill_disk(processes: list[int], for_s: float, over: threading.Event) -> None:
    """Let no write of these processes add to a file for a while: they fail with EFBIG, as with ENOSPC."""
    bounds = {}
    for process in processes:
        with suppress(ProcessLookupError):
            bounds[process] = resource.prlimit(process, resource.RLIMIT_FSIZE)
            resource.prlimit(process, resource.RLIMIT_FSIZE, (0, bounds[process][1]))
    over.wait(for_s)
    for process, bound in bounds.items():
        with suppress(ProcessLookupError):
            resource.prlimit(process, resource.RLIMIT_FSIZE, bound)


def _rot_store(folder: Path, process: int, draw: random.Random) -> bool:
    """Kill a participant and flip a bit of its store before it starts again; whether it has one."""
    os.kill(process, signal.SIGSTOP)
    files = [path for path in sorted(folder.glob("*.db*")) if path.suffix != ".db-shm"]
    if files:
        _flip(draw.choice(files), draw)
    os.kill(process, signal.SIGKILL)
    return bool(files)


def _reorganise(chain: int) -> None:
    """Replace the newest block by an empty one: its transactions are gone, as if nobody had sent them."""
    words = Path(f"/proc/{chain}/cmdline").read_bytes().decode().split("\0")
    port = words[words.index("--port") + 1]

    def ask(method: str, *params: object) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["result"]

    for _ in range(3):  # a block may come between the question and the change
        block = ask("eth_getBlockByNumber", "latest", False)
        ask("anvil_reorg", 1, [])
        found = ask("eth_getBlockByNumber", block["number"], False)
        if found["hash"] != block["hash"]:
            return
    raise AssertionError("the chain was not reorganised")


def _files(folder: Path) -> list[Path]:
    """A participant's blobs, parameters and steps: what it can make or fetch again."""
    return [
        path
        for part in ("blobs", "steps", "theta", "parameters")
        for path in sorted((folder / part).rglob("*"))
        if path.is_file()
    ]


def _flip(path: Path, draw: random.Random) -> None:
    """Flip one bit of a file."""
    body = bytearray(path.read_bytes()) if path.is_file() else bytearray()
    if body:
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        with open(path, "r+b") as file:
            file.write(body)


def _workers(run: Path, name: str) -> list[int]:
    """The processes whose log is in this participant's folder."""
    own, found = str((run / "participants" / name).resolve()), list[int]()
    for log in Path("/proc").glob("[0-9]*/fd/2"):
        with suppress(OSError):
            if os.readlink(log).startswith(f"{own}/"):
                found.append(int(log.parts[2]))
    return found


def _chain(network: int) -> int:
    """The process of a network's chain.

    Raises:
        ProcessLookupError: it has none yet.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, rest = stat.read_text().rsplit(")", 1)
            if name.endswith("(anvil") and int(rest.split()[1]) == network:
                return int(stat.parent.name)
    raise ProcessLookupError("anvil")


def main() -> None:
    """Play the scenarios of some seeds; the exit status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--start", type=int, default=0)
    given = parser.parse_args()
    need_anvil()
    broken_count = 0
    for seed in range(given.start, given.start + given.seeds):
        scenario, began_s = planned(seed), time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix=f"campaign-{seed}-"))
        broken = play(scenario, folder)
        clocks = (f"clock of {name} {seconds:+.1f} s" for name, seconds in scenario.skews.items())
        what = "; ".join(map(str, (*scenario.behaviours, *clocks, *scenario.faults)))
        print(f"seed {seed}: {scenario.nodes} nodes; {what}: {time.monotonic() - began_s:.0f} s", flush=True)
        for one in broken:
            print(f"  broken: {one}", flush=True)
        if broken:
            broken_count += 1
            print(f"  its folder: {folder}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{given.seeds} scenarios, {broken_count} broken")
    sys.exit(1 if broken_count else 0)


if __name__ == "__main__":
    main()
