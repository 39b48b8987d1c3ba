"""Scale: what simulated networks of many nodes cost.

    python -m tests.simulation.scale [--nodes 8 16 32 64 128] [--runs 1]

Whole runs of production processes in one thread, as in `rounds`, with four verifiers, two rounds of training,
whose steps are all audited, and those that follow. A run has at most 128 nodes; more are several runs, which
share nothing but a chain: `--runs` simulates so many, one after another, and says what all cost.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from dataclasses import replace
from unittest import mock

from assay.protocol.params import RunSpec
from tests.simulation import whole_network
from tests.simulation.rounds import ORDERED
from tests.simulation.whole_network import WholeNetwork, planned, simulate

WORK_S = 1e-4  # of a worker for a request


class Large(WholeNetwork):
    """A network in which each verifier has the time for dozens of audits a round."""

    def the_spec(self) -> RunSpec:
        """Steps may be judged for longer."""
        spec = super().the_spec()
        return replace(spec, audit=replace(spec.audit, audit_rounds=14, replication_ppm=0))


def main() -> None:
    """Simulate, and print a line for each number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--runs", type=int, default=1)
    chosen = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation.scale", *sys.argv[1:]], ORDERED)
    # After a storm, however short, promises of how soon all has happened do not hold.
    plan = replace(planned(0, faults=False), rounds=2, storm_s=0.1)
    for count in chosen.nodes:
        with (
            mock.patch.object(whole_network, "WORK_S", (WORK_S,)),
            mock.patch.object(whole_network, "NODES", count),
        ):
            begun_s, rounds, frames = time.process_time(), 0, 0
            for seed in range(chosen.runs):
                world = simulate(seed, plan, network=Large)
                rounds += len(world.promises.chain)
                frames += world.network.delivered
                if chosen.runs > 1:
                    so_far_s = time.process_time() - begun_s
                    print(f"  run {seed + 1} of {chosen.runs}: {so_far_s:.0f} s of CPU", flush=True)
        cpu_s = time.process_time() - begun_s
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{chosen.runs * count} nodes: {rounds} rounds, {frames} frames, {cpu_s:.1f} s of CPU, "
            f"{1e3 * cpu_s / (rounds * count):.1f} ms a node and round, {memory} MB", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
