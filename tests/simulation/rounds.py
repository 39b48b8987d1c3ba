"""Run whole networks: `python -m tests.simulation.rounds --seeds 100 --start 0`; exit 1 at a violation."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time

from tests.simulation.promises import Violation
from tests.simulation.whole_network import planned, simulate

ORDERED = {**os.environ, "PYTHONHASHSEED": "0"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--these", type=int, nargs="*", help="seeds, in place of the others")
    parser.add_argument("--calm", action="store_true", help="no faults and no liars")
    parser.add_argument("--all", action="store_true", help="go on after a violation")
    parser.add_argument("--verbose", action="store_true", help="keep every line of the processes' logs")
    chosen = parser.parse_args()
    if (
        os.environ.get("PYTHONHASHSEED") != "0"
    ):  # sets of bytes have an order of their own in each interpreter
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation.rounds", *sys.argv[1:]], ORDERED)
    broken_count = 0
    for seed in chosen.these or range(chosen.start, chosen.start + chosen.seeds):
        begun_s, plan = time.process_time(), planned(seed, faults=not chosen.calm)
        try:
            world = simulate(seed, plan, logging.INFO if chosen.verbose else logging.WARNING)
        except Violation as broken:
            print(f"seed {seed}: {plan}\n{broken}", *broken.lines, sep="\n  ", file=sys.stderr)
            broken_count += 1
            if not chosen.all:
                return 1
            continue
        kills = sum(one.kills for one in world.processes.values())
        cpu_s = time.process_time() - begun_s
        print(
            f"seed {seed}: {len(world.promises.chain)} rounds, {world.network.delivered} frames, "
            f"{kills} kills, {plan.cuts} cuts, {plan.lying_node}, {plan.lying_verifier}, "
            f"{cpu_s:.1f} s of CPU, {world.network.trace.hexdigest()[:16]}", flush=True,
        )  # fmt: skip
    return int(broken_count > 0)


if __name__ == "__main__":
    sys.exit(main())
