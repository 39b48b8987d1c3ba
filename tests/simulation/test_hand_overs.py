"""Networks in which seats change hands keep their promises; breaking a rule of the hand-over breaks one."""

from __future__ import annotations

import pytest

from assay.protocol.agreement.configurations import number_of
from assay.verifier.consensus import chain, follow, machine
from assay.verifier.consensus.chain import block_digest
from assay.verifier.consensus.types import Overtaken, Tip
from tests.simulation.world import World, first_violation

pytestmark = pytest.mark.slow

SHAPES = [
    {"liars": 0, "reserves": 1},
    {"reserves": 1},
    {"liars": 0, "reserves": 2, "crash": 0.02},
    {"reserves": 2, "drop": 0.5, "duplicate": 0.3},
    {"verifiers": 7, "liars": 1, "reserves": 2},
    {"verifiers": 7, "liars": 2, "reserves": 1},
]


@pytest.mark.parametrize("seed", range(90))
def test_the_run_goes_on_with_the_new_holders_and_forks_nowhere(seed):
    World(seed=seed, **SHAPES[seed % len(SHAPES)]).run()


def test_seats_of_the_dead_of_liars_and_of_the_living_are_handed_over_and_closing_blocks_are_made():
    worlds = [World(seed=seed, **shape).run() for shape in SHAPES[:2] for seed in range(12)]
    holders = {
        "dead" if host in one.dead else "liar" if host in one.lying else "living"
        for one in worlds
        for host, peer in enumerate(one.peers)
        if peer == one.hand_overs[0].seat
    }
    assert holders == {"dead", "liar", "living"}
    assert any(one.hand_overs[0].holder in {one.peers[host] for host in one.lying} for one in worlds)
    assert any(block.is_closing for one in worlds for block in one.blocks.values())
    assert any(one.forgetful is not None for one in worlds)
    assert all(number_of(block.iteration) <= 1 for one in worlds for block in one.blocks.values())


@pytest.fixture
def no_stop(monkeypatch):
    """Votes for ordinary blocks on a configuration's last round."""
    monkeypatch.setattr(chain, "hands_over", lambda _ancestors: False)
    monkeypatch.setattr(follow, "hands_over", lambda _ancestors: False)


@pytest.mark.parametrize(("shape", "seeds"), [(0, range(11, 12)), (1, range(5, 6))])
@pytest.mark.usefixtures("no_stop")
def test_going_on_in_a_configuration_that_ended_is_found_to_fork(shape, seeds):
    found = first_violation(seeds, lambda seed: World(seed=seed, **SHAPES[shape]))
    assert "certificates can be made by which two blocks are final" in str(found)


@pytest.mark.usefixtures("no_stop")
def test_keys_that_change_with_a_round_in_place_of_a_configuration_are_found(monkeypatch):
    def tip_of(certified):
        one = certified.block
        return Tip(block=block_digest(one), manifest=one.manifest, round=one.round, iteration=one.iteration)

    monkeypatch.setattr(follow, "tip_of", tip_of)
    monkeypatch.setattr(machine, "tip_of", tip_of)
    assert first_violation(range(2), lambda seed: World(seed=seed, **SHAPES[0])) is not None


def test_ignoring_that_a_later_configuration_began_is_found_to_stop_a_host(monkeypatch):
    sound_step = machine.step
    deaf = lambda state, event: (state, ()) if isinstance(event, Overtaken) else sound_step(state, event)  # noqa: E731
    monkeypatch.setattr(machine, "step", deaf)
    assert "no progress" in str(first_violation(range(6, 7), lambda seed: World(seed=seed, **SHAPES[1])))
