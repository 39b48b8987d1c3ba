"""Moments as an opening shows them: all of them, but Muon's second only where Adam uses it."""

from __future__ import annotations

import numpy as np
import pytest

from assay.testing.specs import a_rule
from assay.training.layout import Layout, layout_of
from assay.training.model.presets import PRESETS
from assay.training.optimiser.inner import fresh, inner_step
from assay.training.optimiser.matrices import check_start, moment_counts, moments_of, rest_of, shown_moments
from assay.verifier.audit.messages import opening_bytes_max

LAYOUT = layout_of(PRESETS["llama-130k"])
METHODS = {"diloco": 2, "muloco": 2, "fedavg": 0}


@pytest.mark.parametrize("method", METHODS)
def test_moments_of_real_steps_are_shown_and_read_whole(method):
    local, rng = a_rule(method).local, np.random.default_rng(0)
    theta_P = rng.standard_normal(LAYOUT.parameters).astype(np.float32)
    state = fresh(local, theta_P)
    for _ in range(2):
        slope_P = rng.standard_normal(LAYOUT.parameters).astype(np.float32)
        state = inner_step(local, LAYOUT, np.float32(1e-3), state, theta_P, slope_P)

    body = shown_moments(local, LAYOUT, state.moments)
    read = moments_of(local, LAYOUT, np.frombuffer(body, "<f4").astype(np.float32))

    assert len(read) == METHODS[method] == len(moment_counts(local, LAYOUT))
    assert len(body) == 4 * sum(moment_counts(local, LAYOUT))
    for mine, theirs in zip(state.moments, read, strict=True):
        assert mine.any() and np.array_equal(mine, theirs)


def test_muons_second_moment_is_shown_of_the_rest_alone_and_zero_in_matrices():
    local, is_rest_P = a_rule("muloco").local, rest_of(LAYOUT)
    rest = int(is_rest_P.sum())
    assert 0 < rest < LAYOUT.parameters
    ones = np.ones(LAYOUT.parameters, np.float32)

    body = shown_moments(local, LAYOUT, (ones, ones))
    first_P, second_P = moments_of(local, LAYOUT, np.frombuffer(body, "<f4").astype(np.float32))

    assert len(body) == 4 * (LAYOUT.parameters + rest)
    assert first_P.all() and np.array_equal(second_P != 0, is_rest_P)


@pytest.mark.parametrize(
    ("method", "choices", "start"),
    [
        ("fedavg", {"steps": 5}, 0),
        ("fedavg", {}, LAYOUT.parameters),
        ("muloco", {"keeps_moments": False}, 0),
        ("muloco", {}, sum(moment_counts(a_rule("muloco").local, LAYOUT))),
        ("muloco", {"segment": 1}, LAYOUT.parameters + sum(moment_counts(a_rule("muloco").local, LAYOUT))),
        ("diloco", {}, 3 * LAYOUT.parameters),
        ("streaming-diloco", {}, 3 * LAYOUT.parameters),
    ],
)
def test_the_bound_of_an_opening_counts_what_a_segments_start_has_to_show(method, choices, start):
    rule = a_rule(method, **choices)

    assert opening_bytes_max(rule, LAYOUT, 0) // 4096 == (4 * start + 3 * 4096) // 4096


@pytest.mark.parametrize(
    ("method", "choices", "most"),
    [
        ("diloco", {"segment": 5}, 2**27),  # parameters and two moments
        ("diloco", {"segment": 10}, 2**27),  # two moments, in twice the room
        ("muloco", {}, 2**28),  # of parameters that all are matrices, one moment
        ("muloco", {"keeps_moments": False}, 2**40),
        ("fedavg", {}, 2**27),
        ("fedavg", {"segment": 10}, 2**40),
        ("demo", {}, 2**40),
    ],
)
def test_a_start_is_refused_from_the_first_parameter_on_that_an_opening_has_no_room_for(
    method, choices, most
):
    rule = a_rule(method, **choices)

    check_start(rule, Layout(("all",), ((most, 1),)))
    if most < 2**40:
        with pytest.raises(ValueError, match=r"would show .* at most .* expected"):
            check_start(rule, Layout(("all",), ((most + 1, 1),)))
