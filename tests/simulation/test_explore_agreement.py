"""Every life of the first iterations is safe, and a broken rule of voting is found by exploring them."""

from __future__ import annotations

import pytest

from assay.verifier.consensus import follow, machine
from tests.simulation.explore_agreement import Exploration, Violation


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
