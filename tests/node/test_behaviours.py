"""Cheats by name: what an operator may write, and from which round on it holds."""

from __future__ import annotations

import pytest

from assay.node.behaviours import CHEATS, FAULTS, NAMES, Behaviour, parse_behaviour
from assay.protocol.errors import ConfigError


@pytest.mark.parametrize("name", NAMES)
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
    assert not set(CHEATS) & set(FAULTS)
    assert len(NAMES) == len(set(NAMES))
