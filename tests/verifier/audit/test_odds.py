"""Odds: formulas that set stakes and rates say what simulated cheaters live through."""

from __future__ import annotations

import hashlib
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.auditing.draws import audit_rate_ppm, is_drawn, opened_blocks
from assay.protocol.openings import OPENED_BLOCKS_MAX
from assay.protocol.params import PPM, AuditSpec
from assay.protocol.types import Digest, PeerId
from assay.testing.specs import an_audit_spec
from assay.training.layout import layout_of
from assay.training.model.presets import PRESETS
from assay.verifier.audit.intervals import exact_interval, rule_of_three
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

pytestmark = pytest.mark.slow

CHEATERS = 4000
shares = st.fractions(Fraction(1, 1000), 1, max_denominator=1000)
below_one = st.fractions(Fraction(1, 1000), Fraction(999, 1000), max_denominator=1000)


def rules(probation: int = 4, floor_ppm: int = 50_000) -> AuditSpec:
    return an_audit_spec(probation=probation, floor_ppm=floor_ppm, blocks=1)


def found_share(audit: AuditSpec, cheat: float, steps: int, power: float, clean: int) -> float:
    """Of so many cheaters under the protocol's own draws, the share that is found out."""
    found = 0
    dice = random.Random(5)
    for number in range(CHEATERS):
        node, count = PeerId(hashlib.sha256(b"cheater %d" % number).digest()), clean
        for step in range(steps):
            seed = Digest(hashlib.sha256(b"round %d %d" % (step, number % 7)).digest())
            if not is_drawn(seed, node, audit_rate_ppm(audit, count)):
                continue
            if dice.random() < cheat and dice.random() < power:
                found += 1
                break
            count += 1
    return found / CHEATERS


@pytest.mark.parametrize(
    ("cheat", "steps", "power", "clean"),
    [(0.1, 200, 1.0, 10_000), (0.1, 100, 0.8, 10_000), (1.0, 20, 1.0, 10_000), (0.5, 40, 0.6, 80)],
)
def test_cheaters_at_the_floor_are_found_out_as_often_as_the_formula_says(cheat, steps, power, clean):
    one = hit(Fraction(1, 20), Fraction(cheat).limit_denominator(), Fraction(power).limit_denominator())

    measured = found_share(rules(), cheat, steps, power, clean)

    assert abs(measured - caught(one, steps)) < 0.02
    assert abs(measured - caught_by_rule(rules(), cheat, steps, power, honest=clean)) < 0.02


@pytest.mark.parametrize(
    ("cheat", "steps", "power", "probation"),
    [(0.1, 60, 1.0, 4), (0.3, 10, 0.5, 3), (0.02, 300, 1.0, 2), (0.05, 40, 1.0, 10)],
)
def test_cheaters_on_probation_and_after_are_found_out_as_often_as_the_rule_says(
    cheat, steps, power, probation
):
    audit = rules(probation)

    measured = found_share(audit, cheat, steps, power, 0)

    assert abs(measured - caught_by_rule(audit, cheat, steps, power)) < 0.02


def test_the_figures_of_the_note_come_out():
    for rate, cheat, steps, percent in (
        (1, 1, 1000, 9), (2, 1, 1000, 17), (5, 1, 1000, 38), (10, 1, 1000, 61),
        (5, 10, 100, 38), (1, 100, 100, 62), (2, 100, 100, 85), (5, 1, 10_000, 99),
    ):  # fmt: skip
        one = hit(Fraction(rate, 100), Fraction(cheat, 100), Fraction(95, 100))
        assert round(100 * caught(one, steps)) == percent
    one = hit(Fraction(5, 100), Fraction(1, 10), Fraction(95, 100))
    assert steps_until(one, Fraction(99, 100)) == 968
    assert stake_against_laziness(100, Fraction(5, 100), Fraction(95, 100), safety=Fraction(1)) == 2106
    assert stake_against_laziness(100, Fraction(2, 100), Fraction(95, 100), safety=Fraction(1)) == 5264
    assert stake_against_sabotage(100, Fraction(5, 100), Fraction(95, 100), steps=1) == 2006
    assert stake_against_sabotage(100, Fraction(5, 100), Fraction(95, 100), steps=50) == 10
    assert float(power_under_collusion(1, 4, Fraction(1, 5))) == pytest.approx(0.8)
    assert float(power_under_collusion(2, 7, Fraction(1, 5))) == pytest.approx(0.7619, abs=1e-4)
    assert stake_against_bribery(500, Fraction(1, 5), Fraction(1, 5)) == 10_000


