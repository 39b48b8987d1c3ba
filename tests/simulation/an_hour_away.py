"""An hour away, in virtual time: what it costs an honest node, and what it brings one that owes an opening.

    python -m tests.simulation.an_hour_away

Production processes in one thread (whole_network.py). Every step is audited, so that whoever goes away owes
an opening; who owes one may be away for two hours. First an honest node is cut off for an hour, then one
that is there all the time opens none. Some five minutes of CPU each.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import trio

from assay.participant.following import pruning
from assay.protocol.auditing.audits import AuditStatus
from assay.protocol.params import RunSpec, TimingSpec
from assay.protocol.types import PeerId
from assay.verifier.service import chain_duties, funding_watch, stake_watch, standby
from assay.verifier.service import process as verifier_process
from tests.simulation import whole_network
from tests.simulation.rounds import ORDERED
from tests.simulation.whole_network import Plan, WholeNetwork, planned, simulate

HOUR_S, STEP_S, FROM_ROUND = 3600.0, 100.0, 2
# Who looks at the chain, or at the disk, does so as seldom as in a real network of slow steps.
SELDOM = (
    (verifier_process, "TICK_S", 2.0), (chain_duties, "SETTLE_S", 120.0), (funding_watch, "POLL_S", 60.0),
    (stake_watch, "POLL_S", 60.0), (standby, "REPEAT_S", 60.0), (pruning, "PRUNE_S", 600.0),
)  # fmt: skip
CALM = replace(planned(0, faults=False), storm_s=1.0)  # not everybody is always there


class SlowNetwork(WholeNetwork):
    """A network of slow steps, of which an honest node is cut off for an hour if nobody lies."""

    away: PeerId
    left_round = back_round = 0
    returned_s = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for one in self.processes.values():
            one.work_s, one.step_s = 1.0, STEP_S
        liars = (one.peer for one in self.processes.values() if not one.is_honest)
        self.away = next(liars, self.spec.nodes[0].peer)

    def the_spec(self) -> RunSpec:
        spec = super().the_spec()
        timing = TimingSpec(collect_ms=300_000, ready_ms=1000, iteration_ms=400_000, resend_ms=30_000)
        audit = replace(spec.audit, absence_s=int(2 * HOUR_S), probation=100, replication_ppm=0)
        return replace(spec, timing=timing, audit=audit)

    async def main(self) -> None:
        with ExitStack() as stack:
            for module, name, seconds in SELDOM:
                stack.enter_context(mock.patch.object(module, name, seconds))
            await super().main()

    async def _storm(self) -> None:
        if self.plan.lying_node != "honest":
            return
        while len(self.promises.chain) < FROM_ROUND:
            await trio.sleep(1.0)
        self.left_round = len(self.promises.chain)
        self.troubled.add(self.away)
        self.network.partition(frozenset([self.away]))
        await trio.sleep(HOUR_S)
        self.network.heal()
        self.promises.conduct.healed()
        self.back_round = len(self.promises.chain)


def lived(plan: Plan) -> str:
    """What became of the node, once the run has ended and every promise was kept."""
    with mock.patch.object(whole_network, "CALM_S_MAX", 4 * HOUR_S):
        world = simulate(1, plan, network=SlowNetwork)
    trained = [
        number for number, link in sorted(world.promises.chain.items())
        if any(one.commit.node == world.away for one in link.manifest.commits)
    ]  # fmt: skip
    found = Counter(one.ruling.name for one in world.promises.audits.values() if one.node == world.away)
    rows = [row for one in world.promises.settled.values() for row in one.rows]
    paid = sum(row.amount for row in rows if row.peer == world.away)
    most = max(sum(row.amount for row in rows if row.peer == one.peer) for one in world.spec.nodes)
    times = [link.manifest.time_s for _, link in sorted(world.promises.chain.items())]
    confirmed = [one for one in world.promises.audits.values() if one.ruling is AuditStatus.CONFIRMED]
    words = (
        f"{plan.lying_node}: away in rounds {world.left_round} to {world.back_round}",
        f"trained in {trained} of {world.promises.trained}",
        f"audits {dict(found)}, {len(confirmed)} faults, {len(world.contracts.cases)} cases in court",
        f"paid {paid / max(most, 1):.0%} of the most",
        f"{(times[-1] - times[0]) / 60:.0f} minutes of agreed time",
    )
    return "; ".join(words)


def main() -> None:
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of bytes have another order in each interpreter
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation.an_hour_away"], ORDERED)
    print(lived(replace(CALM, rounds=45)), flush=True)
    print(lived(replace(CALM, rounds=8, lying_node="withhold-opening")), flush=True)


if __name__ == "__main__":
    main()
