"""Who comes back, or has nothing to lose, holds nobody up; lies about its turns cost a verifier its stake."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from assay.protocol.run_state import RunState
from assay.verifier.consensus import follow
from assay.verifier.service.proposer import Proposer
from tests.simulation.conduct import Conduct
from tests.simulation.disk import HERE
from tests.simulation.lying_frames import dull
from tests.simulation.test_rounds import CALM, broken
from tests.simulation.whole_network import WholeNetwork, simulate

pytestmark = pytest.mark.slow

CUT_S, BACK = 6.0, 21  # asked for a share again 16 rounds after its last was missed
FETCH_S = 8.0  # for the updates that it missed: some turns of its


class Cut(WholeNetwork):
    """A network of which one verifier is cut off; once it is back, the updates that it lacks come slowly."""

    async def _storm(self) -> None:
        while len(self.promises.chain) < 3:
            await trio.sleep(0.1)
        away = self.spec.verifier_peers[1]
        self.troubled.add(away)
        self.network.partition(frozenset([away]))
        await trio.sleep(CUT_S)
        self.network.heal()
        self.promises.conduct.healed()


def longest_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """The longest round in which the one that is back is waited for again."""
    sound = Proposer._fetch_updates

    async def slow(proposer, manifests):
        if HERE.get().name == "verifier 1":
            await trio.sleep(FETCH_S)
        await sound(proposer, manifests)

    monkeypatch.setattr(Proposer, "_fetch_updates", slow)
    came_s = simulate(1, replace(CALM, rounds=30, storm_s=1.0), network=Cut).promises.came_s
    assert len([at for at in came_s if BACK < at < 30]) == 8
    return max(came_s[at] - came_s[at - 1] for at in range(BACK + 1, 30))


def test_a_verifier_that_lacks_updates_holds_up_none_of_the_turns_that_it_has_back(monkeypatch):
    ready_s = 1.0
    assert longest_s(monkeypatch) < ready_s

    monkeypatch.setattr(Proposer, "_lags", lambda _: False)
    assert longest_s(monkeypatch) > ready_s


def test_a_leader_that_passes_for_some_and_proposes_to_others_is_found_at_fault():
    world = simulate(1, replace(CALM, lying_verifier="turncoat"))
    assert world.promises.convicted == {one.peer for one in world.processes.values() if not one.is_honest}
    assert len(world.contracts.cases) == 1


def test_a_leader_that_passes_and_is_waited_for_is_found(monkeypatch):
    sound = follow.on_tick

    def patient(state, tick, out):
        return replace(sound(replace(state, passes={}), tick, out), passes=state.passes)

    monkeypatch.setattr("assay.verifier.consensus.machine.on_tick", patient)
    assert "gives up iteration" in broken(seed=1, lying_verifier="turncoat")


class Spent(WholeNetwork):
    """A network of which one verifier lies about its first turn, and says nothing in all others."""

    def _sent(self, frame):
        one = self.processes[frame.source]
        if one.behaviour != "turncoat" or one.peer not in self.promises.convicted:
            return super()._sent(frame)
        return dull(frame, False)


def rounds_s() -> list[float]:
    """How long each round took from the conviction on, of a network whose convicted leader says nothing."""
    promises = simulate(1, replace(CALM, rounds=12, lying_verifier="turncoat"), network=Spent).promises
    came_s = promises.came_s
    (found,) = (at for at, link in promises.chain.items() if link.manifest.double_votes)
    return [came_s[at] - came_s[at - 1] for at in range(found + 2, 12)]


def test_a_leader_that_has_lost_its_stake_is_waited_for_no_more(monkeypatch):
    ready_s, found = 1.0, rounds_s()
    assert len(found) >= 6 and max(found) < ready_s

    monkeypatch.setattr(RunState, "leaders", property(lambda run_state: run_state.beacon))
    assert "gives up iteration" in broken(seed=1, rounds=12, lying_verifier="turncoat", network=Spent)
    monkeypatch.setattr(Conduct, "voted", lambda *_: "")
    assert max(rounds_s()) > ready_s