@pytest.mark.parametrize(("bought", "seats"), [(0, 4), (1, 4), (2, 7), (5, 16), (7, 7)])
def test_the_power_left_by_colluding_auditors_is_that_of_draws_without_replacement(bought, seats):
    dice, second, draws = random.Random(3), Fraction(1, 5), 20_000
    found = 0
    for _ in range(draws):
        wanted = 2 if dice.random() < second else 1
        found += any(one >= bought for one in dice.sample(range(seats), wanted))
    low, high = exact_interval(found, draws)

    assert low <= float(power_under_collusion(bought, seats, second)) <= high


@pytest.mark.parametrize(("lasting", "lies"), [(1, 50), (64, 1), (25, 2), (49, 2)])
def test_a_false_state_that_lasts_needs_fewer_lies(lasting, lies):
    rate, power = Fraction(1, 20), Fraction(19, 20)

    stake = stake_against_sabotage(10**6, rate, power, steps=50, lasting=lasting)

    assert stake == stake_against_sabotage(10**6, rate, power, steps=lies)


def test_a_lie_that_spares_many_steps_takes_that_much_more_stake():
    rate, power = Fraction(1, 20), Fraction(19, 20)
    once = stake_against_laziness(10**6, rate, power, safety=Fraction(1))

    assert stake_against_laziness(10**6, rate, power, idle=64, safety=Fraction(1)) == pytest.approx(64 * once)
    assert saving_deterred(64 * once, rate, power, idle=64, safety=Fraction(1)) == 10**6


@given(saved=st.integers(1, 10**12), rate=shares, power=shares, late=st.integers(0, 100))
def test_the_stake_against_laziness_is_the_least_that_deters(saved, rate, power, late):
    stake = stake_against_laziness(saved, rate, power, in_flight=late, safety=Fraction(1))

    # Cheating until found out: c a step for 1 / (p d) steps and those in flight, for the stake.
    gain = saved * (1 / (rate * power) + late)
    assert gain <= stake < gain + 1
    assert saving_deterred(stake, rate, power, in_flight=late, safety=Fraction(1)) >= saved
    assert saving_deterred(stake - 1, rate, power, in_flight=late, safety=Fraction(1)) < saved


@given(gain=st.integers(1, 10**12), rate=below_one, power=below_one, steps=st.integers(1, 40))
def test_the_stake_against_sabotage_is_the_least_that_deters(gain, rate, power, steps):
    stake = stake_against_sabotage(gain, rate, power, steps=steps)

    passed = (1 - rate * power) ** steps
    assert gain * passed <= stake * (1 - passed)
    assert gain * passed > (stake - 1) * (1 - passed)


@given(cost=st.integers(1, 10**9), known=shares, stake=st.integers(0, 10**12))
def test_at_the_pay_it_names_an_auditor_does_better_by_computing(cost, known, stake):
    pay = auditor_pay(cost, known, stake)

    assert pay - cost >= pay * (1 - known) - known * stake
    assert 5 * pay >= 6 * cost
    less = pay - 1
    assert less - cost < less * (1 - known) - known * stake or 5 * less < 6 * cost


