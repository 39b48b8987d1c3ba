"""Cheats by name: what a scenario may say, and from which round on it holds."""

from __future__ import annotations

import pytest

from assay.devnet.faults.behaviours import (
    NODE_BEHAVIOURS,
    NODE_CHEATS,
    NODE_FAULTS,
    VERIFIER_BEHAVIOURS,
    Behaviour,
    parse_behaviour,
)
from assay.protocol.errors import ConfigError


@pytest.mark.parametrize("name", NODE_BEHAVIOURS)
def test_a_name_alone_holds_from_round_6_on(name):
    behaviour = parse_behaviour(name)

    assert behaviour == Behaviour(name, 6)
    assert [behaviour.at(round_id) for round_id in (0, 5, 6, 7)] == ["honest", "honest", name, name]


def test_a_name_with_a_round_holds_from_that_round_on():
    behaviour = parse_behaviour("wrong-data@2")

    assert [behaviour.at(round_id) for round_id in (1, 2)] == ["honest", "wrong-data"]
    assert parse_behaviour("no-feedback@0").at(0) == "no-feedback"


@pytest.mark.parametrize("text", ["", "Honest", "stale", "stale-parameters ", "@3"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_listed(text):
    with pytest.raises(ConfigError, match="stale-parameters"):
        parse_behaviour(text)


@pytest.mark.parametrize("text", ["diverge@x", "diverge@-1", "diverge@1.5", "diverge@2@3", "diverge@ 2"])
def test_a_round_that_is_no_number_is_refused(text):
    with pytest.raises(ConfigError, match="NAME@ROUND"):
        parse_behaviour(text)


def test_no_behaviour_is_two_things_at_once():
    assert not set(NODE_CHEATS) & set(NODE_FAULTS)
    assert set(NODE_BEHAVIOURS) & set(VERIFIER_BEHAVIOURS) == {"honest"}


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("honest", ("honest", False, None)),
        ("diverge@3", ("diverge", False, None)),
        ("wrong-data@2", ("wrong-data@2", True, 2)),
        ("stale-parameters@0", ("stale-parameters@0", True, 1)),  # there are no older parameters in round 0
        ("two-commits@2", ("two-commits@2", True, None)),  # the pair of commits is the evidence
    ],
)
def test_a_label_says_from_which_round_on_an_audit_must_not_pass(text, label):
    found = parse_behaviour(text).label()

    assert (found.behaviour, found.is_cheat, found.false_from) == label
