"""A verifier that has lost its parameters goes on from others' snapshot where old aggregates are gone."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import trio

from assay.participant.following import sync
from assay.protocol.types import Digest
from assay.training.optimiser.public_state import THETA, checkpoint_rounds, kept_rounds
from tests.simulation.test_rounds import CALM
from tests.simulation.whole_network import Process, WholeNetwork, simulate

pytestmark = pytest.mark.slow

ROUNDS = 20


class Wiped(WholeNetwork):
    """A network in which the aggregates of the first rounds are gone, and so is what one verifier had.

    It has the manifests of fewer rounds than the others' first snapshot is of.
    """

    def _down_s(self, _one: Process) -> float:
        return 0.2

    async def _storm(self) -> None:
        while len(self.promises.chain) < self.saved_at - 2:
            await trio.sleep(0.1)
        gone = {self.promises.chain[number].manifest.aggregate for number in range(1, 4)}
        for one in self.processes.values():
            for name in gone:
                one.service.me.blobs.remove(name)
        *others, self.wiped = (self.processes[peer] for peer in self.spec.verifier_peers)
        self.wiped.die()
        await trio.sleep(0.05)
        for name in (THETA, "blobs"):
            shutil.rmtree(self.wiped.folder / name)
        self.states = {one.name: dict[int, Digest]() for one in (self.wiped, others[0])}
        while len(self.promises.chain) < ROUNDS - 1:
            for one in (self.wiped, others[0]):
                if one.service is not None and hasattr(one.service, "driver"):
                    opened = one.service.driver.round
                    self.states[one.name][int(opened.run_state.round)] = opened.state
            await trio.sleep(0.1)

    @property
    def saved_at(self) -> int:
        return checkpoint_rounds(self.spec, kept_rounds(self.spec))


def test_a_verifier_that_lost_its_parameters_goes_on_from_a_snapshot(monkeypatch):
    monkeypatch.setattr(sync, "REPLAYED_MAX", 4)
    world = simulate(1, replace(CALM, rounds=ROUNDS, storm_s=1.0), network=Wiped)
    wiped, another = world.states.values()
    shared = wiped.keys() & another.keys()
    assert shared and min(wiped) > world.saved_at
    assert all(wiped[at] == another[at] for at in shared)