@given(cost=st.integers(1, 10**9), known=shares)
def test_an_auditor_with_the_stake_it_names_computes_for_no_more_than_its_margin(cost, known):
    assert auditor_pay(cost, known, auditor_stake(cost, known)) == -(-6 * cost // 5)


@given(rate=shares, cheat=shares, steps=st.integers(0, 60))
def test_more_steps_more_audits_and_more_lies_are_never_safer_for_a_liar(rate, cheat, steps):
    one = hit(rate, cheat)
    assert 0 <= caught(one, steps) <= caught(one, steps + 1) <= 1
    audit = rules(probation=2, floor_ppm=max(int(rate * PPM), 20_000))
    here = caught_by_rule(audit, float(cheat), steps)
    assert here <= caught_by_rule(audit, float(cheat), steps + 1) + 1e-12
    assert here <= caught_by_rule(audit, min(float(cheat) * 1.5, 1.0), steps) + 1e-12
    assert here >= caught(hit(Fraction(audit.floor_ppm, PPM), cheat), steps) - 1e-9  # the floor is the least


def test_what_cannot_be_deterred_is_said_and_not_computed():
    for impossible in (
        lambda: stake_against_laziness(1, Fraction(0), Fraction(1)),
        lambda: stake_against_sabotage(1, Fraction(1, 2), Fraction(0), steps=1),
        lambda: auditor_pay(1, Fraction(0), 10**9),
        lambda: auditor_stake(1, Fraction(0)),
        lambda: hit(Fraction(2), Fraction(1)),
    ):
        with pytest.raises(ValueError):
            impossible()
    assert saving_deterred(10**9, Fraction(0), Fraction(1)) == 0
    assert steps_until(Fraction(0), Fraction(1, 2)) is None


@pytest.mark.parametrize(
    ("found", "trials", "low", "high"),
    [(0, 10, 0.0, 0.3085), (10, 10, 0.6915, 1.0), (5, 10, 0.1871, 0.8129), (1, 100, 0.000253, 0.05446)],
)
def test_exact_intervals_are_those_of_the_tables(found, trials, low, high):
    assert exact_interval(found, trials) == pytest.approx((low, high), abs=2e-4)


def test_nothing_in_n_trials_is_about_three_in_n():
    assert rule_of_three(300) == pytest.approx(3 / 300, rel=0.01)
    assert rule_of_three(0) == 1.0


@pytest.mark.parametrize(("false", "wide"), [(1, 0), (1, 100_000), (5, 100_000), (40, 30_000)])
def test_false_blocks_are_opened_as_often_as_the_formula_says(false: int, wide: int):
    audit, blocks, tries = an_audit_spec(blocks=6, wide_ppm=wide, wide_blocks=150), 200, 3000
    poisoned = set(range(17, 17 + false))
    found = sum(
        not poisoned.isdisjoint(
            opened_blocks(seed, PeerId(bytes(32)), audit, audit.floor_ppm, blocks, range(blocks))
        )
        for seed in (Digest(hashlib.sha256(b"opened %d" % n).digest()) for n in range(tries))
    )
    low, high = exact_interval(found, tries, 0.999)

    assert low <= power_over_blocks(audit, blocks, false) <= high


def test_the_page_of_odds_says_what_the_formula_gives_for_every_size():
    page = (Path(__file__).parents[3] / "docs" / "odds.md").read_text()
    for name in ("gpt-1m", "gpt-15m", "gpt-125m", "llama-1b"):
        blocks = layout_of(PRESETS[name]).blocks
        row = [f"{name} | {blocks:,}"]
        for wide_ppm, wide in ((0, 1), (31_250, 4882), (31_250, OPENED_BLOCKS_MAX)):
            audit = an_audit_spec(blocks=64, wide_ppm=wide_ppm, wide_blocks=wide)
            row += [f"{float(20 / power_over_blocks(audit, blocks, false)):,.0f}" for false in (1, 16)]

        assert f"| {' | '.join(row)} |" in page
