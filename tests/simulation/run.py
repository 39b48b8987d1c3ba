"""Run many worlds: `python -m tests.simulation.run --seeds 1000 --start 0`; exit 1 at the first violation."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.world import Violation, World


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--verifiers", type=int, default=4)
    parser.add_argument("--liars", type=int, default=1)
    parser.add_argument("--reserves", type=int, default=0)
    parser.add_argument("--drop", type=float, default=0.2)
    parser.add_argument("--crash", type=float, default=0.005)
    chosen = parser.parse_args()
    shape = {name: getattr(chosen, name) for name in ("verifiers", "liars", "reserves", "drop", "crash")}
    rounds = crashes = accused = 0
    for seed in range(chosen.start, chosen.start + chosen.seeds):
        try:
            world = World(seed=seed, **shape).run()
        except Violation as violation:
            given = ", ".join(f"{name}={value}" for name, value in shape.items())
            print(f"World(seed={seed}, {given}): {violation}", file=sys.stderr)
            return 1
        rounds, crashes, accused = (
            rounds + len(world.final),
            crashes + world.crashes,
            accused + len(world.accused),
        )
    print(
        f"{chosen.seeds} worlds kept every promise: {rounds} rounds, {crashes} crashes, "
        f"{accused} liars caught, {time.process_time():.0f} s of CPU"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
