"""Frozen holder: a verifier stops for good in a real network, and a reserve takes over its seat.

    python -m tests.wan.frozen_holder [--folder FOLDER]

Room: tests (edge). Four verifiers and a reserve as processes on this machine. Once it has voted for some
rounds, one verifier's process is stopped (SIGSTOP: its connections stay, nothing answers); 64 rounds later
its seat is absent and, once its audits have ended, handed over. Then the process goes on, and has to find its
place. Printed is what a round took before, while the verifier was missing and afterwards; then the run is
verified.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from assay.bundle.read import read
from assay.bundle.verify import verify
from tests.e2e.nets import localnet, need_anvil, pid_of, write_order

FROZEN, WATCHED = "verifier-1", "verifier-0"
ROUNDS, FROM_ROUND = 260, 40
PATIENCE_S = 1200.0


def main() -> None:
    """Run it; the exit status is 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a new folder that the run stays in")
    given = parser.parse_args()
    need_anvil()
    if given.folder:
        given.folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if _run(given.folder or Path(folder)) else 1)


def _run(folder: Path) -> bool:
    order = write_order(folder, rounds=ROUNDS, cheat="honest")
    text = order.read_text().replace("nodes = 4", "nodes = 4\nverifiers = 4\nreserves = 1")
    order.write_text(text.replace("epoch_rounds = 5", "epoch_rounds = 50"))
    log = folder / "run" / "logs" / f"{WATCHED}.log"
    with localnet(folder, order) as network:

        def until(is_so: Callable[[dict[int, tuple[float, int]]], bool]) -> None:
            end = time.monotonic() + PATIENCE_S
            while not is_so(found := dict(_rounds(log))):
                if network.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the network ended or stands still, {len(found)} rounds")
                time.sleep(0.2)

        until(lambda found: max(found, default=0) >= FROM_ROUND)
        process = pid_of(folder / "run", FROZEN)
        os.kill(process, signal.SIGSTOP)
        try:
            until(lambda found: any(configuration for _, configuration in found.values()))
        finally:
            os.kill(process, signal.SIGCONT)
        told, complaint = network.communicate(timeout=PATIENCE_S)
    if network.returncode:
        print(complaint, file=sys.stderr)
        return False
    found, document = dict(_rounds(log)), json.loads(told)
    handed = min(at for at, (_, configuration) in found.items() if configuration)
    last = max(found)
    for name, first, end in (
        ("before", 5, FROM_ROUND), ("missing", FROM_ROUND + 5, handed - 1), ("after", handed, last),
    ):  # fmt: skip
        print(
            f"{name}: rounds {first} to {end}, {(found[end][0] - found[first][0]) / (end - first):.2f} s each"
        )
    for one in document["verifiers"]:
        print(
            f"verifier {one['peer'][:8]}: {one['votes']} votes, paid {one['paid']}, slashed {one['slashed']}"
        )
    verify(read(folder / "run"))  # raises what is wrong with it
    return document["ok"] and not any(one["slashed"] for one in document["verifiers"])


def _rounds(log: Path) -> Iterator[tuple[int, tuple[float, int]]]:
    """The rounds that a verifier saw finalised: when, and by which configuration of the seats."""
    if not log.exists():
        return
    for line in log.read_text().splitlines():
        if '"round finalised"' in line and line.endswith("}"):
            one = json.loads(line)
            at = datetime.fromisoformat(one["t"].replace("Z", "+00:00")).timestamp()
            yield int(one["round"]), (at, int(one["iteration"]) >> 32)


if __name__ == "__main__":
    main()
