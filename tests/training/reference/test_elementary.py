"""Elementary functions: as near to the true values as they say, over their whole range."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.training.reference import rows
from assay.training.reference.elementary import cos_sin64, exp64, log64

DRAWN = np.random.default_rng(5)


def ulp_error(found, true, dtype) -> float:
    """Largest distance in units in the last place of the true value."""
    unit = np.spacing(np.abs(true.astype(dtype))).astype(np.float64)
    return float(np.max(np.abs(found.astype(np.float64) - true) / unit))


def test_exp_of_float32_is_within_one_unit():
    x = np.concatenate([np.linspace(-87.33, 88.37, 60_001), DRAWN.uniform(-1, 1, 60_000)]).astype(np.float32)
    found = np.array([rows.exp(one) for one in x])

    assert ulp_error(found, np.exp(x.astype(np.float64)), np.float32) < 1
    assert rows.exp(np.float32(0)) == 1


def test_exp_of_float32_ends_in_zero_and_in_infinity():
    assert rows.exp(np.float32(-87.4)) == rows.exp(np.float32(-3e38)) == 0
    assert rows.exp(np.float32(88.4)) == rows.exp(np.float32(3e38)) == math.inf


def test_erf_is_within_two_units_and_odd():
    x = np.concatenate([np.linspace(-5, 5, 60_001), DRAWN.uniform(-1e-3, 1e-3, 10_000), [0.927734375]])
    x = x.astype(np.float32)
    found = np.array([rows.erf(one) for one in x])

    assert ulp_error(found, np.array([math.erf(one) for one in x.astype(np.float64)]), np.float32) < 2
    assert all(rows.erf(-one) == -rows.erf(one) for one in x[::100])
    assert rows.erf(np.float32(1e30)) == 1


@pytest.mark.parametrize(
    ("function", "true", "x"),
    [
        (exp64, np.exp, DRAWN.uniform(-690, 690, 100_000)),
        (exp64, np.exp, DRAWN.uniform(-1, 1, 100_000)),
        (log64, np.log, np.exp(DRAWN.uniform(-600, 600, 100_000))),
        (log64, np.log, DRAWN.uniform(1, 1e6, 100_000)),
        (lambda x: cos_sin64(x)[0], np.cos, DRAWN.uniform(-4096, 4096, 100_000)),
        (lambda x: cos_sin64(x)[1], np.sin, DRAWN.uniform(-4096, 4096, 100_000)),
    ],
)
def test_functions_of_float64_are_far_within_half_a_unit_of_float32(function, true, x):
    known = true(x)

    assert np.max(np.abs(function(x) - known) / np.maximum(np.abs(known), 1e-12)) < 1e-13
    assert ulp_error(function(x), known, np.float64) < (4 if true in (np.exp, np.log) else math.inf)


@pytest.mark.parametrize(
    ("function", "x"), [(exp64, 701.0), (exp64, math.nan), (log64, 0.0), (log64, -1.0), (cos_sin64, 1e9)]
)
def test_arguments_outside_the_range_are_refused(function, x):
    with pytest.raises(ValueError, match="argument"):
        function(np.array([x]))
