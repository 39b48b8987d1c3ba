"""Whole networks of verifiers keep their promises, and breaking a rule breaks a promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

import assay.protocol.agreement.quorum
from assay.protocol.agreement.finality import SETTLED
from assay.protocol.messages import Proposal, VoteKind
from assay.verifier.consensus import follow as consensus_follow
from assay.verifier.consensus import machine as consensus
from assay.verifier.consensus.chain import is_certified
from assay.verifier.consensus.types import Persist, Received
from tests.simulation import world
from tests.simulation.world import World, first_violation

pytestmark = pytest.mark.slow

SHAPES = [
    {},
    {"crash": 0.02},
    {"verifiers": 7, "liars": 2},
    {"drop": 0.5, "duplicate": 0.3},
    {"verifiers": 5, "liars": 1, "storm_ms": 4_000},
    {"verifiers": 1, "liars": 0, "crash": 0.02},
]


@pytest.fixture
def broken_rules():
    """Forget which messages were authentic, before and after a test that changes what that means."""
    world._told.cache_clear()
    yield
    world._told.cache_clear()


@pytest.mark.parametrize("seed", range(240))
def test_the_honest_agree_forget_nothing_accuse_nobody_honest_and_go_on_after_a_storm(seed):
    shape = SHAPES[seed % len(SHAPES)]
    World(seed=seed, **shape).run()


def test_the_same_seed_gives_the_same_history():
    first, again, other = (World(seed=seed).run() for seed in (7, 7, 8))
    assert first.network.trace == again.network.trace
    assert first.final == again.final
    assert first.network.trace != other.network.trace


def test_liars_are_caught_with_evidence():
    accused = [bool(World(seed=seed).run().accused) for seed in range(10)]
    assert sum(accused) >= 5


def test_storms_do_what_they_say():
    worlds = [World(seed=seed, crash=0.02).run() for seed in range(5)]
    assert all(one.crashes for one in worlds)
    certificates = [link.certificate for one in worlds for host in one.honest.values() for link in host.chain]
    assert any(one.vote.iteration == 0 for one in certificates), "no ancestor was ever settled"


def test_leaders_pass_their_turns_and_one_that_proposes_after_it_is_found_out(monkeypatch):
    assert sum(World(seed=seed).run().passes for seed in range(5)) >= 5

    sound_pass = consensus_follow.pass_turn
    monkeypatch.setattr(
        consensus, "pass_turn", lambda state, out: replace(sound_pass(state, out), drafts=state.drafts)
    )
    assert "proposed twice" in str(first_violation(range(20), lambda seed: World(seed=seed)))


@pytest.mark.usefixtures("broken_rules")
def test_a_quorum_of_half_is_found_out(monkeypatch):
    monkeypatch.setattr(assay.protocol.agreement.quorum, "quorum", lambda count: count // 2)
    monkeypatch.setattr(consensus, "quorum", lambda count: count // 2)
    assert first_violation(range(20), lambda seed: World(seed=seed)) is not None


@pytest.mark.usefixtures("broken_rules")
def test_a_quorum_of_half_finalises_two_blocks_in_one_round(monkeypatch):
    monkeypatch.setattr(assay.protocol.agreement.quorum, "quorum", lambda count: count // 2)
    monkeypatch.setattr(consensus, "quorum", lambda count: count // 2)
    monkeypatch.setattr(consensus, "_check_agreement", lambda state, vote: None)
    found = [first_violation(range(seed, seed + 1), lambda seed: World(seed=seed)) for seed in range(20)]
    assert any("two blocks are final" in str(violation) for violation in found)


def test_voting_for_two_blocks_in_one_iteration_is_found_out(monkeypatch):
    sound_step = consensus.step

    def forgetful_step(state, event):
        """Every proposal is the first one."""
        if isinstance(event, Received) and isinstance(event.message, Proposal):
            number = event.message.block.iteration
            own = {key: vote for key, vote in state.own.items() if key != (number, VoteKind.NOTARISE)}
            proposals = {key: one for key, one in state.proposals.items() if key != number}
            state = replace(state, own=own, proposals=proposals, examining=None)
        return sound_step(state, event)

    monkeypatch.setattr(consensus, "step", forgetful_step)
    assert first_violation(range(20), lambda seed: World(seed=seed)) is not None


def test_finalising_what_one_gave_up_is_found_out(monkeypatch):
    def may_finalise(state, iteration):
        is_past = state.tip.iteration < iteration < state.iteration
        return is_past and (iteration, VoteKind.FINALISE) not in state.own

    monkeypatch.setattr(consensus_follow, "may_finalise", may_finalise)
    assert first_violation(range(20), lambda seed: World(seed=seed)) is not None


def test_giving_up_what_one_finalised_is_found_out(monkeypatch):
    monkeypatch.setattr(consensus_follow, "may_give_up", lambda state: True)
    sound_step = consensus.step

    def late_step(state, event):
        """After FINALISE it goes back one iteration, as if it had not noticed that it ended."""
        said = [number for number, kind in state.own if kind is VoteKind.FINALISE]
        if said and not isinstance(event, Received):
            state = replace(state, iteration=max(said), certificates={})
        return sound_step(state, event)

    monkeypatch.setattr(consensus, "step", late_step)
    assert first_violation(range(20), lambda seed: World(seed=seed)) is not None


def test_settling_what_is_only_notarised_is_found_out(monkeypatch):
    sound_finalise = consensus_follow._finalise

    def eager_finalise(state, out):
        for name, proposal in state.bodies.items():
            if is_certified(state, proposal.block) and name not in state.vouched:
                state = consensus_follow._vote(state, SETTLED, VoteKind.FINALISE, name, out)
        return sound_finalise(state, out)

    monkeypatch.setattr(consensus_follow, "_finalise", eager_finalise)
    assert "two blocks are final" in str(first_violation(range(100), lambda seed: World(seed=seed)))


def test_restarting_without_the_journal_is_found_out():
    assert first_violation(range(20), lambda seed: World(seed=seed, crash=0.02, journal=False)) is not None


def test_signing_before_it_is_durable_is_found_out(monkeypatch):
    sound_step = consensus.step

    def hasty_step(state, event):
        state, effects = sound_step(state, event)
        return state, tuple(sorted(effects, key=lambda one: isinstance(one, Persist)))

    monkeypatch.setattr(consensus, "step", hasty_step)
    assert first_violation(range(3), lambda seed: World(seed=seed)) is not None


def test_never_resending_is_found_out(monkeypatch):
    monkeypatch.setattr(consensus_follow, "_resend", lambda state, out: None)
    assert first_violation(range(20), lambda seed: World(seed=seed)) is not None
