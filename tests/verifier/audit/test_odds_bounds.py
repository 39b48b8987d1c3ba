"""Odds: each formula at the ends of its ranges, and the chance of detection against every course of a run."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from assay.protocol.auditing.draws import audit_rate_ppm
from assay.protocol.params import PPM, AuditSpec
from assay.testing.specs import an_audit_spec
from assay.verifier.audit import odds
from assay.verifier.audit.odds import (
    auditor_pay,
    auditor_stake,
    caught,
    caught_by_rule,
    hit,
    power_over_blocks,
    power_under_collusion,
    saving_deterred,
    stake_against_bribery,
    stake_against_laziness,
    stake_against_sabotage,
    steps_until,
)

HALF = Fraction(1, 2)


def rules(probation: int, floor_ppm: int, **changes: int) -> AuditSpec:
    return an_audit_spec(probation=probation, floor_ppm=floor_ppm, **changes)


def found_in_any_course(audit: AuditSpec, cheat: float, steps: int, power: float, honest: int) -> float:
    """One less every course in which it is not found: in each step it is not drawn, or passes."""
    unseen = 0.0
    for course in itertools.product(("not drawn", "passed"), repeat=steps):
        chance, passed = 1.0, honest
        for what in course:
            rate = audit_rate_ppm(audit, passed) / PPM
            chance *= 1 - rate if what == "not drawn" else rate * (1 - cheat * power)
            passed += what == "passed"
        unseen += chance
    return 1 - unseen


@pytest.mark.parametrize(("probation", "floor_ppm"), [(1, 600_000), (2, 400_000), (3, PPM), (9, 100_000)])
@pytest.mark.parametrize("honest", [0, 1, 2, 3, 50])
@pytest.mark.parametrize(("cheat", "power"), [(0.5, 0.9), (1.0, 1.0), (0.3, 0.0)])
def test_the_rule_finds_a_cheater_as_often_as_all_courses_of_a_run_together_do(
    probation, floor_ppm, honest, cheat, power
):
    audit = rules(probation, floor_ppm)
    for steps in (0, 1, 2, 7):
        expected = found_in_any_course(audit, cheat, steps, power, honest)

        assert caught_by_rule(audit, cheat, steps, power, honest=honest) == pytest.approx(expected, abs=1e-9)


def test_what_is_no_share_or_has_no_floor_is_refused():
    audit = rules(4, 50_000)
    for cheat, power in ((0, 0), (0, 1), (1, 0), (1, 1)):
        caught_by_rule(audit, cheat, 1, power)
    for cheat, power in ((-0.1, 0.5), (1.1, 0.5), (0.5, -0.1), (0.5, 1.1)):
        with pytest.raises(ValueError, match="from 0 to 1"):
            caught_by_rule(audit, cheat, 1, power)
    for floor in (0, -1):
        with pytest.raises(ValueError, match="above 0"):
            caught_by_rule(rules(4, floor), 0.5, 1)
    for name, shares in (("rate", (-HALF, 0, 0)), ("cheat", (0, 2, 0)), ("power", (0, 0, -1))):
        with pytest.raises(ValueError, match=name):
            hit(*map(Fraction, shares))
    assert (
        hit(HALF, HALF, HALF) == Fraction(1, 8)
        and hit(Fraction(1), Fraction(1)) == 1
        and not hit(HALF, Fraction(0))
    )


def test_a_rule_whose_count_has_too_many_states_is_refused(monkeypatch):
    monkeypatch.setattr(odds, "STATES_MAX", 21)

    caught_by_rule(rules(2, 100_000), 0.5, 1)  # at the floor after 20 audits: one more state
    with pytest.raises(ValueError, match="too many states"):
        caught_by_rule(rules(2, 99_000), 0.5, 1)


def test_detection_within_steps_and_steps_until_detection_invert_each_other():
    assert caught(HALF, 3) == pytest.approx(7 / 8) and caught(HALF, 0) == 0
    assert (caught(Fraction(1), 0), caught(Fraction(1), 1), caught(Fraction(0), 9)) == (0, 1, 0)
    chances = Fraction(0), HALF, Fraction(51, 100), Fraction(7, 8)
    assert [steps_until(HALF, chance) for chance in chances] == [0, 1, 2, 3]
    assert steps_until(Fraction(1), Fraction(99, 100)) == 1
    for one, chance in ((Fraction(0), HALF), (HALF, Fraction(1)), (HALF, -HALF), (-HALF, HALF)):
        assert steps_until(one, chance) is None


def test_stakes_and_savings_are_those_of_the_formulas_rounded_to_the_safe_side():
    rate, power = Fraction(1, 10), Fraction(9, 10)

    assert stake_against_laziness(100, rate, power) == math.ceil(2 * 100 * Fraction(100, 9))
    known = {"idle": 3, "in_flight": 5, "safety": Fraction(1)}
    assert stake_against_laziness(7, rate, power, **known) == math.ceil(7 * (Fraction(300, 9) + 5))
    assert saving_deterred(1000, rate, power) == math.floor(1000 / (2 * Fraction(100, 9)))
    assert saving_deterred(1000, rate, power, **known) == math.floor(1000 / (Fraction(300, 9) + 5))
    passed = Fraction(91, 100)
    assert stake_against_sabotage(500, rate, power, steps=1) == math.ceil(500 * passed / (1 - passed))
    for steps, lasting, lies in ((4, 1, 4), (4, 2, 2), (5, 2, 3), (4, 9, 1)):
        stake = stake_against_sabotage(500, rate, power, steps=steps, lasting=lasting)
        assert stake == math.ceil(500 * passed**lies / (1 - passed**lies))


def test_where_nothing_is_ever_found_no_stake_deters():
    for rate, power in ((Fraction(0), HALF), (HALF, Fraction(0))):
        with pytest.raises(ValueError, match="no stake deters"):
            stake_against_laziness(1, rate, power)
        with pytest.raises(ValueError, match="no stake deters"):
            stake_against_sabotage(1, rate, power, steps=1)
        assert saving_deterred(10**9, rate, power) == 0
    with pytest.raises(ValueError, match="no false step"):
        stake_against_sabotage(1, HALF, HALF, steps=0)
    for known in (Fraction(0), -HALF, Fraction(101, 100)):
        with pytest.raises(ValueError, match="known beforehand"):
            auditor_pay(1, known, 0)
        with pytest.raises(ValueError, match="known beforehand"):
            auditor_stake(1, known)
    for second, slash in ((Fraction(0), HALF), (HALF, Fraction(0))):
        with pytest.raises(ValueError, match="deters a bribe"):
            stake_against_bribery(1, second, slash)


def test_an_auditor_earns_its_margin_or_what_blind_passing_would_lose():
    assert auditor_pay(101, Fraction(1), 0) == 122  # 1.2 times, rounded up
    assert auditor_pay(100, Fraction(1, 10), 300) == 1000 - 300
    assert auditor_stake(101, Fraction(1, 3)) == 606 and auditor_stake(100, Fraction(1)) == 200
    assert stake_against_bribery(300, Fraction(1, 5), Fraction(1, 5)) == 300 * 20


def test_the_power_that_colluding_auditors_leave():
    assert power_under_collusion(0, 2, HALF) == 1
    assert power_under_collusion(1, 2, Fraction(1)) == 1  # the second auditor is honest for certain
    assert power_under_collusion(1, 2, Fraction(0)) == HALF
    assert power_under_collusion(2, 2, Fraction(1)) == 0
    assert power_under_collusion(2, 5, HALF) == 1 - Fraction(2, 5) * (HALF + HALF * Fraction(1, 4))
    for bought, seats in ((-1, 4), (5, 4), (1, 1), (0, 1)):
        with pytest.raises(ValueError, match="auditors collude"):
            power_under_collusion(bought, seats, HALF)


def test_the_power_over_blocks_is_the_chance_to_open_a_false_one():
    never = rules(4, 50_000, blocks=2, wide_ppm=0, wide_blocks=9)

    assert power_over_blocks(never, 10, 1) == Fraction(2, 10)
    assert power_over_blocks(never, 10, 2) == 1 - Fraction(8 * 7, 10 * 9)
    assert power_over_blocks(never, 2, 1) == power_over_blocks(never, 1, 1) == 1
    quarter = rules(4, 50_000, blocks=2, wide_ppm=250_000, wide_blocks=9)
    assert power_over_blocks(quarter, 10, 1) == Fraction(3, 4) * Fraction(2, 10) + Fraction(1, 4) * Fraction(
        9, 10
    )
    assert power_over_blocks(quarter, 5, 1) == Fraction(3, 4) * Fraction(2, 5) + Fraction(1, 4)
