"""Drift: a bias inside the tolerance shows within 40 audits; honest noise does not in a thousand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocol.params import BLOCK_SIZE, Precision
from assay.verifier.audit.drift import BIAS_MAX, LEVEL_MAX, STEP_MAX, Drift, observe
from assay.verifier.audit.limits import POLICIES, Limit
from assay.verifier.audit.tolerance import Grade, Measured, grades

pytestmark = pytest.mark.slow

FP32, BF16 = POLICIES[Precision.FLOAT32], POLICIES[Precision.BFLOAT16]
# What was measured between real code paths: docs/results/tolerance.md.
MEASURED_FP32 = replace(FP32, t1=11_000, t2=55_000, profile=600)
QUIET = {FP32: 6e-7, MEASURED_FP32: 6e-7, BF16: 4.5e-3}
SYSTEMATIC = 0.08  # of the noise: what honest pairs have in common from step to step


def unit(seed: int, count: int) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((count, BLOCK_SIZE))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def an_audit(residual: np.ndarray) -> Measured:
    zeros = np.zeros(len(residual))
    rho = np.linalg.norm(residual, axis=1)
    return Measured(rho, zeros, zeros.astype(bool), zeros, zeros, zeros, residual)


def audits_until_alarm(limit: Limit, *, bias: float, audits: int, blocks: int, opened: int) -> int | None:
    """Of a node whose residual is noise, a little that all honest nodes have, and a bias."""
    rng = np.random.default_rng(7)
    always = unit(1, blocks) * bias + unit(2, blocks) * SYSTEMATIC * QUIET[limit]
    drift = Drift()
    for number in range(audits):
        drawn = np.sort(rng.permutation(blocks)[:opened])
        noise = unit(100 + number, opened) * QUIET[limit] * np.exp(rng.normal(0, 0.05))
        measured = an_audit(always[drawn] + noise)
        assert grades(measured, limit).worst is Grade.PASSED
        drift, is_alarm = observe(drift, measured, drawn.tolist(), limit)
        if is_alarm:
            return number + 1
    return None


@pytest.mark.parametrize(
    ("limit", "blocks"), [(MEASURED_FP32, 2000), (MEASURED_FP32, 100), (FP32, 100), (BF16, 80)]
)
def test_a_bias_of_a_fifth_of_t1_alarms_within_40_audits(limit, blocks):
    found = audits_until_alarm(limit, bias=limit.t1 / 5 * 1e-9, audits=40, blocks=blocks, opened=32)

    assert found is not None


@pytest.mark.parametrize("limit", [MEASURED_FP32, FP32, BF16])
def test_honest_noise_does_not_alarm_in_a_thousand_audits(limit):
    assert audits_until_alarm(limit, bias=0.0, audits=1000, blocks=24, opened=8) is None


def test_one_audit_alone_cannot_alarm():
    loud = an_audit(unit(1, 8) * 1e-2)

    drift, is_alarm = observe(Drift(), loud, range(8), MEASURED_FP32)

    assert not is_alarm and drift.level == STEP_MAX < LEVEL_MAX and drift.bias == pytest.approx(1)


def test_the_same_residual_again_and_again_alarms_and_the_state_before_is_not_changed():
    first, drift = Drift(), Drift()
    for number in range(8):
        drift, is_alarm = observe(drift, an_audit(unit(1, 8)), range(8), BF16)
        assert is_alarm == (drift.bias > BIAS_MAX) == (number >= 4)
    assert not first.sum_J.any() and first.weight == 0


def test_an_audit_without_any_residual_changes_nothing():
    drift, is_alarm = observe(Drift(), an_audit(np.zeros((8, BLOCK_SIZE))), range(8), MEASURED_FP32)

    assert not is_alarm and drift.weight == 0 and drift.bias == 0


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1e75), max_size=12))
def test_any_sizes_give_a_finite_state(sizes):
    drift = Drift()
    for number, size in enumerate(sizes):
        drift, _ = observe(drift, an_audit(unit(number, 2) * size), (3, 9), MEASURED_FP32)

        assert np.isfinite(drift.sum_J).all() and np.isfinite(drift.level) and np.isfinite(drift.bias)
