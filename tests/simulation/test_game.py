"""Game: no strategy pays against the default numbers, and each defence that is taken away lets one win."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.cli.audit.game import default_market
from assay.protocol.types import NO_DIGEST
from assay.simulation.game import (
    AUDITOR_STRATEGIES,
    OPERATOR_STRATEGIES,
    AuditorStrategy,
    Market,
    OperatorStrategy,
    play_all,
    play_auditor,
    play_operator,
)

EPOCHS = 300
MARKET = default_market(0)


def operator(name: str, market: Market, epochs: int = EPOCHS):
    return play_operator(next(one for one in OPERATOR_STRATEGIES if one.name == name), market, epochs, 0)


@pytest.mark.slow
def test_no_strategy_pays_against_the_default_numbers():
    assert [one.name for one in play_all(MARKET, 3_000, 1) if one.is_profitable] == []


def test_honesty_earns_what_it_is_said_to():
    assert play_operator(OperatorStrategy(name="honest", lies=lambda *_: False), MARKET, 50, 0).advantage == 0
    honest = AuditorStrategy(name="honest", computes=True)
    assert play_auditor(honest, MARKET, 50, 0).advantage == 0


def test_the_same_seed_plays_the_same_game():
    one = OPERATOR_STRATEGIES[0]
    assert play_operator(one, MARKET, 20, 3) == play_operator(one, MARKET, 20, 3)
    assert play_operator(one, MARKET, 20, 3) != play_operator(one, MARKET, 20, 4)


def test_without_stakes_idleness_pays():
    assert operator("no work at all", MARKET).is_profitable is False
    unstaked = replace(MARKET, operator_stake=0)
    assert operator("no work once the rate is at its floor", unstaked).is_profitable


def test_passing_unseen_pays_only_without_second_looks_and_known_answers():
    blind, alone = AUDITOR_STRATEGIES[0], replace(MARKET.audit, replication_ppm=0)
    assert play_auditor(blind, MARKET, EPOCHS, 0).is_profitable is False
    known = replace(MARKET, audit=alone, known_ppm=1000)
    assert play_auditor(blind, known, EPOCHS * 10, 0).is_profitable is False
    assert play_auditor(blind, replace(known, known_ppm=0), EPOCHS, 0).is_profitable
    # Without limits nobody can name a class that the node's own sketch does not bind.
    bound = replace(known, known_ppm=0, audit=replace(alone, limits=NO_DIGEST))
    assert play_auditor(blind, bound, EPOCHS, 0).is_profitable is False


def test_an_auditor_with_a_small_stake_is_bribed_and_the_bribe_hides_the_lies():
    cheap = replace(MARKET, verifier_stake=MARKET.verifier_stake // 10)
    name = "no work, half of the loss for a bribe"
    honest, bribed = operator(name, MARKET), operator(name, cheap)

    assert honest.found > 0.9 * honest.lies
    assert bribed.found < 0.3 * bribed.lies


def test_a_gain_outside_that_exceeds_the_stake_makes_sabotage_pay():
    name = "puppet, once the rate is at its floor"
    assert operator(name, MARKET).is_profitable is False
    assert operator(name, replace(MARKET, outside=MARKET.operator_stake)).is_profitable


def test_a_state_that_lasts_longer_needs_fewer_lies():
    name = "puppet: one false state in its life"
    free = replace(MARKET, operator_stake=0)
    short, long = (operator(name, replace(free, lasting=steps)) for steps in (8, 64))

    assert short.lies > 3 * long.lies
