"""Networks in which seats change hands keep their promises; breaking a rule of the hand-over breaks one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.protocol.agreement.configurations import FIRST, Configuration, number_of
from assay.verifier.consensus import chain, follow, machine
from assay.verifier.consensus.chain import block_digest
from assay.verifier.consensus.types import Overtaken, Tip
from tests.simulation import world
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


@pytest.mark.parametrize(
    ("seed", "shape"),
    [
        (30254, {"liars": 0, "reserves": 1, "crash": 0.005}),
        (20245, {"reserves": 2, "drop": 0.4, "crash": 0.005}),
    ],
)
def test_a_hand_over_that_only_the_outgoing_holder_knows_to_be_final_becomes_known(seed, shape):
    World(seed=seed, **shape).run()


def test_seats_of_the_dead_of_liars_and_of_the_living_are_handed_over_and_closing_blocks_are_made():
    worlds = [World(seed=seed, **shape).run() for shape in SHAPES[:2] for seed in range(12)]
    holders = set()
    for one in worlds:
        host = one.peers.index(one.hand_overs[0].seat)
        if host in one.lying:
            holders.add("liar")
        else:  # the dead never learned that its seat was handed over
            knows = one.honest[host].state.config.configuration.number
            holders.add("living" if host not in one.dead else "late" if knows else "dead")
    assert holders >= {"dead", "liar", "living"}
    assert any(one.hand_overs[0].holder in {one.peers[host] for host in one.lying} for one in worlds)
    assert any(block.is_closing for one in worlds for block in one.blocks.values())
    assert any(one.forgetful is not None for one in worlds)
    assert all(number_of(block.iteration) <= 1 for one in worlds for block in one.blocks.values())


@pytest.fixture
def no_stop(monkeypatch):
    """Votes for ordinary blocks on a configuration's last round."""
    monkeypatch.setattr(chain, "hands_over", lambda _ancestors: False)
    monkeypatch.setattr(follow, "hands_over", lambda _ancestors: False)


@pytest.fixture
def other_keys():
    """Forget which messages were authentic, before and after a test that changes what that means."""
    world._told.cache_clear()
    yield
    world._told.cache_clear()


@pytest.fixture
def impatient(monkeypatch):
    """A run that stops is found sooner."""
    monkeypatch.setattr(world, "CALM_MS_MAX", 4_000)


def found(shape, seed):
    """What is broken in one world, by a seed that found it."""
    return str(first_violation(range(seed, seed + 1), lambda seed: World(seed=seed, **SHAPES[shape])))


@pytest.mark.parametrize(("shape", "seed"), [(0, 10), (1, 0)])
@pytest.mark.usefixtures("no_stop")
def test_going_on_in_a_configuration_that_ended_is_found_to_fork(shape, seed):
    assert "certificates can be made by which two blocks are final" in found(shape, seed)


@pytest.mark.usefixtures("no_stop")
def test_keys_that_change_with_a_round_in_place_of_a_configuration_are_found(monkeypatch):
    def tip_of(certified):
        one = certified.block
        return Tip(block=block_digest(one), manifest=one.manifest, round=one.round, iteration=one.iteration)

    monkeypatch.setattr(follow, "tip_of", tip_of)
    monkeypatch.setattr(machine, "tip_of", tip_of)
    assert "without a seat" in found(0, 0)


@pytest.mark.usefixtures("other_keys", "impatient")
def test_seats_that_keep_their_first_keys_are_found(monkeypatch):
    monkeypatch.setattr(Configuration, "key", lambda _self, seat: seat)
    assert "no progress" in found(0, 7)


def test_a_holder_that_signs_when_it_holds_no_seat_is_found(monkeypatch):
    monkeypatch.setattr(follow, "_may_sign", lambda state: state.iteration > state.silent_through)
    assert "without a seat" in found(0, 1)


@pytest.mark.usefixtures("impatient")
def test_a_configuration_without_closing_blocks_is_found_to_stop_the_run(monkeypatch):
    monkeypatch.setattr(follow, "hands_over", lambda _ancestors: False)
    assert "no progress" in found(0, 14)


def test_a_closing_block_where_nothing_is_handed_over_is_found_to_put_a_round_in_no_chain(monkeypatch):
    sound_flaw = chain.flaw

    def flaw(state, proposal, ancestors):
        reason = sound_flaw(state, proposal, ancestors)
        return None if str(reason).startswith("closing block") else reason

    monkeypatch.setattr(follow, "flaw", flaw)
    monkeypatch.setattr(machine, "flaw", flaw)
    monkeypatch.setattr(World, "_may_count", lambda self, seats, one: self._is_sound(seats, one.manifest))
    assert "finalised round 2, expected 1" in found(1, 42)


@pytest.mark.usefixtures("impatient")
def test_ignoring_that_a_later_configuration_began_is_found_to_stop_a_host(monkeypatch):
    sound_step = machine.step

    def deaf_step(state, event):
        return (state, ()) if isinstance(event, Overtaken) else sound_step(state, event)

    monkeypatch.setattr(machine, "step", deaf_step)
    assert "no progress" in found(0, 3)


@pytest.mark.usefixtures("impatient")
def test_a_restart_with_the_keys_of_the_beginning_is_found_to_stop_a_host(monkeypatch):
    sound_restore = machine.restore

    def restore(config, *given):
        return sound_restore(replace(config, configuration=FIRST), *given)

    monkeypatch.setattr(machine, "restore", restore)
    assert "no progress" in found(0, 2)
