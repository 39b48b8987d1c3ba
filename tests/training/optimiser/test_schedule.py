"""A rate over a run: what it is at its start, at its end and between, for every curve."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocol.update_rule import PPM, Curve, ScheduleSpec
from assay.training.optimiser.schedule import rate, rate_nano

COSINE = ScheduleSpec(curve=Curve.COSINE, peak_nano=10**6, floor_ppm=0, warmup_rounds=0, decay_rounds=0)
WSD = ScheduleSpec(curve=Curve.WSD, peak_nano=10**6, floor_ppm=100_000, warmup_rounds=3, decay_rounds=4)
CURVES = [(Curve.CONSTANT, 0), (Curve.COSINE, 0), (Curve.WSD, 1), (Curve.WSD, 7)]


@pytest.mark.parametrize(("curve", "decay"), CURVES)
@given(st.integers(1, 2000), st.integers(0, 50), st.integers(0, PPM))
def test_a_rate_climbs_to_its_peak_then_never_rises_and_stays_above_its_floor(
    curve, decay, rounds, warmup, floor_ppm
):
    schedule = ScheduleSpec(
        curve=curve, peak_nano=10**6, floor_ppm=floor_ppm, warmup_rounds=warmup, decay_rounds=decay
    )
    rates = [float(rate(schedule, rounds, r)) for r in range(rounds + 3)]
    rising, falling = rates[: min(warmup, rounds)], rates[warmup:]

    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert max(rates) <= 0.001 + 1e-9
    assert min(falling, default=1) >= 0.001 * floor_ppm / PPM - 1e-9
    if warmup + decay < rounds:
        assert falling[0] == pytest.approx(0.001)


def test_the_learning_rate_is_a_cosine_to_within_what_its_docstring_says():
    schedule = replace(COSINE, peak_nano=10**9)
    for r in range(1001):
        cosine = (1 + math.cos(math.pi * r / 1000)) / 2
        assert abs(float(rate(schedule, 1000, r)) - cosine) < 0.0022


def test_the_first_step_of_a_warm_up_is_not_zero_and_the_step_after_it_is_at_the_peak():
    for schedule in (replace(COSINE, warmup_rounds=4), WSD, replace(COSINE, curve=Curve.CONSTANT)):
        warmup = schedule.warmup_rounds
        rates = [rate_nano(schedule, 100, r) for r in range(warmup + 1)]
        assert rates == [10**6 * (r + 1) // warmup for r in range(warmup)] + [10**6]


def test_a_constant_rate_is_its_peak_to_the_end_and_after_it():
    constant = replace(COSINE, curve=Curve.CONSTANT, floor_ppm=5)

    assert {rate_nano(constant, 10, r) for r in range(20)} == {10**6}


def test_a_cosine_ends_at_its_floor_and_stays_there():
    cosine = replace(COSINE, floor_ppm=250_000)

    assert rate_nano(cosine, 10, 9) > 250_000
    assert [rate_nano(cosine, 10, r) for r in (10, 11, 1000)] == [250_000] * 3


def test_warm_up_stable_and_decay_are_by_hand():
    """Ten rounds: three up, three at the peak, and the last four down to a tenth after the run."""
    rates = [rate_nano(WSD, 10, r) for r in range(12)]

    assert rates == [
        333_333, 666_666, 1_000_000,  # warm-up
        1_000_000, 1_000_000, 1_000_000,  # stable
        1_000_000, 775_000, 550_000, 325_000,  # decay: 900,000 / 4 a round
        100_000, 100_000,  # the run is over
    ]  # fmt: skip


def test_by_steps_of_a_round_a_rate_runs_finer_over_the_same_rounds():
    """Warm-up and decay are given in rounds: four steps a round take four small steps for one."""
    for schedule in (replace(COSINE, warmup_rounds=2), WSD):
        by_step = [float(rate(schedule, 12, r, steps=4, step=s)) for r in range(12) for s in range(4)]
        peak_at = schedule.warmup_rounds * 4
        assert by_step[:peak_at] == sorted(by_step[:peak_at])
        assert by_step[peak_at:] == sorted(by_step[peak_at:], reverse=True)
        assert len(set(by_step[:peak_at])) == peak_at
        for r in range(schedule.warmup_rounds, 12):
            assert by_step[4 * r] == pytest.approx(float(rate(schedule, 12, r)), rel=1e-6)


def test_a_rate_is_one_division_that_ends_in_float32():
    value = rate(replace(COSINE, peak_nano=123_456_789, curve=Curve.CONSTANT), 5, 0)

    assert value.dtype == np.float32
    assert value == np.float32(123_456_789 / 1e9)
