"""Every life of the first iterations is safe, and a broken rule of voting is found by exploring them."""

from __future__ import annotations

import pytest

from assay.protocol.agreement.finality import SETTLED
from assay.verifier.consensus import chain, follow, machine
from assay.verifier.consensus.chain import block_digest
from assay.verifier.consensus.types import Tip
from tests.simulation.explore_agreement import Exploration, Violation

pytestmark = pytest.mark.slow


@pytest.fixture
def both_keys(monkeypatch):
    """The rule that 0051 rejects: keys change from a round on, the iterations go on, nobody stops."""

    def tip_of(certified):
        block = certified.block
        return Tip(
            block=block_digest(block), manifest=block.manifest, round=block.round, iteration=block.iteration
        )

    monkeypatch.setattr(chain, "hands_over", lambda _ancestors: False)
    monkeypatch.setattr(follow, "hands_over", lambda _ancestors: False)
    monkeypatch.setattr(follow, "tip_of", tip_of)


@pytest.mark.parametrize("liar", range(4))
def test_whatever_one_liar_of_four_does_in_one_iteration_no_promise_is_broken(liar):
    found = Exploration(liar, 1).run()
    assert found.worlds > 100 and found.rounds == 1


def test_a_verifier_that_votes_final_in_an_iteration_which_it_gave_up_is_found(monkeypatch):
    monkeypatch.setattr(follow, "may_finalise", lambda state, iteration: iteration < state.iteration)
    with pytest.raises(Violation, match="votes twice"):
        Exploration(1, 1).run()


def test_certificates_that_fewer_than_a_quorum_sign_make_two_blocks_final(monkeypatch):
    monkeypatch.setattr("tests.simulation.explore_agreement.quorum", lambda _count: 2)
    monkeypatch.setattr(machine, "_check_agreement", lambda _state, _vote: None)
    with pytest.raises(Violation, match="two blocks are final"):
        Exploration(1, 1).run()


def test_whatever_one_liar_does_around_a_hand_over_of_its_seat_no_promise_is_broken():
    found = Exploration(0, 1, 0, 1).run()
    assert found.worlds > 30_000 and found.rounds == 2


@pytest.mark.parametrize(("liar", "handed"), [(1, 1), (1, 0), (2, 1)])
def test_on_long_ways_around_a_hand_over_configurations_are_closed_and_no_promise_is_broken(liar, handed):
    exploration = Exploration(liar, 3, handed, 2)
    found = exploration.walk(seed=1, walks=100)
    ends = [link for link in exploration.links if link.manifest.hand_over]
    assert found.rounds == 3 and {link.certificate.vote.iteration == SETTLED for link in ends} == {
        True,
        False,
    }


def test_keys_that_change_with_a_round_and_no_stop_let_both_holders_of_a_seat_into_one_iteration(both_keys):
    with pytest.raises(Violation, match="carries our signature, but not from us"):
        Exploration(0, 3, 2, 2).walk(seed=1, walks=50)
    with pytest.raises(Violation, match="exclude each other"):
        Exploration(0, 3, 1, 2).walk(seed=1, walks=50)


def test_a_configuration_that_does_not_stop_is_found(monkeypatch):
    monkeypatch.setattr(chain, "hands_over", lambda _ancestors: False)
    monkeypatch.setattr(follow, "hands_over", lambda _ancestors: False)
    with pytest.raises(Violation):
        Exploration(3, 2, 0, 2).walk(seed=0, walks=60)
