"""A verifier that has lost its parameters goes on from what others have of them."""

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
        for one in self.forgetting():
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

    def forgetting(self) -> list[Process]:
        return list(self.processes.values())

    @property
    def saved_at(self) -> int:
        return checkpoint_rounds(self.spec, kept_rounds(self.spec))


class WipedAmongNodes(Wiped):
    """One in which only verifiers have lost the aggregates, as they delete more than others."""

    def forgetting(self) -> list[Process]:
        return [self.processes[peer] for peer in self.spec.verifier_peers]


def a_world(network: type[Wiped]) -> Wiped:
    """A network in which the verifier that lost its parameters opens rounds with those of the others."""
    world = simulate(1, replace(CALM, rounds=ROUNDS, storm_s=1.0), network=network)
    wiped, another = world.states.values()
    shared = wiped.keys() & another.keys()
    assert shared and all(wiped[at] == another[at] for at in shared)
    return world


def test_a_verifier_that_lost_its_parameters_goes_on_from_a_snapshot(monkeypatch):
    monkeypatch.setattr(sync, "REPLAYED_MAX", 4)
    world = a_world(Wiped)
    assert min(world.states[world.wiped.name]) > world.saved_at


def test_where_no_verifier_has_old_aggregates_any_more_others_are_asked():
    a_world(WipedAmongNodes)
