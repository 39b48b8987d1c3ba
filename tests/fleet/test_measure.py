"""Pay is measured over a window, falls while a run stands still, and takes back what was found unpaid."""

from __future__ import annotations

from assay.fleet.measure import Sample, measured_pay, with_sample

WINDOW_S = 1_800
STEP_MICRO = 5 * 10**6


def sampled(*counts: tuple[int, int]) -> tuple[Sample, ...]:
    found: tuple[Sample, ...] = ()
    for at, counted in counts:
        found = with_sample(found, at, counted, WINDOW_S)
    return found


def test_nothing_is_measured_before_a_window_has_passed():
    samples = sampled((1_000, 10))

    assert measured_pay((), 10**6, 10, STEP_MICRO, WINDOW_S) is None
    assert measured_pay(samples, 1_000 + WINDOW_S - 1, 99, STEP_MICRO, WINDOW_S) is None
    assert measured_pay(samples, 1_000 + WINDOW_S, 99, STEP_MICRO, WINDOW_S) == 89 * 5 * 2


def test_a_run_that_stands_still_pays_nothing_after_a_window():
    samples = sampled(*((at, 100) for at in range(0, 2 * WINDOW_S, 60)))

    assert measured_pay(samples, 2 * WINDOW_S, 100, STEP_MICRO, WINDOW_S) == 0


def test_steps_that_are_found_unpaid_are_taken_back_and_never_below_nothing():
    samples = sampled((0, 100), (900, 150))

    assert measured_pay(samples, 1_800, 120, STEP_MICRO, WINDOW_S) == 20 * 5 * 2
    assert measured_pay(samples, 1_800, 90, STEP_MICRO, WINDOW_S) == 0


def test_the_window_moves_on_and_what_is_kept_of_it_is_bounded():
    samples = sampled(*((at, at) for at in range(20 * WINDOW_S)))

    assert len(samples) <= 64
    now = 20 * WINDOW_S
    assert WINDOW_S <= now - samples[0].at <= WINDOW_S * 9 // 8
    assert measured_pay(samples, now, now, 10**6, WINDOW_S) == 3_600


def test_samples_are_a_window_by_32_apart_and_the_oldest_is_just_older_than_the_window():
    assert sampled((0, 1), (55, 2)) == (Sample(0, 1),)
    assert sampled((0, 1), (56, 2)) == (Sample(0, 1), Sample(56, 2))
    assert sampled((0, 1), (100, 2), (1_899, 3))[0] == Sample(0, 1)
    assert sampled((0, 1), (100, 2), (1_900, 3)) == (Sample(100, 2), Sample(1_900, 3))
    assert sampled((0, 1), (9_000, 2)) == (Sample(0, 1), Sample(9_000, 2))
