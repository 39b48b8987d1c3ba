"""Faults: brings a scenario's faults to the processes and files of a running network.

Room: tests (edge: /proc, signals, files).
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.nets import pid_of, reports
from tests.wan import lines
from tests.wan.scenario import CHAIN, Fault, Scenario

# In a participant's folder, but not its to keep: its operator's, and what this network reads its reports in.
NOT_ITS_OWN = ("keys", "config.toml", "own-data", "status.jsonl")
POLL_S = 0.1


class Faults:
    """Brings each fault of a scenario once its round is final; those that last end by themselves."""

    def __init__(self, scenario: Scenario, network: int, run: Path, before: Callable[[Fault], None]) -> None:
        """
        Args:
            scenario: What to bring.
            network: The process whose child the chain is.
            run: Its folder.
            before: Called with each fault right before it is brought.
        """
        self._scenario, self._network, self._run, self._before = scenario, network, run, before
        self._draw = random.Random(~scenario.seed)
        self._over, self._lasting = threading.Event(), list[threading.Thread]()
        self._apart, self._writing = list[Fault](), threading.Lock()

    def end(self) -> None:
        """Bring no more, and end those that last."""
        self._over.set()

    def bring(self) -> list[Fault]:
        """Bring them all, or those there is time for; those that found nothing to harm."""
        missed = []
        for at, fault in enumerate(self._scenario.faults):
            if not self._wait(fault.round):
                missed += self._scenario.faults[at:]
                break
            self._before(fault)
            try:
                is_brought = self._bring(fault)
            except (ProcessLookupError, FileNotFoundError):  # it ended by itself, or is being started again
                is_brought = False
            if not is_brought:
                missed.append(fault)
        for thread in self._lasting:
            thread.join()
        return missed

    def _wait(self, round_id: int, seconds: float = float("inf")) -> bool:
        """Until a round is final, or for some seconds; False if the network ended before."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s and newest_round(self._run) < round_id:
            if self._over.wait(POLL_S):
                return False
        return True

    def _bring(self, fault: Fault) -> bool:
        """Whether there was something to harm."""
        name, _, pattern = fault.whom.partition("/")
        folder = self._run / "participants" / name
        match fault.kind:
            case "kill":
                os.kill(pid_of(self._run, name), signal.SIGKILL)
            case "kill worker":
                workers = workers_of(self._run, name)
                os.kill(self._draw.choice(workers or [pid_of(self._run, name)]), signal.SIGKILL)
            case "freeze":
                process = chain_of(self._network) if name == CHAIN else pid_of(self._run, name)
                os.kill(process, signal.SIGSTOP)
                self._last(fault, lambda: os.kill(process, signal.SIGCONT))
            case "reorganise":
                reorganise(chain_of(self._network))
            case "rot":
                return self._rot(folder, pattern, lambda path: ".db" not in path.name)
            case "rot down":
                process = pid_of(self._run, name)
                os.kill(process, signal.SIGSTOP)
                try:
                    return self._rot(folder, pattern, lambda path: path.suffix != ".db-shm")
                finally:
                    os.kill(process, signal.SIGKILL)
            case "fill disk":
                processes = [pid_of(self._run, name), *workers_of(self._run, name)]
                bounds = {process: fill_disk(process) for process in processes}
                self._last(fault, lambda: empty_disk(bounds))
            case "partition":
                self._part(fault)
                self._last(fault, lambda: self._part(fault))
            case "flood":
                from tests.wan.siege import ATTACKS  # a second of imports, which few scenarios need

                orders, attack = lines.orders(self._run), self._draw.choice(sorted(ATTACKS))
                orders.write_text(f"{attack} {name}")
                self._last(fault, lambda: orders.write_text("") and None)
        return True

    def _last(self, fault: Fault, ends: Callable[[], None]) -> None:
        """Let a fault last, and end it."""

        def wait() -> None:
            if fault.until:
                self._wait(fault.until)
            else:
                self._over.wait(fault.seconds)
            with suppress(ProcessLookupError):
                ends()

        self._lasting.append(threading.Thread(target=wait))
        self._lasting[-1].start()

    def _part(self, fault: Fault) -> None:
        """Part those that a fault names, or let them meet again."""
        with self._writing:
            self._apart.remove(fault) if fault in self._apart else self._apart.append(fault)
            path = lines.apart(self._run)
            path.with_suffix(".new").write_text(json.dumps([one.names for one in self._apart]))
            path.with_suffix(".new").replace(path)

    def _rot(self, folder: Path, pattern: str, may: Callable[[Path], bool]) -> bool:
        """Flip a bit of a file of one kind; whether there is one."""
        found = [path for path in files_of(folder, pattern or "*") if may(path)]
        kinds = sorted({path.relative_to(folder).parts[0] for path in found})
        if not kinds:
            return False
        kind = self._draw.choice(kinds)
        flip(
            self._draw.choice([path for path in found if path.relative_to(folder).parts[0] == kind]),
            self._draw,
        )
        return True


def newest_round(run: Path) -> int:
    """The last round that the ledger service has seen final; -1 before the first."""
    return max((one["round"] for one in reports(run) if one["kind"] == "round"), default=-1)


def files_of(folder: Path, pattern: str = "*") -> list[Path]:
    """What a participant keeps, whatever it is: files in its folder that are not empty, sorted."""
    kept = (path for path in folder.glob(pattern) if path.relative_to(folder).parts[0] not in NOT_ITS_OWN)
    files = (file for path in kept for file in ([path] if path.is_file() else path.rglob("*")))
    return sorted(file for file in files if file.is_file() and file.stat().st_size)


def flip(path: Path, draw: random.Random) -> None:
    """Flip one bit of a file."""
    body = path.read_bytes()
    at = draw.randrange(len(body))
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes([body[at] ^ 1 << draw.randrange(8)]))


def fill_disk(process: int) -> tuple[int, int]:
    """Let no write of a process add to a file: it fails with EFBIG, as with ENOSPC. Its bounds before."""
    bounds = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (0, bounds[1]))
    return bounds


def empty_disk(bounds: dict[int, tuple[int, int]]) -> None:
    """Let the processes that still run write again."""
    for process, bound in bounds.items():
        with suppress(ProcessLookupError):
            resource.prlimit(process, resource.RLIMIT_FSIZE, bound)


def reorganise(chain: int) -> None:
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


def workers_of(run: Path, name: str) -> list[int]:
    """The processes whose log is in this participant's folder."""
    own, found = str((run / "participants" / name).resolve()), list[int]()
    for log in Path("/proc").glob("[0-9]*/fd/2"):
        with suppress(OSError):
            if os.readlink(log).startswith(f"{own}/"):
                found.append(int(log.parts[2]))
    return found


def chain_of(network: int) -> int:
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
