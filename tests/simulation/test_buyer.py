"""A buyer's process in a whole network delivers what was agreed, wherever it is killed; else it is found."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.simulation.test_ledger import BOOKED
from tests.simulation.test_rounds import broken
from tests.simulation.whole_network import BUYER, WholeNetwork, simulate

pytestmark = pytest.mark.slow

BOUGHT = replace(BOOKED, has_buyer=True)
AWAY_S = 60.0
DEATHS, WRITES = 40, 25


def bought(seed: int = 1, network: type[WholeNetwork] = WholeNetwork, **changes: object) -> str:
    """The promise that a network with a buyer's process breaks."""
    return broken(seed, network, **{"rounds": 3, "has_ledger": True, "has_buyer": True, **changes})


class Restless(WholeNetwork):
    """A network whose buyer's process is killed again and again, in any write, to the end."""

    async def _storm(self) -> None:
        self._nursery.start_soon(self._keep_killing)

    async def _keep_killing(self) -> None:
        one, chances = self.processes[BUYER], random.Random(f"deaths {self.seed}")
        one.counts_files = True
        for death in range(DEATHS):
            while one.is_dead or one.service is None:
                if one.has_ended:
                    return
                await trio.sleep(0.05)
            one.fuse = 1 + int(chances.expovariate(1 / WRITES))
            while one.kills <= death:
                if one.has_ended:
                    return
                await trio.sleep(0.05)


class Away(WholeNetwork):
    """A network whose buyer's line is down for a while, from when the last result is final."""

    def is_time(self) -> bool:
        """Whether it is down now."""
        results = self.contracts.results
        return len(results) == 2 and all(one.is_final for one in results.values())

    async def _storm(self) -> None:
        while not self.is_time():
            await trio.sleep(0.01)
        self.network.partition(frozenset([BUYER]))
        self.troubled.add(BUYER)
        for path in sorted((self.processes[BUYER].folder / "blobs").glob("*.blob"))[:2]:
            path.write_bytes(b"damaged")
        await trio.sleep(AWAY_S)
        self.network.heal()
        self.promises.conduct.healed()


class LateAway(Away):
    """The same from when the model is on record, so that the disk is mended next."""

    def is_time(self) -> bool:
        return bool(self.contracts.records)


class Forgetful(WholeNetwork):
    """A network whose buyer's machine breaks down once, with its store or the end of what was in it."""

    async def _storm(self) -> None:
        chances, one = random.Random(f"loss {self.seed}"), self.processes[BUYER]
        at_s, keeps = chances.uniform(1, 40), chances.random() < 0.5
        kept_s, kept = chances.uniform(0, at_s), dict[Path, bytes]()
        await trio.sleep(kept_s)
        if keeps:
            kept = {path: path.read_bytes() for path in one.folder.glob("store.db*")}
        await trio.sleep(at_s - kept_s)
        one.die()
        await trio.sleep(0.05)
        for path in one.folder.glob("store.db*"):
            path.unlink()
        for path, body in kept.items():
            path.write_bytes(body)


if __name__ == "__main__":
    import sys, time
    from tests.simulation.promises import Violation

    for s in range(int(sys.argv[1]), int(sys.argv[2])):
        t = time.process_time()
        try:
            w = simulate(s, replace(BOUGHT, storm_s=1.0), network=globals()[sys.argv[3]])
            print(s, "ok", w.processes[BUYER].kills, time.process_time() - t, flush=True)
        except Violation as v:
            print(s, "VIOLATION", v, *list(v.lines)[-20:], sep="\n   ", flush=True)
